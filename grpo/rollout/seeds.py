"""This module seeds every completion, so that a run repeated samples the same tokens, whatever else is in the batch."""

from collections.abc import Sequence
from hashlib import blake2b


def sample_seed(run_seed: int, prompt_id: str, sample_index: int, policy_version: int) -> int:
    """Returns the seed in [0, 2⁶³) of one completion. Every completion of a run has its own.

    >>> sample_seed(0, "mawps-17@0", 3, 120) == sample_seed(0, "mawps-17@0", 3, 120)
    True
    """
    name = f"{run_seed}/{prompt_id}/{sample_index}/{policy_version}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") >> 1


def sample_numbers(group_size: int | Sequence[int], first: int, num_prompts: int) -> list[range]:
    """Returns the numbers of the samples to draw for each prompt, from `first` on. `group_size` is one number for all
    prompts, or one for each."""
    sizes = [group_size] * num_prompts if isinstance(group_size, int) else group_size
    return [range(first, first + size) for size in sizes]
