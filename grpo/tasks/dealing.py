"""This module deals prompts to ranks so that every rank's engine has about equally much to write."""

from __future__ import annotations

from collections.abc import Sequence


def dealt(lengths: Sequence[float], ranks: int, first: int = 0) -> list[int]:
    """Returns the rank of each of some consecutive prompts of the stream, of which the first stands at `first`.

    `lengths` are the expected lengths of the prompts' completions. Of every `ranks` consecutive prompts, each rank gets
    one: the rank with the least to write so far gets the prompt with the longest completions. So all ranks have as many
    prompts of every optimizer step as without lengths. If all lengths are equal, prompt p goes to rank p mod `ranks`.

    >>> dealt([900, 100, 800, 200], ranks=2)
    [0, 1, 1, 0]
    >>> dealt([100, 100, 100, 100], ranks=2, first=3)
    [1, 0, 1, 0]
    """
    loads, places = [0.0] * ranks, range(len(lengths))
    dealt_to = [0] * len(lengths)
    for start in places[::ranks]:
        longest_first = sorted(places[start : start + ranks], key=lambda place: -lengths[place])
        idlest_first = sorted(range(ranks), key=lambda rank: (loads[rank], (rank - first) % ranks))
        for place, rank in zip(longest_first, idlest_first, strict=False):
            dealt_to[place] = rank
            loads[rank] += lengths[place]
    return dealt_to
