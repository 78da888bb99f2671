import pytest
import torch

from grpo.algorithm.logprobs import token_logprobs


def plain(hidden, weight, targets, temperature):
    logs = (hidden @ weight.T / temperature).log_softmax(-1)
    return logs.gather(-1, targets[:, None]).squeeze(-1), -(logs.exp() * logs).sum(-1)


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("uses", ["logprobs", "entropies", "both"])
def test_values_and_gradients_equal_those_of_the_whole_logit_matrix(chunk, uses):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(9, 6, generator=generator)
    weight = torch.randn(13, 6, generator=generator)
    targets = torch.randint(13, (9,), generator=generator)
    scale = torch.randn(2, 9, generator=generator)
    use = {"logprobs": (1, 0), "entropies": (0, 1), "both": (1, 1)}[uses]

    def gradients(function, dtype):
        inputs = [each.to(dtype, copy=True).requires_grad_() for each in (hidden, weight)]
        values = function(*inputs)
        loss = sum(flag * (row * value).sum() for flag, row, value in zip(use, scale, values, strict=True))
        loss.backward()
        return [*values, *(each.grad for each in inputs)]

    ours = gradients(lambda h, w: token_logprobs(h, w, targets, 0.7, chunk), torch.float32)
    exact = gradients(lambda h, w: plain(h, w, targets, 0.7), torch.float64)
    for value, reference in zip(ours, exact, strict=True):
        torch.testing.assert_close(value, reference.float(), rtol=1e-5, atol=1e-5)


def test_no_targets_give_zero_gradients():
    hidden, weight = torch.zeros(0, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    logprobs, _ = token_logprobs(hidden, weight, torch.zeros(0, dtype=torch.long), 1.0, 8)
    logprobs.sum().backward()
    assert weight.grad.abs().max() == 0
