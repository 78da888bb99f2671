"""This module has compiled functions compute two parts of a model's layers on a GPU.

The parts are the inside of gated feed-forward layers, down(silu(gate(x)) · up(x)), and rotary positions,
x · cos + (−x₂, x₁) · sin for x = (x₁, x₂). Llama, Qwen and most other models have them in these forms (transformers
5.19). Torch's single steps read and write every tensor several times, and keep silu(gate) for the backward pass. The
compiled functions read and write each once, and keep nothing but inputs. They round where single steps and vLLM round.
"""

from collections.abc import Callable, Sequence
from copy import copy
from inspect import signature
from types import FunctionType, MethodType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from grpo.algorithm.fused import operator
from grpo.config.errors import first_line
from grpo.host import ranks
from grpo.host.terminal import say

GATED = ("gate_proj", "up_proj", "down_proj", "act_fn")
ROTATION, ROTATED = "apply_rotary_pos_emb", ["q", "k", "cos", "sin", "unsqueeze_dim"]
# The trial computes matrices of this many rows of this width.
ROWS, WIDTH = 48, 80
# A number may differ by this share of itself and of a tenth of the largest number: by one rounding in bfloat16.
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2**-7}


class Part(NamedTuple):
    """A part of a model's layers, and the function that computes it."""

    name: str
    layers: Callable[[nn.Module], list[nn.Module]]  # those of a model that have the part in this form
    fuse: Callable[[nn.Module], None]  # replaces the forward pass of such a layer
    plain: Callable[..., Tensor]  # computes the part in single steps
    compiled: Callable[..., Tensor]
    shapes: Sequence[tuple[int, ...]]  # of the tensors that the trial gives to both
    learned: int  # so many of these tensors have gradients


def choose_layers(models: Sequence[nn.Module], device: torch.device, dtype: torch.dtype, fused: str) -> None:
    """Has compiled functions compute both parts on a GPU, unless `learner.fused` is "never" or a function computes
    something else than single steps. Says which way is taken."""
    if device.type != "cuda" or fused == "never":
        return
    for part in PARTS:
        layers = [layer for model in models for layer in part.layers(model)]
        why = deviation(part, device, dtype) if layers else ""
        for layer in layers if not why else ():
            part.fuse(layer)
        if layers and not ranks.rank():
            say(f"grpo: {part.name} are computed {f'step by step ({why})' if why else 'by a compiled function'}")


def fuse_all(model: nn.Module) -> None:
    """Has compiled functions compute both parts, without a trial."""
    for part in PARTS:
        for layer in part.layers(model):
            part.fuse(layer)


def deviation(part: Part, device: torch.device, dtype: torch.dtype) -> str:
    """Returns why the compiled function is not used, or "". Both ways compute random numbers and their gradients."""
    try:
        numbers = torch.Generator().manual_seed(0)
        shapes = (*part.shapes, part.shapes[0])
        drawn = [torch.randn(*shape, generator=numbers).mul_(3).to(device, dtype) for shape in shapes]
        plain, own = (_tried(function, drawn, part.learned) for function in (part.plain, part.compiled))
        for index, (number, other) in enumerate(zip(plain, own, strict=True)):
            size = number.float().abs()
            off = ((number - other).float().abs() / (size + size.max() / 10)).max().item()
            if not off <= LIMITS[dtype]:
                return f"the compiled function computes other {'gradients' if index else 'values'}, by {off:.1g}"
    except Exception as error:
        # A compiler fails in many ways.
        return f"{type(error).__name__}: {first_line(error)[:200]}"
    return ""


def _tried(function: Callable[..., Tensor], drawn: Sequence[Tensor], learned: int) -> list[Tensor]:
    *given, upstream = drawn
    inputs = [tensor.clone().requires_grad_() for tensor in given[:learned]]
    made = function(*inputs, *given[learned:])
    return [made.detach(), *torch.autograd.grad(made, inputs, upstream)]


def _gated_layers(model: nn.Module) -> list[nn.Module]:
    """Returns the feed-forward layers of the form above, by what they make of small matrices."""
    hidden, *matrices = _small_numbers(4)
    gate, up, down = matrices
    expected = _product(hidden @ gate, hidden @ up) @ down

    def has_the_form(module: nn.Module) -> bool:
        if {*module._modules} != {*GATED}:
            return False
        small = copy(module)
        parts = [*(matrix.__rmatmul__ for matrix in matrices), module.act_fn]
        small.__dict__["_modules"] = dict(zip(GATED, parts, strict=True))
        return _makes(lambda: type(module).forward(small, hidden), expected)

    return [module for module in model.modules() if has_the_form(module)]


def _rotating_layers(model: nn.Module) -> list[nn.Module]:
    """Returns the attention layers with rotary positions of the form above, by what their function makes of small
    matrices. transformers has such a function in each model's file."""
    query, key, cos, sin = _small_numbers(4)[:, None]
    expected = _rotation(torch.stack([query[None], key[None]]), cos, sin)

    def has_the_form(module: nn.Module) -> bool:
        forward = type(module).forward
        rotate = forward.__globals__.get(ROTATION)
        if ROTATION not in forward.__code__.co_names or [*signature(rotate).parameters] != ROTATED:
            return False
        return _makes(lambda: torch.stack(rotate(query[None], key[None], cos, sin)), expected)

    return [module for module in model.modules() if has_the_form(module)]


def _small_numbers(count: int) -> Tensor:
    return torch.arange(count * 64, device="cpu").sin().bfloat16().unflatten(0, (count, 8, 8))


@torch.no_grad()
def _makes(computed: Callable[[], Tensor], expected: Tensor) -> bool:
    try:
        return torch.equal(computed(), expected)
    except Exception:  # whatever a layer of another kind says of these arguments
        return False


def _fuse_gated(layer: nn.Module) -> None:
    layer.forward = MethodType(_gated, layer)


def _gated(layer: nn.Module, hidden: Tensor) -> Tensor:
    return layer.down_proj(_compiled_product(layer.gate_proj(hidden), layer.up_proj(hidden)))


def _fuse_rotating(layer: nn.Module) -> None:
    """Gives the layer its class's forward pass, in which another function computes rotary positions."""
    forward = type(layer).forward
    plain = forward.__globals__[ROTATION]

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        if not q.shape[-1] == k.shape[-1] == cos.shape[-1] or not q.dtype == k.dtype == cos.dtype:
            # Some models rotate a part of each head, or have cos and sin in float32.
            return plain(q, k, cos, sin, unsqueeze_dim)
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return _compiled_rotation(q, cos, sin), _compiled_rotation(k, cos, sin)

    names = {**forward.__globals__, ROTATION: rotate}
    own = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    own.__kwdefaults__ = forward.__kwdefaults__
    layer.forward = MethodType(own, layer)


def _product(gate: Tensor, up: Tensor) -> Tensor:
    return silu(gate) * up


def _product_slopes(gate: Tensor, up: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.aten.silu_backward(upstream * up, gate), upstream * silu(gate)


def _rotation(hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = hidden.chunk(2, dim=-1)
    return hidden * cos + torch.cat((-second, first), dim=-1) * sin


def _rotation_slopes(cos: Tensor, sin: Tensor, upstream: Tensor) -> Tensor:
    first, second = (upstream * sin).chunk(2, dim=-1)
    return upstream * cos + torch.cat((second, -first), dim=-1)


_compiled_product = operator("gated_product", _product, lambda gate, up: torch.empty_like(gate))
_compiled_product_slopes = operator(
    "gated_product_slopes",
    _product_slopes,
    lambda gate, up, upstream: (torch.empty_like(gate), torch.empty_like(up)),
)
_compiled_product.register_autograd(
    lambda ctx, upstream: _compiled_product_slopes(*ctx.saved_tensors, upstream),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
_compiled_rotation = operator("rotation", _rotation, lambda hidden, cos, sin: torch.empty_like(hidden))
_compiled_rotation_slopes = operator(
    "rotation_slopes", _rotation_slopes, lambda cos, sin, upstream: torch.empty_like(upstream)
)
_compiled_rotation.register_autograd(
    lambda ctx, upstream: (_compiled_rotation_slopes(*ctx.saved_tensors, upstream), None, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[1:]),
)

MATRIX = (ROWS, WIDTH)
PARTS = (
    Part("feed-forward layers", _gated_layers, _fuse_gated, _product, _compiled_product, (MATRIX, MATRIX), 2),
    Part(
        *("rotary positions", _rotating_layers, _fuse_rotating, _rotation, _compiled_rotation),
        *(((3, *MATRIX), MATRIX, MATRIX), 1),
    ),
)
