"""This module writes the help of a command: the groups, and every key with the value that would run."""

from __future__ import annotations

import re
from collections.abc import Sequence

from grpo.config.flags import FLAGS
from grpo.config.hydra import compose_config, config_directory
from grpo.config.keys import running


def help_text(command: str, words: Sequence[str]) -> str:
    """Returns the choices of every group, and every key with the value that it has with the given words."""
    groups = sorted(path for path in config_directory().iterdir() if path.is_dir() and path.name != "sweep")
    return "\n".join([
        f"usage: grpo {command} [GROUP=CHOICE ...] [KEY=VALUE ...]\nflags: {FLAGS}\n\ngroups:",
        *(f"  {group.name}: {', '.join(sorted(file.stem for file in group.glob('*.yaml')))}" for group in groups),
        f"\nkeys, with the values of this command ({' '.join(words) or 'no words given'}):",
        *(f"  {key.name}={key.default}  {_first_sentence(key.meaning)}" for key in running(compose_config([*words]))),
        "\n`grpo config all` explains every key and choice; `grpo config WORD` searches them, e.g. grpo config lora",
    ])  # fmt: skip


def _first_sentence(text: str) -> str:
    """Returns a text up to the first full stop that ends a sentence.

    >>> _first_sentence("This file holds it, e.g. a.json. Others do not.")
    'This file holds it, e.g. a.json.'
    """
    return re.split(r"(?<=[^.]{3}\.)(?<!e\.g\.) (?=[A-Z0-9\"'])", text, maxsplit=1)[0]
