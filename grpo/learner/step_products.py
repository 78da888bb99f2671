"""This module measures what each optimizer step gained, by products of the step with the gradient that comes after it.

Let Δ be the change of the weights in the last step, and g the gradient of the loss on the samples of this one, which
are new. Then −Δ·g estimates how fast the loss falls along the last step, at its end. The estimate has no bias, because
the noise of new samples does not depend on Δ. Its sign is Pflug's test whether steps still help (G. Pflug, 1983; Chee &
Toulis, AISTATS 2018). In the same way the product of Adam's momentum with g estimates the squared norm of the mean
gradient, and its ratio to |g|² is the share of signal in a gradient (compare the gradient noise scale of McCandlish et
al., arXiv:1812.06162).

A gradient goes on acting on the weights for some steps, because Adam keeps it in its momentum. A product with the last
step alone cannot show whether gradients have pushed too far in all. So g is also multiplied with the path of the last
steps, see `grpo.dynamics.gain`.

The optimizer calls `StepProducts` just before it takes a step. Its moments are still those of the last step then, and
Δ is computed from them. Only the path needs copies of earlier weights. ZeRO gives each rank a shard of weights,
gradients and moments. A product is the sum over all shards.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from grpo.types import Mean
from grpo.types import metrics as m

# Products are summed over pieces of this many weights, so that intermediate values stay in a processor's cache.
PIECE = 2**18
# A larger shard has about this many weights read, other pieces at each step. On a CPU all weights of SmolLM2-135M
# would take a sixth of a small step. The rest moves a cosine by about 1/√MOST, far less than the samples' luck does.
MOST = 2**23
# Copies of earlier weights are of this many, always the same ones. They take 16 MiB of the host's memory.
MOST_COPIED = 2**21


class Products(NamedTuple):
    """Products are sums over the weights of one shard, or of all shards.

    slope      −Δ·g: how far the loss falls along a whole step like the last one, at the slope of its end
    length     |Δ|²
    memory     m·g, with m the mean of the gradients before g, weighed as in Adam's first moment
    gradient   |g|²
    path_slope, path_length, path_gradient   the first, second and fourth with the path of the last steps for Δ

    g and the gradients in m are those that the optimizer gets, after clipping. Before the second step all but |g|² are
    0. A shard of more than `MOST` weights gives estimates, from an even share of its weights.
    """

    slope: float = 0.0
    length: float = 0.0
    memory: float = 0.0
    gradient: float = 0.0
    path_slope: float = 0.0
    path_length: float = 0.0
    path_gradient: float = 0.0

    def means(self, gradient_norm: float, path_steps: int) -> dict[str, Mean]:
        """Returns the metrics of a step, from the products of all shards, the norm of its gradient before clipping, and
        the number of steps that the path has.

        `step/gain` is the fall of the loss along the step before, `step/cosine` the cosine of that step and −g,
        `step/length` the length of that step, and `step/signal` the share of signal in a gradient. `path/gain` and
        `path/cosine` are the same for the path, the gain for one of its `path/steps`. A mean over steps weighs cosines
        and the share of signal by their denominators.
        """
        means = dict.fromkeys(METRICS, Mean(0.0, 0.0))
        if self.length and self.gradient:
            means |= {
                m.GAIN: Mean(self.slope * gradient_norm / self.gradient**0.5, 1),
                m.COSINE: Mean(self.slope, (self.length * self.gradient) ** 0.5),
                m.STEP_LENGTH: Mean(self.length**0.5, 1),
                m.SIGNAL: Mean(self.memory, self.gradient),
            }
        if self.path_length and self.path_gradient:
            means |= {
                m.PATH_GAIN: Mean(self.path_slope * gradient_norm / self.gradient**0.5 / path_steps, 1),
                m.PATH_COSINE: Mean(self.path_slope, (self.path_length * self.path_gradient) ** 0.5),
                m.PATH_STEPS: Mean(path_steps, 1),
            }
        return means


METRICS = (m.GAIN, m.COSINE, m.STEP_LENGTH, m.SIGNAL, m.PATH_GAIN, m.PATH_COSINE, m.PATH_STEPS)


class Path(NamedTuple):
    """A path goes from earlier weights to the present ones. It holds copies of the weights at two earlier times.

    The path begins at `older`. After every `horizon` steps `newer` takes its place, so that the path never becomes
    longer than two horizons.
    """

    older: Tensor
    newer: Tensor


class StepProducts:
    """This meter measures the products of each step, in the torch optimizer that updates this rank's shards.

    `settings` holds learning rate, betas, ε and weight decay of the last step, and counts the steps. A learner that
    loads a checkpoint sets them as they were saved, because the moments that it loads are of that step.
    """

    def __init__(self, optimizer: Optimizer):
        self.settings: dict[str, Any] = {}
        self._horizon = horizon(optimizer.defaults["betas"][0]) if "betas" in optimizer.defaults else 1
        self._weights_before: dict[Tensor, Tensor] = {}
        self._paths: dict[Tensor, Path] = {}
        self._saved: Mapping[str, Tensor] = {}
        self._sums: Tensor | None = None
        optimizer.register_step_pre_hook(self._measure)

    @property
    def path_steps(self) -> int:
        """Returns the number of steps of the path that the last call of `take` was about."""
        steps = self.settings.get("path", 1) - 1
        return steps if steps <= 2 * self._horizon else self._horizon + 1 + (steps - 1) % self._horizon

    def state(self) -> dict[str, Tensor]:
        """Returns this rank's copies of earlier weights, for `go_on`."""
        paths = enumerate(self._paths.values())
        return {f"{number}.{name}": copy for number, path in paths for name, copy in path._asdict().items()}

    def go_on(self, settings: dict[str, Any], state: Mapping[str, Tensor]) -> None:
        """Goes on from a checkpoint with its saved `settings` and `state`. Where the state is of other shards or
        missing, a new path begins. Optimizers other than Adam measure nothing in the first step, since the weights
        before the last one are not saved."""
        self.settings = settings if state else {**settings, "path": 0}
        self._weights_before.clear()
        self._paths.clear()
        self._saved = state

    def take(self, settings: dict[str, Any], device: torch.device | str = "cpu") -> Tensor:
        """Returns the `Products` of the step that was just taken with `settings`.

        They come as a float64 tensor on `device`, with one entry for each field, so that the host need not wait for
        them. They are 0 if the step was skipped."""
        if self._sums is None:
            return torch.zeros(len(Products._fields), dtype=torch.float64, device=device)
        sums, self._sums = self._sums, None
        counts = {name: self.settings.get(name, 0) + 1 for name in ("turn", "path")}
        self.settings = settings | counts
        return sums.to(device)

    def _measure(self, optimizer: Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for weights in group["params"]:
                if weights.grad is not None:
                    sums = sum(self._products(optimizer, weights, weights.grad.flatten()))
                    sums = torch.cat((sums, self._along_path(weights, weights.grad.flatten())))
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

    def _along_path(self, weights: Tensor, gradients: Tensor) -> Tensor:
        """Returns the products of the path with a shard's gradients, as a float64 tensor [3], and moves the path on."""
        stride = -(-gradients.numel() // MOST_COPIED)
        pieces = [slice(start, start + PIECE) for start in range(0, gradients.numel(), PIECE * stride)]
        now = torch.cat([weights.detach().flatten()[piece] for piece in pieces])
        gradient = torch.cat([gradients[piece] for piece in pieces])
        path = self._paths.get(weights) or self._begun(now)
        change = now - path.older.to(now.device)
        products = torch.stack((-change.dot(gradient), change.dot(change), gradient.dot(gradient))).double()
        steps = self.settings.get("path", 0)
        if steps and steps % self._horizon == 0:
            path = Path(path.newer if steps > self._horizon else path.older, now.cpu())
        self._paths[weights] = path
        return products * (gradients.numel() / gradient.numel())

    def _begun(self, now: Tensor) -> Path:
        """Returns the path of a shard that has none here yet: the saved one, or one that begins at its weights now.

        DeepSpeed steps with the shards of a rank in the same order at all times."""
        saved = [self._saved.get(f"{len(self._paths)}.{name}") for name in Path._fields]
        here = now.cpu()
        return Path(*(here.clone() if copy is None else copy.to(now.dtype) for copy in saved))

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


def horizon(momentum: float) -> int:
    """Returns the number of steps for which a gradient acts, 1/(1 − β) with β = `momentum`, at least 1.

    >>> horizon(0.9), horizon(0.0)
    (10, 1)
    """
    return max(1, math.ceil(1 / (1 - momentum) - 1e-9))


def _mean_gradient(state: dict[str, Tensor], settings: dict[str, Any], piece: slice) -> Tensor:
    """Returns Adam's first moment without its bias towards 0, for a piece of the weights."""
    return state["exp_avg"].flatten()[piece] / _past(settings["betas"][0], state)


def _past(beta: float, state: dict[str, Tensor]) -> Tensor:
    """Returns the weight of all gradients so far in a moment that forgets by β."""
    return 1 - beta ** state["step"].double()
