"""This module replays a scheduler on the statistics of a finished run, and returns its decision after each round.

The statistics stay those of the run: a proposal that differs from what the run did is shown but not followed. Replaying
the scheduler that steered the run reproduces its decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from grpo.dynamics.history import num_tried
from grpo.types import Mean, RoundPlan, RoundStatistics, StepReport, Verdict
from grpo.types import metrics as m
from grpo.types.rounds import ROUND

if TYPE_CHECKING:
    from grpo.dynamics.history import Counts
    from grpo.interfaces import Scheduler


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposal is what a replayed scheduler decides after one round.

    The round ended at optimizer step `step`. The run had chosen the plan `done` before it, and the scheduler proposes
    the plan `proposed` after it.
    """

    step: int
    done: RoundPlan
    proposed: RoundPlan
    verdict: Verdict

    @property
    def changes(self) -> bool:
        """Says whether the scheduler proposes another plan, or to stop or go back."""
        return self.proposed != self.done or self.verdict.stop or self.verdict.go_back


def replay(scheduler: Scheduler, rounds: list[RoundStatistics], sampled_ahead: bool = False) -> list[Proposal]:
    """Replays `scheduler` on the statistics of all rounds. Returns one proposal for each round.

    With `sampled_ahead` (`pipeline=one_round`), the plan chosen before a round is that under which the next one was
    sampled, but for the learning rate, which holds at once.
    """
    _, state = scheduler.init()
    proposals, ahead = [], int(sampled_ahead)
    for statistics, later in zip(rounds, [*rounds[ahead:], *rounds[-1:] * ahead], strict=True):
        done = replace(later.plan, learning_rate_factor=statistics.plan.learning_rate_factor)
        decision = scheduler.next(done, statistics, state)
        state = decision.state
        proposals.append(Proposal(statistics.step, done, decision.plan, decision.verdict))
    return proposals


def agreement(proposals: list[Proposal]) -> tuple[int, int]:
    """Returns how many proposals the next round followed, and how many proposals had a next round.

    The proposal before a last round that was cut short by the run's end counts as followed.
    """
    pairs = list(pairwise(proposals))
    # The run's last round takes only the steps that are left, so its interval may be shorter than proposed.
    same = sum(
        before.proposed == after.done
        or (index == len(pairs) - 1 and _but_interval(before.proposed) == _but_interval(after.done))
        for index, (before, after) in enumerate(pairs)
    )
    return same, len(pairs)


def _but_interval(plan: RoundPlan) -> RoundPlan:
    return replace(plan, refresh_interval=1)


def statistics_of(row: Mapping[str, Any], counts: Counts, first_counts: Counts, round_index: int) -> RoundStatistics:
    """Rebuilds a round's statistics from its row of metrics.jsonl.

    A row does not hold everything: every mean but those of lengths gets count 1, and the step reports hold no means.
    """
    interval = round(row[m.INTERVAL])
    plan = RoundPlan(
        group_size=round(row[m.GROUP_SIZE]),
        refresh_interval=interval,
        prompts_per_step=round(row[m.PROMPTS]),
        learning_rate_factor=row.get(m.RATE_FACTOR, 1.0),
    )
    skipped = round(row.get(m.SKIPPED, 0))
    reports = tuple(
        StepReport(row["step"] - interval + index + 1, index >= skipped, 0.0, 0.0, 0.0, {}) for index in range(interval)
    )
    means = {name: Mean(value, 1.0) for name, value in row.items() if isinstance(value, float)}
    # Where a row lacks the numbers of what was sampled, all groups count as graded.
    groups = row.get(m.NUM_GROUPS, sum(counts.values()))
    completions = row.get(m.NUM_COMPLETIONS, num_tried(counts))
    for name, number in ((m.PROMPT_LENGTH, groups), (m.LENGTH, completions)):
        if name in means:
            # Tokens are whole numbers, so their sum is exact.
            means[name] = Mean(round(means[name].value * number), number)
    return RoundStatistics(
        round_index=round_index,
        step=row["step"],
        plan=plan,
        means=means,
        reward_counts=counts,
        seconds=seconds_of(row),
        reports=reports,
        first_counts=first_counts,
    )


def round_seconds(row: Mapping[str, Any]) -> float:
    """Returns the wall-clock seconds of a whole round from its row of metrics.jsonl."""
    return seconds_of(row)[ROUND]


def seconds_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the seconds of a round's phases, and of the whole round as `ROUND`.

    Where the total is lacking, it is the sum of the phases.
    """
    phases = {
        name.removeprefix(m.TIME).removesuffix("_seconds"): value
        for name, value in row.items()
        if name.startswith(m.TIME)
    }
    return {ROUND: sum(phases.values()), **phases}
