"""This module leaves out of variants' names what all of them share, so that a narrow table can tell them apart."""

from collections.abc import Iterable


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Returns a short name for each of several names.

    Words that all names share are left out, and so is the key of the only word that is left. A key stays before
    numbers and before true and false, which mean nothing alone.

    >>> short_names(["run normalization=grpo", "run normalization=dr_grpo"])
    {'run normalization=grpo': 'grpo', 'run normalization=dr_grpo': 'dr_grpo'}
    >>> [*short_names(["run G=4 tau=1", "run G=8 tau=1"]).values()], [*short_names(["tau1 lr=1", "tau2 lr=2"]).values()]
    (['G=4', 'G=8'], ['tau1 lr=1', 'tau2 lr=2'])
    """
    words = {name: name.split() for name in names}
    columns = [*zip(*words.values(), strict=False)]
    if len(words) < 2 or len({len(row) for row in words.values()}) > 1:
        return {name: name for name in words}
    telling = [index for index, column in enumerate(columns) if len({*column}) > 1]
    short = {name: [row[index] for index in telling] for name, row in words.items()}
    pairs = [word.partition("=") for row in short.values() for word in row]
    if len(telling) == 1 and len({key for key, _, _ in pairs}) == 1 and all(_is_name(value) for *_, value in pairs):
        return {name: row[0].partition("=")[2] for name, row in short.items()}
    return {name: " ".join(row) for name, row in short.items()}


def _is_name(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return value.lower() not in ("", "true", "false", "null")
    return False
