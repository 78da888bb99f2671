"""This module draws the dynamics of a run, one function per panel.

The panels are drawn together into a PNG, or one by one into a page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from grpo.dynamics.difficulty import Difficulty, fit_difficulty
from grpo.dynamics.forecast import Forecast
from grpo.dynamics.history import Counts
from grpo.dynamics.identify import Identification
from grpo.dynamics.identity import gradient_mass, silent_rate
from grpo.dynamics.run_log import RunLog
from grpo.dynamics.thresholds import PRINTED_BOUND, critical_gain, gain
from grpo.report.curves import BLACK, BLUE, GREEN, ORANGE, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Training freezes a round's samples until the next refresh.
PIPELINE = "sample_and_hold"
# These pass rates divide the prompts from hard to easy.
BINS = (0.0, 0.1, 0.25, 0.4, 0.6, 0.75, 0.9, 1.0)
# So many means of neighbouring rounds are drawn.
MEANS = 40
# A run is divided into this many parts; the counts of a part's rounds are fitted together.
EPOCHS = 6


@dataclass(frozen=True, slots=True)
class Dynamics:
    """This class holds what the panels show: a log, the laws fitted to it, and the forecast."""

    log: RunLog
    identification: Identification
    ahead: Forecast


def draw_reward(axes: Axes, shown: Dynamics) -> None:
    """Draws each round's pass rate, means of neighbouring rounds with their errors, the best law, and the forecast with
    its interval."""
    best, ahead = shown.identification.fits[0], shown.ahead
    history = best.history
    some = drawn(len(history))
    axes.plot(history.steps[some], history.values[some], ".", color="0.8", markersize=4, label="measured")
    parts = np.array_split(np.arange(len(history)), min(MEANS, len(history)))
    weights = [history.errors[part] ** -2.0 for part in parts]
    middles = [history.steps[part].mean() for part in parts]
    means = [np.average(history.values[part], weights=own) for part, own in zip(parts, weights, strict=True)]
    name = f"means of {len(parts[0])} rounds" if len(parts[0]) > 1 else "with standard errors"
    errors = [own.sum() ** -0.5 for own in weights]
    axes.errorbar(middles, means, yerr=errors, fmt=".", color="0.4", linewidth=0.8, label=name)
    steps = np.linspace(history.steps[0], history.steps[-1], 300)
    delays = np.round(np.interp(steps, history.steps, history.delays))
    axes.plot(steps, best.predict(steps, delays), color=BLUE, label=f"{best.law.name} law")
    axes.fill_between(ahead.steps, ahead.low, ahead.high, color=ORANGE, alpha=0.2, linewidth=0)
    axes.plot(ahead.steps, ahead.value, "--", color=ORANGE, label="forecast, 90 % interval")
    if len(shown.log.held_out):
        axes.plot(shown.log.held_out.steps, shown.log.held_out.values, "D", color=BLACK, markersize=4, label="held out")
    highest = max(np.max(history.values), np.max(ahead.high))
    axes.set_ylim(0, min(1.0, 1.2 * highest))
    axes.legend(loc="upper left")
    axes.set_xlabel("optimizer step")
    axes.set_title("pass rate of the rounds")


def draw_plan(axes: Axes, shown: Dynamics) -> None:
    """Draws group size and refresh interval, round by round."""
    size, interval = shown.log["plan/group_size"], shown.log["plan/refresh_interval"]
    axes.step(size.steps, size.values, where="post", color=BLUE, label="group size G")
    axes.step(interval.steps, interval.values, where="post", color=ORANGE, label="refresh interval τ")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(0.8, None)
    axes.legend()
    axes.set_xlabel("optimizer step")
    axes.set_title("plan: group size and refresh interval")


def draw_damping(axes: Axes, shown: Dynamics) -> None:
    """Draws the gain c for every refresh interval τ, the thresholds above which training is unstable, and the run.

    c = κ(τ + lag)/(1−μ), with the stiffness κ measured from the reward curve, the last round's lag, and momentum μ.
    It is drawn for curves that are identified: κ means nothing for others.
    """
    log, stiffness = shown.log, shown.identification.stiffness
    intervals = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32])
    delay = int(log.history.delays[-1])
    now = int(log["plan/refresh_interval"].values[-1]) if len(log["plan/refresh_interval"]) else delay
    late = delay - now
    exact = [critical_gain(PIPELINE, log.momentum, int(interval), late) for interval in intervals]
    if np.isfinite(exact).all():
        axes.plot(intervals, exact, color=BLACK, label="threshold, sample and hold")
    axes.axhline(PRINTED_BOUND, color="0.6", linestyle="--", label="bound in arXiv:2606.30789")
    low, value, high = (
        gain(log.momentum, kappa, intervals + late) for kappa in (stiffness.low, stiffness.value, stiffness.high)
    )
    axes.fill_between(intervals, low, high, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(intervals, value, color=BLUE, label="this run, 95 % interval")
    axes.plot([now], [gain(log.momentum, stiffness.value, delay)], "o", color=ORANGE, label="now")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("refresh interval τ")
    axes.legend()
    formula = f"κ(τ + {late})/(1−μ)" if late else "κτ/(1−μ)"
    axes.set_title(f"stability: c = {formula}, damping ratio ζ = {shown.identification.damping_ratio.value:.2g}")


def draw_silent(axes: Axes, shown: Dynamics) -> None:
    """Draws the share of silent groups, as measured and as predicted from the estimated difficulties.

    A group of G completions is silent (all correct or all wrong) with probability p^G + (1−p)^G, where p is the
    prompt's pass rate.
    """
    silent = shown.log["groups/silent_fraction"]
    some = drawn(len(silent))
    axes.plot(silent.steps[some], silent.values[some], ".", color="0.55", label="measured")
    steps, predicted = [], []
    for step, size, difficulty in difficulties(shown.log):
        steps.append(step)
        predicted.append(float(difficulty.weights @ silent_rate(difficulty.pass_rates, size)))
    axes.plot(steps, predicted, "o-", color=GREEN, label="p^G + (1−p)^G, estimated p")
    axes.set_ylim(0, 1)
    axes.legend()
    axes.set_xlabel("optimizer step")
    axes.set_title("silent groups (fraction)")


def draw_gradient_mass(axes: Axes, shown: Dynamics) -> None:
    """Draws the share of the gradient from each bin of pass rates, early and late in the run."""
    parts, dials = difficulties(shown.log), shown.log.group_dials
    if dials is None:
        raise ValueError("this log's advantages are not those of the dials")
    exponent, mean_exponent = dials
    middles = np.arange(len(BINS) - 1)
    for offset, color, name, (_, size, difficulty) in (
        (-0.2, BLUE, "first sixth of the run", parts[0]),
        (0.2, ORANGE, "last sixth of the run", parts[-1]),
    ):
        rates, shares = difficulty.pass_rates, difficulty.weights
        mass = gradient_mass(rates, shares, BINS, exponent, group_size=size, mean_exponent=mean_exponent)
        axes.bar(middles + offset, mass, width=0.4, color=color, label=name)
    axes.set_xticks(middles, [f"{a:g}–{b:g}" for a, b in pairwise(BINS)], fontsize=7)
    axes.set_xlabel("pass rate of a prompt")
    axes.legend()
    axes.set_title("share of the gradient by difficulty")


def draw_policy(axes: Axes, shown: Dynamics) -> None:
    """Draws entropy, completion length and gradient norm, each relative to its mean at the start."""
    for name, color, label in (
        ("policy/entropy", BLUE, "entropy"),
        ("completions/length_mean", GREEN, "completion length"),
        ("learner/gradient_norm", ORANGE, "gradient norm"),
    ):
        series = shown.log[name]
        if len(series) and series.values[0] > 0:
            start = series.values[: max(len(series) // 20, 1)].mean()
            axes.plot(series.steps, series.values / start, color=color, linewidth=1, label=label)
    axes.axhline(1, color="0.7", linewidth=0.8)
    axes.legend()
    axes.set_xlabel("optimizer step")
    axes.set_title("policy, relative to its start")


def difficulties(log: RunLog) -> list[tuple[float, int, Difficulty]]:
    """Returns (middle step, most frequent group size, estimated difficulty) of each sixth of the run."""
    parts = []
    for rows in np.array_split(np.arange(len(log.counts)), min(EPOCHS, len(log.counts))):
        counts = merge([log.counts[row] for row in rows])
        sizes: dict[int, float] = {}
        for (_, size), groups in counts.items():
            sizes[size] = sizes.get(size, 0) + groups
        parts.append((float(log.history.steps[rows].mean()), max(sizes, key=sizes.get), fit_difficulty(counts)))
    return parts


def merge(rounds: list[Counts]) -> dict[tuple[int, int], float]:
    """Adds up the counts of several rounds."""
    total: dict[tuple[int, int], float] = {}
    for counts in rounds:
        for pair, groups in counts.items():
            total[pair] = total.get(pair, 0) + groups
    return total


def panels(shown: Dynamics) -> tuple[Callable[[Axes, Dynamics], None], ...]:
    """Returns the panels for which this log has the numbers."""
    log = shown.log
    chosen: list[Callable[[Axes, Dynamics], None]] = [draw_reward]
    if len(log["plan/group_size"]):
        chosen.append(draw_plan)
    if shown.identification.identified:
        chosen.append(draw_damping)
    if log.counts:
        chosen.append(draw_silent)
    if log.counts and log.group_dials:
        chosen.append(draw_gradient_mass)
    if any(len(log[name]) for name in ("policy/entropy", "completions/length_mean")):
        chosen.append(draw_policy)
    return tuple(chosen)
