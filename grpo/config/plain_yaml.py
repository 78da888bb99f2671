"""This module reads YAML that may come from a stranger: a few lines of it can stand for more values than fit memory."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import IO, Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from grpo.config.errors import UserError, require
from grpo.config.rewording import as_meant
from grpo.config.run import TrainConfig
from grpo.config.sweep import SweepConfig

MOST = 100_000
"""A file stands for at most this many values, those that its aliases repeat included."""

_OTHER_BASE = re.compile(r"(?<![\w.])[-+]?(?:\d+(?::[0-5]?\d)+(?:\.\d*)?|0\d+|0[xX][\da-fA-F]+|0[bB][01]+)(?![\w.:])")
_HOLDS_KEYS = "and a configuration file holds keys and values, KEY: VALUE"
_load = OmegaConf.load


def from_words(words: Iterable[str]) -> DictConfig:
    """Returns the settings of `KEY=VALUE` words, whose values are YAML. Raises UserError for a value that is none."""
    settings = OmegaConf.create()
    for word in words:
        try:
            settings.merge_with_dotlist([word])
        except YAMLError:
            raise UserError(f"cannot read {word!r}: its brackets and quotation marks come in pairs") from None
    return settings


def load(file: Path | IO[str]) -> Any:
    """Reads a file as `OmegaConf.load` does, with `as_meant`. Raises UserError for one that is no YAML, that stands
    for more than `MOST` values, that contains itself, or that is nested too deep."""
    name = Path(file.name).name
    try:
        text = file.read_text(encoding="utf-8") if isinstance(file, Path) else file.read()
        # Without aliases a file stands for no more values than it has.
        few = "*" not in text or _count(yaml.compose(text, yaml.SafeLoader), {}) <= MOST
        require(few, f"{name} cannot be read: its aliases (*NAME) repeat values until there are more than {MOST:,}")
        _refuse_other_bases(name, text)
        return deepcopy(_read(text))
    except OSError as error:
        # OmegaConf says so of a single number or truth value.
        if not str(error).startswith("Invalid loaded object type"):
            raise
        raise UserError(f"{name} holds one value, {_HOLDS_KEYS}") from error
    except RecursionError:
        raise UserError(f"{name} cannot be read: it is nested too deep") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 text: save it as UTF-8") from error
    # A ValueError is one of a number of thousands of digits.
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        raise UserError(f"{name} cannot be read: {_without_marks(str(error))}") from error


@lru_cache(maxsize=128)
def _read(text: str) -> Any:
    # Each cell of a sweep is composed of the same files.
    return as_meant(_load(StringIO(text)), TrainConfig, SweepConfig)


def _refuse_other_bases(name: str, text: str) -> None:
    """Raises UserError for a number that programs read differently: to YAML 1:30 is 90, 010 is 8, and 08 is text."""
    if not _OTHER_BASE.search(text):
        return
    for token in yaml.scan(text, yaml.SafeLoader):
        plain = isinstance(token, yaml.ScalarToken) and token.plain and _OTHER_BASE.fullmatch(token.value)
        require(
            not plain,
            f"{name}: {plain and token.value} in line {token.start_mark.line + 1} is no plain decimal number, and YAML "
            "may read another one: write the number that is meant, or quotes around a text",
        )


def _load_keys(file: IO[str]) -> Any:
    """Reads a file by `load`. Raises UserError for one that holds no keys and values."""
    content = load(file)
    file.seek(0)
    # OmegaConf makes a key of a text, and reads a text in quotes as YAML.
    kind = "a list" if not OmegaConf.is_dict(content) else "text" if _is_text(file.read()) else ""
    require(not kind, f"{Path(file.name).name} holds {kind}, {_HOLDS_KEYS}")
    return content


@lru_cache(maxsize=128)
def _is_text(text: str) -> bool:
    return isinstance(yaml.compose(text, yaml.SafeLoader), yaml.ScalarNode)


@contextmanager
def bounded() -> Iterator[None]:
    """Makes Hydra read every file by `load` within the context."""
    OmegaConf.load = _load_keys
    try:
        yield
    finally:
        OmegaConf.load = _load


def _without_marks(text: str) -> str:
    """Returns an error's text in one line, without the name that YAML has for the file and OmegaConf's details."""
    return " ".join(re.sub('in "<[a-z ]+>", ', "in ", text.split("\n    full_key:")[0]).split())


def _count(node: yaml.Node | None, counts: dict[int, int]) -> int:
    """Returns the number of values that a node stands for. `counts` holds those that are known, by their ids."""
    if id(node) not in counts:
        # A node that is met again within itself would never end.
        counts[id(node)] = MOST
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        flat = (part for child in children for part in (child if isinstance(child, tuple) else (child,)))
        counts[id(node)] = 1 + sum(_count(part, counts) for part in flat)
    return counts[id(node)]
