import numpy as np
import pytest

from grpo.dynamics.difficulty import Difficulty
from grpo.dynamics.group_size import GroupSizeRule, cheapest_size, choose_group_size, cost_per_group


def at(*rates):
    return Difficulty(np.array(rates), np.full(len(rates), 1 / len(rates)))


RULE = GroupSizeRule(smallest=4, largest=64, shortfall=0.1, fluctuation=0.25)


def choose(difficulty=None, rule=RULE, variance=0.0, left=None):
    return choose_group_size(difficulty or at(0.5), rule, 8, variance, left, prompt_cost=1.0, completion_cost=1.0)


def test_fidelity_sets_the_size_when_nothing_else_is_known():
    found = choose()
    # Exactly 7 for p = ½ and 90 %; 8 is the next size there is.
    assert (found.by_fidelity, found.size) == (7, 8)
    assert choose(at(0.1)).size == 24
    assert choose(at(0.01)).size == 64


def test_the_run_is_cooled_as_the_improvement_left_shrinks():
    hot, cold = choose(variance=0.0004, left=0.4), choose(variance=0.0004, left=0.07)
    assert hot.by_fluctuation == pytest.approx(8 * 0.0004 / 0.1**2) and hot.size == 8
    assert cold.by_fluctuation == pytest.approx(8 * 0.0004 / 0.0175**2) and cold.size == 12


def test_noise_asks_for_twice_the_size_at_most():
    assert choose(variance=0.0004, left=0.001).by_fluctuation == 16


def test_cost_of_a_group_that_is_not_silent():
    # G = 2, p = ½: every second group is silent.
    assert cost_per_group(at(0.5), 2, prompt_cost=1.0, completion_cost=3.0) == pytest.approx(14.0)
    assert cost_per_group(at(0.0, 1.0), 8, 1.0, 1.0) == float("inf")


def test_long_prompts_and_hard_ones_make_larger_groups_cheaper():
    sizes = RULE.sizes
    assert cheapest_size(at(0.5), sizes, prompt_cost=0.0, completion_cost=1.0) == 4
    assert cheapest_size(at(0.05), sizes, prompt_cost=30.0, completion_cost=1.0) >= 24
