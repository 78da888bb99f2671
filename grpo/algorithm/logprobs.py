"""Log-probabilities and entropies of targets from hidden states, without the whole logit matrix.

[targets, vocabulary] is by far the largest tensor of a training step: 16,384 × 151,936 float32 is 9.3 GiB.
Here it exists for `chunk` rows at a time, in the forward and again in the backward pass; when one chunk holds all
rows, its probabilities are kept for the backward pass instead.
"""

from __future__ import annotations

import torch
from torch import Tensor


def token_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int
) -> tuple[Tensor, Tensor]:
    """log π(target) and the entropy of π at each target, under softmax(hidden·weightᵀ / temperature).

    hidden    [targets, width], of the position that predicts each target
    weight    [vocabulary, width], the output embedding
    targets   [targets] int64
    chunk     rows of logits that exist at once
    returns   two float32 tensors [targets]; gradients flow to `hidden` and `weight`
    """
    return _TokenLogprobs.apply(hidden, weight, targets, temperature, chunk)


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    return (hidden @ weight.T).float().div_(temperature)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int):
        normalizers, logprobs, entropies = [], [], []
        kept = None
        for rows, aims in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            logits = _logits(rows, weight, temperature)
            normalizer = logits.logsumexp(-1)
            logprobs.append(logits.gather(-1, aims[:, None]).squeeze(-1) - normalizer)
            logs = logits.sub_(normalizer[:, None])
            probabilities = logs.exp()
            entropies.append(-torch.linalg.vecdot(probabilities, logs))
            normalizers.append(normalizer)
            kept = probabilities if len(rows) == len(hidden) else None
        ctx.save_for_backward(hidden, weight, targets, torch.cat(normalizers), torch.cat(entropies), kept)
        ctx.temperature, ctx.chunk = temperature, chunk
        return torch.cat(logprobs), torch.cat(entropies)

    @staticmethod
    def backward(ctx, logprob_gradient: Tensor, entropy_gradient: Tensor):
        hidden, weight, targets, normalizers, entropies, kept = ctx.saved_tensors
        hidden_gradients = []
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        parts = (hidden, targets, normalizers, entropies, logprob_gradient, entropy_gradient)
        for rows, aims, normalizer, entropy, upstream, upstream_entropy in zip(
            *(part.split(ctx.chunk) for part in parts), strict=True
        ):
            if bool(upstream_entropy.any()):
                logs = _logits(rows, weight, ctx.temperature).sub_(normalizer[:, None])
                # ∂H/∂z_j = −p_j (log p_j + H)
                gradient = logs.exp()
                gradient *= -upstream[:, None] - upstream_entropy[:, None] * (logs + entropy[:, None])
            elif kept is not None:
                gradient = kept * -upstream[:, None]
            else:
                logs = _logits(rows, weight, ctx.temperature).sub_(normalizer[:, None])
                gradient = logs.exp_().mul_(-upstream[:, None])
            gradient.scatter_add_(-1, aims[:, None], upstream[:, None])
            gradient = gradient.div_(ctx.temperature).to(weight.dtype)
            hidden_gradients.append(gradient @ weight)
            if weight_gradient is not None:
                weight_gradient += gradient.T @ rows
        if weight_gradient is not None:
            weight_gradient = weight_gradient.to(weight.dtype)
        return torch.cat(hidden_gradients), weight_gradient, None, None, None
