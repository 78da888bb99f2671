"""This module says how much text one token can spell, which shows without tokenizing that a huge text is too long."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_KEEPING = {"NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "ByteLevel", "Split", "Digits", "Metaspace"}
"""A tokenizer's steps of these kinds take no ASCII character away (see `_keeps` for two exceptions)."""


def widest_token(tokenizer: Any) -> float:
    """Returns the most characters of ASCII text that one token spells.

    It is infinite where a token may stand for any text, such as an unknown word, or where text may be left out, such as
    blanks.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    described = json.loads(backend.to_str()) if backend is not None else {"model": {}}
    model, added = described["model"], described.get("added_tokens", ())
    steps = [*_steps(described.get("normalizer")), *_steps(described.get("pre_tokenizer"))]
    if (
        model.get("type") != "BPE"
        or not (_spells_bytes(model, steps) or (model["unk_token"] and not model["fuse_unk"]))
        or not all(map(_keeps, steps))
        or any(token["lstrip"] or token["rstrip"] for token in added)
    ):
        return math.inf
    return max(map(len, [*model["vocab"], *(token["content"] for token in added)]))


def _spells_bytes(model: Mapping[str, Any], steps: Iterable[Mapping[str, Any]]) -> bool:
    """Tells whether a text without other tokens is spelled byte by byte, so that nothing is unknown."""
    by_level = any(step["type"] == "ByteLevel" for step in steps)
    return model["byte_fallback"] or (by_level and sum(len(token) == 1 for token in model["vocab"]) >= 256)


def _steps(step: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yields the steps of a sequence of normalizers or of pre-tokenizers, or the only one."""
    if step and step["type"] == "Sequence":
        for inner in step.get("normalizers") or step.get("pretokenizers") or ():
            yield from _steps(inner)
    elif step:
        yield step


def _keeps(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Replace":
        return len(step["pattern"].get("String", "")) in range(1, len(step["content"]) + 1)
    return step["type"] in _KEEPING and step.get("behavior") != "Removed"
