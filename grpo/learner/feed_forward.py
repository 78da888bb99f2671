"""This module has a compiled function compute the inside of gated feed-forward layers on a GPU.

Such a layer is down(silu(gate(x)) · up(x)) in Llama, Qwen and most other models (transformers 5.19). Step by step,
torch reads and writes 5 tensors of the inner width forward and 9 backward, and keeps silu(gate) for the backward pass.
The compiled function reads and writes 3 and 5, and keeps its inputs alone. It rounds where single steps and vLLM round.
"""

from collections.abc import Callable, Iterable
from copy import copy
from types import MethodType

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from grpo.algorithm.fused import operator
from grpo.config.errors import first_line
from grpo.host import ranks
from grpo.host.terminal import say

LAYERS = ("gate_proj", "up_proj", "down_proj", "act_fn")
# The trial computes this many rows of this width.
ROWS, WIDTH = 48, 80
# A number may differ by this share of itself and of a tenth of the largest number: by one rounding in bfloat16.
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2**-7}


def choose_feed_forward(models: Iterable[nn.Module], device: torch.device, dtype: torch.dtype, fused: str) -> None:
    """Has the compiled function compute all such layers on a GPU, unless `learner.fused` is "never" or the function
    computes something else than single steps. Says which way is taken."""
    if device.type != "cuda" or fused == "never":
        return
    layers = [layer for model in models for layer in gated_layers(model)]
    why = deviation(device, dtype) if layers else ""
    for layer in layers if not why else ():
        fuse(layer)
    if layers and not ranks.rank():
        say(f"grpo: feed-forward layers are computed {f'step by step ({why})' if why else 'by a compiled function'}")


@torch.no_grad()
def gated_layers(model: nn.Module) -> list[nn.Module]:
    """Returns the feed-forward layers of `model` that have the form above, by what they make of small matrices."""
    hidden, *matrices = torch.arange(4 * 64, device="cpu").sin().unflatten(0, (4, 8, 8))
    gate, up, down = matrices

    def has_the_form(module: nn.Module) -> bool:
        if {*module._modules} != {*LAYERS}:
            return False
        small = copy(module)
        small.__dict__["_modules"] = dict(
            zip(LAYERS, [*(matrix.__rmatmul__ for matrix in matrices), module.act_fn], strict=True)
        )
        try:
            return torch.equal(type(module).forward(small, hidden), _plain_product(hidden @ gate, hidden @ up) @ down)
        except Exception:  # whatever a layer of another kind says of these arguments
            return False

    return [module for module in model.modules() if has_the_form(module)]


def fuse(layer: nn.Module) -> None:
    """Replaces the forward pass of one of `gated_layers`."""
    layer.forward = MethodType(_forward, layer)


def deviation(device: torch.device, dtype: torch.dtype) -> str:
    """Returns why the compiled function is not used, or "". Both ways compute random numbers and their gradients."""
    numbers = torch.Generator(device).manual_seed(0)
    drawn = [torch.randn(ROWS, WIDTH, generator=numbers, device=device).mul_(3).to(dtype) for _ in range(3)]
    try:
        ways = [_tried(product, *drawn) for product in (_plain_product, _product)]
        for what, plain, own in zip(("products", "gradients", "gradients"), *ways, strict=True):
            size = plain.float().abs()
            off = ((plain - own).float().abs() / (size + size.max() / 10)).max().item()
            if not off <= LIMITS[dtype]:
                return f"the compiled function computes other {what}, by {off:.1g}"
    except Exception as error:
        # A compiler fails in many ways.
        return f"{type(error).__name__}: {first_line(error)[:200]}"
    return ""


def _tried(product: Callable[[Tensor, Tensor], Tensor], gate: Tensor, up: Tensor, upstream: Tensor) -> list[Tensor]:
    inputs = [part.clone().requires_grad_() for part in (gate, up)]
    made = product(*inputs)
    return [made.detach(), *torch.autograd.grad(made, inputs, upstream)]


def _forward(layer: nn.Module, hidden: Tensor) -> Tensor:
    return layer.down_proj(_product(layer.gate_proj(hidden), layer.up_proj(hidden)))


def _plain_product(gate: Tensor, up: Tensor) -> Tensor:
    return silu(gate) * up


def _plain_slopes(gate: Tensor, up: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.aten.silu_backward(upstream * up, gate), upstream * silu(gate)


_product = operator("gated_product", _plain_product, lambda gate, up: torch.empty_like(gate))
_slopes = operator(
    "gated_slopes", _plain_slopes, lambda gate, up, upstream: (torch.empty_like(gate), torch.empty_like(up))
)
_product.register_autograd(
    lambda ctx, upstream: _slopes(*ctx.saved_tensors, upstream),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
