"""This module draws the charts of a comparison of variants, one function per panel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from grpo.report.contrast import QUARTERS, Contrast, Variant
from grpo.report.contrast_tables import points
from grpo.report.style import in_percent, legend_below, name_size, plain, tell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette. Variants beyond the seventh repeat the colours with dashes.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
NAMED_UNITS = {"steps": "optimizer steps", "tokens": "sampled tokens", "seconds": "seconds of rounds"}


def line_styles(contrast: Contrast) -> Mapping[str, dict[str, str]]:
    """Returns the colour and dashes of each variant."""
    dashes = ("-", "--", ":")
    return {
        variant.name: {"color": COLORS[index % len(COLORS)], "linestyle": dashes[index // len(COLORS) % len(dashes)]}
        for index, variant in enumerate(contrast.variants)
    }


def learning(unit: str) -> Callable[[Axes, Contrast], str]:
    """Returns a panel that draws held-out pass@1 over `unit`: means over seeds, with bands of one standard error."""
    from matplotlib.ticker import MaxNLocator

    def draw(axes: Axes, contrast: Contrast) -> str:
        for variant in contrast.variants:
            style = line_styles(contrast)[variant.name]
            end = min(run.spent[unit][-1] for run in variant.runs)
            grid = np.linspace(0, end, 60)
            curves = np.array([np.interp(grid, run.spent[unit], run.held_out) for run in variant.runs])
            mean = curves.mean(0)
            axes.plot(grid, mean, label=variant.name, **style)
            for run in variant.runs:
                axes.plot(run.spent[unit], run.held_out, ".", color=style["color"], alpha=0.5, markeredgewidth=0)
            if len(curves) > 1:
                error = curves.std(0, ddof=1) / np.sqrt(len(curves))
                axes.fill_between(grid, mean - error, mean + error, color=style["color"], alpha=0.15, linewidth=0)
        axes.axhline(contrast.level, color="0.6", linewidth=0.8, linestyle=":")
        axes.set_xlabel(NAMED_UNITS[unit])
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(lambda value, _: plain(value))
        axes.set_ylabel("held-out pass@1")
        in_percent(axes)
        legend_below(axes)
        axes.set_title(f"Held-out pass@1 over {NAMED_UNITS[unit]}")
        seeds = max(len(variant.runs) for variant in contrast.variants)
        # One standard error of two seeds is half of their difference, so the band reaches from one to the other.
        bands = {1: "", 2: " Lines are means, and bands reach from one seed to the other."}
        band = bands.get(seeds, " Lines are means over seeds, and bands reach one standard error to each side.")
        return (
            f"The share of held-out problems solved at the first try. Dots are evaluations.{band} The dotted line at "
            f"{contrast.level:.1%} is three quarters of what {contrast.base.name} gained."
        )

    return draw


def differences(axes: Axes, contrast: Contrast) -> str:
    """Draws the differences of the last held-out pass@1 from the first variant's, with 95 % intervals."""
    others = [variant for variant in contrast.variants if variant.against]
    for place, variant in enumerate(others):
        difference = variant.against.difference
        reach = [[difference.value - difference.low], [difference.high - difference.value]]
        color = line_styles(contrast)[variant.name]["color"]
        bar = axes.errorbar(difference.value, place, xerr=reach, fmt="o", color=color, capsize=3, label=variant.name)
        tell(bar, [("", points(difference))])
    axes.axvline(0, color="0.4", linewidth=0.8)
    axes.set_ylabel("variant")
    names = [variant.name for variant in others]
    axes.set_yticks(range(len(names)), names, fontsize=name_size(len(names)))
    axes.set_ylim(-0.6, max(len(others), 1) - 0.4)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:+g}" if value else "0")
    axes.set_xlabel("percentage points")
    axes.set_title(f"Difference from {contrast.base.name}")
    few = "" if all(variant.against.telling for variant in others) else " So few seeds say nothing of other seeds."
    return (
        "Held-out pass@1 at the end. Bars reach over the 95 % interval. A bar that crosses the line at 0 leaves open "
        f"who is better.{few}"
    )


def quarters(axes: Axes, contrast: Contrast) -> str:
    """Draws each variant's change of the pass rate on the problems of each quarter of difficulty before training."""
    places, width = np.arange(len(QUARTERS)), 0.8 / len(contrast.variants)
    for index, variant in enumerate(contrast.variants):
        values = np.array([change.value for change in variant.quarters])
        reach = np.array([[change.value - change.low, change.high - change.value] for change in variant.quarters]).T
        bar_places = places + (index - (len(contrast.variants) - 1) / 2) * width
        color = line_styles(contrast)[variant.name]["color"]
        style = {"color": color, "error_kw": {"linewidth": 0.8}, "label": variant.name}
        bars = axes.bar(bar_places, values, width * 0.9, yerr=reach, **style)
        tell(bars, [(name, points(change)) for name, change in zip(QUARTERS, variant.quarters, strict=True)])
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.set_xticks(places, QUARTERS)
    axes.set_xlabel("quarter of the problems, by pass rate before training")
    axes.set_ylabel("percentage points")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:+.3g}" if value else "0")
    legend_below(axes)
    axes.set_title("What was learned, by difficulty")
    return (
        "How much the pass rate changed on the hardest quarter of the held-out problems, and so on. By chance alone "
        "the hardest seem to gain and the easiest to lose, so compare the variants with each other."
    )


def rounds(name: str, title: str, unit: str, caption: str) -> Callable[[Axes, Contrast], str]:
    """Returns a panel that draws a metric's mean over seeds, smoothed over a twentieth of the run.

    `name` is the metric, and `unit` the label of the y axis.
    """

    def draw(axes: Axes, contrast: Contrast) -> str:
        for variant in contrast.variants:
            steps, values = _mean_series(variant, name)
            if len(steps):
                axes.plot(steps, values, label=variant.name, **line_styles(contrast)[variant.name])
        axes.set_xlabel("optimizer steps")
        axes.xaxis.set_major_formatter(lambda value, _: plain(value))
        axes.set_ylabel(unit)
        if name.endswith("_fraction"):
            in_percent(axes)
        legend_below(axes)
        axes.set_title(title)
        return caption

    return draw


def _mean_series(variant: Variant, name: str) -> tuple[np.ndarray, np.ndarray]:
    curves = [np.array([(row["step"], row[name]) for row in run.rows if name in row]) for run in variant.runs]
    curves = [curve for curve in curves if len(curve)]
    if not curves:
        return np.empty(0), np.empty(0)
    steps = np.linspace(max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves), 60)
    mean = np.mean([np.interp(steps, curve[:, 0], curve[:, 1]) for curve in curves], 0)
    kernel = np.ones(3) / 3
    return steps, np.convolve(np.pad(mean, 1, mode="edge"), kernel, mode="valid")


PANELS: tuple[Callable[[Axes, Contrast], str], ...] = (
    learning("tokens"),
    learning("steps"),
    differences,
    quarters,
    rounds(
        *("groups/silent_fraction", "Silent groups", "share of groups"),
        "Groups whose completions all got the same reward. Nothing is learned from them.",
    ),
    rounds(
        *("policy/entropy", "Entropy", "nats per token"),
        "How much the model still tries out: 0 nats is always the same token, 0.7 like a toss between two.",
    ),
    rounds(*("completions/length_mean", "Length of completions", "tokens"), "How much the model writes on average."),
    learning("seconds"),
)
