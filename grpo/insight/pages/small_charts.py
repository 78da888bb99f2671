"""This module draws the small charts of a run's page: one number of training each, such as the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from grpo.insight.pages.curves import SERIES_COLORS, Curves, Panel, curves, over_steps
from grpo.insight.pages.style import BLUE, GREEN, ORANGE, plain, share_from_zero

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PART = "reward/part/"
# A page shows at most as many parts of the reward.
MOST_PARTS = len(SERIES_COLORS)


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure holds a small chart's title, the label of its y axis, its caption, and its lines: (metric, colour,
    label)."""

    title: str
    unit: str
    caption: str
    lines: Sequence[tuple[str, str, str]]

    def draw(self, axes: Axes, run: Curves) -> str:
        """Draws the chart, and returns its caption."""
        curves(axes, run, self.lines)
        axes.yaxis.set_major_formatter(lambda value, _: plain(value))
        if all(name.endswith("_fraction") for name in _names(self)):
            share_from_zero(axes)
        elif min(values := [value for name in _names(self) for value in run.series(name)[1]]) >= 0:
            axes.set_ylim(0, 1.08 * max(values))
        axes.set_title(self.title)
        over_steps(axes, run, self.unit)
        return self.caption


MEASURES = (
    Measure(
        *("Loss", "loss", "Each step lowers it. Without a penalty it stays near 0, however much is learned."),
        [("policy/loss", BLUE, "loss")],
    ),
    Measure(
        *("KL to the reference", "nats per token", "0: the model still writes as the reference does."),
        [("policy/reference_kl", ORANGE, "KL")],
    ),
    Measure(
        *("Gradient norm", "norm before clipping", "How strongly each step pulls. At 0 nothing is learned."),
        [("learner/gradient_norm", BLUE, "gradient norm")],
    ),
    Measure(
        *(
            "Do steps help?",
            "cosine with the next gradient",
            "Above 0 new samples agree with each step. Below 0 it went too far.",
        ),
        [("step/cosine", GREEN, "cosine")],
    ),
    Measure(
        *("Learning rate", "learning rate", "How far a step goes."),
        [("learner/learning_rate", GREEN, "learning rate")],
    ),
    Measure(
        *("Clipped tokens", "share of tokens", "A clipped token no longer moves the model in its step."),
        [
            ("policy/clip_low_fraction", BLUE, "became too unlikely"),
            ("policy/clip_high_fraction", ORANGE, "became too likely"),
        ],
    ),
    Measure(
        "Gap between sampler and learner",
        "nats per token",
        "How far their log-probabilities of the same token differ.",
        [("mismatch/mean_abs", ORANGE, "gap")],
    ),
    Measure(
        *("Speed", "tokens per second", "Each phase by itself, on all processes together."),
        [
            ("throughput/sample_tokens_per_second", BLUE, "sampling"),
            ("throughput/learn_tokens_per_second", GREEN, "learning"),
        ],
    ),
    Measure(
        *("Memory", "GiB", "The most since the start, of the process that needs most."),
        [("memory/peak_rss_gib", BLUE, "main memory"), ("memory/peak_cuda_gib", ORANGE, "GPU")],
    ),
)


def small_charts(run: Curves) -> tuple[list[Panel], list[str]]:
    """Returns a panel for each measure and each part of the reward of a run, and sentences on those left out.

    A measure that was always 0 is left out, and so is a part that equals the pass rate.
    """
    shown = [measure for measure in MEASURES if any(any(run.series(name)[1]) for name in _names(measure))]
    always_zero = [measure.title for measure in MEASURES if measure not in shown and run.has(*_names(measure))]
    parts = sorted({name for row in run.metrics for name in row if name.startswith(PART)})
    same = [name for name in parts if run.is_same(name, "pass_rate")]
    others = [name for name in parts if name not in same]
    notes = [f"The part {_part(name)} of the reward is the pass rate." for name in same if others]
    if len(others) > MOST_PARTS:
        notes.append(f"Of {len(parts)} parts of the reward {MOST_PARTS} are shown.")
    if always_zero:
        verb = "was" if len(always_zero) == 1 else "were"
        notes.append(f"Always 0 {verb}: {', '.join(always_zero)}.")
    of_parts = [
        Measure(f"Reward: {_part(name)}", "mean of the round", "This part of the reward.", [(name, color, _part(name))])
        for name, color in zip(others, SERIES_COLORS, strict=False)
    ]
    return [partial(Measure.draw, measure) for measure in (*of_parts, *shown)], notes


def _names(measure: Measure) -> list[str]:
    return [name for name, *_ in measure.lines]


def _part(name: str) -> str:
    """Returns the name of a reward's part, and that of a function without its file.

    >>> _part("reward/part/rewards.py:short"), _part("reward/part/math")
    ('short', 'math')
    """
    return name.removeprefix(PART).rpartition(":")[2]
