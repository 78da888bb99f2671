"""Observers look on after each round: they evaluate, save checkpoints, and diagnose the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from grpo.config import CheckpointConfig, EvaluationConfig
from grpo.dynamics.findings import Finding
from grpo.evaluation.held_out import score
from grpo.interfaces import Learner
from grpo.run.checkpoints import CheckpointStore
from grpo.types import FinishedRound, Progress, Verdict


class Evaluator:
    """Evaluates every so many rounds and keeps the results, in the run's files and in `results` by step."""

    def __init__(
        self,
        config: EvaluationConfig,
        evaluate: Callable[[], dict[str, Any]],
        record: Callable[[dict[str, Any]], None],
        earlier: Iterable[Mapping[str, Any]] = (),
        is_over: Callable[[Progress, Verdict], bool] = lambda progress, verdict: False,
    ):
        """`earlier` are the results of a run that is resumed. After its last round a run is evaluated too: `is_over`
        tells which that is."""
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
        """The evaluation of step `step`, made now if it was not; None where none is configured."""
        if self._config.num_problems and step not in self.results:
            self.results[step] = self._evaluate()
            self._record(self.results[step])
        return self.results.get(step)

    def score(self, step: int) -> float | None:
        """How good the policy of `step` is, when it was evaluated, see `grpo.evaluation.held_out.score`."""
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

    def after_round(self, finished: FinishedRound) -> None:
        step, index = finished.progress.step, finished.progress.round_index
        if not self._every or index % self._every or index < self._not_before:
            return
        self._not_before = index * (1 + WATCH_FRACTION)
        for finding in self._findings():
            if (finding.name, finding.severity) not in self._told:
                self._told.add((finding.name, finding.severity))
                told = f"{finding.severity}: {finding.name}: {finding.evidence} ⇒ {finding.remedy}"
                self._tell(f"step {step}: {told}")


class Checkpointer:
    """Saves every so many rounds, after an evaluation better than all before it, and once the run has gone back."""

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
        """Saves a checkpoint of `progress`, unless there is one. That of the verdict's good step is kept."""
        if self._saved_step == progress.step:
            return
        score = self._evaluator.score(progress.step)
        state = {"progress": asdict(progress), "config": self._run_config}
        self._store.save(progress.step, self._learner.save, state, score, verdict.good_step)
        self._saved_step = progress.step
