"""This module computes log-probabilities and entropies from hidden states without holding the whole logit matrix.

The logits, [targets, vocabulary], would be by far the largest tensor of a training step: 16,384 × 151,936 float32 is
9.3 GiB. Here they are computed for `chunk` targets at a time, in the forward pass and again in the backward pass. When
one chunk holds all targets, its probabilities are kept for the backward pass instead. A chunk is read step by step, or
by compiled functions (`grpo.algorithm.fused`).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo.algorithm import fused
from grpo.algorithm.shapes import Bias, Embedding, Logits, States, Targets


@dataclass(frozen=True, slots=True)
class LogitRule:
    """A logit rule says how a model computes logits from z, its hidden states times output embedding plus any bias.

    The logits are softcap·tanh(scale·z/softcap), or scale·z without a softcap.

    scale     Cohere's logit_scale, or one over Granite's logits_scaling
    softcap   Gemma's final_logit_softcapping, or None
    float32   keeps the product of bfloat16 inputs in float32, where the model itself would round it to bfloat16
    compiled  has compiled functions read the product, see `grpo.algorithm.fused`
    """

    scale: float = 1.0
    softcap: float | None = None
    float32: bool = False
    compiled: bool = False

    def product(self, hidden: States, weight: Embedding, bias: Bias | None) -> Logits:
        """Returns z, in the type in which it is computed."""
        product = self._product(hidden, weight)
        return product if bias is None else product + bias

    def logits(self, hidden: States, weight: Embedding, bias: Bias | None) -> Logits:
        """Returns the logits of `hidden`, in float32 or wider."""
        logits = self.product(hidden, weight, bias)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.scale != 1:
            logits = logits * self.scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def slope(self, logits: Logits) -> Logits | float:
        """Returns the derivative ∂logit/∂z, computed from the logits themselves."""
        return self.scale if self.softcap is None else self.scale * (1 - (logits / self.softcap).square())

    def cooling(self, temperature: float) -> fused.Cooling:
        """Returns the rule and a temperature as compiled functions take them."""
        return fused.Cooling(temperature, self.scale, self.softcap or 0.0)

    def _product(self, hidden: States, weight: Embedding) -> Logits:
        if not self.float32 or hidden.dtype == torch.float32:
            return hidden @ weight.T
        if hidden.is_cuda:
            # The GPU multiplies bfloat16, sums and keeps the result in float32. This is as fast as rounding the result.
            return torch.mm(hidden, weight.T, out_dtype=torch.float32)
        return hidden.float() @ weight.float().T


PLAIN = LogitRule()
"""This rule is that of most models: the logits are z, without scale and softcap."""


def token_logprobs(
    hidden: States,
    weight: Embedding,
    targets: Targets,
    temperature: float,
    chunk: int,
    bias: Bias | None = None,
    rule: LogitRule = PLAIN,
) -> tuple[Targets, Targets]:
    """Returns log π(target) and the entropy of π at each target, where π is softmax(logits / temperature).

    hidden    the hidden state at the position that predicts each target
    weight    the output embedding
    targets   the token at each position, int64
    chunk     number of targets whose logits exist at once
    bias      the output layer's bias if it has one

    Both results are in float32 (in float64 for float64 inputs). Gradients flow to `hidden`, `weight`
    and `bias`.
    """
    return _TokenLogprobs.apply(hidden, weight, bias, targets, (temperature, chunk, rule))


@torch.no_grad()
def logprobs_alone(
    hidden: States,
    weight: Embedding,
    targets: Targets,
    temperature: float,
    chunk: int,
    bias: Bias | None = None,
    rule: LogitRule = PLAIN,
) -> Targets:
    """Returns log π(target) as `token_logprobs` does, without a gradient. It leaves out the passes over all logits that
    entropies take."""
    logprobs = []
    for states, token_ids in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        if rule.compiled:
            product = rule.product(states, weight, bias)
            logprobs.append(fused.target_logprobs(product, token_ids, rule.cooling(temperature)))
            continue
        logprobs.append(_of_targets(_log_softmax(rule.logits(states, weight, bias), temperature), token_ids))
    return torch.cat(logprobs)


class _TokenLogprobs(torch.autograd.Function):
    """This function computes `token_logprobs` chunk by chunk, with a backward pass that computes the logits again.

    The gradient of log π(target) with respect to z is (one-hot of the target − π)·slope/temperature, a row of
    [targets, vocabulary]. The chain rule multiplies this row by the target's upstream gradient. That factor is
    multiplied into the smaller [targets, width] instead, which saves one pass over [targets, vocabulary].
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: tuple[float, int, LogitRule],
    ) -> tuple[Tensor, Tensor]:
        temperature, chunk, rule = settings
        logprobs, entropies = [], []
        saved_probabilities = None
        for states, token_ids in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            is_whole = len(states) == len(hidden) and rule.softcap is None
            if rule.compiled:
                product, kept = rule.product(states, weight, bias), weight.dtype if is_whole else None
                *values, saved_probabilities = fused.read(product, token_ids, rule.cooling(temperature), kept)
                for results, value in zip((logprobs, entropies), values, strict=True):
                    results.append(value)
                continue
            logs = _log_softmax(rule.logits(states, weight, bias), temperature)
            logprobs.append(_of_targets(logs, token_ids))
            probabilities = logs.exp()
            entropies.append(-logs.mul_(probabilities).sum(-1))
            del logs
            if is_whole:
                saved_probabilities = _less_one(probabilities, token_ids).to(weight.dtype)
            # The next chunk's tensors reuse this memory.
            del probabilities
        ctx.save_for_backward(hidden, weight, bias, targets, torch.cat(entropies), saved_probabilities)
        ctx.temperature, ctx.chunk, ctx.rule = temperature, chunk, rule
        # A result that the loss does not use gets no gradient. With zeros instead, the host would have to wait for the
        # device to see that they are zero.
        ctx.set_materialize_grads(False)
        return torch.cat(logprobs), torch.cat(entropies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropies, saved_probabilities = ctx.saved_tensors
        uses_entropy = gradients[1] is not None
        logprob_gradient, entropy_gradient = (
            torch.zeros_like(entropies) if gradient is None else gradient for gradient in gradients
        )
        wants_weight, wants_bias = ctx.needs_input_grad[1:3]
        hidden_gradients = []
        weight_gradient = bias_gradient = None
        parts = (hidden, targets, entropies, logprob_gradient, entropy_gradient)
        for states, token_ids, entropy, upstream, upstream_entropy in zip(
            *(part.split(ctx.chunk) for part in parts), strict=True
        ):
            # This factor multiplies each target's row of `wide`, [targets, vocabulary].
            factor = upstream * (-ctx.rule.scale / ctx.temperature)
            if saved_probabilities is not None and not uses_entropy:
                wide = saved_probabilities
            elif ctx.rule.compiled:
                product, cooling = ctx.rule.product(states, weight, bias), ctx.rule.cooling(ctx.temperature)
                wide = fused.slopes(product, token_ids, entropy, (upstream, upstream_entropy), cooling, weight.dtype)
                del product
                factor = torch.full_like(upstream, -ctx.rule.scale / ctx.temperature)
            else:
                logits = ctx.rule.logits(states, weight, bias)
                slope = None if ctx.rule.softcap is None else ctx.rule.slope(logits).div_(ctx.rule.scale)
                if uses_entropy:
                    logs = _log_softmax(logits, ctx.temperature)
                    del logits
                    # ∂H/∂z_j = −p_j (log p_j + H)
                    wide = logs.exp()
                    wide *= logs.add_(entropy[:, None]).mul_(upstream_entropy[:, None]).add_(upstream[:, None])
                    del logs
                    wide.scatter_add_(-1, token_ids[:, None], -upstream[:, None])
                    factor = torch.full_like(upstream, -ctx.rule.scale / ctx.temperature)
                else:
                    wide = _less_one(torch.softmax(_cooled(logits, ctx.temperature), -1), token_ids)
                    del logits
                wide = (wide if slope is None else wide.mul_(slope)).to(weight.dtype)
            hidden_gradients.append(((wide @ weight) * factor[:, None]).to(hidden.dtype))
            if wants_weight:
                product = wide.T @ (states * factor[:, None]).to(weight.dtype)
                weight_gradient = _added(weight_gradient, product, entropies.dtype)
            if wants_bias:
                bias_gradient = _added(bias_gradient, wide.T @ factor.to(wide.dtype), entropies.dtype)
            # The next chunk's matrix reuses this memory too.
            del wide
        weight_gradient = None if weight_gradient is None else weight_gradient.to(weight.dtype)
        bias_gradient = None if bias_gradient is None else bias_gradient.to(bias.dtype)
        return torch.cat(hidden_gradients), weight_gradient, bias_gradient, None, None


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    """Returns log π [targets, vocabulary]. May overwrite `logits`."""
    return torch.log_softmax(_cooled(logits, temperature), -1)


def _cooled(logits: Tensor, temperature: float) -> Tensor:
    """Returns logits / temperature. May overwrite `logits`."""
    return logits if temperature == 1 else logits.div_(temperature)


def _of_targets(logs: Tensor, token_ids: Tensor) -> Tensor:
    """Returns each target's own entry of log π [targets, vocabulary]."""
    return logs.gather(-1, token_ids[:, None]).squeeze(-1)


def _less_one(probabilities: Tensor, token_ids: Tensor) -> Tensor:
    """Subtracts 1 from each target's own probability, in place, before any rounding to bfloat16: so the small
    difference of a probability near 1 keeps its digits."""
    ones = torch.ones_like(token_ids, dtype=probabilities.dtype)
    return probabilities.scatter_add_(-1, token_ids[:, None], -ones[:, None])


def _added(total: Tensor | None, part: Tensor, dtype: torch.dtype) -> Tensor:
    """Adds a chunk's `part` to the `total` in `dtype`. The first part, often the only one, is returned unchanged."""
    return part if total is None else total.to(dtype).add_(part)
