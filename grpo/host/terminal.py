"""What reaches a person's terminal: text that cannot steer it."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

# Characters that move the cursor, begin an escape sequence or turn the order of letters, and lone surrogates, which no
# encoding has. Tabs and line feeds stay.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` with every character that would steer a terminal spelled out.

    >>> print(clean("title: \\x1b]0;owned\\x07"))
    title: \\x1b]0;owned\\x07
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Writes a line to stderr, cleaned."""
    print(clean(text), file=sys.stderr, flush=True)


class Terminal(Console):
    """A console whose texts and tables are cleaned. Square brackets are text, since a completion may hold them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        # Before a table measures its cells.
        return super().render_str(clean(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        # Segments with a `control` are rich's own: the live bar's.
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)


class _CleanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))


def protect() -> None:
    """Called first by every command: warnings are cleaned, and no character makes a write to the terminal fail."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    logging.lastResort.setFormatter(_CleanFormatter("%(message)s"))
