"""This module compares conversations as the texts that a chat template writes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

END = "<end>"
"""This stands in `alike` texts for any token that ends a turn."""

_THOUGHT = re.compile(r"<think>(?:(?!<think>).)*?</think>\s*|<think>\s*$", re.DOTALL)


def bare(text: str) -> str:
    """Returns a conversation without thoughts, which templates drop from earlier turns."""
    return _THOUGHT.sub("", text)


def alike(text: str, ends: Sequence[str], with_thoughts: bool = False) -> str:
    """Returns a conversation in which every turn ends with the same token, and without thoughts if not with them."""
    return re.sub("|".join(map(re.escape, ends)) or "(?!)", END, text if with_thoughts else bare(text))


def others_think(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Tells whether a message that is not the model's holds a mark of a thought, which is no thought there."""
    return any("think>" in message["content"] for message in messages if message["role"] != "assistant")


def between(text: str, before: str, behind: str) -> str | None:
    """Returns what stands between the beginning and the end of a text, or None for a text that has not both.

    >>> between("abcde", "ab", "e"), between("abc", "ab", "bc")
    ('cd', None)
    """
    if len(text) < len(before) + len(behind) or not text.startswith(before) or not text.endswith(behind):
        return None
    return text[len(before) : len(text) - len(behind)]


def first_difference(one: str, other: str) -> str:
    """Shows where two texts begin to differ."""
    place = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    begin = max(0, place - 20)
    return f"{one[begin : place + 20]!r} in place of {other[begin : place + 20]!r}"
