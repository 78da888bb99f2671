"""This module draws a run's curves as one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo.config import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
_SIZE_INCHES = (7.0, 5.0)
_DOTS_PER_INCH = 200
# More points would be drawn on top of each other, and make a page of many megabytes.
MOST_POINTS = 2000
# Each point of a smoothed line is the mean of this share of the run's points.
_WINDOW_FRACTION = 0.1
# The small panels in order, as (metric, title). Fractions are drawn from 0 to 1.
_PANELS = (
    ("groups/silent_fraction", "silent groups (fraction)"),
    ("policy/entropy", "entropy (nats per token)"),
    ("completions/length_mean", "completion length (tokens)"),
)


def plot_run(metrics: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Draws reward and pass rate over optimizer steps, with the held-out evaluations, into the PNG `path`.

    Small panels below show silent groups, entropy and length. `metrics` and `evaluations` are the rows of
    metrics.jsonl and evaluations.jsonl. Dots are rounds; lines are centred means over a tenth of them. Metrics that
    were not measured are left out. Raises `UserError` when the run has no finished round.
    """
    if not metrics:
        raise UserError("there is nothing to plot, because the run has not finished its first round")
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels = [panel for panel in _PANELS if any(panel[0] in row for row in metrics)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
        grid = figure.add_gridspec(2, max(1, len(panels)), height_ratios=[2.4, 1])
        top = figure.add_subplot(grid[0, :])
        _draw_rewards(top, metrics, evaluations)
        for column, (name, title) in enumerate(panels):
            axes = figure.add_subplot(grid[1, column])
            _draw_curve(axes, metrics, name, GREEN)
            axes.set_title(title)
            axes.set_ylim(0, 1 if name.endswith("_fraction") else 1.1 * max(_series(metrics, name)[1]))
        last_step = max(1, *(row["step"] for row in [*metrics, *evaluations]))
        for axes in figure.axes:
            axes.set_xlabel("optimizer step")
            axes.set_xlim(-0.02 * last_step, 1.02 * last_step)
            axes.xaxis.set_major_locator(MaxNLocator(10 if axes is top else 4, integer=True))
        figure.savefig(path)


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


def drawn(count: int) -> slice:
    """Chooses which of `count` points are drawn one by one: all, or of a long run every so many.

    >>> drawn(2000), drawn(100_000)
    (slice(None, None, 1), slice(None, None, 50))
    """
    return slice(None, None, -(-count // MOST_POINTS) or 1)


def _draw_rewards(axes: Axes, metrics: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> None:
    _draw_curve(axes, metrics, "pass_rate", BLUE, "pass rate of the round")
    # With the plain 0/1 reward both curves are the same.
    if _series(metrics, "reward/mean") != _series(metrics, "pass_rate"):
        _draw_curve(axes, metrics, "reward/mean", ORANGE, "mean reward of the round")
    if evaluations:
        low, value, high = (
            np.array([row["pass@1"][bound] for row in evaluations]) for bound in ("low", "value", "high")
        )
        axes.errorbar(
            [row["step"] for row in evaluations],
            value,
            yerr=[value - low, high - value],
            fmt="D",
            color=BLACK,
            markersize=4,
            capsize=3,
            linewidth=1,
            label=f"held-out pass@1, 95 % interval ({evaluations[-1]['problems']} problems)",
            zorder=3,
        )
    axes.set_ylabel("pass rate, reward")
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]), top=max(1.0, axes.get_ylim()[1]))
    if axes.has_data():
        axes.legend()


def _draw_curve(axes: Axes, metrics: Sequence[Mapping[str, Any]], name: str, color: str, label: str = "") -> None:
    steps, values = _series(metrics, name)
    if steps:
        # The window must be odd for the mean to be centred.
        window = 2 * round(_WINDOW_FRACTION * len(values) / 2) + 1
        some = drawn(len(steps))
        axes.plot(steps[some], values[some], ".", color=color, alpha=0.4, markersize=4, markeredgewidth=0)
        axes.plot(steps, smooth(values, window), color=color, linewidth=1.8, label=label or None)


def _series(metrics: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    rows = [row for row in metrics if name in row]
    return [row["step"] for row in rows], [row[name] for row in rows]
