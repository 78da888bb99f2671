"""This module implements `grpo config`, which prints every key with its values, its default and its meaning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from grpo.config import UserError
from grpo.config.keys import Choice, Key, Section, choices, sections
from grpo.host.terminal import Terminal

USAGE = """usage: grpo config [WORD ...]
       grpo config markdown > configs/README.md

Prints every key of a run and every choice of its groups, with values, default and meaning. With words, it prints only
those whose name, values or meaning contain all of the words.
  grpo config learner.zero
  grpo config clip
  grpo config num_generations        finds names that TRL, verl and vLLM use, too
grpo config markdown prints everything as one page."""

INTRODUCTION = """# Configuration keys

This page lists every key of `grpo` with its possible values, its default and its meaning. `grpo config WORD` searches
it on the command line.

A key is set by `KEY=VALUE`, and a group's choice by `GROUP=CHOICE`:

```bash
grpo train objective=dapo learner.learning_rate=2e-6 task.prompt.max_tokens=512
```

A choice is a file in `configs/GROUP` that sets several keys at once. Keys on the command line override it. Without any
words `grpo train` takes the choices marked *default*, so some of its values differ from a key's own default; these
stand in brackets.

`grpo config markdown > configs/README.md` writes this page from the comments in `grpo/config/*.py` and
`configs/*/*.yaml`."""


def run(words: Sequence[str]) -> int:
    """Prints the keys and choices that contain all words. Returns the exit code."""
    terminal = Terminal()
    if [*words] == ["markdown"]:
        terminal.out(page(), highlight=False)
        return 0
    keys = [key for section in sections() for key in section.keys if _holds(words, key.name, key.values, key.meaning)]
    matching_choices = [choice for choice in choices() if _holds(words, choice.name, choice.meaning)]
    if not keys and not matching_choices:
        raise UserError(
            f"no key and no choice contains {' and '.join(map(repr, words))}: `grpo config` prints all of them"
        )
    if keys:
        terminal.print(key_table(keys))
    if matching_choices:
        terminal.print(choice_table(matching_choices))
    return 0


def key_table(keys: Iterable[Key]) -> Table:
    """Makes a table of two columns, which fits a narrow terminal: a key with values and default, and its meaning."""
    table = Table("key, what it may be, default", "meaning", show_lines=True)
    for key in keys:
        facts = f"\n{key.values}\ndefault {key.default}"
        table.add_row(Text.assemble((key.name, "bold"), (facts, "dim")), key.meaning)
    return table


def choice_table(choices_shown: Iterable[Choice]) -> Table:
    """Makes a table of two columns: a group's choice, and what it sets."""
    table = Table("choice of a group", "what it sets")
    for choice in choices_shown:
        table.add_row(Text.assemble((choice.name, "bold"), ("\ndefault" * choice.usual, "dim")), choice.meaning)
    return table


def page() -> str:
    """Returns all keys and choices as one page of Markdown."""
    rows = [[_code(choice.name) + " *default*" * choice.usual, choice.meaning] for choice in choices()]
    groups = "\n\n".join(["## Groups", _markdown_table(["choice", "what it sets"], rows)])
    return "\n\n".join([INTRODUCTION, groups, "## Keys", *map(_markdown_section, sections())])


def _markdown_section(section: Section) -> str:
    """Returns one section of keys as Markdown: heading, meaning and table."""
    rows = [[_code(key.name), _code(key.values), _code(key.default), key.meaning] for key in section.keys]
    table = _markdown_table(["key", "what it may be", "default", "meaning"], rows)
    return "\n\n".join([f"### {section.name or 'run'}", section.meaning, table])


def _markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`"


def _holds(words: Sequence[str], *texts: str) -> bool:
    """Tells whether every word occurs in one of the texts, whatever its case."""
    joined = "\n".join(texts).casefold()
    return all(word.casefold() in joined for word in words)
