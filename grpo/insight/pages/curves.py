"""This module draws a run's curves, one function per panel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo.evaluation.held_out import is_unjudged
from grpo.insight.pages.glossary import PHASES
from grpo.insight.pages.style import (
    BLACK,
    BLUE,
    GREEN,
    MOST_BARS,
    ORANGE,
    draw_evaluations,
    draw_means,
    draw_rounds,
    drawn,
    in_percent,
    over_optimizer_steps,
    plain,
    share_from_zero,
    smooth,
    tell,
    window_of,
    with_mean,
)
from grpo.types import metrics as m

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Two series that differ by no more than this are drawn as one line.
SAME = 1e-6
# Colours of the sources of problems. Pass rates by source are drawn for at most as many sources.
SERIES_COLORS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", BLACK)


@dataclass(frozen=True, slots=True)
class Curves:
    """This type holds the rows of a run's metrics.jsonl and of its evaluations.jsonl.

    `resumed` holds the steps after which the run was resumed.
    """

    metrics: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    resumed: Sequence[int] = ()

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """Returns the steps at which a metric was measured, and its values."""
        rows = [row for row in self.metrics if name in row]
        return [row["step"] for row in rows], [row[name] for row in rows]

    def has(self, *names: str) -> bool:
        """Says whether any of these metrics was measured."""
        return any(name in row for row in self.metrics for name in names)

    def is_same(self, name: str, other: str) -> bool:
        """Tells whether two metrics were measured in the same rounds, and are equal up to the rounding of means."""
        (steps, values), (other_steps, other_values) = self.series(name), self.series(other)
        return steps == other_steps and bool(np.allclose(values, other_values, rtol=0.0, atol=SAME))

    def sources(self) -> list[str]:
        """Returns the names of the sources of problems whose pass rates were measured, sorted."""
        ending = f"/{m.PASS_RATE}"
        names = {name for row in self.metrics for name in row if name.startswith(m.SOURCE) and name.endswith(ending)}
        return sorted(name.removeprefix(m.SOURCE).removesuffix(ending) for name in names)


Panel = Callable[["Axes", Curves], str]


def panels_of(run: Curves) -> list[Panel]:
    """Returns the panels for which the run has metrics, the panel of the pass rate first."""
    needs: dict[Panel, Sequence[str]] = {
        draw_length: [m.LENGTH],
        draw_endings: [m.TRUNCATED],
        draw_equal_groups: [m.SILENT],
        draw_entropy: [m.ENTROPY],
        draw_time: [m.phase_seconds(name) for name in PHASES],
        draw_cache: [m.CACHE_PEAK],
    }
    by_source = [draw_sources] if 1 < len(run.sources()) <= len(SERIES_COLORS) else []
    return [draw_pass_rate, *by_source, *(panel for panel, names in needs.items() if run.has(*names))]


def draw_pass_rate(axes: Axes, run: Curves) -> str:
    """Draws the pass rate and reward of the rounds, and the held-out evaluations with their intervals."""
    if not run.has(m.PASS_RATE) and (not run.evaluations or is_unjudged(run.evaluations[-1])):
        return _draw_reward(axes, run)
    lines = [(m.PASS_RATE, BLUE, "pass rate in training"), (m.REWARD, ORANGE, "mean reward in training")]
    are_same = curves(axes, run, lines)
    _, rewards = run.series(m.REWARD)
    if run.evaluations:
        _held_out(axes, run)
    axes.set_title("Pass rate")
    over_steps(axes, run, "share that is right")
    if not rewards or (min(rewards) >= 0 and max(rewards) <= 1):
        in_percent(axes, whole=True)
    else:
        axes.set_ylabel("pass rate, reward")
    marks = "their bars reach" if len(run.evaluations) <= MOST_BARS else "the grey band reaches"
    return (
        "The share of completions that are right. Dots are single rounds and lines are running means, over a tenth of "
        "a long run."
        + (" The mean reward is the same number, since a right answer earns 1 and a wrong one 0." if are_same else "")
        + (f" Held-out problems are never trained on; {marks} over the 95 % interval." if run.evaluations else "")
        + (" The run was resumed at the dotted lines." if run.resumed else "")
    )


def _draw_reward(axes: Axes, run: Curves) -> str:
    """Draws the mean reward of the rounds and of the held-out problems, where nothing says which completions are
    right."""
    curves(axes, run, [(m.REWARD, ORANGE, "mean reward in training")])
    if run.evaluations:
        points = [(row["step"], row["mean_reward"]) for row in run.evaluations if "mean_reward" in row]
        label = f"mean reward of {run.evaluations[-1]['problems']} held-out problems"
        (drawing,) = axes.plot(*zip(*points, strict=True), "D", color=BLACK, markersize=4, label=label)
        tell(drawing, [(f"{step:,}", f"{reward:.3g}") for step, reward in points])
    axes.set_title("Mean reward")
    over_steps(axes, run, "reward")
    return (
        "The mean reward of completions. Dots are single rounds and lines are running means, over a tenth of a long "
        "run."
        + (" Held-out problems are never trained on." if run.evaluations else "")
        + (" The run was resumed at the dotted lines." if run.resumed else "")
    )


def _held_out(axes: Axes, run: Curves) -> None:
    """Draws the held-out evaluations with their intervals: as points, or as a line with a band where they are many."""
    low, value, high = (np.array([row["pass@1"][end] for row in run.evaluations]) for end in ("low", "value", "high"))
    steps = [row["step"] for row in run.evaluations]
    label = f"held-out pass@1, 95 % interval ({run.evaluations[-1]['problems']} problems)"
    drawing = draw_evaluations(axes, steps, low, value, high, label)
    ends = zip(steps, value, low, high, strict=True)
    tell(drawing, [(f"{step:,}", f"{middle:.1%} ({first:.1%} to {last:.1%})") for step, middle, first, last in ends])


def draw_sources(axes: Axes, run: Curves) -> str:
    """Draws the pass rate of each source of problems."""
    named_colors = zip(SERIES_COLORS, run.sources(), strict=False)
    curves(axes, run, [(f"{m.SOURCE}{source}/{m.PASS_RATE}", color, source) for color, source in named_colors])
    axes.set_title("Pass rate by source")
    over_steps(axes, run, "share that is right")
    in_percent(axes, whole=True)
    return "The share of completions that are right, for each source of problems by itself."


def draw_length(axes: Axes, run: Curves) -> str:
    """Draws the mean length of completions with its 10th to 90th percentile, and the means of right and wrong ones."""
    steps, low = run.series(m.LENGTH_P10)
    if steps:
        low, high = (smooth(values, window_of(len(values))) for values in (low, run.series(m.LENGTH_P90)[1]))
        label, places = "8 of 10 completions", drawn(len(steps))
        axes.fill_between(steps[places], low[places], high[places], color=GREEN, alpha=0.15, linewidth=0, label=label)
    curves(axes, run, [(m.LENGTH, GREEN, "mean")])
    for name, color, label in (("right", BLUE, "right ones"), ("wrong", ORANGE, "wrong ones")):
        steps, values = run.series(f"completions/{name}/length_mean")
        if steps:
            draw_means(axes, steps, values, color, label, linewidth=1.2)
    axes.set_title("Length of completions")
    axes.set_ylim(bottom=0)
    over_steps(axes, run, "tokens")
    return (
        "How much the model writes. The band leaves out the shortest and the longest tenth. If wrong completions grow "
        "and right ones do not, it rambles."
    )


def draw_endings(axes: Axes, run: Curves) -> str:
    """Draws the shares of completions that were cut off, hold no answer or could not be graded."""
    first, *others = (
        (m.TRUNCATED, ORANGE, "cut off at the token limit"),
        (m.NO_ANSWER, BLUE, "without an answer"),
        (m.TIMED_OUT, BLACK, "timed out in grading"),
    )
    # A share that is always 0 would only be a line on the axis.
    curves(axes, run, [first, *(line for line in others if any(run.series(line[0])[1]))])
    axes.set_title("Completions without an end or an answer")
    share_from_zero(axes)
    over_steps(axes, run, "share of completions")
    return (
        "A completion that is cut off may have given its answer before, and then counts as that answer does. One "
        "without an answer is not right, unless a reward of your own says so."
    )


def draw_equal_groups(axes: Axes, run: Curves) -> str:
    """Draws the share of silent groups, as bands of the all wrong and all right ones where these are silent.

    With several reward parts, a group of only wrong answers may have unequal rewards, and the share is one line.
    """
    (steps, silent), (at_wrong, wrong), (at_right, right) = map(run.series, (m.SILENT, m.ALL_WRONG, m.ALL_RIGHT))
    rest = np.subtract(silent, np.add(wrong, right)) if at_wrong == at_right == steps else np.array(silent)
    in_bands = np.min(rest) > -SAME and not np.array_equal(rest, silent)
    if in_bands:
        bands = [("all wrong", wrong, ORANGE), ("all right", right, BLUE), ("other equal rewards", rest, GREEN)]
        _bands(axes, steps, [band for band in bands if np.max(band[1]) > SAME], "{:.1%}".format)
    else:
        curves(axes, run, [(m.SILENT, GREEN, "all rewards equal")])
    axes.set_title("Silent groups: nothing to learn from")
    share_from_zero(axes)
    over_steps(axes, run, "share of groups", of_one=in_bands)
    return (
        "A group is the completions of one prompt. If their rewards are equal, none is better than the others, and "
        "the group teaches nothing."
    )


def draw_entropy(axes: Axes, run: Curves) -> str:
    """Draws the policy's entropy."""
    curves(axes, run, [(m.ENTROPY, GREEN, "entropy")])
    axes.set_title("Entropy: how much the model still tries out")
    axes.set_ylim(bottom=0)
    over_steps(axes, run, "nats per token")
    return "0 nats: always the same token. 0.7 nats: like a toss between two tokens. A fall to 0 ends exploration."


def draw_cache(axes: Axes, run: Curves) -> str:
    """Draws the peak use of the sampler's KV cache in each round. The caption counts preemptions."""
    curves(axes, run, [(m.CACHE_PEAK, BLUE, "fullest moment of the round")])
    axes.set_title("How full the sampler's cache gets")
    share_from_zero(axes)
    over_steps(axes, run, "share of the cache in use")
    count = sum(run.series(m.PREEMPTIONS)[1])
    if not count:
        return "The cache had room for all completions, so none was interrupted."
    return (
        f"The cache was full, so {count:,.0f} completions were interrupted and computed anew. If these are many, "
        "raise rollout.gpu_memory_fraction or rollout.kv_cache_gib."
    )


def draw_time(axes: Axes, run: Curves) -> str:
    """Draws the seconds of each phase of a round as stacked bands, without phases below 1 % of the time."""
    _, rounds = run.series(m.ROUND_SECONDS)
    phases = {name: np.array([row.get(m.phase_seconds(name), 0.0) for row in run.metrics]) for name in PHASES}
    phases = {name: seconds for name, seconds in phases.items() if seconds.sum() > 0.01 * sum(rounds)}
    colors = dict(zip(PHASES, (BLUE, "0.7", BLACK, "0.45", "#CC79A7", ORANGE, "#56B4E9", GREEN), strict=True))
    steps = [row["step"] for row in run.metrics]
    _bands(axes, steps, [(name, phases[name], colors[name]) for name in phases], lambda value: f"{plain(value)} s")
    axes.set_title("Where the time goes")
    axes.set_ylim(bottom=0)
    over_steps(axes, run, "seconds per round")
    return f"Each band is as high as its phase is long: {', '.join(f'{name} {PHASES[name]}' for name in phases)}."


def _bands(
    axes: Axes, steps: Sequence[int], bands: Sequence[tuple[str, Any, str]], form: Callable[[float], str]
) -> None:
    """Draws series, given with label and colour, as bands on top of each other, each as high as its means."""
    window, bottom, places = window_of(len(steps)), np.zeros(len(steps)), drawn(len(steps))
    for label, values, color in bands:
        values, means = np.asarray(values, float), smooth(values, window)
        axes.fill_between(steps[places], bottom[places], (bottom + means)[places], color=color, alpha=0.35, linewidth=0)
        bottom = bottom + means
        (edge,) = axes.plot(steps[places], bottom[places], color=color, linewidth=1, label=label)
        points = zip(steps[places], values[places], means[places], strict=True)
        tell(edge, [(f"{step:,}", with_mean(form(own), form(mean))) for step, own, mean in points])


def over_steps(axes: Axes, run: Curves, name: str, of_one: bool = False) -> None:
    """Finishes a panel over optimizer steps: where the run was resumed, axis labels, limits, and the legend, which a
    single series gets only with `of_one`."""
    last_step = max([1, *(row["step"] for row in [*run.metrics, *run.evaluations])])
    for step in run.resumed:
        axes.axvline(step, color="0.55", linestyle=":", linewidth=1, zorder=0.5)
    axes.set_xlim(-0.02 * last_step, 1.02 * last_step)
    over_optimizer_steps(axes, name, of_one)


def curves(axes: Axes, run: Curves, lines: Sequence[tuple[str, str, str]]) -> bool:
    """Draws metrics, given with colour and label, each as dots for single rounds and a line of means.

    Metrics that were not measured are left out. A line that would hide an earlier one is not drawn: the earlier one
    then has both labels. Returns whether that was so.
    """
    labels: dict[str, list[str]] = {}
    for name, _, label in lines:
        same = next((earlier for earlier in labels if run.is_same(earlier, name)), name)
        if run.has(name):
            labels.setdefault(same, []).append(label)
    for name, color, _ in lines:
        if name in labels:
            # A learning rate is set and not measured. A mean of its last rounds would lie above a rate that falls to 0.
            window = 1 if name == m.LEARNING_RATE else 0
            draw_rounds(axes, *run.series(name), color, " = ".join(labels[name]), window, linewidth=1.8)
    return any(len(of_one) > 1 for of_one in labels.values())
