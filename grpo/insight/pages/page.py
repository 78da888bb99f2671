"""This module shows a page: on the terminal, as a web page, and on request as a picture and as Markdown.

A page is computed once. A web page is a single HTML file that needs no other file and no network.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum, auto
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

import grpo
from grpo.host.disk import write_whole
from grpo.host.terminal import Terminal, clean
from grpo.insight.diagnosis.findings import CRITICAL, NOTE, WARNING
from grpo.insight.pages.glossary import MEANINGS
from grpo.insight.pages.links import linked_with, links_of, renew
from grpo.insight.pages.pictures import SMALL_INCHES, picture, pictures
from grpo.insight.pages.style import sheet

SMALL, PAIRS = "small", "pairs"
# A block that only the terminal shows, or only the page.
TERMINAL, PAGE = "terminal", "page"
PICTURE, MARKDOWN = "png", "md"
FORMATS = (PICTURE, MARKDOWN)
# The width of a picture, and the height of each of its rows.
SHEET_INCHES = (10.0, 3.3)
COLORS = {CRITICAL: "bold red", WARNING: "yellow", NOTE: "cyan"}


class Number(NamedTuple):
    """A number to show on top of a page, with its name, its value as text, and a remark."""

    name: str
    value: str
    note: str = ""


class Kind(StrEnum):
    """A block is of one of these kinds, which say what its content is."""

    LINES = auto()
    COMMAND = auto()
    TABLE = auto()
    CHARTS = auto()
    DIAGNOSIS = auto()
    COMPLETIONS = auto()
    LINKS = auto()


@dataclass(frozen=True)
class Block:
    """A block is a part of a page below a title, with a note that explains it. A macro of its kind draws it on a web
    page.

    content   lines, words of a command, rows of a table with the header first, functions that draw charts, findings,
              groups of completions, or links. A block without content is left out, or says `nothing`
    legend    what the columns of a table mean
    texts     the columns of a table that hold texts and not numbers
    layout    of charts: `SMALL`, in `PAIRS`, or the first one as wide as the page
    """

    kind: Kind
    content: Sequence[Any]
    title: str = ""
    note: str = ""
    only: str = ""
    nothing: str = ""
    legend: str = ""
    texts: Collection[int] = (0,)
    layout: str = ""

    @property
    def pictures(self) -> list[dict[str, str]]:
        """Draws the charts for a web page."""
        if self.layout == SMALL:
            return [picture(draw, SMALL_INCHES) for draw in self.content]
        return pictures(self.content, first_wide=self.layout != PAIRS)


@dataclass(frozen=True)
class Page:
    """A page has a kind, the name of its run or problems, a verdict in lines with a mood, blocks, the numbers that
    matter most, the state of its run, a line about it, and the words that it explains."""

    kind: str
    name: str
    verdict: Sequence[str]
    mood: str
    blocks: Sequence[Block]
    numbers: Sequence[Number] = ()
    state: str = ""
    about: str = ""
    words: Sequence[str] = ()

    def blocks_of(self, side: str) -> list[Block]:
        """Returns the blocks that the terminal or the page shows."""
        return [block for block in self.blocks if block.only in ("", side) and (block.content or block.nothing)]


def publish(
    page: Page,
    path: Path,
    console: Terminal,
    also: Collection[str] = (),
    runs: Sequence[Path] = (),
    more: Sequence[str] = (),
) -> None:
    """Shows a page on the terminal, and writes it to `path` and beside it in the other formats that `also` names.

    `runs` are the folders of the runs that it compares, and `more` are lines to print below its path.
    """
    show(page, console)
    written = [f"report  {path}  (opens in a browser)"]
    if PICTURE in also:
        charts = [block for block in page.blocks if block.kind == Kind.CHARTS and block.layout != SMALL]
        draws = [draw for block in charts for draw in block.content]
        sheet(draws, path.with_suffix(".png"), SHEET_INCHES, columns=2, first_wide=len(draws) % 2 == 1)
        written.append(f"picture {path.with_suffix('.png')}")
    if MARKDOWN in also:
        write_whole(
            path.with_suffix(".md"),
            "\n\n".join(_markdown(page, path.stem + ".png" if PICTURE in also else "")) + "\n",
            "backslashreplace",
        )
        written.append(f"text    {path.with_suffix('.md')}")
    write_html(page, path, runs)
    console.print("\n".join([*written, *more]), soft_wrap=True)


def show(page: Page, console: Terminal) -> None:
    """Shows a page on the terminal: tables first, since people begin at its last lines."""
    blocks = sorted(page.blocks_of(TERMINAL), key=lambda block: block.kind != Kind.TABLE)
    number = sum(block.kind == Kind.TABLE for block in blocks)
    if page.state:
        console.print(f"{page.name}: {page.state}", soft_wrap=True)
    state = page.state.rstrip(".")
    verdict = [line for line in page.verdict if line not in (f"The run {state}.", f"The run was {state}.")]
    for block in (*blocks[:number], Block(Kind.LINES, verdict), *blocks[number:]):
        for part in _on_terminal(block):
            console.print(part, soft_wrap=isinstance(part, str), highlight=False)


def write_html(page: Page, path: Path, runs: Sequence[Path] = ()) -> None:
    """Writes a page to `path`.

    It links to the other files of its folder. Other pages that link to it get their links anew: those of its folder,
    and those of the folders `runs` that it compares.
    """
    navigation, whole = (_templates().get_template(f"{name}.html") for name in ("navigation", "page"))
    text = whole.render(
        page=page,
        blocks=page.blocks_of(PAGE),
        made=f"grpo {grpo.__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        navigation=navigation.render(kinds=links_of(path)),
        meanings={word: MEANINGS[word] for word in page.words},
    )
    # A line never ends between a number and its percent sign.
    text = re.sub(r"(?<=\d) %", "\u00a0%", text)
    write_whole(path, text, "backslashreplace")
    for other in linked_with(path, runs):
        renew(other, navigation.render(kinds=links_of(other)))


@cache
def _templates() -> Any:
    """Returns the pages' templates, which are compiled once for all pages."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("grpo.insight.pages"), autoescape=True, undefined=StrictUndefined)
    environment.filters["sentence"] = sentence
    return environment


def sentence(text: str) -> str:
    """Turns a line of the terminal into a sentence. A first word that is no plain word, such as a key, keeps its case.

    >>> sentence("every reward is 0"), sentence("task.reward.extract=final helps"), sentence("base-seed0 ended.")
    ('Every reward is 0.', 'task.reward.extract=final helps.', 'base-seed0 ended.')
    """
    if text.endswith((".", "!", "?")):
        return text
    return f"{text[0].upper()}{text[1:]}." if re.match(r"[a-z]+[,:;]?( |$)", text) else f"{text}."


def _on_terminal(block: Block) -> Iterator[RenderableType]:
    """Yields the lines and tables of a block."""
    if block.kind == Kind.LINES:
        yield from block.content
    elif block.kind == Kind.COMMAND:
        yield f"{block.title[0].lower()}{block.title[1:]}: {' '.join(block.content)}"
    elif block.kind == Kind.TABLE and len(block.content) > 1:
        yield _table(": ".join(filter(None, (block.title, block.note.rstrip(".")))), block.content, block.texts)
    elif block.kind == Kind.DIAGNOSIS and block.content:
        rows = [
            (Text(one.severity, COLORS[one.severity]), one.name, f"{one.meaning}\n{one.evidence}", one.remedy)
            for one in block.content
        ]
        yield _table(block.title, [("", "finding", "evidence", "what to do"), *rows], range(4))
    elif block.kind == Kind.DIAGNOSIS:
        yield f"diagnosis: {block.nothing}"


def _table(title: str, rows: Sequence[Sequence[Any]], texts: Collection[int]) -> Table:
    """Returns a table for the terminal. Rows with cells of several lines stand between lines."""
    lines = any("\n" in str(cell) for row in rows[1:] for cell in row)
    table = Table(title=title or None, title_justify="left", show_lines=lines)
    for index, name in enumerate(rows[0]):
        table.add_column(name, justify="left" if index in texts else "right", overflow="fold")
    for row in rows[1:]:
        # A str would be read as rich's markup, but the square brackets of a completion are none.
        table.add_row(*(cell if isinstance(cell, Text) else Text(clean(str(cell))) for cell in row))
    return table


def _markdown(page: Page, picture: str) -> Iterator[str]:
    """Yields the paragraphs of a page in Markdown, with the picture of its charts, if there is one."""
    yield f"# {page.name}"
    yield from map(sentence, page.verdict)
    numbers = [*([Number("state", page.state)] if page.state else []), *page.numbers]
    lines = [f"- {one.name}: {one.value}{f' ({one.note})' if one.note else ''}" for one in numbers]
    yield from ["\n".join(lines)] if lines else []
    yield from [f"![Charts]({picture})"] if picture else []
    for block in page.blocks_of(PAGE):
        if block.kind in (Kind.CHARTS, Kind.LINKS):
            continue
        yield from filter(None, (f"## {block.title}" if block.title else "", block.note, block.legend))
        if block.kind == Kind.TABLE:
            header, *rows = ("| " + " | ".join(map(_cell, row)) + " |" for row in block.content)
            yield "\n".join([header, "|" + "---|" * len(block.content[0]), *rows])
        elif block.kind == Kind.DIAGNOSIS:
            for one in block.content:
                yield f"**{one.severity}: {one.name}**. {one.meaning} {sentence(one.evidence)} Remedy: {one.remedy}."
        elif block.kind == Kind.COMPLETIONS:
            for group in block.content:
                yield f"### {' '.join(group['question'].split())}"
                if said := group.get("opening"):
                    yield f"Each conversation begins so:\n\n{_indented(_said({'conversation': said}))}"
                yield from (f"{row['facts']}:\n\n{_indented(_said(row))}" for row in group["rows"])
        elif block.kind in (Kind.LINES, Kind.COMMAND):
            yield from map(sentence if block.kind == Kind.LINES else _indented, block.content)
        yield from (sentence(block.nothing),) if not block.content else ()


def _said(row: Mapping[str, Any]) -> str:
    """Returns a completion as text, and an episode as its conversation."""
    return "\n".join(f"{said.name}: {said.text}" for said in row.get("conversation", ())) or row["text"]


def _indented(text: str) -> str:
    """Indents a text, since a fence around it could be ended by a completion."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _cell(cell: Any) -> str:
    return str(cell).replace("|", "\\|").replace("\n", "<br>")
