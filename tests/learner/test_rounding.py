"""These tests round weights without bias."""

import pytest
import torch

from grpo.learner.rounding import rounded


@pytest.mark.parametrize(("dtype", "step"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-10)])
def test_a_change_of_a_tenth_of_a_step_survives_in_the_mean(dtype, step):
    for sign in (1, -1):
        exact = torch.full((200, 1000), sign * (1 + step / 10))
        values = rounded(exact, dtype, "a weight").double()
        assert values.abs().unique().tolist() == [1, 1 + step]
        # The mean of 200,000 numbers scatters by 0.0007 steps.
        assert abs(values.mean().item() - exact[0, 0].item()) < 0.003 * step


def test_numbers_that_a_type_has_stay_and_what_is_not_finite_too():
    exact = torch.tensor([0.0, -0.0, 1.0, -0.5, 3.140625, torch.inf, -torch.inf])
    assert torch.equal(rounded(exact, torch.bfloat16, "w").float(), exact)
    # Such bits make a graphics card's NaN.
    odd = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    assert rounded(odd, torch.bfloat16, "w").isnan().all()
    assert torch.equal(rounded(torch.tensor([0.1]), torch.float32, "w"), torch.tensor([0.1]))


def test_one_name_rounds_alike_every_time_and_another_otherwise():
    exact = torch.linspace(0.1, 0.9, 999).reshape(3, 333)
    first = rounded(exact, torch.bfloat16, "one")
    assert torch.equal(first, rounded(exact, torch.bfloat16, "one"))
    assert not torch.equal(first, rounded(exact, torch.bfloat16, "another"))
