"""This module holds the observers, which log, evaluate, save checkpoints and diagnose after each round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from grpo.config import CheckpointConfig, EvaluationConfig
from grpo.dynamics.findings import Finding
from grpo.evaluation.held_out import score
from grpo.interfaces import Collective, Learner, Tracker
from grpo.run.checkpoints import CheckpointStore
from grpo.run.first_rank import on_first
from grpo.telemetry import COUNTS, REASON, WENT_BACK, JsonLines, RunDisplay, flatten, peak_memory, remarks
from grpo.types import FinishedRound, Progress, RoundPlan, ScoredGroup, Verdict


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """This type bundles what rank 0 writes to, and closes it at the end of a `with`.

    If the `with` ends by an exception, the trackers mark the run as failed.
    """

    tracker: Tracker
    prompts: JsonLines
    display: RunDisplay

    def __enter__(self) -> RecordFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.display.close()
        self.prompts.close()
        self.tracker.close(failed=kind is not None)


class Recorder:
    """The recorder logs each round's metrics, samples and prompt ids, gathered from all ranks.

    The first rank writes them; `files` is None on the others. `peak_tflops` is the peak of one device, from which the
    model FLOPs utilization (MFU) is computed, or None if it is not known.
    """

    def __init__(
        self,
        collective: Collective,
        files: RecordFiles | None,
        samples_per_round: int,
        peak_tflops: float | None = None,
    ):
        self._collective = collective
        self._files = files
        self._samples_per_round = samples_per_round
        self._plan: RoundPlan | None = None
        self._remarked: set[str] = set()
        self._peak_tflops = peak_tflops and peak_tflops * collective.world_size

    def after_round(self, finished: FinishedRound) -> None:
        sampled = finished.collected.sampled
        ids = [scored.group.prompt.prompt_id for scored in sampled]
        correct = [scored.count for scored in sampled]
        versions = [(scored.group.oldest_version, scored.group.newest_version) for scored in sampled]
        samples = _samples(sampled[: self._samples_per_round])
        shares = self._collective.gather((ids, correct, versions, samples, peak_memory()))
        on_first(self._collective, lambda: self._write(finished, shares))

    def _write(self, finished: FinishedRound, shares: Sequence[tuple]) -> None:
        """Writes what the ranks gathered, on the first rank. `shares` holds one tuple for each rank."""
        statistics, progress, verdict = finished.statistics, finished.progress, finished.verdict
        ids, counts_by_rank, versions, samples, memory = zip(*shares, strict=True)
        metrics = flatten(statistics, self._peak_tflops) | {
            name: max(peaks[name] for peaks in memory) for name in memory[0]
        }
        counts = [[*pair, groups] for pair, groups in sorted(statistics.reward_counts.items())]
        row = metrics | {COUNTS: counts, REASON: verdict.reason, WENT_BACK: float(verdict.go_back)}
        self._files.tracker.log(row, statistics.step)
        self._files.tracker.samples(list(chain(*samples))[: self._samples_per_round], statistics.step)
        row = {
            "round": statistics.round_index,
            "cursor": progress.cursor,
            "prompt_ids": list(chain(*ids)),
            "correct": list(chain(*counts_by_rank)),
            "versions": list(chain(*versions)),
        }
        self._files.prompts.write(row, statistics.step)
        self._files.display.round(statistics.step, metrics)
        for name, sentence in remarks(metrics).items():
            if name not in self._remarked:
                self._remarked.add(name)
                self._files.display.note(f"step {statistics.step}: {sentence}")
        if progress.plan != (self._plan or statistics.plan) or verdict.go_back:
            self._files.display.note(f"step {statistics.step}: {verdict.reason}")
        self._plan = progress.plan


def _samples(groups: Sequence[ScoredGroup]) -> list[dict[str, Any]]:
    """Returns a row for the first completion of each group."""
    rows = []
    for scored in groups:
        completion, grade, problem = scored.group.completions[0], scored.grades[0], scored.group.prompt.problem
        rows.append(
            {
                "prompt_id": scored.group.prompt.prompt_id,
                "question": problem.question,
                "answer": problem.answer,
                "completion": completion.text,
                "reward": grade.reward,
                "correct": grade.correct,
                "outcome": grade.outcome,
                "tokens": len(completion.token_ids),
                "versions": completion.versions,
            }
        )
    return rows


class Evaluator:
    """The evaluator runs a held-out evaluation every `evaluation.every_rounds` rounds and keeps the results.

    They are kept in the run's files, and by optimizer step in `results`.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        evaluate: Callable[[], dict[str, Any]],
        record: Callable[[dict[str, Any]], None],
        earlier: Iterable[Mapping[str, Any]] = (),
        is_over: Callable[[Progress, Verdict], bool] = lambda progress, verdict: False,
    ):
        """Takes `evaluate`, which runs an evaluation, and `record`, which writes its result.

        `earlier` are the results so far of a run that is resumed. `is_over` tells whether a round was the last, after
        which the run is always evaluated.
        """
        self._config = config
        self._evaluate = evaluate
        self._record = record
        self._is_over = is_over
        self.results: dict[int, Mapping[str, Any]] = {result["step"]: result for result in earlier}

    def after_round(self, finished: FinishedRound) -> None:
        progress = finished.progress
        due = bool(self._config.every_rounds) and progress.round_index % self._config.every_rounds == 0
        if due or self._is_over(progress, finished.verdict):
            self.at(progress.step)

    def at(self, step: int) -> Mapping[str, Any] | None:
        """Returns the evaluation of step `step`, and runs it first if there is none yet.

        Returns None when no evaluation is configured.
        """
        if self._config.num_problems and step not in self.results:
            self.results[step] = self._evaluate()
            self._record(self.results[step])
        return self.results.get(step)

    def score(self, step: int) -> float | None:
        """Returns the score of the policy of `step` (see `grpo.evaluation.held_out.score`), or None if it was not
        evaluated."""
        result = self.results.get(step)
        return score(result) if result else None

    def best_before(self, step: int) -> float:
        """Returns the highest score of the steps before `step`, or −∞ if there is none."""
        return max((self.score(earlier) for earlier in self.results if earlier < step), default=float("-inf"))


# Between two diagnoses lies at least this share of the rounds so far. A diagnosis reads the whole log, so at a fixed
# distance a long run would spend more and more of its time on diagnoses.
WATCH_FRACTION = 0.02


class Watch:
    """The watch diagnoses the run's log every `every` rounds, and reports each finding once.

    In a long run the distance between two diagnoses grows (see `WATCH_FRACTION`).
    """

    def __init__(self, every: int, findings: Callable[[], Iterable[Finding]], tell: Callable[[str], None]):
        """Takes `findings`, which diagnoses the log as it is now on the first rank, and `tell`, which shows a line.

        With `every` 0 the log is never diagnosed.
        """
        self._every = every
        self._findings = findings
        self._tell = tell
        self._told: set[tuple[str, str]] = set()
        self._not_before = 0

    def after_round(self, finished: FinishedRound) -> None:
        step, index = finished.progress.step, finished.progress.round_index
        if not self._every or index % self._every or index < self._not_before:
            return
        self._not_before = index * (1 + WATCH_FRACTION)
        for finding in self._findings():
            if (finding.name, finding.severity) not in self._told:
                self._told.add((finding.name, finding.severity))
                line = f"{finding.severity}: {finding.name}: {finding.evidence} ⇒ {finding.remedy}"
                self._tell(f"step {step}: {line}")


class Checkpointer:
    """The checkpointer saves every `checkpoint.every_rounds` rounds.

    It also saves after an evaluation that is better than all earlier ones, and after the run has gone back.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        store: CheckpointStore,
        learner: Learner,
        run_config: Mapping[str, Any],
        evaluator: Evaluator,
    ):
        self._config = config
        self._store = store
        self._learner = learner
        self._run_config = run_config
        self._evaluator = evaluator
        self._saved_step = -1

    def after_round(self, finished: FinishedRound) -> None:
        progress, verdict = finished.progress, finished.verdict
        score = self._evaluator.score(progress.step)
        improved = score is not None and score > self._evaluator.best_before(progress.step)
        due = bool(self._config.every_rounds) and progress.round_index % self._config.every_rounds == 0
        if due or verdict.go_back or (improved and self._config.every_rounds):
            self.save(progress, verdict)

    def save(self, progress: Progress, verdict: Verdict) -> None:
        """Saves a checkpoint of `progress`, unless this step was saved last. Keeps that of the verdict's good step."""
        if self._saved_step == progress.step:
            return
        score = self._evaluator.score(progress.step)
        state = {"progress": asdict(progress), "config": self._run_config}
        self._store.save(progress.step, self._learner.save, state, score, verdict.good_step)
        self._saved_step = progress.step
