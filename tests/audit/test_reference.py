"""These tests compare the specification of a step with numbers by hand, and the learner with the specification."""

import re

import pytest
import torch

from grpo.audit import reference
from grpo.config import NormalizationConfig, ObjectiveConfig
from grpo.types import Completion, Observed
from tests import warm


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "first"), [(1, 0), (2, 150)])
def test_three_hundred_random_settings_have_the_gradient_of_the_specification(ranks, first):
    """On two ranks the ZeRO stage is random too, and whether they compute each row together."""
    program = ["-m", "benchmarks.against_reference", "150", str(first)]
    done = warm.run(program, warm.LEARNER) if ranks == 1 else warm.ranks(ranks, program, warm.LEARNER)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"150 combinations, (\d+) with a gradient", done.stdout)[1]) > 120


def test_advantages_are_those_by_hand():
    one_of_four = [1.0, 0.0, 0.0, 0.0]
    by_setting = {
        (1.0, 0, False): [3**0.5, *[-(3**-0.5)] * 3],
        (1.0, 1, False): [1.5, -0.5, -0.5, -0.5],
        (0.0, 0, False): [0.75, -0.25, -0.25, -0.25],
        (0.0, 0, True): [1.0, *[-1 / 3] * 3],
    }
    for (exponent, ddof, others), expected in by_setting.items():
        settings = NormalizationConfig(exponent=exponent, ddof=ddof, leave_one_out=others)
        assert reference.dial(one_of_four, (0.25, 0.4), settings) == pytest.approx(expected)
    assert reference.dial([0.3, 0.1 + 0.2], (0.3, 0.0), NormalizationConfig()) == [0.0, 0.0]


def test_a_token_far_above_its_old_probability_is_clipped():
    now, old = torch.tensor([0.0, -1.0], dtype=torch.float64), torch.tensor([-1.0, -1.0], dtype=torch.float64)
    stretch = reference.Stretch(now, now, old, old, old, None, 2.0, 1.0)
    settings = ObjectiveConfig(clip_high=0.28)
    assert reference.surrogate(stretch, settings).tolist() == pytest.approx([-2.56, -2.0])
    assert reference.beyond(stretch, settings).tolist() == [True, False]


def test_equal_tokens_at_the_end_of_a_choice_share_it():
    assert reference.largest(torch.tensor([3.0, 1.0, 2.0, 2.0]), 2).tolist() == [1.0, 0.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("observed", "read"),
    [
        ([(2, (7,), None)], [(10, 11, 1, 2, 7, 3, 4)]),
        ([(0, (7,), None), (2, (8,), 3)], [(10, 11, 7, 1, 2), (10, 11, 7, 8, 3, 4)]),
        # A history that once lost the end of the prompt is never again behind the whole prompt.
        ([(0, (7,), 1), (2, (8,), 3)], [(10, 7, 1, 2), (10, 7, 1, 8, 3, 4)]),
    ],
)
def test_branches_are_learned_behind_the_history_that_the_model_read(observed, read):
    completion = Completion(
        (1, 2, 3, 4), (-1.0,) * 4, "", False, observed=tuple(Observed(*piece) for piece in observed)
    )
    assert [(*prompt, *branch.whole) for prompt, branch in completion.branches((10, 11))] == read
    assert [tuple(tokens) for tokens, _ in reference.stretches((10, 11), completion)] == read
