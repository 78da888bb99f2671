"""This module reads YAML that may come from a stranger: a few lines of it can stand for more values than fit memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import IO, Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from grpo.config.errors import UserError, require
from grpo.config.rewording import with_whole_numbers
from grpo.config.run import TrainConfig
from grpo.config.sweep import SweepConfig

MOST = 100_000
"""A file stands for at most this many values, those that its aliases repeat included."""

_load = OmegaConf.load


def load(file: Path | IO[str]) -> Any:
    """Reads a file as `OmegaConf.load` does, and whole numbers that are written as 1e6 too. Raises UserError for one
    that is no YAML, that stands for more than `MOST` values, that contains itself, or that is nested too deep."""
    name = Path(file.name).name
    try:
        text = file.read_text(encoding="utf-8") if isinstance(file, Path) else file.read()
        # Without aliases a file stands for no more values than it has.
        few = "*" not in text or _count(yaml.compose(text, yaml.SafeLoader), {}) <= MOST
        require(few, f"{name} cannot be read: its aliases (*NAME) repeat values until there are more than {MOST:,}")
        return deepcopy(_read(text))
    except RecursionError:
        raise UserError(f"{name} cannot be read: it is nested too deep") from None
    # A ValueError is one of text that is not UTF-8, or of a number of thousands of digits.
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        raise UserError(f"{name} cannot be read: {_without_marks(str(error))}") from error


@lru_cache(maxsize=128)
def _read(text: str) -> Any:
    # Each cell of a sweep is composed of the same files.
    return with_whole_numbers(_load(StringIO(text)), TrainConfig, SweepConfig)


@contextmanager
def bounded() -> Iterator[None]:
    """Makes Hydra read every file by `load` within the context."""
    OmegaConf.load = load
    try:
        yield
    finally:
        OmegaConf.load = _load


def _without_marks(text: str) -> str:
    """Returns an error's text in one line, without the name that YAML has for the file and OmegaConf's details."""
    return " ".join(text.split("\n    full_key:")[0].replace('in "<file>", ', "in ").split())


def _count(node: yaml.Node | None, counts: dict[int, int]) -> int:
    """Returns the number of values that a node stands for. `counts` holds those that are known, by their ids."""
    if id(node) not in counts:
        # A node that is met again within itself would never end.
        counts[id(node)] = MOST
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        flat = (part for child in children for part in (child if isinstance(child, tuple) else (child,)))
        counts[id(node)] = 1 + sum(_count(part, counts) for part in flat)
    return counts[id(node)]
