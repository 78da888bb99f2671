"""This module holds what all charts share: colours, sizes, smoothing, legends, and sheets of several panels.

A panel is a function that draws into the axes it is given, and returns a caption: what the chart shows, in plain words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Panel = Callable[[Axes], str]

# Okabe and Ito's palette can be told apart with every kind of colour vision, and in grey.
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
}
DOTS_PER_INCH = 160
# More points would be drawn on top of each other, and make a page of megabytes.
MOST_POINTS = 800
# More evaluations are drawn as a line with a band, since their bars would hide each other.
MOST_BARS = 30
# Each point of a smoothed line is the mean of this share of the run's points.
_WINDOW_FRACTION = 0.1
# The legend begins this many points below the axes, where tick labels and the label of the axis end.
_LEGEND_DISTANCE = 30.0
# A legend has as many columns as fit into this many letters.
_LEGEND_LETTERS = 56
# More names than this are written small.
_FEW_NAMES = 8


def smooth(values: Sequence[float], window: int) -> np.ndarray:
    """Returns the centred means of `window` values. Near the ends, a mean has only as many values as there are.

    >>> smooth([0.0, 3.0, 6.0, 0.0], 3).tolist()
    [1.5, 3.0, 3.0, 3.0]
    """
    count, width = len(values), min(window, len(values))
    # Differences of running sums: the window grows with the run, and a convolution with its square.
    sums = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(count) + (width - 1) // 2 + 1
    high, low = np.minimum(last, count), np.maximum(last - width, 0)
    return (sums[high] - sums[low]) / (high - low)


def window_of(count: int) -> int:
    """Returns the window of a smoothed line through `count` points. It is odd, so that the mean is centred."""
    return 2 * round(_WINDOW_FRACTION * count / 2) + 1


def drawn(count: int) -> slice:
    """Chooses which of `count` points are drawn one by one: all, or of a long run every so many.

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
    """Labels the y axis in percent, from 0 to what was drawn, but to no less than a tenth."""
    in_percent(axes)
    axes.set_ylim(-0.004, max(0.1, axes.get_ylim()[1]))


def plain(value: float) -> str:
    """Writes a number with three digits, or more where it is whole, and never as a power of ten.

    >>> plain(17.6271), plain(6745.02), plain(0.088046), plain(40.0), plain(-0.0)
    ('17.6', '6,745', '0.088', '40', '0')
    """
    if value == round(value) or abs(value) >= 100:
        return f"{round(value):,}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1g}"


def tell(drawn_series: Any, texts: Sequence[tuple[str, str]]) -> None:
    """Gives the points of something drawn the texts (of x, of y) that a page shows under the pointer.

    Without them a page writes each point's numbers as the axes do.
    """
    drawn_series.told = texts


def name_size(count: int) -> float:
    """Returns the size of letters in which so many names of variants fit into a panel, in points."""
    return 6.0 if count > _FEW_NAMES else STYLE["font.size"]


def legend_below(axes: Axes, of_one: bool = False) -> None:
    """Puts the legend below the axes, where it covers neither curves nor error bars. Without data it says so.

    A single series has no legend, since the title says what it is, unless `of_one` asks for it.
    """
    from matplotlib.transforms import ScaledTranslation

    if not axes.has_data():
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="0.4")
        return
    names = axes.get_legend_handles_labels()[1]
    if len(names) < 2 and not of_one:
        return
    size = name_size(len(names))
    letters = _LEGEND_LETTERS * STYLE["font.size"] / size
    columns = max(1, min(len(names), 4, int(letters / (max(map(len, names)) + 5))))
    below = axes.transAxes + ScaledTranslation(0, -_LEGEND_DISTANCE / 72, axes.figure.dpi_scale_trans)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below, "borderaxespad": 0.0}
    axes.legend(ncols=columns, fontsize=size, **place)


def sheet(panels: Sequence[Panel], path: Path, inches: tuple[float, float], columns: int, first_wide: bool) -> None:
    """Draws panels in a grid into one PNG. With `first_wide` the first one has a row of its own.

    A title keeps what stands before its colon, since a small panel has room for no more.
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
        figure.savefig(path)
