"""These tests check the group size and the rounds that a plan proposes, and the seconds that it expects."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from grpo.insight.plans.planning import PlanRequest, propose, size_options, step_seconds
from grpo.types import MachineConstants
from tests.dynamics.test_group_size import at


def test_a_plan_goes_by_both_dials():
    maxrl = PlanRequest(exponent=0.0, mean_exponent=1.0)
    for request, fidelity in ((maxrl, 1 - 0.9**7), (PlanRequest(exponent=0.0), 1 - 1 / 8)):
        [option] = [option for option in size_options(at(0.1), request) if option.size == 8]
        assert option.fidelity == pytest.approx(fidelity)


def aim_by_hand(size):
    """Dr. GRPO has the signal (1 − 1/G)·pq, noise of completions that over G, and noise of prompts E[σ⁴]."""
    shares = stats.binom.pmf(np.arange(size + 1), size, 0.5)
    squares = np.arange(size + 1) * (size - np.arange(size + 1)) / size**2
    return shares @ squares / (shares @ squares / size + shares @ squares**2) ** 0.5


def test_a_plan_takes_the_size_at_which_a_token_is_expected_to_gain_most():
    request = PlanRequest(
        prompt_tokens=0.0, completion_tokens=1.0, budget_tokens=1280.0, exponent=0.0, smallest=2, largest=4
    )
    options = {option.size: option for option in size_options(at(0.5), request) if option.size <= 4}
    # Half of the signal of a step with 16 completions is heat, of which a step pays a half. G tokens are paid for it.
    gained = {size: (aim_by_hand(size) / aim_by_hand(16) - 0.25) / size for size in (2, 3, 4)}
    best = max(gained.values())
    for size, option in options.items():
        assert option.progress == pytest.approx(gained[size] / best)
        assert option.steps == 1280 // (128 * size) and option.seconds is None
    proposal = propose(at(0.5), replace(request, budget_tokens=0.0))
    assert (proposal.size.size, proposal.size.steps, proposal.interval) == (3, None, 1)


def test_a_plan_proposes_larger_groups_for_harder_and_for_easier_problems():
    any_size = PlanRequest(smallest=2, largest=64)
    sizes = {rate: propose(at(rate), any_size).size.size for rate in (0.02, 0.1, 0.5, 0.9, 0.98)}
    assert sizes == {0.02: 20, 0.1: 5, 0.5: 3, 0.9: 5, 0.98: 20}
    # Nothing is learned from problems that are never solved, at any size.
    assert propose(at(0.0), any_size).size.size == 2


def test_a_plan_takes_8_as_the_schedule_does_where_no_other_size_is_allowed():
    proposals = [propose(at(rate), PlanRequest()) for rate in (0.0, 0.02, 0.5)]
    assert [proposal.size.size for proposal in proposals] == [8, 8, 8]
    assert [option.size for option in proposals[0].sizes][-1] == 64


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
    request = PlanRequest(prompt_tokens=0.0, completion_tokens=1.0, prompts_per_step=64, smallest=2, largest=64)
    small = propose(at(0.5), request, replace(MACHINE, refresh_seconds=0.0, round_overhead_seconds=0.0)).size.size
    assert small < propose(at(0.5), request, replace(MACHINE, refresh_seconds=60.0)).size.size
