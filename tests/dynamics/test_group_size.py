from dataclasses import replace

import numpy as np
import pytest

from grpo.dynamics.difficulty import Difficulty
from grpo.dynamics.group_size import BatchRule, calm_completions, choose_batch, cost_of_progress
from grpo.dynamics.planning import PlanRequest, propose, size_options, step_seconds
from grpo.dynamics.step import BatchSetting, StepCost, progress_of_step, signal_to_noise
from grpo.types import MachineConstants


def at(*rates):
    return Difficulty(np.array(rates), np.full(len(rates), 1 / len(rates)))


RULE = BatchRule(smallest=4, largest=64, fewest=16, most=16, fluctuation=0.25)
FREE = replace(RULE, fewest=4, most=64)
NOW = BatchSetting(group_size=8, prompts_per_step=16)


EVEN = StepCost(1.0, 1.0)


def choose(difficulty=None, rule=RULE, now=NOW, cost=EVEN, calm=None):
    return choose_batch(difficulty or at(0.5), rule, now, cost, calm)


def size(*arguments, **options):
    return choose(*arguments, **options).chosen.group_size


def prompts(*arguments, **options):
    return choose(*arguments, **options).chosen.prompts_per_step


def test_small_groups_are_cheapest_unless_prompts_are_expensive():
    """At p = .05 a group of 4 has little of the infinite group's gradient. Under Adam that is no reason to pay more."""
    assert [size(at(rate)) for rate in (0.5, 0.2, 0.05)] == [4, 4, 4]
    assert [size(at(rate), cost=StepCost(30.0, 1.0)) for rate in (0.5, 0.2, 0.05)] == [8, 10, 20]
    assert choose().reason == "progress is cheapest at 16 prompts × G = 4"


def test_the_cost_of_progress_by_hand():
    """For G = 2, p = ½ and GRPO, half of the groups have σ = ½. The signal is .25; the noise is .5/2 from completions
    and .125 from prompts."""
    two, noise = BatchSetting(group_size=2, prompts_per_step=9), 0.375**0.5
    assert cost_of_progress(at(0.5), two, StepCost(1.0, 3.0)) == pytest.approx(9 * 7.0 * noise / (3 * 0.25))
    assert cost_of_progress(at(0.5), two, StepCost(1.0, 3.0, fixed=5.0)) == pytest.approx(68.0 * noise / (3 * 0.25))
    # Twice as many prompts are asked, and as many speak as if nine times two had been learned from.
    refilled = replace(two, refilled=True)
    assert progress_of_step(refilled, at(0.5)) == pytest.approx(18**0.5 * 0.25 / noise)
    assert StepCost(1.0, 3.0, fixed=5.0).of(refilled, at(0.5)) == pytest.approx(131.0)
    assert cost_of_progress(at(0.0, 1.0), two, EVEN) == float("inf")


def test_at_equal_samples_a_step_neither_the_smallest_nor_the_largest_groups_pay():
    """Small groups are silent, large ones leave few prompts. Prompts that are hardly ever solved want larger ones."""
    held = replace(RULE, smallest=2, samples=768)
    best = {rate: choose(at(rate), held, cost=StepCost(0.0, 1.0)) for rate in (0.5, 0.1, 0.02)}
    assert {rate: choice.chosen.group_size for rate, choice in best.items()} == {0.5: 4, 0.1: 5, 0.02: 8}
    assert best[0.5].chosen.prompts_per_step == 192 and best[0.02].chosen.prompts_per_step == 96


def test_by_tokens_the_fewest_prompts_are_taken_one_rung_after_the_other():
    assert prompts(rule=FREE) == 8
    assert prompts(rule=FREE, now=replace(NOW, prompts_per_step=8)) == 4
    assert prompts(rule=FREE, now=replace(NOW, prompts_per_step=4)) == 4
    assert prompts(rule=replace(FREE, fewest=12)) == 16
    # A run that is resumed with narrower bounds comes back between them.
    assert prompts(rule=RULE, now=replace(NOW, prompts_per_step=4)) == 16
    assert prompts(rule=RULE, now=replace(NOW, prompts_per_step=64)) == 16
    # Three ranks share the prompts evenly.
    assert prompts(rule=replace(FREE, multiple=3), now=replace(NOW, prompts_per_step=12)) == 6


def test_what_a_step_costs_anyway_asks_for_as_much_in_prompts():
    """Progress goes as √B and cost as F + B·(1 + G), so the best B·(1 + G) is F. A step that costs 10,000 wants more
    than 64 prompts, one that costs 160 wants 32 of G = 4, and one that costs 20 wants 4."""
    for fixed, best in ((10_000.0, 64), (160.0, 32), (20.0, 4)):
        now = replace(NOW, group_size=4)
        for _ in range(6):
            now = choose(rule=replace(FREE, largest=4), now=now, cost=StepCost(1.0, 1.0, fixed)).chosen
        assert now.prompts_per_step == best


def test_only_completions_are_noise_where_all_prompts_ask_for_the_same():
    """Dr. GRPO has the signal (1 − 1/G)·pq, and the completions' noise is that divided by G."""
    assert signal_to_noise(at(0.3), 4, 0.0, prompt_noise=0.0) == pytest.approx((3 * 0.21) ** 0.5)
    assert signal_to_noise(at(0.0, 1.0), 4, 0.0) == 0.0


def test_the_run_is_cooled_as_the_improvement_left_shrinks():
    hot, cold = (calm_completions(RULE, NOW, 0.0004, left) for left in (0.4, 0.07))
    assert hot == pytest.approx(128 * 0.0004 / 0.1**2) and cold == pytest.approx(128 * 0.0004 / 0.0175**2)
    assert size(calm=hot) == 4 and size(calm=cold) == 12
    why = "fluctuation asks for 167 completions a step, cost for 16 prompts × G = 4"
    assert choose(calm=cold).reason == why
    # Where prompts may grow as well, they are the cheaper way: 32 of 6 rather than 16 of 12.
    assert choose(rule=FREE, calm=cold).chosen == replace(NOW, group_size=6, prompts_per_step=32)
    assert choose(rule=replace(RULE, samples=128), calm=cold).by_fluctuation is None


def test_noise_asks_for_twice_the_samples_at_most():
    assert calm_completions(RULE, NOW, 0.0004, 0.001) == 256
    assert calm_completions(RULE, NOW, 0.0004, None) is None and calm_completions(RULE, NOW, 0.0, 0.1) is None
    assert size(rule=replace(RULE, largest=12), calm=256) == 12


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
