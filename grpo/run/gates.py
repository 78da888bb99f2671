"""This module gives gates their numbers: those of each round to the scheduler, and a whole run's records to exports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo.config import TrainConfig
from grpo.config.errors import UserError, require
from grpo.config.folder import EVALUATIONS_FILE, METRICS_FILE
from grpo.dynamics.gates import Watched, beyond_bound, watched
from grpo.telemetry.json_lines import read_metrics
from grpo.telemetry.metrics import evaluation_numbers, flatten
from grpo.types import RoundStatistics
from grpo.types import metrics as m

THEN = ("stop", "back", "refuse_export")
ON_FIRST_RANK = ("rollout/", "memory/", m.BY_PASS_RATE, m.LENGTH_P10, m.LENGTH_P90)
"""Only the first rank knows these numbers of a round, so they decide about no next one."""


def check_gates(config: TrainConfig) -> None:
    """Raises UserError for a gate that could never break, or could not do what it says."""
    families = tuple(name for name in m.TABLE if name.endswith("/"))
    for number, gate in enumerate(config.gates):
        name = f"gates[{number}]"
        require(
            gate.metric in m.TABLE or gate.metric.startswith(families),
            f"{name}.metric={gate.metric} is no metric of a round or an evaluation: grpo/types/metrics.py lists them, "
            "and metrics.jsonl of a run has them",
        )
        require(
            gate.below is not None or gate.above is not None,
            f"{name} has no bound: give below=, above= or both, e.g. {{metric: {gate.metric}, above: 0.2, then: stop}}",
        )
        require(gate.rounds > 0, f"{name}.rounds={gate.rounds} must be at least 1")
        require(gate.then in THEN, f"{name}.then={gate.then} is none of {', '.join(THEN)}")
        require(
            gate.then == "refuse_export" or not gate.metric.startswith(ON_FIRST_RANK),
            f"{name}.metric={gate.metric} is known after a round on the first rank only: set then=refuse_export",
        )
        require(
            gate.then != "back" or config.checkpoint.every_rounds > 0,
            f"{name}.then=back needs checkpoints to go back to: set checkpoint.every_rounds above 0",
        )
        evaluated = gate.metric.startswith(m.EVALUATION)
        require(
            not evaluated or config.evaluation.num_problems > 0,
            f"{name}.metric={gate.metric} needs evaluations, and evaluation.num_problems=0 makes none: raise it",
        )
    guard = config.dynamics.guard and config.dynamics.name != "fixed"
    require(not guard, "dynamics.guard=true belongs to dynamics=fixed, since dynamics=adaptive has a guard of its own")


class RoundNumbers:
    """These are the numbers of a round that all ranks know, with those of an evaluation of the policy that sampled it.

    `evaluated(step)` returns that evaluation, or None. The session sets it once there is an evaluator.
    """

    evaluated: Callable[[int], Mapping[str, Any] | None] = staticmethod(lambda step: None)

    def __call__(self, statistics: RoundStatistics) -> dict[str, float]:
        result = self.evaluated(statistics.step - len(statistics.reports))
        return flatten(statistics) | (evaluation_numbers(result) if result else {})


def broken_gates(run: Path, config: TrainConfig, step: int) -> list[str]:
    """Returns why the model that a run had after `step` optimizer steps is beyond its gates, by the run's records."""
    state = Watched()
    reasons: dict[int, str] = {}
    for numbers in _measured(run, step) if config.gates else ():
        _, state = watched(config.gates, state, numbers)
        for number, gate in enumerate(config.gates):
            if gate.metric in numbers:
                first = state.firsts[gate.metric] if gate.from_start else 0.0
                broken = state.beyond[str(number)] >= gate.rounds
                reasons[number] = beyond_bound(gate, numbers[gate.metric] - first) if broken else ""
    return [reason for reason in reasons.values() if reason]


def _measured(run: Path, step: int) -> Iterator[Mapping[str, float]]:
    """Yields the numbers of the policies up to that of `step`, in their order. A round's are those of the policy that
    sampled it."""
    metrics = read_metrics(run / METRICS_FILE) if (run / METRICS_FILE).exists() else []
    evaluations = read_metrics(run / EVALUATIONS_FILE) if (run / EVALUATIONS_FILE).exists() else []
    measured = [(row["step"], 0, evaluation_numbers(row)) for row in evaluations]
    measured += [(start, 1, row) for start, row in zip([0, *(row["step"] for row in metrics)], metrics, strict=False)]
    for policy, _, numbers in sorted(measured, key=lambda entry: entry[:2]):
        if policy <= step:
            yield numbers


def require_within(run: Path, config: TrainConfig, step: int) -> None:
    """Raises UserError for a model that is beyond a gate of its run."""
    if broken := broken_gates(run, config, step):
        raise UserError(
            f"the model of step {step} in {run} is beyond its gates: {'; '.join(broken)}; give the checkpoint of "
            "another step, or despite_gates=true"
        )
