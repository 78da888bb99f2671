"""This module holds what all charts share: colours, sizes, smoothing, legends, and sheets of several panels.

A panel is a function that draws a chart into given axes and returns its caption in plain words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo.host.disk import replaced
from grpo.insight.diagnosis.evidence import window_means

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Panel = Callable[[Axes], str]

# The colours of Okabe and Ito's palette differ for every kind of colour vision, and in grey.
BLUE, ORANGE, GREEN, BLACK = "#0072B2", "#D55E00", "#009E73", "#000000"
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    # A name may hold dollar signs, between which matplotlib would read a formula.
    "text.parse_math": False,
}
DOTS_PER_INCH = 160
# A longer series is thinned out: more points would overlap, and make a page of megabytes.
MOST_POINTS = 800
# More evaluations than this are drawn as a line with a band, since their error bars would overlap.
MOST_BARS = 30
# Each point of a smoothed line is the mean of this share of the run's points.
_WINDOW_FRACTION = 0.1
# The legend begins this many points below the axes, where tick labels and the label of the axis end.
_LEGEND_DISTANCE = 30.0
# The columns of a legend share this many letters of width, or fewer in a picture narrower than so many inches.
_LEGEND_LETTERS, _LEGEND_INCHES = 56, 4.8
# More names than this are written in small letters.
_FEW_NAMES = 8
# A number as large as this is written as a power of ten.
_GIANT = 1e12
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def smooth(values: Sequence[float], window: int) -> np.ndarray:
    """Returns the centred moving averages of `values` over `window` values, fewer near the two ends.

    >>> smooth([0.0, 3.0, 6.0, 0.0], 3).tolist()
    [1.5, 3.0, 3.0, 3.0]
    """
    count, width = len(values), max(min(window, len(values)), 1)
    after = (width - 1) // 2
    last = np.arange(count) + after + 1
    within = np.minimum(last, count) - np.maximum(last - width, 0)
    return window_means(np.pad(np.asarray(values, float), (width - 1 - after, after)), width) * width / within


def window_of(count: int) -> int:
    """Returns the window of a smoothed line through `count` points, about a tenth of them, and odd to be centred."""
    return 2 * round(_WINDOW_FRACTION * count / 2) + 1


def drawn(count: int) -> slice:
    """Returns the slice of `count` points to draw: every n-th point, so that at most `MOST_POINTS` are drawn.

    >>> drawn(800), drawn(100_000)
    (slice(None, None, 1), slice(None, None, 125))
    """
    return slice(None, None, -(-count // MOST_POINTS) or 1)


def in_percent(axes: Axes, whole: bool = False) -> None:
    """Labels the y axis in percent. With `whole` it reaches from 0 to 100 %, with room for markers at both ends."""
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    if whole:
        axes.set_ylim(-0.03, 1.03)


def share_from_zero(axes: Axes) -> None:
    """Labels the y axis in percent, and starts it at 0. Its upper end stays, but is at least 10 %."""
    in_percent(axes)
    axes.set_ylim(-0.004, max(0.1, axes.get_ylim()[1]))


def plain(value: float) -> str:
    """Formats a number with three digits, with two below 0.001, and as a whole number if it is whole or at least 100.

    >>> plain(17.6271), plain(6745.02), plain(0.088046), plain(0.00015), plain(40.0), plain(-0.0), plain(3e-7)
    ('17.6', '6,745', '0.088', '0.00015', '40', '0', '3·10⁻⁷')
    """
    if (value == round(value) or abs(value) >= 100) and abs(value) < _GIANT:
        return f"{round(value):,}"
    digits, _, power = (f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.2g}").partition("e")
    return f"{digits}·10{str(int(power)).translate(_RAISED)}" if power else digits


def tell(drawn_series: Any, texts: Sequence[tuple[str, str]]) -> None:
    """Attaches a pair of texts (of x, of y) to each point of a drawn series. A page shows them under the pointer.

    A series without texts shows its points' numbers, formatted as on the axes.
    """
    drawn_series.point_texts = texts


def tell_rounds(line: Any, values: Sequence[float]) -> None:
    """Attaches the values of single rounds to a line of their means. A page shows both under the pointer."""
    line.round_values = values


def with_mean(value: str, mean: str) -> str:
    """Formats the value of a single round beside the mean of its neighbours, unless both are the same.

    >>> with_mean("31.2%", "27.2%"), with_mean("4", "4")
    ('31.2% (mean 27.2%)', '4')
    """
    return value if value == mean else f"{value} (mean {mean})"


def draw_rounds(
    axes: Axes, steps: Sequence[float], values: Sequence[float], color: str, label: str, window: int = 0, **line: Any
) -> None:
    """Draws dots for single rounds, and a line of their means over `window` rounds (0: a tenth) that tells both."""
    steps, values, places = np.asarray(steps), np.asarray(values), drawn(len(steps))
    axes.plot(steps[places], values[places], ".", color=color, alpha=0.5, markersize=5, markeredgewidth=0)
    draw_means(axes, steps, values, color, label, window, **line)


def draw_means(
    axes: Axes, steps: Sequence[float], values: Sequence[float], color: str, label: str, window: int = 0, **line: Any
) -> None:
    """Draws the line of a series' means over `window` rounds (0: a tenth), which tells single rounds too."""
    steps, values, places = np.asarray(steps), np.asarray(values), drawn(len(steps))
    means = smooth(values, window or window_of(len(values)))[places]
    (drawing,) = axes.plot(steps[places], means, color=color, label=label, **line)
    tell_rounds(drawing, values[places])


def draw_evaluations(axes: Axes, steps: Sequence[float], low: Any, value: Any, high: Any, label: str) -> Any:
    """Draws held-out evaluations with their intervals: as points, or as a line with a band where they are many."""
    low, value, high = (np.asarray(end, float) for end in (low, value, high))
    if len(steps) > MOST_BARS:
        axes.fill_between(steps, low, high, color=BLACK, alpha=0.15, linewidth=0)
        return axes.plot(steps, value, color=BLACK, linewidth=1, label=label)[0]
    reach = np.array([np.maximum(value - low, 0), np.maximum(high - value, 0)])
    style = {"fmt": "D", "color": BLACK, "markersize": 4, "capsize": 3, "linewidth": 1, "zorder": 3}
    return axes.errorbar(steps, value, yerr=reach if np.any(reach) else None, label=label, **style)


def name_size(count: int) -> float:
    """Returns the font size, in points, at which `count` names of variants or series fit into a panel."""
    return 6.0 if count > _FEW_NAMES else STYLE["font.size"]


def over_optimizer_steps(axes: Axes, name: str, of_one: bool = False) -> None:
    """Labels the axes of curves over optimizer steps, with ticks at whole steps, whose values are called `name`, and
    puts the legend below them as `legend_below` does."""
    from matplotlib.ticker import MaxNLocator

    axes.set_ylabel(name)
    axes.set_xlabel("optimizer step")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: plain(value))
    legend_below(axes, of_one)


def legend_below(axes: Axes, of_one: bool = False) -> None:
    """Puts the legend below the axes, where it covers neither curves nor error bars.

    A single series gets a legend only with `of_one`, since the title names it. Axes without data get the text "not
    measured".
    """
    from matplotlib.transforms import ScaledTranslation

    if not axes.has_data():
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="0.4")
        return
    names = axes.get_legend_handles_labels()[1]
    if len(names) < 2 and not of_one:
        return
    size = name_size(len(names))
    letters = _LEGEND_LETTERS * STYLE["font.size"] / size * min(1.0, axes.figure.get_figwidth() / _LEGEND_INCHES)
    columns = max(1, min(len(names), 4, int(letters / (max(map(len, names)) + 5))))
    below = axes.transAxes + ScaledTranslation(0, -_LEGEND_DISTANCE / 72, axes.figure.dpi_scale_trans)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below, "borderaxespad": 0.0}
    axes.legend(ncols=columns, fontsize=size, **place)


def sheet(panels: Sequence[Panel], path: Path, inches: tuple[float, float], columns: int, first_wide: bool) -> None:
    """Draws panels in a grid into one PNG. With `first_wide` the first panel has a row of its own.

    `inches` are the width of the picture and the height of a row. Titles are cut at their colon to fit small panels.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        wide = columns if first_wide else 1
        rows = -(-(len(panels) - 1 + wide) // columns)
        figure = Figure(figsize=(inches[0], inches[1] * rows), dpi=DOTS_PER_INCH, layout="constrained")
        grid = figure.add_gridspec(rows, columns)
        for index, panel in enumerate(panels):
            place = index + wide - 1 if index else 0
            cell = grid[0, :wide] if not index else grid[place // columns, place % columns]
            axes = figure.add_subplot(cell)
            panel(axes)
            axes.set_title(axes.get_title(loc="left").partition(":")[0])
        with replaced(Path(path)) as new:
            figure.savefig(new)
