"""This module splits problems into training and held-out ones by a hash of their questions."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence

from grpo.config import UserError
from grpo.types import Problem


def question_hash(question: str) -> float:
    """Returns a number in [0, 1) that depends on the question's words only, not on case, spacing or Unicode form."""
    normalized = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    digest = hashlib.blake2b(normalized.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


def split(problems: Sequence[Problem], held_out_fraction: float) -> tuple[list[Problem], list[Problem]]:
    """Returns (train, held out). A problem is held out when its question's hash lies below the fraction.

    No seed is involved, so a question is always on the same side, in every data set and however often it
    occurs. Training problems keep their order. Held-out ones are sorted by their hash, so the first n of
    them are the same for every fraction that holds out at least n.

    Raises `UserError` when the fraction is not in [0, 1), or when a side that was asked for is empty.
    """
    if not 0.0 <= held_out_fraction < 1.0:
        raise UserError(f"task.data.held_out_fraction is {held_out_fraction}; it must be at least 0 and below 1.")
    hashes = {problem.problem_id: question_hash(problem.question) for problem in problems}
    train = [problem for problem in problems if hashes[problem.problem_id] >= held_out_fraction]
    held_out = [problem for problem in problems if hashes[problem.problem_id] < held_out_fraction]
    if not train or (held_out_fraction > 0 and not held_out):
        distinct = len({*hashes.values()})
        equal = f" with {distinct} different question{'s' * (distinct > 1)}" if distinct < len(hashes) else ""
        raise UserError(
            f"task.data.held_out_fraction {held_out_fraction} leaves {len(train)} problems for training and "
            f"{len(held_out)} held out, of {len(problems)}{equal}: set it to 0, change it, or use more problems"
        )
    return train, sorted(held_out, key=lambda problem: (hashes[problem.problem_id], problem.problem_id))
