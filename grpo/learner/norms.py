"""This module lets torch's fused kernel compute the root-mean-square norms of a transformers model.

Most models of transformers (5.19, `LlamaRMSNorm` and its copies) compute weight · round(x · rsqrt(mean(x²) + ε)) step
by step in float32. On a GPU each step reads and writes all hidden states: 8 kernels forward and 17 backward. torch has
one kernel for all steps but the product with the weight, forward and backward. It is called without the weight here:
so numbers are rounded where the model rounds them, and vLLM if it runs without a compiler. With the weight, torch would
round once, after the product. On a CPU torch takes the same steps as the model does.
"""

from copy import copy
from inspect import signature
from types import MethodType

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

# Enough numbers to show where a norm rounds, in rows of this width.
ROWS, WIDTH = 16, 64


def fuse_norms(model: nn.Module) -> None:
    """Replaces the forward pass of all norms in `model` that `normalized` equals, bit by bit."""
    for module in model.modules():
        if _is_the_same(module):
            module.forward = MethodType(normalized, module)


def normalized(norm: nn.Module, hidden: Tensor) -> Tensor:
    """Returns `hidden` [..., width], divided by the root of its mean square, rounded, and multiplied by the weight."""
    return norm.weight * rms_norm(hidden, (hidden.shape[-1],), None, norm.variance_epsilon)


@torch.no_grad()
def _is_the_same(module: nn.Module) -> bool:
    """Says whether a module is a norm that `normalized` equals. A small copy of it with bfloat16 weights is tried on
    hidden states in bfloat16 and in float32, in which some models add up their layers."""
    weights = dict(module.named_parameters())
    if [*weights] != ["weight"] or not hasattr(module, "variance_epsilon"):
        return False
    if weights["weight"].dtype == torch.float64 or len(signature(module.forward).parameters) > 1:
        # Models round to float32 here, in float64 too. A norm with a gate takes it besides.
        return False
    small = copy(module)
    numbers = torch.arange(ROWS * WIDTH, device="cpu").sin().bfloat16().unflatten(0, (ROWS, WIDTH))
    small._parameters = {"weight": nn.Parameter(numbers[0] + 2)}
    try:
        return all(
            torch.equal(type(module).forward(small, hidden), normalized(small, hidden))
            for hidden in (numbers, numbers.float())
        )
    except Exception:  # whatever a norm of another kind says of these arguments
        return False
