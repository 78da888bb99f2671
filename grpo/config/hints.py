"""This module says what an unknown key may mean: a key here, a choice, a command, or nothing that there is."""

import difflib
from collections.abc import Iterator, Sequence

from grpo.config.aliases import ALIASES, ELSEWHERE, VALUES

# A name is suggested only if it is this much like the unknown one (difflib's ratio), or if one of the two begins with
# the other and the shorter has this many letters. Words that share less rarely mean the same.
LIKE, BEGINNING = 0.8, 3
# All keys of a section are named where it has at most this many, and all keys of one name where they are so few.
MOST_LISTED, MOST_NAMED = 8, 3
RECIPES = "experiment"
"""This is the group that is no key."""


def hint(key: str, config_keys: Sequence[str], value: str = "") -> str:
    """Returns the end of the message about an unknown key: what may be meant by it, or how to search.

    `value` is what was to be its value, where that is known.

    >>> hint("loss_type", ["objective.name"], "dapo"), hint("objective.kl.coef", ["objective.kl.coefficient"])
    ('; here it is objective=dapo', '; did you mean objective.kl.coefficient?')
    """
    if key in config_keys:
        nested = "…"
        for name in reversed(key.split(".")):
            nested = f"{{{name}: {nested}}}"
        return f": a file nests keys, so write {nested[1:-1]}"
    if key.replace("/", ".") in config_keys:
        return f"; did you mean {key.replace('/', '.')}?"
    first = key.lower().partition(".")[0]
    if first in ELSEWHERE and first not in config_keys:
        return f": {ELSEWHERE[first]}"
    if "." in key and key.lower() in ALIASES:
        return f"; here it is {_in_section(key, ALIASES[key.lower()], config_keys)}"
    for name in (name for name in _endings(key.lower()) if "." in name):
        ours = [known for known in config_keys if known == name or known.endswith(f".{name}")]
        if len(ours) == 1:
            return f"; did you mean {ours[0]}?"
    for name in _endings(key.lower()):
        if meant := VALUES.get(name, {}).get(value):
            return f"; here it is {meant}"
        if name in ELSEWHERE:
            return f": {ELSEWHERE[name]}"
        if name in ALIASES:
            return f"; here it is {_in_section(key, ALIASES[name], config_keys)}"
    if meant := nearest(key.lower(), [*config_keys, RECIPES]):
        return f"; did you mean {meant}?"
    section = key.rpartition(".")[0]
    own = [name.rpartition(".")[2] for name in config_keys if section and name.rpartition(".")[0] == section]
    if 0 < len(own) <= MOST_LISTED:
        return f"; {section} has {', '.join(own)}"
    return f"; `grpo config {section}` lists its keys" if own else "; `grpo config WORD` searches all keys"


def alias_of(name: str) -> str:
    """Returns the key for a name of other frameworks, with or without the sections before it, or ""."""
    return next((ALIASES[ending] for ending in _endings(name.lower()) if ending in ALIASES), "")


def _endings(key: str) -> Iterator[str]:
    """Yields a dotted key without its first names: a.b.c, b.c, c."""
    names = key.split(".")
    yield from (".".join(names[first:]) for first in range(len(names)))


def _in_section(key: str, meant: str, config_keys: Sequence[str]) -> str:
    """Returns the key of the same name in the section that was typed, where it has one, or else `meant`."""
    own = f"{key.rpartition('.')[0]}.{meant.rpartition('.')[2]}"
    return own if own in config_keys else meant


def nearest(key: str, config_keys: Sequence[str]) -> str:
    """Returns the key that is most like an unknown one, a few keys of one name, or "".

    Names of the typed section come first, and there a beginning of a name comes before a likeness. Then come a name
    that only one key has, and likenesses among all names.

    >>> nearest("lerning_rate", ["dynamics.adaptive.learning_rate", "learner.learning_rate"])
    'learner.learning_rate or dynamics.adaptive.learning_rate'
    """
    section, _, last_name = key.rpartition(".")
    within = {name.rpartition(".")[2]: name for name in config_keys if section and name.startswith(f"{section}.")}
    beginnings = [name for name in within if _begins(last_name.lower(), name)]
    if len(beginnings) == 1:
        return within[beginnings[0]]
    if alike := difflib.get_close_matches(last_name, within, n=1, cutoff=LIKE):
        return within[alike[0]]
    anywhere: dict[str, list[str]] = {}
    for name in config_keys:
        anywhere.setdefault(name.rpartition(".")[2], []).append(name)
    alike = [last_name] if last_name in anywhere else difflib.get_close_matches(last_name, anywhere, n=1, cutoff=LIKE)
    keys = anywhere[alike[0]] if alike else []
    if len(keys) == 1 or within:
        # Of names that several other sections have, none is meant in a section that is there.
        return keys[0] if len(keys) == 1 else ""
    alike = difflib.get_close_matches(key, keys, n=1, cutoff=LIKE)
    if alike:
        return alike[0]
    return "" if section or len(keys) > MOST_NAMED else " or ".join(sorted(keys, key=len))


def _begins(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return len(short) >= BEGINNING and long.startswith(short)
