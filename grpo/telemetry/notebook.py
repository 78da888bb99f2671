"""This module shows a run below a notebook's cell: a bar, and one table to which each round adds a row."""

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from html import escape
from importlib import import_module

from rich.text import Text

from grpo.host.terminal import Terminal
from grpo.telemetry.console import FIELDS

MOST_ROWS = 200
"""The table holds this many of the last rounds, since the whole table is sent to the browser after each round."""


class NotebookDisplay:
    """This display shows a run of `total_steps` that begins at `first_step` (above 0 when it is resumed).

    `show` shows a text of HTML in place of the one before. `clock` returns seconds.
    """

    def __init__(
        self,
        total_steps: int,
        first_step: int = 0,
        show: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._first = total_steps, first_step
        self._show, self._clock, self._start = show or _cell(), clock, clock()
        self._rows: list[tuple[int, Mapping[str, float]]] = []

    def begin(self) -> None:
        """Marks the start of the first round. Time before it does not count for the estimate of the remaining time."""
        self._start = self._clock()

    def round(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds the row of a round that ended at optimizer step `step`. `metrics` have the names that `flatten` gives
        them."""
        self._rows = [*self._rows, (step, metrics)][-MOST_ROWS:]
        seconds = (self._clock() - self._start) * (self._total - step) / max(1, step - self._first)
        self._draw(f"{timedelta(seconds=round(seconds))} to go")

    def _draw(self, time_words: str) -> None:
        """Shows the bar, followed by `time_words`, and the table."""
        step = self._rows[-1][0]
        shown = [
            field
            for field in FIELDS
            if any(field.metric in row and abs(row[field.metric]) >= field.least for _, row in self._rows)
        ]
        bar = f'<progress value="{step}" max="{self._total}"></progress> step {step} of {self._total}'
        head = "".join(f'<th title="{escape(field.meaning)}">{field.label}</th>' for field in shown)
        cells = (
            [str(number), *(field.form.format(row[field.metric]) if field.metric in row else "" for field in shown)]
            for number, row in reversed(self._rows)
        )
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells)
        table = f"<table><tr><th>step</th>{head}</tr>{body}</table>"
        self._show(f'{bar}, {time_words}<div style="max-height: 30em; overflow: auto">{table}</div>')

    def note(self, text: str) -> None:
        """Prints `text` unchanged below what is shown."""
        Terminal().print(Text(text))

    def close(self) -> None:
        """Shows how long the rounds took in place of the remaining time."""
        if self._rows:
            self._draw(f"ended after {timedelta(seconds=round(self._clock() - self._start))}")


def in_notebook() -> bool:
    """Tells whether this process is a notebook's kernel, whose cells show HTML."""
    return Terminal().is_jupyter


def _cell() -> Callable[[str], None]:
    """Returns a function that shows a text of HTML below the cell that runs, in place of the one before."""
    # The package that a kernel brings along is no dependency of grpo.
    shown = import_module("IPython.display")
    handle = shown.display(shown.HTML(""), display_id=True)
    return lambda text: handle.update(shown.HTML(text))
