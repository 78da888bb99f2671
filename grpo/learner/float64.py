"""This module computes models wholly in float64, so that two ways to compute one differ by errors, not by rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class InFloat64(TorchFunctionMode):
    """Within this context, code that asks for float32 gets float64.

    Norms, softmaxes, rotary positions and routers of many models compute in float32 whatever their inputs are. That
    rounds by 6e-8, which some models (Gemma 4) multiply to 1e-4.

    >>> with InFloat64():
    ...     torch.ones(1, dtype=torch.float32).float().dtype
    torch.float64
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        options = {name: _widened(value) for name, value in (kwargs or {}).items()}
        return func(*map(_widened, args), **options)


def _widened(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
