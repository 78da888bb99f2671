"""This module compares conversations as the texts that a chat template writes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

END = "<end>"
"""This stands in `alike` texts for any token that ends a turn."""

_THOUGHT = re.compile(r"<think>(?:(?!<think>).)*?</think>\s*|<think>\s*$", re.DOTALL)
# A thought that was cut off may be followed by another turn's.
_IN_TURN = re.compile(rf"<think>(?:(?!<think>|{END}).)*?</think>\s*|<think>\s*$", re.DOTALL)
_MASK = "\ue000"


def bare(text: str) -> str:
    """Returns a conversation without thoughts, which templates drop from earlier turns."""
    return _THOUGHT.sub("", text)


def alike(text: str, ends: Sequence[str], begin: str) -> str:
    """Returns a conversation without the model's thoughts, in which every turn ends with the same token.

    A turn of the model stands behind `begin`. Marks of thoughts elsewhere are the template's own words and stay.
    """
    ended, begin = (re.sub("|".join(map(re.escape, ends)) or "(?!)", END, part) for part in (text, begin))
    turn = re.compile(rf"{re.escape(begin)}(?:(?!{END}).)*", re.DOTALL)
    return turn.sub(lambda said: _IN_TURN.sub("", said[0]), ended)


def masked(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Returns messages in which only the model's own have marks of thoughts. Those of others are no thoughts."""
    if not any("think>" in message["content"] for message in messages if message["role"] != "assistant"):
        return messages
    return [
        message
        if message["role"] == "assistant"
        else {**message, "content": message["content"].replace("think>", f"think{_MASK}>")}
        for message in messages
    ]


def unmasked(text: str) -> str:
    """Returns a conversation as it is with the messages that were `masked`."""
    return text.replace(f"think{_MASK}>", "think>")


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
