"""This module keeps small changes of weights alive in a coarser type, by randomness without bias.

The change that adapters or a few optimizer steps make to a weight is mostly smaller than half a step of bfloat16.
Rounding to the nearest number would take nearly all of it away. `rounded` lets a number go up or down at random, with
the chances that make its mean exact. `dithered` begins float32 masters at random places between the numbers that
bfloat16 has, so that a small change carries the right share of them over to the next one. Every product with the
weights then averages over many such errors.
"""

import zlib

import torch
from torch import Tensor

# Bits of a float32 that a coarser type does not have.
DROPPED = {torch.bfloat16: 16, torch.float16: 13}


def seeded(device: torch.device, name: str) -> torch.Generator:
    """Returns a source of random numbers that are the same for the same name."""
    return torch.Generator(device).manual_seed(zlib.crc32(name.encode()))


def rounded(exact: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Rounds float32 numbers to `dtype` without bias. A number that `dtype` has stays as it is.

    The random numbers come from the weight's `name`, so that all ranks round alike, and so does a repeated run.
    float16 has coarser steps below 6e-5; such numbers are rounded to the nearest.
    """
    if dtype not in DROPPED:
        return exact.to(dtype)
    generator = seeded(exact.device, name)
    bits, dropped = exact.contiguous().view(torch.int32), DROPPED[dtype]
    shape, device = bits.shape, exact.device
    noise = torch.randint(0, 1 << dropped, shape, dtype=torch.int32, generator=generator, device=device)
    # The bits of a NaN may be as large as an integer's, and the sum would be a number.
    return torch.where(exact.isnan(), exact, ((bits + noise) & -(1 << dropped)).view(torch.float32)).to(dtype)


def dithered(weights: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Returns float32 numbers, each at a random place among those that the nearest rounding takes to its weight in
    `dtype`.

    `weights` are float32 numbers that `dtype` has. Zeros and what is not finite stay as they are. The random numbers
    come from `name`, as in `rounded`.
    """
    generator = seeded(weights.device, name)
    half = 1 << DROPPED[dtype] - 1
    noise = torch.randint(1 - half, half, weights.shape, dtype=torch.int32, generator=generator, device=weights.device)
    moved = (weights.contiguous().view(torch.int32) + noise).view(torch.float32)
    return torch.where((weights == 0) | ~weights.isfinite(), weights, moved)
