"""This module has compiled functions compute two parts of a model's layers on a GPU.

The parts are the inside of gated feed-forward layers, down(silu(gate(x)) · up(x)), and rotary positions,
x · cos + (−x₂, x₁) · sin for x = (x₁, x₂). Llama, Qwen and most other models have them in these forms (transformers
5.19). Torch's single steps read and write every tensor several times, and keep silu(gate) for the backward pass. The
compiled functions read and write each once, and keep nothing but inputs. They round where single steps round.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from inspect import signature
from types import FunctionType, MethodType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from grpo.algorithm.fused import operator
from grpo.config.errors import first_line
from grpo.host.terminal import say
from grpo.interfaces import Collective

GATED = ("gate_proj", "up_proj", "down_proj", "act_fn")
ROTATION, ROTATED = "apply_rotary_pos_emb", ["q", "k", "cos", "sin", "unsqueeze_dim"]
# The trial computes rows of these lengths and this width.
LENGTHS, WIDTH = (48, 64), 80
LARGE = torch.tensor([1.0, 1000.0], dtype=torch.bfloat16)
# A number may differ by this share of itself and of a tenth of the largest number: by one rounding in bfloat16.
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2**-7}


class Part(NamedTuple):
    """A part of a model's layers, and the function that computes it."""

    name: str
    has_the_form: Callable[[nn.Module], bool]  # says whether a layer has the part in the form above; may raise
    fuse: Callable[[nn.Module], None]  # replaces the forward pass of such a layer
    plain: Callable[..., Tensor]  # computes the part in single steps
    compiled: Callable[..., Tensor]
    drawn: Callable[[torch.Generator, int], list[list[Tensor]]]  # arguments for the trial, for a row of so many tokens
    learned: int  # so many of the arguments have gradients

    def layers(self, model: nn.Module) -> list[nn.Module]:
        """Returns the layers of a model that have the part in this form."""
        return [module for module in model.modules() if self._is_in(module)]

    @torch.no_grad()
    def _is_in(self, module: nn.Module) -> bool:
        try:
            return self.has_the_form(module)
        except Exception:  # whatever a layer of another kind says of these arguments
            return False


def choose_layers(models: Sequence[nn.Module], device: torch.device, fused: str, collective: Collective) -> None:
    """Has compiled functions compute both parts on a GPU, unless `learner.fused` is "never" or a function computes
    something else than single steps on some rank. Says which way is taken. Collective."""
    if device.type != "cuda" or fused == "never":
        return
    dtypes = dict.fromkeys(next(model.parameters()).dtype for model in models)
    for part in PARTS:
        layers = [layer for model in models for layer in part.layers(model)]
        if not layers:
            continue
        why = next(filter(None, (deviation(part, device, dtype) for dtype in dtypes)), "")
        why = why or "the trial failed on another rank" * collective.maximum(bool(why))
        for layer in layers if not why else ():
            part.fuse(layer)
        if not collective.rank:
            say(f"grpo: {part.name} are computed {f'step by step ({why})' if why else 'by a compiled function'}")


def fuse_all(model: nn.Module) -> None:
    """Has compiled functions compute both parts, without a trial."""
    for part in PARTS:
        for layer in part.layers(model):
            part.fuse(layer)


def deviation(part: Part, device: torch.device, dtype: torch.dtype) -> str:
    """Returns why the compiled function is not used, or "". Both ways compute random numbers and their gradients, laid
    out as in training. The second length has the function compiled for any."""
    try:
        for tokens in LENGTHS:
            numbers = torch.Generator().manual_seed(tokens)
            for given in part.drawn(numbers, tokens):
                upstream = torch.randn(given[0].shape, generator=numbers)
                drawn = [tensor.to(device, dtype) for tensor in (*given, upstream)]
                plain, own = (_tried(function, drawn, part.learned) for function in (part.plain, part.compiled))
                for index, (number, other) in enumerate(zip(plain, own, strict=True)):
                    size = number.float().abs()
                    off = ((number - other).float().abs() / (size + size.max() / 10)).max().item()
                    if not off <= LIMITS[dtype]:
                        return (
                            f"the compiled function computes other {'gradients' if index else 'values'}, by {off:.1g}"
                        )
    except Exception as error:
        # A compiler fails in many ways.
        return f"{type(error).__name__}: {first_line(error)[:200]}"
    return ""


def _tried(function: Callable[..., Tensor], drawn: Sequence[Tensor], learned: int) -> list[Tensor]:
    *given, upstream = drawn
    inputs = [tensor.clone().requires_grad_() for tensor in given[:learned]]
    made = function(*inputs, *given[learned:])
    return [made.detach(), *torch.autograd.grad(made, inputs, upstream)]


def _is_gated(module: nn.Module) -> bool:
    """Says whether a layer makes of small matrices what the form above makes of them."""
    if {*module._modules} != {*GATED}:
        return False
    small = copy(module)
    for hidden, *matrices in _small_numbers():
        parts = [*(matrix.__rmatmul__ for matrix in matrices), module.act_fn]
        small.__dict__["_modules"] = dict(zip(GATED, parts, strict=True))
        gate, up, down = matrices
        if not torch.equal(type(module).forward(small, hidden), _product(hidden @ gate, hidden @ up) @ down):
            return False
    return True


def _is_rotating(module: nn.Module) -> bool:
    """Says whether an attention layer rotates small matrices as above. transformers has a function for it in each
    model's file."""
    forward = type(module).forward
    rotate = forward.__globals__[ROTATION]
    if ROTATION not in forward.__code__.co_names or [*signature(rotate).parameters] != ROTATED:
        return False
    for query, key, cos, sin in _small_numbers()[:, :, None]:
        made = torch.stack(rotate(query[None], key[None], cos, sin))
        if not torch.equal(made, _rotation(torch.stack([query[None], key[None]]), cos, sin)):
            return False
    # Another function rounds to the queries' precision where cosines have a finer one, or rotates a part of each head.
    if rotate(query[None], key[None], cos.float(), sin.float())[0].dtype != torch.float32:
        return False
    with suppress(RuntimeError):
        rotate(query[None], key[None], cos[..., :4], sin[..., :4])
        return False
    return True


def _small_numbers() -> Tensor:
    """Returns four matrices of small numbers, and four of large ones, which a layer may clamp."""
    return torch.arange(4 * 64, device="cpu").sin().bfloat16().unflatten(0, (4, 8, 8)) * LARGE[:, None, None, None]


def _fuse_gated(layer: nn.Module) -> None:
    layer.forward = MethodType(_gated, layer)


def _gated(layer: nn.Module, hidden: Tensor) -> Tensor:
    return layer.down_proj(_compiled_product(layer.gate_proj(hidden), layer.up_proj(hidden)))


def _fuse_rotating(layer: nn.Module) -> None:
    """Gives the layer its class's forward pass, in which another function computes rotary positions."""
    forward = type(layer).forward
    plain = forward.__globals__[ROTATION]

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        if not q.dtype == k.dtype == cos.dtype:
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


def _drawn_gated(numbers: torch.Generator, tokens: int) -> list[list[Tensor]]:
    return [[3 * torch.randn(1, tokens, WIDTH, generator=numbers) for _ in range(2)]]


def _drawn_rotating(numbers: torch.Generator, tokens: int) -> list[list[Tensor]]:
    """Returns queries of three heads and keys of two, as views, each with cosines and sines."""
    heads = (torch.randn(1, tokens, count, WIDTH, generator=numbers).transpose(1, 2) for count in (3, 2))
    return [[hidden, *torch.randn(2, 1, 1, tokens, WIDTH, generator=numbers)] for hidden in heads]


PARTS = (
    Part("feed-forward layers", _is_gated, _fuse_gated, _product, _compiled_product, _drawn_gated, 2),
    Part("rotary positions", _is_rotating, _fuse_rotating, _rotation, _compiled_rotation, _drawn_rotating, 1),
)
