"""Seeds of samples: a run repeated samples the same tokens, whatever else is in the batch."""

from collections.abc import Sequence
from hashlib import blake2b


def sample_seed(run_seed: int, prompt_id: str, sample_index: int, policy_version: int) -> int:
    """A seed in [0, 2⁶³) of its own for every completion of a run.

    >>> sample_seed(0, "mawps-17@0", 3, 120) == sample_seed(0, "mawps-17@0", 3, 120)
    True
    """
    name = f"{run_seed}/{prompt_id}/{sample_index}/{policy_version}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") >> 1


def sample_numbers(group_size: int | Sequence[int], first: int, num_prompts: int) -> list[range]:
    """Numbers of the samples to draw for each prompt: `group_size` of them (one number for all, or each its own),
    from `first` on."""
    sizes = [group_size] * num_prompts if isinstance(group_size, int) else group_size
    return [range(first, first + size) for size in sizes]
