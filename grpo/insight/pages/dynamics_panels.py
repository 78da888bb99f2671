"""This module draws the dynamics of a run, one function per panel.

The panels are drawn together into a PNG, or one by one into a page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from grpo.dynamics.difficulty import Difficulty, fit_difficulty
from grpo.dynamics.forecast import Forecast
from grpo.dynamics.history import noise_factor
from grpo.dynamics.sigma import gradient_mass, silent_rate
from grpo.insight.logs.run_log import RunLog
from grpo.insight.pages.style import (
    BLUE,
    GREEN,
    ORANGE,
    draw_evaluations,
    draw_rounds,
    drawn,
    in_percent,
    legend_below,
    over_optimizer_steps,
    plain,
    tell,
)
from grpo.insight.plans.own_law import LawFit
from grpo.types import metrics as m

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# These pass rates divide the prompts from hard to easy.
BINS = (0.0, 0.1, 0.25, 0.4, 0.6, 0.75, 0.9, 1.0)
# A curve is drawn as at most this many means of neighbouring rounds.
MEANS = 40
# Difficulty is estimated for this many parts of the run, each from the counts of all of its rounds.
EPOCHS = 6


@dataclass(frozen=True, slots=True)
class Dynamics:
    """This class holds what the panels show: a run's log, the forecast of its reward curve, numbered as the log, and
    the laws of a person's own, the one that fits best first."""

    log: RunLog
    ahead: Forecast | None = None
    laws: Sequence[LawFit] = ()

    @property
    def policy_steps(self) -> np.ndarray:
        """Returns the steps that the policies of the forecast will have taken, whose rounds `ahead` numbers."""
        return self.ahead.steps - self.log.history.delays[-1] * np.linspace(1, 0, len(self.ahead.steps))


def draw_reward(axes: Axes, analysis: Dynamics) -> str:
    """Draws the pass rates of rounds, means of neighbouring rounds with standard errors, and the forecast with its
    interval."""
    history, ahead = analysis.log.history, analysis.ahead
    # A round is drawn at the step by which the log numbers it. The policy that sampled it is older.
    ends = history.ends
    parts = np.array_split(np.arange(len(history)), min(MEANS, len(history)))
    # Rounds of correlated noise know less together than independent ones.
    scatter = history.errors * noise_factor(history.values) ** 0.5
    weights = [scatter[part] ** -2.0 for part in parts]
    middles = [ends[part].mean() for part in parts]
    means = [np.average(history.values[part], weights=of_part) for part, of_part in zip(parts, weights, strict=True)]
    together = len(parts[0])
    if together > 1:
        places = drawn(len(history))
        axes.plot(ends[places], history.values[places], ".", color="0.7", markersize=4, label="single rounds")
    name = f"means of {together} rounds" if together > 1 else "rounds, with standard errors"
    errors = [of_part.sum() ** -0.5 for of_part in weights]
    bars = axes.errorbar(middles, means, yerr=_within_0_and_1(means, errors), fmt=".", color="0.4", linewidth=0.8,
                         label=name)  # fmt: skip
    shown = zip((_steps(ends[part]) for part in parts), means, errors, strict=True)
    tell(bars, [(steps, f"{mean:.1%} ± {error:.1%}") for steps, mean, error in shown])
    axes.fill_between(ahead.steps, ahead.low, ahead.high, color=ORANGE, alpha=0.2, linewidth=0)
    (line,) = axes.plot(ahead.steps, ahead.value, "--", color=ORANGE, label="forecast, 90 % interval")
    ahead_points = zip(ahead.steps, ahead.value, ahead.low, ahead.high, strict=True)
    tell(line, [(f"{step:,.0f}", f"{value:.1%} ({low:.1%} to {high:.1%})") for step, value, low, high in ahead_points])
    for fit in analysis.laws[:1]:
        law_steps = np.concatenate([ends, ahead.steps])
        axes.plot(law_steps, fit.band(np.concatenate([history.steps, analysis.policy_steps]))[0], color=GREEN,
                  label=fit.law.name)  # fmt: skip
    if len(analysis.log.held_out):
        out, bounds = analysis.log.held_out, analysis.log.held_out_bounds
        low, high = (end.values for end in bounds) if bounds else (out.values, out.values)
        draw_evaluations(axes, out.steps, low, out.values, high, "held out" + ", 95 % interval" * bool(bounds))
    held_out = (analysis.log.held_out_bounds or [None, analysis.log.held_out])[1].values
    highest = max(np.max(history.values), np.max(ahead.high), np.max(held_out, initial=0.0))
    axes.set_ylim(-0.03, min(1.03, 1.2 * highest))
    in_percent(axes)
    axes.set_title("Pass rate in training, and where it goes")
    over_optimizer_steps(axes, "pass rate")
    return (
        "Points are rounds, or means of some, with their standard errors. The dashed line is the forecast. The shaded "
        "band holds 90 % of what may come."
    )


def _within_0_and_1(rates: Sequence[float], errors: Sequence[float]) -> np.ndarray:
    """Returns how far error bars reach below and above pass rates, without leaving [0, 1]."""
    rates, errors = np.asarray(rates), np.asarray(errors)
    return np.clip([np.minimum(errors, rates), np.minimum(errors, 1 - rates)], 0, None)


def _steps(ends: np.ndarray) -> str:
    """Names the rounds that end at these steps, as "7" or "5 to 7"."""
    return f"{ends[0]:,.0f}" if len(ends) == 1 else f"{ends[0]:,.0f} to {ends[-1]:,.0f}"


def draw_plan(axes: Axes, analysis: Dynamics) -> str:
    """Draws the group size and refresh interval of each round."""
    size, interval = analysis.log[m.GROUP_SIZE], analysis.log[m.INTERVAL]
    axes.step(size.steps, size.values, where="post", color=BLUE, label="group size G")
    axes.step(interval.steps, interval.values, where="post", color=ORANGE, label="refresh interval τ")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: plain(value))
    axes.set_ylim(0.8, None)
    axes.set_title("Plan: group size and refresh interval")
    over_optimizer_steps(axes, "completions or steps")
    return (
        "The group size G is the number of completions of each prompt. The refresh interval τ is the number of "
        "optimizer steps on completions of one policy."
    )


def draw_silent(axes: Axes, analysis: Dynamics) -> str:
    """Draws the share of silent groups, as measured and as predicted from the prompts' estimated difficulties.

    A group of G completions is silent (all correct or all wrong) with probability p^G + (1−p)^G, where p is the
    prompt's pass rate.
    """
    silent = analysis.log[m.SILENT]
    places = drawn(len(silent))
    axes.plot(silent.steps[places], silent.values[places], ".", color="0.55", label="measured in each round")
    parts = difficulties(analysis.log)
    middles = [ends.mean() for ends, *_ in parts]
    expected = [float(difficulty.weights @ silent_rate(difficulty.pass_rates, size)) for _, size, difficulty in parts]
    (line,) = axes.plot(middles, expected, "o-", color=GREEN, label="expected from the difficulty")
    tell(line, [(_steps(ends), f"{share:.1%}") for (ends, *_), share in zip(parts, expected, strict=True)])
    in_percent(axes, whole=True)
    axes.set_title("Silent groups: nothing to learn from")
    over_optimizer_steps(axes, "share of groups")
    return (
        "The rewards of a silent group are equal. Where only right and wrong count, its G completions are all right or "
        "all wrong. That is expected of a share p^G + (1−p)^G of the groups, where p is a prompt's pass rate, "
        "estimated here for each sixth of the run."
    )


def draw_gradient_mass(axes: Axes, analysis: Dynamics) -> str:
    """Draws the predicted share of the gradient from each bin of pass rates, in the first and last sixth of the run."""
    parts, dials = difficulties(analysis.log), analysis.log.group_dials
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
    axes.set_xticks(middles, [f"{100 * a:g}–{100 * b:g}%" for a, b in pairwise(BINS)], fontsize=7)
    axes.set_xlabel("pass rate of a prompt: hard on the left, easy on the right")
    axes.set_ylabel("share of the gradient")
    in_percent(axes)
    axes.set_title("Which prompts the model learns from")
    legend_below(axes)
    return (
        "Computed from the estimated difficulty of the prompts and the setting of the dial, and not measured: how much "
        "of a step's pull comes from hard, middling and easy prompts."
    )


def draw_policy(axes: Axes, analysis: Dynamics) -> str:
    """Draws entropy, completion length and gradient norm, relative to their means over the run's first twentieth."""
    explanations = []
    for name, color, label, meaning in (
        (m.ENTROPY, BLUE, "entropy", " Entropy is how much the model still tries out."),
        (m.LENGTH, GREEN, "completion length", ""),
        (m.GRADIENT_NORM, ORANGE, "gradient norm", " The gradient norm is how strongly each step pulls."),
    ):
        series = analysis.log[name]
        start = series.values[: max(len(series) // 20, 1)].mean() if len(series) else 0.0
        if start > 0:
            explanations.append(meaning)
            draw_rounds(axes, series.steps, series.values / start, color, label, linewidth=1.6)
    axes.axhline(1, color="0.7", linewidth=0.8)
    axes.set_title("The model, relative to its start")
    over_optimizer_steps(axes, "multiple of the start", of_one=True)
    return (
        "Thick lines are running means, over a tenth of a long run. 1 is the mean over the first twentieth of the run."
        + "".join(explanations)
    )


def difficulties(log: RunLog) -> list[tuple[np.ndarray, int, Difficulty]]:
    """Returns (steps of its rounds, most frequent group size, estimated difficulty) of each sixth of the run."""
    parts = []
    for rows in np.array_split(np.arange(len(log.counts)), min(EPOCHS, len(log.counts))):
        counts = sum((Counter(log.counts[row]) for row in rows), Counter())
        sizes = Counter()
        for (_, size), groups in counts.items():
            sizes[size] += groups
        parts.append((log.history.ends[rows], max(sizes, key=sizes.get), fit_difficulty(counts)))
    return parts


def panels(analysis: Dynamics) -> tuple[Callable[[Axes, Dynamics], str], ...]:
    """Returns the panels for which the log has the metrics."""
    log = analysis.log
    chosen_panels: list[Callable[[Axes, Dynamics], str]] = [draw_reward]
    if len(log[m.GROUP_SIZE]):
        chosen_panels.append(draw_plan)
    if log.counts:
        chosen_panels.append(draw_silent)
    # Where the last part of a run has silent groups alone, nothing pulls.
    last = log.counts[-max(len(log.counts) // EPOCHS, 1) :]
    pulls = any(0 < correct < size for counts in last for correct, size in counts)
    if log.counts and log.group_dials and pulls:
        chosen_panels.append(draw_gradient_mass)
    if any(len(log[name]) for name in (m.ENTROPY, m.LENGTH)):
        chosen_panels.append(draw_policy)
    return tuple(chosen_panels)
