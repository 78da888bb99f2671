from dataclasses import replace

import numpy as np
import pytest

from grpo.dynamics.difficulty import Difficulty
from grpo.dynamics.group_size import GroupSizeRule, choose_group_size, cost_of_progress, signal_to_noise
from grpo.dynamics.planning import PlanRequest, propose, size_options, step_seconds
from grpo.types import MachineConstants


def at(*rates):
    return Difficulty(np.array(rates), np.full(len(rates), 1 / len(rates)))


RULE = GroupSizeRule(smallest=4, largest=64, fluctuation=0.25)


def choose(difficulty=None, rule=RULE, variance=0.0, left=None, prompt_cost=1.0):
    return choose_group_size(difficulty or at(0.5), rule, 8, variance, left, prompt_cost, completion_cost=1.0)


def test_small_groups_are_cheapest_unless_prompts_are_expensive():
    """At p = .05 little of the infinite group's gradient is left at G = 4. Under Adam that is no reason to pay more."""
    assert [choose(at(rate)).size for rate in (0.5, 0.2, 0.05)] == [4, 4, 4]
    assert [choose(at(rate), prompt_cost=30.0).size for rate in (0.5, 0.2, 0.05)] == [8, 10, 20]
    assert choose().reason == "progress is cheapest at G = 4"


def test_the_cost_of_progress_by_hand():
    """G = 2, p = ½, GRPO: σ = ½ in half of the groups. Signal .25; noise .5/2 of completions and .125 of prompts."""
    noise = 0.375**0.5
    assert cost_of_progress(at(0.5), RULE, 2, 1.0, 3.0) == pytest.approx(7.0 * noise / 0.25)
    held = replace(RULE, hold_samples=True)
    assert cost_of_progress(at(0.5), held, 2, 1.0, 3.0) == pytest.approx(7.0**0.5 * noise / 0.25)
    assert cost_of_progress(at(0.0, 1.0), RULE, 8, 1.0, 1.0) == float("inf")


def test_at_equal_samples_a_step_neither_the_smallest_nor_the_largest_groups_pay():
    """Small groups are silent, large ones leave few prompts. Prompts that are hardly ever solved want larger ones."""
    held = replace(RULE, smallest=2, hold_samples=True)
    best = {}
    for rate in (0.5, 0.1, 0.02):
        costs = {size: cost_of_progress(at(rate), held, size, 0.0, 1.0) for size in (2, 4, 8, 16, 32, 64)}
        best[rate] = min(costs, key=costs.get)
    assert best == {0.5: 4, 0.1: 4, 0.02: 8}


def test_only_completions_are_noise_where_all_prompts_ask_for_the_same():
    """Dr. GRPO: signal (1 − 1/G)·pq, and the noise of completions is that over G."""
    assert signal_to_noise(at(0.3), 4, 0.0, prompt_noise=0.0) == pytest.approx((3 * 0.21) ** 0.5)
    assert signal_to_noise(at(0.0, 1.0), 4, 0.0) == 0.0


def test_the_run_is_cooled_as_the_improvement_left_shrinks():
    hot, cold = choose(variance=0.0004, left=0.4), choose(variance=0.0004, left=0.07)
    assert hot.by_fluctuation == pytest.approx(8 * 0.0004 / 0.1**2) and hot.size == 4
    assert cold.by_fluctuation == pytest.approx(8 * 0.0004 / 0.0175**2) and cold.size == 12


def test_noise_asks_for_twice_the_size_at_most():
    assert choose(variance=0.0004, left=0.001).by_fluctuation == 16


def test_a_plan_goes_by_both_dials():
    maxrl = PlanRequest(exponent=0.0, mean_exponent=1.0)
    for request, fidelity in ((maxrl, 1 - 0.9**7), (PlanRequest(exponent=0.0), 1 - 1 / 8)):
        [option] = [option for option in size_options(at(0.1), request) if option.size == 8]
        assert option.fidelity == pytest.approx(fidelity)


def test_a_plan_takes_the_size_at_which_progress_costs_least():
    request = PlanRequest(
        prompt_tokens=0.0, completion_tokens=1.0, budget_tokens=1280.0, exponent=0.0, smallest=2, largest=4
    )
    options = {option.size: option for option in size_options(at(0.5), request)}
    # Dr. GRPO: signal (1 − 1/G)/4, noise of completions that over G, and of prompts E[σ⁴]. G tokens are paid for it.
    fourth = {2: 1 / 32, 3: 0.75 * 4 / 81, 4: 9 / 512 + 6 / 256}
    signal = {size: (1 - 1 / size) / 4 for size in fourth}
    gained = {size: signal[size] / (signal[size] / size + fourth[size]) ** 0.5 / size for size in fourth}
    for size, option in options.items():
        assert option.progress == pytest.approx(gained[size] / gained[2])
        assert option.steps == 1280 // (128 * size) and option.seconds is None
    assert propose(at(0.5), request).size.size == 2 and propose(at(0.5), request).interval == 1


MACHINE = MachineConstants("CPU", 1_000_000, ((128, 100.0), (1024, 800.0)), 1000.0, 9.0, 1.0)


def test_a_plan_counts_the_seconds_of_a_measured_machine():
    """A step at G = 4 samples 512 completions of 10 tokens at 400 tokens/s, learns 5,120 + 128 tokens at 1,000."""
    request = PlanRequest(prompt_tokens=1.0, completion_tokens=10.0, smallest=4, largest=4)
    assert step_seconds(request, MACHINE, 4) == pytest.approx(12.8 + 5.248 + 10)
    # Two steps a round sample 1,024 at once, twice as fast.
    assert step_seconds(request, MACHINE, 4, interval=2) == pytest.approx(6.4 + 5.248 + 5)
    proposal = propose(at(0.5), request, MACHINE)
    # At τ = 8 the ten seconds are 1.25 of 12.9 a step, at τ = 6 1.67 of 13.3, more than a tenth.
    assert proposal.interval == 8 and proposal.overhead == pytest.approx(1.25 / (6.4 + 5.248 + 1.25))


def test_dear_refreshes_ask_for_larger_groups():
    request = PlanRequest(prompt_tokens=0.0, completion_tokens=1.0, prompts_per_step=64)
    small = propose(at(0.5), request, replace(MACHINE, refresh_seconds=0.0, round_overhead_seconds=0.0)).size.size
    assert small < propose(at(0.5), request, replace(MACHINE, refresh_seconds=60.0)).size.size
