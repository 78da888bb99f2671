"""These tests round weights without bias."""

import pytest
import torch

from grpo.learner.rounding import dithered, rounded


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dithered_weights_lie_evenly_over_all_that_rounds_to_them(dtype):
    for weight in (1.1, -1.1, 0.003):
        exact = torch.full((200_000,), weight).to(dtype).float()
        places = dithered(exact, dtype, "a weight")
        assert torch.equal(places.to(dtype).float(), exact)
        # Between a half step below and a half step above, in units of a step.
        step = torch.nextafter(exact[:1].to(dtype), torch.tensor([torch.inf]).to(dtype)).float() - exact[:1]
        away = ((places - exact) / step).double()
        assert abs(away.mean().item()) < 0.003 and away.square().mean().item() == pytest.approx(1 / 12, rel=0.01)


def test_a_step_of_a_hundredth_carries_one_dithered_weight_in_a_hundred_over():
    exact = torch.full((200_000,), 1.5)
    step = 2**-7
    after = (dithered(exact, torch.bfloat16, "a weight") + step / 100).bfloat16().float()
    assert after.unique().tolist() == [1.5, 1.5 + step]
    assert (after != exact).double().mean().item() == pytest.approx(0.01, rel=0.1)
    assert torch.equal((exact + step / 100).bfloat16().float(), exact)


def test_dithered_zeros_and_what_is_not_finite_stay_and_a_power_of_two_rounds_back():
    exact = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 3.3895e38, 9.2e-41, 2.0]).bfloat16().float()
    for name in ("one", "two", "three"):
        places = dithered(exact, torch.bfloat16, name)
        assert torch.equal(places[:4], exact[:4])
        assert torch.equal(places.bfloat16().float(), exact)
    assert dithered(torch.tensor([torch.nan]), torch.bfloat16, "w").isnan().all()
