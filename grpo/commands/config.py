"""This module implements `grpo config`, which prints keys with their values, defaults and meanings."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from grpo.config import UserError
from grpo.config.aliases import ELSEWHERE
from grpo.config.hints import alias_of, nearest
from grpo.config.keys import Choice, Key, Section, choices, sections
from grpo.host.terminal import Terminal

USAGE = """usage: grpo config [all | WORD ...]
       grpo config markdown > configs/README.md

Prints the sections of keys and the groups of choices. With words, it prints the keys and choices whose name, values or
meaning contain all of the words, with values, default and meaning. grpo config all prints every key and choice.
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


FURTHER = """A key is set by KEY=VALUE, and a group's choice by GROUP=CHOICE: grpo train objective=dapo num_steps=60

grpo config objective.kl     every key of a section
grpo config lora             every key and choice with this word
grpo config num_generations  a name that TRL, verl and others use
grpo config all              every key and choice"""


def run(words: Sequence[str]) -> int:
    """Prints the keys and choices that contain all words, or an overview without words. Returns the exit code."""
    terminal = Terminal()
    if [*words] == ["markdown"]:
        terminal.out(page(), highlight=False)
        return 0
    if not words:
        for table in overview():
            terminal.print(table)
        terminal.print(FURTHER)
        return 0
    sought = [] if [*words] == ["all"] else [*words]
    known = [key for section in sections() for key in section.keys]
    keys = [key for key in known if _holds(sought, key.name, key.values, key.meaning)]
    matching_choices = [choice for choice in choices() if _holds(sought, choice.name, choice.meaning)]
    if not keys and not matching_choices:
        # A word may be an alias, or hold a value as it is typed for a run.
        names = [word.partition("=")[0] for word in words]
        keys = [key for key in known if names == [key.name] or [*map(alias_of, names)] == [key.name]]
    if not keys and not matching_choices:
        last_names = (name.lower().rpartition(".")[2] for name in names)
        elsewhere = next((ELSEWHERE[name] for name in last_names if name in ELSEWHERE), "")
        near, section = nearest(names[0], [key.name for key in known]), names[0].rpartition(".")[0]
        lists = (
            f"config {section}` lists"
            if section in {section.name for section in sections()} - {""}
            else "config all` prints all of"
        )
        meant = f"did you mean {near}?" if near else f"`grpo {lists} them"
        raise UserError(f"no key and no choice contains {' and '.join(map(repr, words))}: {elsewhere or meant}")
    if keys:
        terminal.print(key_table(keys))
    if matching_choices:
        terminal.print(choice_table(matching_choices))
    return 0


def overview() -> list[Table]:
    """Makes a table of the sections of keys, and one of the groups with the names of their choices."""
    of_keys = Table("keys", "how many", "what they are", title="Sections of keys", title_justify="left")
    for section in sections():
        meaning = section.meaning.partition(". ")[0].rstrip(".")
        of_keys.add_row(Text(section.name or "run", style="bold"), str(len(section.keys)), f"{meaning}.")
    of_groups = Table("group", "choices", title="Groups", title_justify="left")
    names: dict[str, list[str]] = {}
    for choice in choices():
        group, _, name = choice.name.partition("=")
        names.setdefault(group, []).append(f"{name} (default)" if choice.usual else name)
    for group, of_group in names.items():
        of_groups.add_row(Text(group, style="bold"), ", ".join(of_group))
    return [of_keys, of_groups]


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
