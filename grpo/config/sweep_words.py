"""This module reads the words of a sweep: Hydra's `key=1,2`, `key=range(...)` and `key=interval(...)`."""

from __future__ import annotations

from itertools import product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from grpo.config.complaints import one_line
from grpo.config.errors import UserError, require


def grid(overrides: list[str]) -> list[dict[str, str]]:
    """Returns every combination of the words in Hydra's sweep syntax, a=1,2 b=range(3), as key → value.

    Words without sweep syntax are ignored. If no word has it, the only combination is empty. Raises UserError for a
    word that Hydra cannot read, and for an interval, which has no finite list of values.
    """
    values_of = {}
    for override in _parsed(overrides):
        if isinstance(override.value(), IntervalSweep):
            word = override.input_line
            raise UserError(f"{word} has no end of values: name some as in a=1,2")
        if override.is_sweep_override():
            values_of[override.get_key_element()] = list(override.sweep_string_iterator())
    return [dict(zip(values_of, values, strict=True)) for values in product(*values_of.values())]


def plain(overrides: list[str]) -> list[str]:
    """Returns the words that are not in Hydra's sweep syntax."""
    pairs = zip(overrides, _parsed(overrides), strict=True)
    return [word for word, override in pairs if not override.is_sweep_override()]


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
