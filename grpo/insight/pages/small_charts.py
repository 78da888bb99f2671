"""This module draws the small charts of a run's page: one number of training each, such as the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo.insight.pages.curves import SERIES_COLORS, Curves, Panel, curves, over_steps
from grpo.insight.pages.style import BLUE, plain, share_from_zero
from grpo.types import metrics as m

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A page shows at most as many parts of the reward.
MOST_PARTS = len(SERIES_COLORS)


@dataclass(frozen=True, slots=True)
class SmallChart:
    """A small chart holds a title, its lines with the metric and the label of each, and the colour of the first."""

    title: str
    lines: Sequence[tuple[m.Metric, str]]
    color: str = BLUE

    @property
    def names(self) -> list[str]:
        """Returns the names of the metrics."""
        return [metric.name for metric, _ in self.lines]

    def draw(self, axes: Axes, run: Curves) -> str:
        """Draws the chart, and returns its caption."""
        colored = zip(self.lines, (self.color, *SERIES_COLORS[1:])[: len(self.lines)], strict=True)
        curves(axes, run, [(metric.name, color, label) for (metric, label), color in colored])
        axes.yaxis.set_major_formatter(lambda value, _: plain(value))
        if all(name.endswith("_fraction") for name in self.names):
            share_from_zero(axes)
        elif min(values := [value for name in self.names for value in run.series(name)[1]]) >= 0:
            axes.set_ylim(0, 1.08 * max(values) or 1.0)
        axes.set_title(self.title)
        over_steps(axes, run, self.lines[0][0].unit)
        return " ".join(metric.sentence for metric, _ in self.lines if run.has(metric.name))


def _charts() -> list[SmallChart]:
    """Returns the charts that the table of metrics names."""
    lines: dict[str, list[tuple[m.Metric, str]]] = {}
    for metric in m.TABLE.values():
        title, _, label = metric.panel.partition(": ")
        lines.setdefault(title, []).append((metric, label))
    return [SmallChart(title, of_chart) for title, of_chart in lines.items() if title]


def small_charts(run: Curves) -> tuple[list[Panel], list[str]]:
    """Returns a panel for each chart and each part of the reward of a run, and sentences on those left out.

    A chart whose metrics were always 0 is left out, and so is a part that equals the pass rate.
    """
    charts = _charts()
    shown = [chart for chart in charts if any(any(run.series(name)[1]) for name in chart.names)]
    always_zero = [chart.title for chart in charts if chart not in shown and run.has(*chart.names)]
    parts = sorted({name for row in run.metrics for name in row if name.startswith(m.PART)})
    same = [name for name in parts if run.is_same(name, m.PASS_RATE)]
    others = [name for name in parts if name not in same]
    notes = [f"The part {_part(name)} of the reward is the pass rate." for name in same if others]
    if len(others) > MOST_PARTS:
        notes.append(f"Of {len(parts)} parts of the reward {MOST_PARTS} are shown.")
    if always_zero:
        verb = "was" if len(always_zero) == 1 else "were"
        notes.append(f"Always 0 {verb}: {', '.join(always_zero)}.")
    of_parts = [
        SmallChart(f"Reward: {_part(name)}", [(m.TABLE[m.PART]._replace(name=name), _part(name))], color)
        for name, color in zip(others, SERIES_COLORS, strict=False)
    ]
    return [chart.draw for chart in (*of_parts, *shown)], notes


def _part(name: str) -> str:
    """Returns the name of a reward's part, and that of a function without its file.

    >>> _part("reward/part/rewards.py:short"), _part("reward/part/math")
    ('short', 'math')
    """
    return name.removeprefix(m.PART).rpartition(":")[2]
