"""This module draws the charts of a comparison of variants, one function per panel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from grpo.insight.pages.contrast import QUARTERS, Contrast, Variant
from grpo.insight.pages.style import draw_rounds, in_percent, legend_below, name_size, plain, share_from_zero, tell
from grpo.types import metrics as m

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

# Okabe and Ito's palette. Variants beyond the seventh repeat the colours with dashes.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# A curve that differs by no more than this share of its values would hide another one.
HIDDEN = 5e-3
NAMED_UNITS = {"steps": "optimizer steps", "tokens": "sampled tokens", "seconds": "seconds of rounds"}


def line_styles(contrast: Contrast) -> Mapping[str, dict[str, str]]:
    """Returns the colour and dashes of each variant."""
    dashes = ("-", "--", ":")
    return {
        variant.name: {"color": COLORS[index % len(COLORS)], "linestyle": dashes[index // len(COLORS) % len(dashes)]}
        for index, variant in enumerate(contrast.variants)
    }


def learning(axes: Axes, contrast: Contrast, unit: str) -> str:
    """Draws held-out results over `unit`: means over seeds, with bands of one standard error.

    Seeds are averaged step by step, in what they spent as in what they solved. So a line ends at the mean of its runs'
    ends, whichever of them was quicker.
    """
    from matplotlib.ticker import MaxNLocator

    yardstick = contrast.yardstick
    lines: dict[Line2D, list[str]] = {}
    for variant in contrast.variants:
        style = line_styles(contrast)[variant.name]
        end = min(run.spent["steps"][-1] for run in variant.runs)
        steps = np.unique(np.concatenate([run.spent["steps"] for run in variant.runs]))
        steps = steps[steps <= end]
        curves = np.array([np.interp(steps, run.spent["steps"], run.held_out) for run in variant.runs])
        spent = np.mean([np.interp(steps, run.spent["steps"], run.spent[unit]) for run in variant.runs], 0)
        mean = curves.mean(0)
        same = next((line for line in lines if _is_same(line, spent, mean)), None)
        if same is None:
            (same,) = axes.plot(spent, mean, **style)
            tell(same, [(plain(amount), yardstick.value(value)) for amount, value in zip(spent, mean, strict=True)])
        names = [*lines.get(same, ()), variant.name]
        lines[same] = names
        same.set_label(" = ".join(names) if len(names) < 3 else f"{names[0]} = {len(names) - 1} others")
        for run in variant.runs:
            axes.plot(run.spent[unit], run.held_out, ".", color=style["color"], alpha=0.5, markeredgewidth=0)
        if len(curves) > 1:
            error = curves.std(0, ddof=1) / np.sqrt(len(curves))
            axes.fill_between(spent, mean - error, mean + error, color=style["color"], alpha=0.15, linewidth=0)
    if contrast.has_level:
        axes.axhline(contrast.level, color="0.6", linewidth=0.8, linestyle=":")
    axes.set_xlabel(NAMED_UNITS[unit])
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: plain(value))
    axes.set_ylabel(f"held-out {yardstick.name}")
    if yardstick.in_percent:
        in_percent(axes)
    legend_below(axes, of_one=len(lines) < len(contrast.variants))
    axes.set_title(f"Held-out {yardstick.name} over {NAMED_UNITS[unit]}")
    seeds = max(len(variant.runs) for variant in contrast.variants)
    # One standard error of two seeds is half of their difference, so the band reaches from one to the other.
    bands = {1: "", 2: " Lines are means, and bands reach from one seed to the other."}
    band = bands.get(seeds, " Lines are means over seeds, and bands reach one standard error to each side.")
    caption = f"{yardstick.meaning} Dots are evaluations.{band}"
    if not contrast.has_level:
        return caption
    level = yardstick.value(contrast.level)
    return f"{caption} The dotted line at {level} is three quarters of what {contrast.base.name} gained."


def _is_same(line: Line2D, x: np.ndarray, y: np.ndarray) -> bool:
    """Tells whether a curve would hide a line that is drawn already."""
    return len(x) == len(line.get_xdata()) and np.allclose(line.get_data(), (x, y), rtol=HIDDEN)


def differences(axes: Axes, contrast: Contrast) -> str:
    """Draws the differences of the last held-out results from the first variant's, with 95 % intervals."""
    others = [variant for variant in contrast.variants if variant.against]
    for place, variant in enumerate(others):
        difference = variant.against.difference
        reach = [[difference.value - difference.low], [difference.high - difference.value]]
        color = line_styles(contrast)[variant.name]["color"]
        bar = axes.errorbar(difference.value, place, xerr=reach, fmt="o", color=color, capsize=3, label=variant.name)
        tell(bar, [("", contrast.yardstick.changes(difference))])
    axes.axvline(0, color="0.4", linewidth=0.8)
    axes.set_ylabel("variant")
    names = [variant.name for variant in others]
    axes.set_yticks(range(len(names)), names, fontsize=name_size(len(names)))
    axes.set_ylim(-0.6, max(len(others), 1) - 0.4)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: f"{contrast.yardstick.factor * value:+g}" if value else "0")
    axes.set_xlabel(contrast.yardstick.change_unit)
    axes.set_title(f"Difference from {contrast.base.name}")
    few = "" if all(variant.against.telling for variant in others) else " So few seeds say nothing of other seeds."
    return (
        f"The held-out {contrast.yardstick.name} at the end. Bars reach over the 95 % interval. A bar that crosses the "
        f"line at 0 leaves open who is better.{few}"
    )


def quarters(axes: Axes, contrast: Contrast) -> str:
    """Draws each variant's change of the result on the problems of each quarter of difficulty before training."""
    places, width = np.arange(len(QUARTERS)), 0.8 / len(contrast.variants)
    for index, variant in enumerate(contrast.variants):
        values = np.array([change.value for change in variant.quarters])
        reach = np.array([[change.value - change.low, change.high - change.value] for change in variant.quarters]).T
        bar_places = places + (index - (len(contrast.variants) - 1) / 2) * width
        color = line_styles(contrast)[variant.name]["color"]
        style = {"color": color, "error_kw": {"linewidth": 0.8}, "label": variant.name}
        bars = axes.bar(bar_places, values, width * 0.9, yerr=reach, **style)
        tell(
            bars,
            [
                (name, contrast.yardstick.changes(change))
                for name, change in zip(QUARTERS, variant.quarters, strict=True)
            ],
        )
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.set_xticks(places, QUARTERS)
    axes.set_xlabel(f"quarter of the problems, by {contrast.yardstick.rate} before training")
    axes.set_ylabel(contrast.yardstick.change_unit)
    factor = contrast.yardstick.factor
    axes.yaxis.set_major_formatter(lambda value, _: f"{factor * value:+.3g}" if value else "0")
    legend_below(axes)
    axes.set_title("What was learned, by difficulty")
    return (
        f"How much the {contrast.yardstick.rate} changed on the hardest quarter of the held-out problems, and so on. "
        "By chance alone the hardest seem to gain and the easiest to lose, so compare the variants with each other."
    )


def rounds(axes: Axes, contrast: Contrast, name: str, title: str, caption: str) -> str:
    """Draws a metric's means over seeds: dots for single rounds, and lines of smoothed means."""
    for variant in contrast.variants:
        steps, values = _mean_series(variant, name)
        if len(steps):
            draw_rounds(axes, steps, values, label=variant.name, **line_styles(contrast)[variant.name])
    axes.set_xlabel("optimizer steps")
    axes.xaxis.set_major_formatter(lambda value, _: plain(value))
    axes.set_ylabel(m.TABLE[name].unit)
    if name.endswith("_fraction"):
        share_from_zero(axes)
    legend_below(axes)
    axes.set_title(title)
    return f"{caption} Dots are single rounds and lines are running means, over a tenth of a long run."


def _mean_series(variant: Variant, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps at which all runs of a variant have a metric, and its means over these runs."""
    curves = [{row["step"]: row[name] for row in run.rows if name in row} for run in variant.runs]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return np.array(steps), np.array([np.mean([curve[step] for curve in curves]) for step in steps])


PANELS: tuple[Callable[[Axes, Contrast], str], ...] = (
    partial(learning, unit="tokens"),
    partial(learning, unit="steps"),
    differences,
    quarters,
    partial(
        rounds,
        name=m.SILENT,
        title="Silent groups",
        caption="Groups whose completions all got the same reward. Nothing is learned from them.",
    ),
    partial(
        rounds,
        name=m.ENTROPY,
        title="Entropy",
        caption="How much the model still tries out: 0 nats is always the same token, 0.7 like a toss between two.",
    ),
    partial(rounds, name=m.LENGTH, title="Length of completions", caption="How much the model writes on average."),
    partial(learning, unit="seconds"),
)
