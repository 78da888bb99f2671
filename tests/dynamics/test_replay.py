from dataclasses import replace

import pytest

from grpo.dynamics.replay import agreement, replay
from grpo.types import Decision, RoundPlan, RoundStatistics, Verdict

PLANS = [
    RoundPlan(16, 1, 8),
    RoundPlan(16, 1, 8, learning_rate_factor=0.5),
    RoundPlan(8, 1, 8, learning_rate_factor=0.5),
    RoundPlan(8, 1, 8),
    RoundPlan(4, 1, 8),
    RoundPlan(4, 1, 8),
]
"""A run chose these plans, one before each round."""


class Chooser:
    """Chooses `PLANS`, one after another, and remembers from which plan it was asked."""

    def __init__(self):
        self.asked = []

    def init(self):
        return PLANS[0], 0

    def next(self, plan, statistics, state):
        self.asked.append(plan)
        return Decision(PLANS[min(state + 1, len(PLANS) - 1)], Verdict(), state + 1)


def rounds(plans):
    nothing = {"means": {}, "reward_counts": {}, "seconds": {}, "reports": ()}
    return [RoundStatistics(round_index=at, step=at + 1, plan=plan, **nothing) for at, plan in enumerate(plans)]


@pytest.mark.parametrize("sampled_ahead", [False, True])
def test_the_scheduler_of_a_run_is_replayed_from_the_plans_that_it_had_chosen(sampled_ahead):
    # A round that was sampled ahead has the batch chosen one round earlier, and the present learning rate.
    earlier = [PLANS[0], *PLANS[:-1]]
    late = [
        replace(plan, learning_rate_factor=now.learning_rate_factor) for plan, now in zip(earlier, PLANS, strict=True)
    ]
    scheduler = Chooser()
    proposals = replay(scheduler, rounds(late if sampled_ahead else PLANS), sampled_ahead)
    assert scheduler.asked == PLANS
    assert agreement(proposals) == (5, 5)
