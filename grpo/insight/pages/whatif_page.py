"""This module draws the predicted curves of `grpo dynamics whatif`, and writes its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo.config.folder import WHATIF_PAGE_FILE, WHATIF_PLOT_FILE
from grpo.config.start import run_name
from grpo.insight.logs.run_log import RunLog
from grpo.insight.pages import page
from grpo.insight.pages.glossary import meanings
from grpo.insight.pages.style import BLACK, BLUE, GREEN, ORANGE, in_percent, legend_below, plain, sheet, tell
from grpo.insight.plans.whatif import Course

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = (BLACK, BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00")
SHEET_INCHES = (8.0, 4.6)


def write_whatif_page(run: Path, folder: Path, draw: Callable[[Axes], str], **page_values: Any) -> list[Path]:
    """Writes the picture and the page of a `run` into a folder, and returns their paths.

    `draw` draws the curves, and `page_values` are the other values of `templates/whatif.html`.
    """
    sheet([draw], folder / WHATIF_PLOT_FILE, SHEET_INCHES, columns=1, first_wide=True)
    glossary_entries = meanings("pass rate", "group", "silent group", "optimizer step", "τ", "α, β")
    values = {"name": run_name(run), "pictures": page.wide_picture(draw), "meanings": glossary_entries}
    page.write_page("whatif.html", folder / WHATIF_PAGE_FILE, **values, **page_values)
    return [folder / WHATIF_PLOT_FILE, folder / WHATIF_PAGE_FILE]


def draw_courses(axes: Axes, log: RunLog, courses: Mapping[str, Course], unit: str, amount: float) -> str:
    """Draws the measured pass rates, and predicted courses with 90 % intervals, until `amount` of `unit` is spent."""
    from matplotlib.ticker import EngFormatter

    same_course = next(iter(courses.values()))
    # Steps are counted, so the curves have no points between two of them.
    amounts = np.linspace(0, amount, 60)
    amounts = np.unique(np.round(amounts)) if unit == "steps" else amounts
    spent_amounts = np.interp(log.history.steps, same_course.steps, np.median(same_course.spent(unit), axis=0))
    axes.plot(spent_amounts, log.history.values, ".", color="0.6", markersize=3, label="measured")
    for color, (name, course) in zip(cycle(COLORS), courses.items(), strict=False):
        rates = np.array([course.at(unit, spent_then)["rates"] for spent_then in amounts])
        low, middle, high = np.quantile(rates, [0.05, 0.5, 0.95], axis=1)
        axes.fill_between(amounts, low, high, color=color, alpha=0.12, linewidth=0)
        (line,) = axes.plot(amounts, middle, color=color, label=name)
        ends = zip(amounts, middle, low, high, strict=True)
        tell(line, [(plain(x), f"{value:.1%} ({least:.1%} to {most:.1%})") for x, value, least, most in ends])
    axes.set_xlabel(f"{unit} spent")
    axes.set_ylabel("pass rate")
    in_percent(axes)
    axes.set_title("What each setting would have reached")
    axes.set_xlim(0, amount)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    legend_below(axes)
    return "Points are what the run measured. Lines are medians of predictions, and a shaded band holds 90 % of them."
