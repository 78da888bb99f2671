from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from benchmarks.high_rate import products_of
from grpo.dynamics.difficulty import Difficulty
from grpo.dynamics.gain import Gain
from grpo.dynamics.group_size import BatchRule, choose_batch
from grpo.dynamics.step import BatchSetting, StepCost, progress_of_step, signal_to_noise


def at(*rates):
    return Difficulty(np.array(rates), np.full(len(rates), 1 / len(rates)))


RULE = BatchRule(smallest=2, largest=64, fewest=16, most=16)
FREE = replace(RULE, fewest=4, most=64)
NOW = BatchSetting(group_size=8, prompts_per_step=16, exponent=0.0)
# Completions cost all, as where they are long.
EVEN = StepCost(0.0, 1.0)


@lru_cache
def gain(heat, rounds=400, noise=0.002):
    return Gain(products_of(1e-3, heat * 1e-3, rounds, noise=noise))


def choose(heat, difficulty=None, rule=RULE, now=NOW, cost=EVEN, first=NOW, **measured):
    return choose_batch(difficulty or at(0.5), rule, first, now, cost, gain(heat, **measured))


def settled(heat, rate=0.5, rule=RULE, **arguments):
    """Returns the batch that repeated choices come to, whose aims stay relative to the first batch."""
    now = NOW
    for _ in range(12):
        now = choose(heat, at(rate), rule, now, **arguments).chosen
    return now


def test_the_hotter_the_steps_the_larger_the_groups():
    sizes = [settled(heat).group_size for heat in (0.1, 0.5, 1.0, 1.5, 2.0)]
    assert sizes == sorted(sizes) and sizes[0] == 2 and sizes[-1] >= 16
    assert [settled(1.0, rate).group_size for rate in (0.5, 0.1, 0.02)] == [4, 8, 8]


def test_the_reason_of_a_choice_names_the_unit_of_its_costs():
    for unit in ("token", "second"):
        assert f"% sure that a {unit} gains more" in choose(0.1, cost=replace(EVEN, unit=unit)).reason


def test_a_size_changes_at_most_by_a_factor_of_two():
    assert choose(0.1).chosen.group_size == 4 and choose(1.9).chosen.group_size == 16
    assert choose(0.02, now=replace(NOW, group_size=4)).chosen.group_size == 2


def test_where_nothing_gains_the_first_batch_comes_back_and_the_rate_is_too_high():
    assert choose(10.0, now=replace(NOW, group_size=4)).chosen == NOW
    assert choose(10.0, now=replace(NOW, group_size=16)).chosen.group_size == 16
    choice = choose(10.0)
    assert (
        choice.chosen == NOW
        and choice.rate == 1.0
        and choice.is_high
        and choice.best_rate == pytest.approx(0.1, rel=0.2)
    )
    assert choice.reason.startswith("steps gain nothing, since the heat of a step is ")


def test_a_rate_is_high_where_it_would_surely_be_lowered_at_every_batch_allowed():
    one_size = replace(RULE, smallest=8, largest=8)
    assert [choose(heat, rule=one_size).is_high for heat in (0.1, 0.5, 1.2, 4.0)] == [False, False, True, True]
    assert not choose(1.2, rule=one_size, rounds=4, noise=1.0).is_high
    # Four times the prompts would aim steps twice as well.
    assert choose(1.2, rule=RULE).is_high and not choose(1.2, rule=FREE).is_high


def test_a_batch_stays_while_it_is_uncertain_that_another_gains_more():
    sizes = [choose(1.2, rounds=rounds, noise=1.0).chosen.group_size for rounds in range(1, 12)]
    assert max(sizes) == 8
    assert choose(2.5, rounds=2, noise=0.05).chosen.group_size == 8
    # Another size would gain a few percent more.
    assert choose(1.0, now=replace(NOW, group_size=4)).chosen.group_size == 4


def test_silent_groups_ask_for_the_largest_batch():
    choice = choose(0.1, at(0.0, 1.0))
    assert choice.chosen.group_size == 16 and choice.reason == "no group says anything"


def test_dear_prompts_and_dear_steps_ask_for_larger_groups():
    cheap, dear, fixed = (settled(0.5, cost=cost) for cost in (EVEN, StepCost(30.0, 1.0), StepCost(0.0, 1.0, 2000.0)))
    assert cheap.group_size < dear.group_size and cheap.group_size < fixed.group_size


def test_prompts_are_halved_and_doubled_within_their_bounds():
    assert settled(0.1, rule=FREE).prompts_per_step == 4
    assert choose(0.1, rule=FREE).chosen.prompts_per_step == 8
    # Prompts aim a step better than completions of the same prompts.
    assert choose(1.9, rule=FREE).chosen.prompts_per_step == 32
    # A run that is resumed with narrower bounds comes back between them.
    assert choose(0.1, now=replace(NOW, prompts_per_step=4)).chosen.prompts_per_step == 16
    assert choose(0.1, now=replace(NOW, prompts_per_step=64)).chosen.prompts_per_step == 16
    # Three ranks share the prompts evenly.
    three = replace(FREE, multiple=3)
    assert choose(0.1, rule=three, now=replace(NOW, prompts_per_step=12)).chosen.prompts_per_step == 6


def test_a_rate_that_may_change_follows_the_heat_and_the_batch_only_the_prompts():
    free = replace(RULE, changes_rate=True)
    cold, hot = (choose(heat, rule=free) for heat in (0.1, 4.0))
    assert cold.chosen == hot.chosen
    assert cold.rate == 2.0 and hot.rate == 0.5
    assert 0.5 <= choose(0.7, rule=free).rate < 0.72
    assert choose(0.4, rule=free, now=cold.chosen).rate == 1.0
    # A higher rate is taken only where it is sure to be better.
    assert choose(0.2, rule=free, rounds=2, noise=1.0).rate <= 1.0


def test_the_aim_of_a_step_by_hand():
    """For G = 2, p = ½ and GRPO, half of the groups have σ = ½. The signal is .25; the noise is .5/2 from completions
    and .125 from prompts."""
    two, noise = BatchSetting(group_size=2, prompts_per_step=9), 0.375**0.5
    assert progress_of_step(two, at(0.5)) == pytest.approx(3 * 0.25 / noise)
    assert StepCost(1.0, 3.0, fixed=5.0).of(two, at(0.5)) == pytest.approx(68.0)
    # Refilling asks 18 prompts, and its 9 groups gain as much as 18 prompts without refilling.
    refilled = replace(two, refilled=True)
    assert progress_of_step(refilled, at(0.5)) == pytest.approx(18**0.5 * 0.25 / noise)
    assert StepCost(1.0, 3.0, fixed=5.0).of(refilled, at(0.5)) == pytest.approx(131.0)


def test_only_completions_are_noise_where_all_prompts_ask_for_the_same():
    """Dr. GRPO has the signal (1 − 1/G)·pq, and the completions' noise is that divided by G."""
    assert signal_to_noise(at(0.3), 4, 0.0, prompt_noise=0.0) == pytest.approx((3 * 0.21) ** 0.5)
    assert signal_to_noise(at(0.0, 1.0), 4, 0.0) == 0.0
