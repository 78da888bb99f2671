"""This module gives gates their numbers: those of each round to the scheduler, and a whole run's records to exports."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo.config import GateConfig, TrainConfig
from grpo.config.errors import UserError, require
from grpo.config.folder import EVALUATIONS_FILE, METRICS_FILE
from grpo.config.hints import nearest
from grpo.dynamics.gates import Watched, beyond_bound, bound_of, watched
from grpo.host import ranks
from grpo.host.terminal import say
from grpo.telemetry.json_lines import read_metrics
from grpo.telemetry.metrics import evaluation_numbers, flatten, without_pass_rates
from grpo.types import RoundStatistics
from grpo.types import metrics as m
from grpo.types.rounds import lag

THEN = ("stop", "back", "refuse_export")
_PASS_AT = re.compile(r"pass@(\d+)(?:_low|_high)?")
ON_FIRST_RANK = re.compile(
    "|".join(map(re.escape, ("rollout/", "memory/", m.ENERGY, m.MFU, m.WENT_BACK, m.BY_PASS_RATE)))
    + f"|{m.LENGTH_P10}$|{m.LENGTH_P90}$|{m.SOURCE}.*/(length_p90|share)$"
)
"""Only the first rank knows these numbers of a round, so a gate on one of them can only refuse an export."""
NO_NUMBERS = (m.COUNTS, m.FIRST_COUNTS, m.REASON)


def check_gates(config: TrainConfig, sets: Sequence[str] = ()) -> None:
    """Raises UserError for a gate that could never break, or would always, or could not do what it says. `sets` are the
    names of the sets in `evaluation.suite`."""
    families = tuple(name for name in m.TABLE if name.endswith("/"))
    for number, gate in enumerate(config.gates):
        name, near = f"gates[{number}]", nearest(gate.metric, [*m.TABLE])
        require(
            (gate.metric in m.TABLE and gate.metric not in NO_NUMBERS) or gate.metric.startswith(families),
            f"{name}.metric={gate.metric} is no metric of a round or an evaluation"
            f"{f' (did you mean {near}?)' if near else ''}: grpo/types/metrics.py lists them, and metrics.jsonl of a "
            "run has them",
        )
        require(
            gate.below is not None or gate.above is not None,
            f"{name} has no bound: give below=, above= or both, e.g. {{metric: {gate.metric}, above: 0.2, then: stop}}",
        )
        _check_bounds(gate, name)
        require(
            0 < gate.rounds <= config.num_steps,
            f"{name}.rounds={gate.rounds} must be at least 1, and at most num_steps={config.num_steps}",
        )
        require(gate.then in THEN, f"{name}.then={gate.then} is none of {', '.join(THEN)}")
        require(
            gate.then == "refuse_export" or not ON_FIRST_RANK.match(gate.metric),
            f"{name}.metric={gate.metric} is known after a round on the first rank only: set then=refuse_export",
        )
        require(
            gate.then != "back" or config.checkpoint.every_rounds > 0,
            f"{name}.then=back needs checkpoints to go back to: set checkpoint.every_rounds above 0",
        )
        require(
            gate.metric != m.GAIN_PER_MONEY or config.hardware.price_per_hour > 0,
            f"{name}.metric={gate.metric} needs what a device costs an hour: set hardware.price_per_hour",
        )
        require(
            gate.metric != m.REFERENCE_KL or config.objective.kl.coefficient > 0,
            f"{name}.metric={gate.metric} is measured with a reference only: set objective.kl.coefficient above 0",
        )
        evaluated = gate.metric.startswith(m.EVALUATION)
        require(
            not evaluated or config.evaluation.num_problems > 0,
            f"{name}.metric={gate.metric} needs evaluations, and evaluation.num_problems=0 makes none: raise it",
        )
        _check_member(gate.metric, f"{name}.metric={gate.metric}", config, sets)
    guard = config.dynamics.guard and config.dynamics.name != "fixed"
    require(not guard, "dynamics.guard=true belongs to dynamics=fixed, since dynamics=adaptive has a guard of its own")
    require(
        not config.dynamics.guard or config.checkpoint.every_rounds > 0,
        "dynamics.guard=true needs checkpoints to go back to: set checkpoint.every_rounds above 0",
    )


def _check_bounds(gate: GateConfig, name: str) -> None:
    """Raises UserError for bounds beyond which every value lies, or no value of a share, such as one in percent."""
    below, above = gate.below, gate.above
    require(
        below is None or above is None or below < above,
        f"{name}: every value is below {below} or above {above}: "
        + ("leave some room between them" if below == above else "swap the two"),
    )
    at_once = beyond_bound(gate, 0.0) if gate.from_start and gate.rounds == 1 else ""
    require(not at_once, f"{name} would break at once, since {at_once}: a fall has a negative below, a rise an above")
    unit = m.TABLE[gate.metric].unit if gate.metric in m.TABLE else ""
    is_share = unit.startswith("share") or _PASS_AT.fullmatch(gate.metric.rpartition("/")[2])
    least = -1.0 if gate.from_start else 0.0
    fits = (below is None or least < below <= 1) and (above is None or least <= above < 1)
    require(
        not is_share or fits,
        f"{name}: {gate.metric} is a share, {'whose change lies between -1' if gate.from_start else 'between 0'} and "
        "1: give a bound within, such as 0.05 for 5 %",
    )


def _check_member(metric: str, name: str, config: TrainConfig, sets: Sequence[str]) -> None:
    """Raises UserError for a number of an evaluation, or a part of the reward, that the run does not have."""
    if metric.startswith(m.EVALUATION):
        *of_set, last = metric.removeprefix(m.EVALUATION).split("/")
        k, pass_at = _PASS_AT.fullmatch(last), {1, *config.evaluation.pass_at}
        require(
            not k or int(k[1]) in pass_at,
            f"{name} is not measured with evaluation.pass_at={list(config.evaluation.pass_at)}: add it there",
        )
        require(
            not of_set or of_set[0] in sets or f"{of_set[0]}/" == m.SOURCE,
            f"{name}: evaluation.suite has no set {of_set[0] if of_set else ''}: add it there",
        )
    if metric.startswith(m.PART):
        rewards = [of for reward in config.task.rewards for of in (reward, *map(reward.of, reward.by_source))]
        parts = [*dict.fromkeys(part for reward in rewards for part in reward.weights)]
        require(metric.removeprefix(m.PART) in parts, f"{name}: the reward's parts are {', '.join(parts)}")


class RoundNumbers:
    """These are the numbers of a round that all ranks know, with those of an evaluation of the policy at its beginning.

    `evaluated(step)` returns that evaluation, or None, and `outlook` what the run may still gain. The session sets both
    once there is an evaluator. Prints a line for each of `gates` whose metric the first round, or the first evaluation,
    lacks.
    """

    def __init__(self, gates: Sequence[GateConfig] = ()) -> None:
        # Gates are checked before NumPy is imported.
        from grpo.run.outlook import Outlook

        self.evaluated: Callable[[int], Mapping[str, Any] | None] = lambda step: None
        self.outlook, self._unjudged = Outlook(0), False
        self._unseen = {gate.metric for gate in gates if not ON_FIRST_RANK.match(gate.metric)}

    def __call__(self, statistics: RoundStatistics) -> dict[str, float]:
        result = self.evaluated(statistics.step - len(statistics.reports))
        numbers = flatten(statistics) | self.outlook(statistics)
        numbers = numbers if self.judges(statistics) else without_pass_rates(numbers)
        numbers |= evaluation_numbers(result) if result else {}
        looked = {metric for metric in self._unseen if result or not metric.startswith(m.EVALUATION)}
        self._unseen -= looked
        for metric in sorted(looked - numbers.keys()) if ranks.rank() == 0 else ():
            say(
                f"grpo: gates: {metric} was not measured in this round, and its gate does nothing until it is: "
                "metrics.jsonl has the names of those that were"
            )
        return numbers

    def go_on(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes the metrics of the rounds before a resumed run. Those that had rewards and no pass rate were not
        judged."""
        self._unjudged = any(m.REWARD in row and m.PASS_RATE not in row for row in rows)

    def judges(self, statistics: RoundStatistics) -> bool:
        """Tells whether a round has a pass rate: it and all rounds before it were judged."""
        self._unjudged |= not statistics.judged
        return not self._unjudged


def broken_gates(run: Path, config: TrainConfig, step: int) -> list[str]:
    """Returns why the model that a run had after `step` optimizer steps is beyond its gates, by the run's records."""
    state = Watched()
    reasons: dict[int, str] = {}
    for numbers in _measured(run, step) if config.gates else ():
        _, state = watched(config.gates, state, numbers)
        for number, gate in enumerate(config.gates):
            if gate.metric in numbers:
                first = state.firsts[gate.metric] if gate.from_start else 0.0
                broken = state.beyond[bound_of(gate)] >= gate.rounds
                reasons[number] = beyond_bound(gate, numbers[gate.metric] - first) if broken else ""
        if numbers.get(m.WENT_BACK) and numbers["step"] <= step:
            # The run went back from the policy that broke them, and measures the other one anew.
            state, reasons = replace(state, beyond={}), {}
    return [reason for reason in reasons.values() if reason]


def _measured(run: Path, step: int) -> Iterator[Mapping[str, float]]:
    """Yields the numbers of the policies up to that of `step`, in the order in which a run looks at them. A round's are
    those of the policy that sampled it."""
    metrics = read_metrics(run / METRICS_FILE) if (run / METRICS_FILE).exists() else []
    evaluations = read_metrics(run / EVALUATIONS_FILE) if (run / EVALUATIONS_FILE).exists() else []
    measured = [(row["step"], 0, row["step"], evaluation_numbers(row)) for row in evaluations]
    for start, row in zip([0, *(row["step"] for row in metrics)], metrics, strict=False):
        measured.append((start, 1, start - lag(row.get(m.STALENESS, 0.0), round(row.get(m.INTERVAL, 1))), row))
    for _, _, policy, numbers in sorted(measured, key=lambda entry: entry[:2]):
        if policy <= step:
            yield numbers


def require_within(run: Path, config: TrainConfig, step: int) -> None:
    """Raises UserError for a model that is beyond a gate of its run."""
    if broken := broken_gates(run, config, step):
        raise UserError(
            f"the model of step {step} in {run} is beyond its gates: {'; '.join(broken)}; give the checkpoint of "
            "another step, or despite_gates=true"
        )
