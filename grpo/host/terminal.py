"""This module cleans text before it is printed, so that a model's completion cannot control the user's terminal."""

import logging
import os
import re
import select
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

# These characters move the cursor, begin an escape sequence or reverse the order of letters, or are lone surrogates,
# which cannot be encoded. Tabs and line feeds are allowed.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# Source lines have at most 120 characters. Where the next line's first word would have ended beyond this column, the
# sentence is taken to go on in that line.
FULL_LINE = 115


def clean(text: str) -> str:
    """Returns `text` with every character that would control a terminal replaced by its escape.

    >>> print(clean("title: \\x1b]0;owned\\x07"))
    title: \\x1b]0;owned\\x07
    """
    return _STEERING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Writes a cleaned text to stderr. On a terminal, long lines are broken between words."""
    # One write, or another thread may write between the text and the end of its line.
    print(wrapped(clean(text), sys.stderr) + "\n", end="", file=sys.stderr, flush=True)


def wrapped_usage(text: str) -> str:
    """Wraps a usage text as `wrapped` does, after joining sentences that were broken at the end of a source line."""
    return wrapped("\n".join(_whole(text.splitlines()))) if sys.stdout.isatty() else text


def wrapped(text: str, stream: TextIO | None = None) -> str:
    """Breaks long lines between words if `stream`, by default stdout, is a terminal; a terminal would break them
    anywhere.

    Text after a gap of two blanks, such as the meaning of a word, goes on in its own column if that leaves enough room.
    """
    if not (stream or sys.stdout).isatty():
        return text
    return "\n".join(_broken(line, shutil.get_terminal_size().columns) for line in text.splitlines())


def _whole(lines: Iterable[str]) -> list[str]:
    """Joins lines of a sentence that were broken only because a source line ends there.

    >>> _whole(["x" * 130]) == ["x" * 130]
    True
    >>> long = "x" * 112
    >>> _whole([long, "goes on", "", f"  word  {long}", "        means this"]) == [
    ...     f"{long} goes on", "", f"  word  {long} means this"
    ... ]
    True
    """
    joined_lines: list[str] = []
    length_before = 0
    for line in lines:
        text = line.lstrip()
        is_full = text and length_before + 1 + len(text.split()[0]) > FULL_LINE
        if is_full and joined_lines and len(line) - len(text) == _text_begins(joined_lines[-1]):
            joined_lines[-1] += f" {text}"
        else:
            joined_lines.append(line)
        length_before = len(line)
    return joined_lines


def _text_begins(line: str) -> int:
    """Returns the column in which a line's text begins: after leading blanks, or after a first word and its gap."""
    start = re.match(r" *(?:usage: grpo \S+ |\S+(?: \S+)*  +(?=\S))?", line)
    return start.end() if start else 0


def _broken(line: str, columns: int) -> str:
    """Breaks a line between words into lines of at most `columns` characters, and indents all but the first.

    >>> print(_broken("  report    compares the runs of a sweep", 30))
      report    compares the runs
                of a sweep
    >>> print(_broken("  rollout.max_staleness=4  Tokens may be so old.", 30))
      rollout.max_staleness=4
          Tokens may be so old.
    """
    begin, leading = _text_begins(line), len(line) - len(line.lstrip())
    indent = begin if begin > leading and begin <= columns // 2 else leading + 4 * bool(leading)
    return textwrap.fill(
        line, columns, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False,
        replace_whitespace=False,
    )  # fmt: skip


def reader_left() -> bool:
    """Tells whether whoever read stdout, such as `head`, has left. If so, the rest of the output is dropped."""
    descriptor, ended = sys.stdout.fileno(), select.poll()
    ended.register(descriptor, 0)
    if not ended.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return True


class Terminal(Console):
    """A terminal is a rich console that cleans all texts and tables.

    Square brackets are printed literally and not read as rich's markup, since a completion may contain them. On a
    terminal `soft_wrap` is ignored: rich breaks lines between words, where the terminal would break them anywhere.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)

    def print(self, *objects: Any, soft_wrap: bool | None = None, **settings: Any) -> None:
        super().print(*objects, soft_wrap=soft_wrap and not self.is_terminal, **settings)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Holds back what is printed within the context until it ends, so that nothing else comes in between."""
        self.begin_capture()
        try:
            yield
        finally:
            # The captured text is rendered already.
            self.file.write(self.end_capture())
            self.file.flush()

    def on_broken_pipe(self) -> None:
        # rich would end the process with 1; `grpo.cli.main` ends it without a word.
        raise BrokenPipeError

    def render_str(self, text: str, **settings: Any) -> Text:
        # Cleaning happens before a table measures its cells.
        return super().render_str(clean(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        # Segments with a `control` come from rich's live bar and must stay as they are.
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)


def facts_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str | int | float]]) -> Table:
    """Returns a small table of names and numbers, such as the batch sizes or the memory estimate.

    `header` names the columns. Whole numbers get thousands separators, other numbers two decimals.
    """
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left")
    for row in rows:
        table.add_row(*(Text(_number(cell)) for cell in row))
    return table


def _number(cell: str | int | float) -> str:
    if isinstance(cell, str):
        return clean(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.2f}"


class _CleanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))


def protect() -> None:
    """Cleans logged warnings, and escapes printed characters that the terminal's encoding lacks.

    Every command calls this first. Otherwise printing such a character would raise an error.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    logging.lastResort.setFormatter(_CleanFormatter("%(message)s"))
