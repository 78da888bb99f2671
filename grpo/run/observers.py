"""This module holds observers, which evaluate, save checkpoints and diagnose the run after each round."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from grpo.config import CheckpointConfig, EvaluationConfig
from grpo.evaluation.held_out import is_graded, score, scores
from grpo.host.disk import size_of
from grpo.host.together import on_all
from grpo.insight.diagnosis.findings import Finding
from grpo.interfaces import Collective, Learner
from grpo.loop import Observer
from grpo.run.checkpoints import CheckpointStore
from grpo.types import FinishedRound, Progress, Verdict


class Evaluator:
    """The evaluator runs a held-out evaluation every `evaluation.every_rounds` rounds and keeps the results.

    Results are kept in the run's files, and by optimizer step in `results`.
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

        `earlier` are a resumed run's results so far. `is_over` tells whether a round was the last; the policy is always
        evaluated after the last round.
        """
        self._config = config
        self._evaluate = evaluate
        self._record = record
        self._is_over = is_over
        self.results: dict[int, Mapping[str, Any]] = {result["step"]: result for result in earlier}
        self._asked = -1

    def after_round(self, finished: FinishedRound) -> None:
        if self._is_due(finished.progress) or self._is_over(finished.progress, finished.verdict):
            self.at(finished.progress.step)

    def make_up(self, progress: Progress) -> None:
        """Runs the evaluation before the first round, and one that was due when the run stopped."""
        if progress.round_index == 0 or self._is_due(progress):
            self.at(progress.step)

    def _is_due(self, progress: Progress) -> bool:
        return bool(self._config.every_rounds) and progress.round_index % self._config.every_rounds == 0

    def at(self, step: int) -> Mapping[str, Any] | None:
        """Returns the evaluation of step `step`, and runs it first if there is none yet.

        Returns None when no evaluation is configured, and when no problem could be graded. Such a result is not kept,
        and the same policy is not asked again.
        """
        if self._config.num_problems and step not in self.results and step != self._asked:
            self._asked = step
            result = self._evaluate()
            self._record(result)
            if is_graded(result):
                self.results[step] = result
        return self.results.get(step)

    def score(self, step: int) -> float | None:
        """Returns the score of the policy of `step` (see `grpo.evaluation.held_out.score`), or None if it has none or
        was not evaluated."""
        result = self.results.get(step)
        return score(result) if result else None

    def scores(self, step: int) -> dict[int, float]:
        """Returns the scores up to `step` that can be compared with the newest of them, by step."""
        return scores({earlier: self.results[earlier] for earlier in sorted(self.results) if earlier <= step})


# The next diagnosis comes after at least this share of the rounds so far. A diagnosis reads the whole log, so with a
# fixed interval a long run would spend more and more of its time on diagnoses.
WATCH_FRACTION = 0.02


class Watch:
    """The watch diagnoses the run's log every `every` rounds, and reports each finding once per severity.

    In a long run the interval between two diagnoses grows (see `WATCH_FRACTION`).
    """

    def __init__(self, every: int, findings: Callable[[], Iterable[Finding]], tell: Callable[[str], None]):
        """Takes `findings`, which diagnoses the present log on the first rank, and `tell`, which shows a line.

        With `every` 0 the log is never diagnosed.
        """
        self._every = every
        self._findings = findings
        self._tell = tell
        self._reported_findings: set[tuple[str, str]] = set()
        self._not_before = 0

    def after_round(self, finished: FinishedRound) -> None:
        step, index = finished.progress.step, finished.progress.round_index
        if not self._every or index % self._every or index < self._not_before:
            return
        self._not_before = index * (1 + WATCH_FRACTION)
        for finding in self._findings():
            if (finding.name, finding.severity) not in self._reported_findings:
                self._reported_findings.add((finding.name, finding.severity))
                line = f"{finding.severity}: {finding.name}: {finding.evidence} ⇒ {finding.remedy}"
                self._tell(f"step {step}: {line}")


class InOrder:
    """This observer calls several others, one after another."""

    def __init__(self, observers: Iterable[Observer]):
        self._observers = tuple(observers)

    def after_round(self, finished: FinishedRound) -> None:
        for observer in self._observers:
            observer.after_round(finished)


class Together:
    """This observer calls another on every rank. If that fails on some ranks, all of them end."""

    def __init__(self, observer: Observer, collective: Collective):
        self._observer, self._collective = observer, collective

    def after_round(self, finished: FinishedRound) -> None:
        on_all(self._collective, lambda: self._observer.after_round(finished))


class Checkpointer:
    """The checkpointer saves a checkpoint every `checkpoint.every_rounds` rounds, and after the run has gone back.

    Unless `every_rounds` is 0, it also saves after an evaluation that is better than all earlier ones.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        store: CheckpointStore,
        learner: Learner,
        facts: Mapping[str, Any],
        evaluator: Evaluator,
        tell: Callable[[str], None] = lambda text: None,
        resumed_at: int = -1,
    ):
        """Takes `facts`, which every checkpoint holds besides the progress: the run's configuration, and the identities
        of its problems and of the model under its adapters. `tell` shows a line about the first checkpoint's size.

        `resumed_at` is the step of the checkpoint that the run went on from, or −1. It is not written again: a kill
        while it is replaced could leave a run that is often preempted without any.
        """
        self._config = config
        self._store = store
        self._learner = learner
        self._facts = facts
        self._evaluator = evaluator
        self._tell = tell
        self._saved_step, self._reported = resumed_at, False

    def after_round(self, finished: FinishedRound) -> None:
        progress, verdict = finished.progress, finished.verdict
        score = self._evaluator.score(progress.step)
        before = [value for step, value in self._evaluator.scores(progress.step).items() if step < progress.step]
        improved = score is not None and score > max(before, default=float("-inf"))
        due = bool(self._config.every_rounds) and progress.round_index % self._config.every_rounds == 0
        if due or verdict.go_back or (improved and self._config.every_rounds):
            self.save(progress, verdict)

    def save(self, progress: Progress, verdict: Verdict) -> None:
        """Saves a checkpoint of `progress`, unless the last save was of the same step.

        The store then keeps the checkpoint of the verdict's good step too.
        """
        if self._saved_step == progress.step:
            return
        score = self._evaluator.score(progress.step)
        state = {"progress": asdict(progress), **self._facts}
        scores = self._evaluator.scores(progress.step)
        folder = self._store.save(progress.step, self._learner.save, state, score, verdict.good_step, scores)
        if not self._reported:
            self._reported = True
            retention = f"the newest {self._config.keep_last} are kept, and the best one"
            self._tell(f"step {progress.step}: a checkpoint takes {size_of(folder)} in {folder.parent}; {retention}")
        self._saved_step = progress.step
