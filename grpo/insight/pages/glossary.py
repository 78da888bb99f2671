"""This module holds the explanations of words on pages, and formats durations, changes, large numbers and settings."""

import math
from collections.abc import Mapping
from typing import Any

from grpo.types import metrics as m

MEANINGS = {
    "pass rate": "The share of completions that are right.",
    "pass@1": "The share of problems solved at the first try. pass@k: at least one of k tries is right.",
    "maj@k": "The share of problems whose most frequent answer among k is right.",
    "greedy": "One completion that takes the likeliest token at each place.",
    "held-out problems": "Problems that are never trained on. They tell whether the model learned or only memorized.",
    "95 % interval": "If everything were repeated many times, 95 % of such intervals would hold the true value.",
    "percentage point": "From 20 % to 30 % is a change of 10 percentage points, or points for short.",
    "p": (
        "The probability of a difference this large, or larger, if there were none. Below 0.05 it is unlikely to be "
        "chance."
    ),
    "seed": "The number that chance starts from. Runs that differ in the seed only show how much is luck.",
    "optimizer step": "One update of the model's weights.",
    "round": "The model writes completions, they are graded, and the model learns from them.",
    "group": "The completions of one prompt. G is their number.",
    "silent group": "A group whose completions all got the same reward. Nothing is learned from it.",
    "entropy": m.TABLE[m.ENTROPY].sentence,
    "gradient norm": m.TABLE[m.GRADIENT_NORM].sentence,
    "cut off": "A completion that reached the token limit before it ended.",
    "solve rate": "The share of a model's attempts at a problem that are right; the pass rate of one problem.",
    "α, β": (
        "The dials. The advantage divides by the spread of a group's rewards to the power α, and by their mean to the "
        "power β. GRPO has α = 1, Dr. GRPO α = 0."
    ),
    "τ": "The refresh interval: optimizer steps on completions of one policy, before new ones are written.",
}

PHASES = {
    "sample": "writes completions",
    "wait": "waits for other processes",
    "grade": "scores completions",
    "sleep": "frees the sampler's memory",
    "logprobs": "computes earlier probabilities of the tokens",
    "learn": "updates the model",
    "offload": "frees the learner's memory",
    "sync": "copies the weights to the sampler",
}
"""The phases of a round in their order, each with what happens in it."""


def duration(seconds: float) -> str:
    """Formats seconds as seconds, minutes or hours, whichever suits. "–" stands for 0, as of logs without times.

    >>> duration(30.0), duration(600.0), duration(90_000.0), duration(0.0)
    ('30 s', '10 min', '25.0 h', '–')
    """
    if seconds <= 0:
        return "–"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def signed(number: float, digits: int = 1) -> str:
    """Formats a change with its sign. A change that rounds to 0 has no sign.

    >>> signed(2.04), signed(-0.04), signed(-1.96)
    ('+2.0', '0.0', '-2.0')
    """
    rounded = round(number, digits)
    return f"{rounded:+.{digits}f}" if rounded else f"{0:.{digits}f}"


def compact(number: float) -> str:
    """Formats a number with at most three digits and k, M or G. ∞ stands for a level that is never reached.

    >>> compact(950.0), compact(65_573.0), compact(1.2e9), compact(float("inf"))
    ('950', '66k', '1.2G', '∞')
    """
    if not math.isfinite(number):
        return "∞"
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{sign}" if number < 10 * size else f"{number / size:.0f}{sign}"
    return f"{number:.0f}"


def setting(value: Any) -> str:
    """Formats the value of a key as the command line takes it.

    >>> setting([{"name": "math", "weight": 1.0, "server": None}]), setting(True)
    ('[{name: math, weight: 1.0}]', 'true')
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {setting(part)}" for key, part in value.items() if part is not None) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(setting, value))}]"
    return {"True": "true", "False": "false", "None": "null"}.get(str(value), str(value))
