"""What happens after each round, besides learning: logs, held-out evaluations, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from grpo.config import CheckpointConfig, EvaluationConfig
from grpo.dynamics.findings import Finding
from grpo.evaluation import score
from grpo.interfaces import Collective, Learner, Sampler, Task, Tracker, WeightSync
from grpo.learner.checkpoint import CheckpointStore, plain_progress
from grpo.ranks import on_first
from grpo.telemetry import COUNTS, REASON, JsonLines, RunDisplay, flatten, peak_memory, remarks
from grpo.terminal import say
from grpo.types import Collected, Progress, RoundPlan, RoundStatistics

PROMPTS_FILE = "prompts.jsonl"


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """Where rank 0 writes, until the end of a `with`. A run that raises there is shown as failed."""

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
    """Numbers, samples and the identities of the prompts of every round, gathered from all ranks and written
    by the first; `files` is None on the others. `peak_tflops` is one device's (None: MFU is not known)."""

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

    def after_round(self, statistics: RoundStatistics, collected: Collected, progress: Progress) -> None:
        ids = [scored.group.prompt.prompt_id for scored in collected.sampled]
        correct = [scored.count for scored in collected.sampled]
        versions = [(scored.group.oldest_version, scored.group.newest_version) for scored in collected.sampled]
        samples = _samples(collected, self._samples_per_round)
        shares = self._collective.gather((ids, correct, versions, samples, peak_memory()))
        on_first(self._collective, lambda: self._write(statistics, progress, shares))

    def _write(self, statistics: RoundStatistics, progress: Progress, shares: Sequence[tuple]) -> None:
        every_id, every_count, every_version, samples, memory = zip(*shares, strict=True)
        metrics = flatten(statistics, self._peak_tflops) | {
            name: max(each[name] for each in memory) for name in memory[0]
        }
        counts = [[*pair, groups] for pair, groups in sorted(statistics.reward_counts.items())]
        row = metrics | {COUNTS: counts, REASON: progress.plan.reason}
        self._files.tracker.log(row, statistics.step)
        self._files.tracker.samples(list(chain(*samples))[: self._samples_per_round], statistics.step)
        row = {
            "round": statistics.round_index,
            "cursor": progress.cursor,
            "prompt_ids": list(chain(*every_id)),
            "correct": list(chain(*every_count)),
            "versions": list(chain(*every_version)),
        }
        self._files.prompts.write(row, statistics.step)
        self._files.display.round(statistics.step, metrics)
        for name, sentence in remarks(metrics).items():
            if name not in self._remarked:
                self._remarked.add(name)
                self._files.display.note(f"step {statistics.step}: {sentence}")
        if progress.plan.settings != (self._plan or statistics.plan).settings:
            self._files.display.note(f"step {statistics.step}: {progress.plan.reason}")
        self._plan = progress.plan


def _samples(collected: Collected, count: int) -> list[dict[str, Any]]:
    rows = []
    for scored in collected.sampled[:count]:
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


class Feedback:
    """Tells the task how many completions of each prompt were correct, for a curriculum that goes by it."""

    def __init__(self, task: Task, collective: Collective):
        self._task = task
        self._collective = collective

    def after_round(self, statistics: RoundStatistics, collected: Collected, progress: Progress) -> None:
        mine = [(scored.group.prompt.prompt_id, scored.count) for scored in collected.sampled]
        self._learn(chain(*self._collective.gather(mine)), progress.cursor)

    def replay(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """The rounds that a resumed run has in its `prompts.jsonl`."""
        for row in rows:
            self._learn(zip(row["prompt_ids"], row["correct"], strict=True), row["cursor"])

    def _learn(self, groups: Iterable[tuple[str, tuple[int, int]]], cursor: int) -> None:
        outcomes: dict[str, tuple[int, int]] = {}
        for prompt_id, (correct, tried) in groups:
            name = prompt_id.rpartition("@")[0]
            before = outcomes.get(name, (0, 0))
            outcomes[name] = (before[0] + correct, before[1] + tried)
        self._task.learn(outcomes, cursor)


class Evaluator:
    """Evaluates every so many rounds and keeps the results, in the run's files and in `results` by step."""

    def __init__(
        self,
        config: EvaluationConfig,
        evaluate: Callable[[], dict[str, Any]],
        record: Callable[[dict[str, Any]], None],
        earlier: Iterable[Mapping[str, Any]] = (),
        is_over: Callable[[Progress], bool] = lambda progress: False,
    ):
        """`earlier` are the results of a run that is resumed. After its last round a run is evaluated too: `is_over`
        tells which that is."""
        self._config = config
        self._evaluate = evaluate
        self._record = record
        self._is_over = is_over
        self.results: dict[int, Mapping[str, Any]] = {result["step"]: result for result in earlier}

    def after_round(self, statistics: RoundStatistics, collected: Collected, progress: Progress) -> None:
        due = bool(self._config.every_rounds) and progress.round_index % self._config.every_rounds == 0
        if due or self._is_over(progress):
            self.at(progress.step)

    def at(self, step: int) -> Mapping[str, Any] | None:
        """The evaluation of step `step`, made now if it was not; None where none is configured."""
        if self._config.num_problems and step not in self.results:
            self.results[step] = self._evaluate()
            self._record(self.results[step])
        return self.results.get(step)

    def score(self, step: int) -> float | None:
        """How good the policy of `step` is, when it was evaluated, see `grpo.evaluation.score`."""
        result = self.results.get(step)
        return score(result) if result else None

    def best_before(self, step: int) -> float:
        """The highest score of earlier steps, −∞ without any."""
        return max((self.score(each) for each in self.results if each < step), default=float("-inf"))


# A diagnosis reads the whole log: as a share of the rounds so far, those between two of them, or a long run would
# end in nothing but diagnoses.
WATCH_FRACTION = 0.02


class Watch:
    """Every so many rounds: what the log shows to be wrong, told once each. In a long run the rounds between grow with
    it."""

    def __init__(self, every: int, findings: Callable[[], Iterable[Finding]], tell: Callable[[str], None]):
        """`findings` diagnoses the log as it is by now, on the first rank; `every` 0 never looks."""
        self._every = every
        self._findings = findings
        self._tell = tell
        self._told: set[tuple[str, str]] = set()
        self._not_before = 0

    def after_round(self, statistics: RoundStatistics, collected: Collected, progress: Progress) -> None:
        index = progress.round_index
        if not self._every or index % self._every or index < self._not_before:
            return
        self._not_before = index * (1 + WATCH_FRACTION)
        for each in self._findings():
            if (each.name, each.severity) not in self._told:
                self._told.add((each.name, each.severity))
                self._tell(f"step {progress.step}: {each.severity}: {each.name}: {each.evidence} ⇒ {each.remedy}")


class Rewinder:
    """Where the plan says so, takes learner and sampler back to the checkpoint that it trusts. Before the
    Checkpointer, which saves what was restored."""

    def __init__(self, store: CheckpointStore, learner: Learner, sampler: Sampler, weight_sync: WeightSync):
        self._store = store
        self._learner, self._sampler, self._weight_sync = learner, sampler, weight_sync

    def after_round(self, statistics: RoundStatistics, collected: Collected, progress: Progress) -> None:
        if not progress.plan.rollback:
            return
        checkpoint = self._store.whole(progress.plan.good_step)
        if checkpoint is None:
            # Only where the run was resumed from one that kept none, or where all are damaged.
            say(f"grpo: no checkpoint up to step {progress.plan.good_step}: the policy stays")
            return
        self._learner.rewind(str(checkpoint))
        self._weight_sync.refresh(self._learner, self._sampler)


class LastRound:
    """What there is to save when the sampler is lost. Before all who may need the sampler."""

    progress: Progress | None = None

    def after_round(self, statistics: RoundStatistics, collected: Collected, progress: Progress) -> None:
        self.progress = progress


class Checkpointer:
    """Saves every so many rounds, after an evaluation better than all before it, and what was restored."""

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

    def after_round(self, statistics: RoundStatistics, collected: Collected, progress: Progress) -> None:
        score = self._evaluator.score(progress.step)
        improved = score is not None and score > self._evaluator.best_before(progress.step)
        due = bool(self._config.every_rounds) and progress.round_index % self._config.every_rounds == 0
        if due or progress.plan.rollback or (improved and self._config.every_rounds):
            self.save(progress)

    def save(self, progress: Progress) -> None:
        """A checkpoint of `progress`, unless there is one."""
        if self._saved_step == progress.step:
            return
        score = self._evaluator.score(progress.step)
        state = {"progress": plain_progress(progress), "config": self._run_config}
        self._store.save(progress.step, self._learner.save, state, score, progress.plan.good_step)
        self._saved_step = progress.step
