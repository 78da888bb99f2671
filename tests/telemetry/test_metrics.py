import math

import pytest

from grpo.telemetry.metrics import flatten
from grpo.types import Mean, RoundPlan, RoundStatistics, StepReport


def statistics(**changes) -> RoundStatistics:
    facts = {
        "round_index": 3,
        "step": 8,
        "plan": RoundPlan(group_size=4, refresh_interval=2, prompts_per_step=2),
        "means": {
            "reward/mean": Mean(6.0, 16.0),
            "completions/length_mean": Mean(800.0, 16.0),
            "policy/entropy": Mean(90.0, 300.0),
        },
        # Four groups of four: one all wrong, two with one correct, one all correct.
        "reward_counts": {(0, 4): 1, (1, 4): 2, (4, 4): 1},
        "seconds": {"sample": 4.0, "learn": 2.0},
        "reports": (
            StepReport(7, True, 1.0, 1e-3, 4e12, {"policy/entropy": Mean(30.0, 100.0)}),
            StepReport(8, True, 3.0, 3e-3, 2e12, {"policy/entropy": Mean(60.0, 200.0)}),
        ),
    }
    return RoundStatistics(**(facts | changes))


def test_a_round_becomes_exactly_these_numbers():
    assert flatten(statistics()) == pytest.approx(
        {
            "reward/mean": 0.375,
            "completions/length_mean": 50.0,
            "completions/num_sampled": 16.0,
            "pass_rate": 6 / 16,
            "groups/all_correct_fraction": 0.25,
            "groups/all_wrong_fraction": 0.25,
            "policy/entropy": 0.3,
            "learner/gradient_norm": 2.0,
            "learner/learning_rate": 2e-3,
            "learner/skipped_steps": 0.0,
            "plan/group_size": 4.0,
            "plan/refresh_interval": 2.0,
            "plan/prompts_per_step": 2.0,
            "plan/learning_rate_factor": 1.0,
            "time/sample_seconds": 4.0,
            "time/learn_seconds": 2.0,
            "throughput/sample_tokens_per_second": 200.0,
            "throughput/learn_tokens_per_second": 400.0,
            "throughput/learn_tflops": 3.0,
        }
    )


def test_mfu_is_the_share_of_the_peak_that_the_steps_used():
    # 6e12 operations in 2 seconds, on devices that could do 12e12 a second.
    assert flatten(statistics(), peak_tflops=12.0)["throughput/mfu"] == 0.25


def test_pass_rate_of_ragged_groups_is_over_completions():
    assert flatten(statistics(reward_counts={(1, 1): 1, (0, 3): 1}))["pass_rate"] == 0.25


def test_a_skipped_step_is_counted_and_its_gradient_norm_and_rate_are_left_out():
    applied = StepReport(7, True, 2.0, 1e-3, 1e12, {"policy/entropy": Mean(1.0, 4.0)})
    skipped = StepReport(7, False, math.inf, 9.0, 1e12, {"policy/entropy": Mean(math.nan, 4.0)})
    values = flatten(statistics(reports=(applied, skipped)))
    assert values["learner/skipped_steps"] == 1
    assert values["learner/gradient_norm"] == 2.0
    assert values["learner/learning_rate"] == 1e-3


def test_means_of_nothing_are_left_out():
    values = flatten(statistics(means={"policy/kl": Mean(0.0, 0.0)}, reward_counts={}, reports=()))
    absent = {"policy/kl", "pass_rate", "learner/gradient_norm", "throughput/sample_tokens_per_second"}
    assert absent.isdisjoint(values)
    assert all(math.isfinite(value) for value in values.values())
