"""This module reads the words of a sweep: Hydra's `key=1,2`, `key=range(...)` and `key=interval(...)`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from grpo.config.complaints import one_line
from grpo.config.errors import UserError, require

DECIMALS = 12
"""The ends of a range are rounded to this many decimals."""


def grid(overrides: list[str]) -> list[dict[str, str]]:
    """Returns every combination of the words in Hydra's sweep syntax, a=1,2 b=range(3), as key → value.

    Words without sweep syntax are ignored. If no word has it, the only combination is empty. Raises UserError for a
    word that Hydra cannot read, and for an interval, which has no finite list of values.
    """
    values_of = {}
    for override in _parsed(overrides):
        if isinstance(override.value(), IntervalSweep):
            word = override.input_line
            raise UserError(f"{word} has no end of values: give trials=N to try N of them, or name some as in a=1,2")
        if override.is_sweep_override():
            values_of[override.get_key_element()] = list(override.sweep_string_iterator())
    return [dict(zip(values_of, values, strict=True)) for values in product(*values_of.values())]


def plain(overrides: list[str]) -> list[str]:
    """Returns the words that are not in Hydra's sweep syntax."""
    pairs = zip(overrides, _parsed(overrides), strict=True)
    return [word for word, override in pairs if not override.is_sweep_override()]


@dataclass(frozen=True, slots=True)
class Range:
    """A range holds the values that a search may try for a key: one of `choices`, or a number from `low` to `high`.

    `step` is the distance between neighbouring values (None: any value). `log` spreads them evenly on a logarithmic
    scale, and `whole` allows integers only.
    """

    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    whole: bool = False


def ranges(overrides: list[str]) -> dict[str, Range]:
    """Returns the range of each key that is given in Hydra's sweep syntax, read as Hydra's Optuna sweeper reads it.

    Raises UserError for a word that Hydra cannot read.
    """
    return {
        override.get_key_element(): _range(override) for override in _parsed(overrides) if override.is_sweep_override()
    }


def _range(override: Override) -> Range:
    value = override.value()
    if isinstance(value, IntervalSweep):
        is_whole = isinstance(value.start, int) and isinstance(value.end, int)
        return Range(low=value.start, high=value.end, log="log" in value.tags, whole=is_whole)
    if isinstance(value, RangeSweep):
        numbers = [*value.range()]
        is_whole = all(isinstance(number, int) for number in numbers)
        # Hydra adds steps up, so 0.9 may come as 0.8999999999999999. Optuna would then leave it out.
        low, high = (round(end, DECIMALS) for end in (min(numbers), max(numbers)))
        return Range(low=low, high=high, step=abs(value.step), whole=is_whole)
    return Range(choices=tuple(override.sweep_string_iterator()))


def _parsed(overrides: list[str]) -> list[Override]:
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise UserError(one_line(error)) from error
    for override in parsed:
        value = override.value()
        require(not isinstance(value, Glob), f"{override.input_line}: name the values or choices, as in a,b")
        empty = isinstance(value, RangeSweep) and (not value.step or not [*value.range()])
        require(
            not empty,
            f"{override.input_line} holds no value: write range(START,STOP,STEP), whose values end before STOP",
        )
    return parsed
