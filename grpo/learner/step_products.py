"""This module measures what each optimizer step gained, by products of the step with the gradient that comes after it.

Let Δ be the change of the weights in the last step, and g the gradient of the loss on the samples of this one, which
are new. Then −Δ·g estimates how fast the loss falls along the last step, at its end. The estimate has no bias, because
the noise of new samples does not depend on Δ. Its sign is Pflug's test whether steps still help (G. Pflug, 1983; Chee &
Toulis, AISTATS 2018). In the same way the product of Adam's momentum with g estimates the squared norm of the mean
gradient, and its ratio to |g|² is the share of signal in a gradient (compare the gradient noise scale of McCandlish et
al., arXiv:1812.06162).

The optimizer calls `StepProducts` just before it takes a step. Its moments are still those of the last step then, and
Δ is computed from them, so nothing is stored. ZeRO gives each rank a shard of weights, gradients and moments. A product
is the sum over all shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from grpo.types import Mean

# Products are summed over pieces of this many weights, so that intermediate values stay in a processor's cache.
PIECE = 2**18
# Of a larger shard about this many weights are read, other pieces at each step. On a CPU all weights of SmolLM2-135M
# would take a sixth of a small step. The rest moves a cosine by about 1/√MOST, far less than the samples' luck does.
MOST = 2**23


class Products(NamedTuple):
    """Products are sums over the weights of one shard, or of all shards.

    slope      −Δ·g: how far the loss falls along a whole step like the last one, at the slope of its end
    length     |Δ|²
    memory     m·g, with m the mean of the gradients before g, weighed as in Adam's first moment
    gradient   |g|²

    g and the gradients in m are those that the optimizer gets, after clipping. Before the second step the first three
    are 0. A shard of more than `MOST` weights gives estimates, from an even share of its weights.
    """

    slope: float = 0.0
    length: float = 0.0
    memory: float = 0.0
    gradient: float = 0.0

    def means(self, gradient_norm: float) -> dict[str, Mean]:
        """Returns the metrics of a step, from the products of all shards and the norm of its gradient before clipping.

        `step/gain` is the fall of the loss along the step before, `step/cosine` the cosine of that step and −g, and
        `step/signal` the share of signal in a gradient. A mean over steps weighs the last two by their denominators.
        """
        if not self.length or not self.gradient:
            return {name: Mean(0.0, 0.0) for name in ("step/gain", "step/cosine", "step/signal")}
        unclipped = gradient_norm / self.gradient**0.5
        return {
            "step/gain": Mean(self.slope * unclipped, 1),
            "step/cosine": Mean(self.slope, (self.length * self.gradient) ** 0.5),
            "step/signal": Mean(self.memory, self.gradient),
        }


class StepProducts:
    """This meter measures the products of each step, in the torch optimizer that updates this rank's shards.

    `settings` holds learning rate, betas, ε and weight decay of the last step. A learner that loads a checkpoint sets
    them as they were saved, because the moments that it loads are of that step.
    """

    def __init__(self, optimizer: Optimizer):
        self.settings: dict[str, Any] = {}
        self._weights_before: dict[Tensor, Tensor] = {}
        self._sums: Tensor | None = None
        optimizer.register_step_pre_hook(self._measure)

    def go_on(self, settings: dict[str, Any]) -> None:
        """Goes on from a checkpoint with its saved `settings`. Optimizers other than Adam then measure nothing in the
        first step, since the weights before the last one are not saved."""
        self.settings = settings
        self._weights_before.clear()

    def take(self, settings: dict[str, Any], device: torch.device | str = "cpu") -> Tensor:
        """Returns the `Products` of the step that was just taken with `settings`, as a float64 tensor [4] on `device`,
        so that the host need not wait for them. They are 0 if the step was skipped."""
        if self._sums is None:
            return torch.zeros(len(Products._fields), dtype=torch.float64, device=device)
        sums, self._sums = self._sums, None
        self.settings = {**settings, "turn": self.settings.get("turn", 0) + 1}
        return sums.to(device)

    def _measure(self, optimizer: Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for weights in group["params"]:
                if weights.grad is not None:
                    sums = sum(self._products(optimizer, weights, weights.grad.flatten()))
                    self._sums = sums if self._sums is None else self._sums + sums
                    if not isinstance(optimizer, Adam):
                        self._weights_before[weights] = weights.detach().flatten().clone()

    def _products(self, optimizer: Optimizer, weights: Tensor, gradients: Tensor) -> Iterator[Tensor]:
        """Yields the products of each piece of a shard, as a float64 tensor [4]."""
        state = optimizer.state.get(weights, {})
        starts = range(0, gradients.numel(), PIECE)
        stride = -(-gradients.numel() // MOST)
        # Pieces take turns, so that each is read once in `stride` steps.
        chosen = starts[self.settings.get("turn", 0) % stride :: stride]
        for start in chosen:
            piece = slice(start, start + PIECE)
            now = gradients[piece]
            change, mean = now.new_zeros(()).expand_as(now), now.new_zeros(()).expand_as(now)
            known = isinstance(optimizer, Adam) or weights in self._weights_before
            if known and self.settings and "exp_avg" in state:
                change, mean = self._change(optimizer, weights, piece), _mean_gradient(state, self.settings, piece)
            products = (-change.dot(now), change.dot(change), mean.dot(now), now.dot(now))
            yield torch.stack(products).double() * (len(starts) / len(chosen))

    def _change(self, optimizer: Optimizer, weights: Tensor, piece: slice) -> Tensor:
        """Returns Δ of a piece of the weights. Adam's follows from its state; others need the weights before it."""
        now = weights.detach().flatten()[piece]
        if not isinstance(optimizer, Adam):
            return now - self._weights_before[weights][piece]
        state, settings = optimizer.state[weights], self.settings
        root = (state["exp_avg_sq"].flatten()[piece] / _past(settings["betas"][1], state)).sqrt_()
        change = _mean_gradient(state, settings, piece).mul_(-settings["lr"]).div_(root.add_(settings["eps"]))
        decay = settings["lr"] * settings["weight_decay"] if optimizer.defaults["decoupled_weight_decay"] else 0.0
        return change.sub_(now, alpha=decay).div_(1 - decay) if decay else change


def _mean_gradient(state: dict[str, Tensor], settings: dict[str, Any], piece: slice) -> Tensor:
    """Returns Adam's first moment without its bias towards 0, for a piece of the weights."""
    return state["exp_avg"].flatten()[piece] / _past(settings["betas"][0], state)


def _past(beta: float, state: dict[str, Tensor]) -> Tensor:
    """Returns the weight of all gradients so far in a moment that forgets by β."""
    return 1 - beta ** state["step"].double()
