"""This module predicts what a run would have done under another group size, batch, refresh interval or dial.

The prediction assumes that the policy takes the same path at another speed. Adam divides by the root of the gradient's
second moment. So where noise is most of the gradient, the speed of a step is proportional to its gradient's
signal-to-noise ratio (`step.progress_of_step`), times √ESS. The share of signal in a gradient is measured
(`step/signal`), and the speed grows less where a gradient is mostly signal.

A step is as long whatever it knows, so noise has a price: curvature takes a share χ of what the step gains to first
order. With r times the speed to first order, a step gains r − χ where it gained 1 − χ. Where that is negative, the
policy goes back along its path. The product of a step with the next gradient (`step/gain`) is what the step still
gains at its end, a share 1 − 2χ of what it gained at its beginning. So its sign bounds χ. A run that has not risen
shows no path (`has_risen`).

The path is measured in distance, which is the number of steps at the highest learning rate that would get as far. So a
curve that flattens because the learning rate falls does not count as a plateau, and another schedule may lead further.

Five unknowns are drawn from priors: χ, the variance of the prompts' own parts of the gradient, the power with which
speed follows the ratio, what a step loses by having few prompts, and the luck of a seed. The curve itself is the run's
own, smoothed, and continued by its trend (`trend`). benchmarks/results/dynamics.md reports how often the intervals held
on runs that were made afterwards.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grpo.dynamics.difficulty import Difficulty, fit_difficulty
from grpo.dynamics.history import History, noise_factor
from grpo.dynamics.step import BatchSetting, StepCost, progress_of_step, silent_share
from grpo.dynamics.trend import follow
from grpo.insight.logs.run_log import RunLog
from grpo.types import metrics as m

Array = NDArray[np.float64]

Rate = Callable[[Array], Array]
"""A rate maps optimizer steps to learning rates."""

# The run is cut into at most this many stages, each with its own difficulty of prompts, lengths and times.
STAGES = 8
# A prediction consists of `NUM_DRAWS` drawn courses, with `POINTS` points for the number of steps that the run took.
NUM_DRAWS, POINTS = 600, 75
# A course is followed for `LONGEST` times the run's own steps. With cheaper steps it is followed for longer, up to
# `LONGEST_OF_CHEAP` times.
LONGEST, LONGEST_OF_CHEAP = 4.0, 64.0
# The prompts' own part of the gradient (`PROMPT_NOISE`) is drawn between these, evenly in its logarithm.
LEAST_PROMPT_NOISE, GREATEST_PROMPT_NOISE = 0.2, 5.0
# The power with which speed follows the signal-to-noise ratio is drawn evenly from this range.
LEAST_POWER, GREATEST_POWER = 0.7, 1.2
# A step with B prompts is slower than the ratio says by exp(−b/B), and b is drawn evenly from 0 to this. On the tiny
# model b was 1 to 3 from 16 prompts to 8 and 4, and 0 from 16 to 32 (benchmarks/results/dynamics.md, "What if").
GREATEST_LOSS = 4.0
# The price of noise χ is drawn evenly between these, by what the products of a stage's steps surely are. It is below ½
# where they are positive and above ½ where they are negative.
GAINING, UNSURE, LOSING = (0.0, 0.5), (0.0, 0.7), (0.5, 0.9)
# A mean of products is surely positive or negative beyond this many standard errors, of at least `FEWEST_PRODUCTS`.
SURE, FEWEST_PRODUCTS = 2.0, 5
# A gradient is at most this share of signal, and a measured share below `LEAST_SIGNAL` counts as that.
MOST_SIGNAL, LEAST_SIGNAL = 0.9, 1e-3
# A run has risen if its last quarter of rounds lies above the first by more than this many standard errors.
RISEN = 3.0
# Two runs that differ in their seed differ in speed by this standard deviation of its logarithm.
SEED_SPREAD = 0.08
# The smoothing bandwidth of the measured curve, as a share of its length.
BANDWIDTH = 0.06
# A run at τ = 1 does not show how ratios drift. Then 1 − ESS at τ = 2 is drawn between these, evenly in its logarithm.
LEAST_DRIFT, GREATEST_DRIFT = 1e-4, 1e-2
LEAST_ESS = 0.1


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage holds what was measured over some rounds in a row.

    step               mean optimizer step of the stage's rounds
    setting            how the stage's steps were sampled
    difficulty         distribution of the pass rates of the stage's prompts
    prompt_tokens, completion_tokens   mean lengths
    token_seconds      seconds of a round per prompt and completion token that it samples, without the refresh
    refresh_seconds    seconds of a refresh (weight sync)
    ess                effective share of samples under importance weights; 1 at τ = 1
    heat               range of the share χ of a step's first-order gain that curvature takes
    signal             share of signal in a step's gradient
    """

    step: float
    setting: BatchSetting
    difficulty: Difficulty
    prompt_tokens: float
    completion_tokens: float
    token_seconds: float
    refresh_seconds: float
    ess: float
    heat: tuple[float, float] = UNSURE
    signal: float = LEAST_SIGNAL


@dataclass(frozen=True, slots=True)
class Course:
    """A course is a predicted run.

    steps      [points] optimizer steps
    rates      [draws, points] pass rates of the policy at these steps
    tokens     [draws, points] prompt and completion tokens sampled before these steps
    seconds    [draws, points] seconds of rounds before these steps
    silent     [draws, points] share of silent groups among those sampled at these steps
    beyond     [draws, points] 1 where the course is longer than `LONGEST` times the measured path, else 0. There the
               pass rate is not predicted, and stays at its last value
    """

    steps: Array
    rates: Array
    tokens: Array
    seconds: Array
    silent: Array
    beyond: Array

    def spent(self, unit: str) -> Array:
        """Returns the amount spent before each point [draws, points], in ``"steps"``, ``"tokens"`` or ``"seconds"``."""
        return np.broadcast_to(self.steps, self.rates.shape) if unit == "steps" else getattr(self, unit)

    def at(self, unit: str, amount: float) -> dict[str, Array]:
        """Returns all quantities of the course by name, each [draws], when `amount` of the unit has been spent."""
        rows, spent = np.arange(len(self.rates)), self.spent(unit)
        after = np.clip((spent <= amount).sum(axis=1), 1, spent.shape[1] - 1)
        low, high = spent[rows, after - 1], spent[rows, after]
        share = np.where(high > low, (amount - low) / np.where(high > low, high - low, 1.0), amount >= high).clip(0, 1)
        columns = {"steps": self.spent("steps"), "rates": self.rates, "tokens": self.tokens}
        columns |= {"seconds": self.seconds, "silent": self.silent, "beyond": self.beyond}
        return {
            name: values[rows, after - 1] + share * (values[rows, after] - values[rows, after - 1])
            for name, values in columns.items()
        }

    def cost(self, unit: str, level: float) -> Array:
        """Returns the amount [draws] spent when the pass rate first reaches `level`, ∞ where it never does."""
        rows, spent, reached = np.arange(len(self.rates)), self.spent(unit), self.rates >= level
        first = reached.argmax(axis=1)
        before = np.maximum(first - 1, 0)
        low, high = self.rates[rows, before], self.rates[rows, first]
        share = np.where(high > low, (level - low) / np.where(high > low, high - low, 1.0), 0.0)
        cost = spent[rows, before] + share * (spent[rows, first] - spent[rows, before])
        return np.where(reached.any(axis=1), cost, np.inf)


def stages_of(log: RunLog, setting: BatchSetting) -> tuple[Stage, ...]:
    """Cuts a run into stages. `setting` is the configured one; the log may show that a scheduler changed G, B and τ.

    Raises ValueError when the log has no counts of correct completions.
    """
    rounds = [index for index, counts in enumerate(log.counts) if counts]
    if not rounds or len(rounds) != len(log.history):
        raise ValueError("the log has no counts of correct completions per group")
    ends = log.history.steps + log.history.delays
    return tuple(_stage(log, setting, part, ends) for part in np.array_split(rounds, min(STAGES, len(rounds))))


def quarter_means(history: History) -> tuple[float, float]:
    """Returns the mean pass rates of the first and of the last quarter of the rounds."""
    number = max(len(history) // 4, 1)
    return float(history.values[:number].mean()), float(history.values[-number:].mean())


def has_risen(history: History) -> bool:
    """Tells whether a curve surely ends above its beginning. Otherwise it is no path for other settings to follow."""
    number = max(len(history) // 4, 1)
    first, last = quarter_means(history)
    variance = float(np.sum(history.errors[:number] ** 2) + np.sum(history.errors[-number:] ** 2)) / number**2
    return last - first > RISEN * (variance * noise_factor(history.values)) ** 0.5


def heat_of(products: Array) -> tuple[float, float]:
    """Returns the range of χ by the products of a stage's steps with the next gradients.

    >>> heat_of(np.array([0.1, 0.2] * 3)), heat_of(np.array([-0.1, -0.2] * 3)), heat_of(np.array([-0.1, 0.1] * 3))
    ((0.0, 0.5), (0.5, 0.9), (0.0, 0.7))
    """
    if len(products) < FEWEST_PRODUCTS:
        return UNSURE
    mean, error = float(products.mean()), float(products.std(ddof=1)) / len(products) ** 0.5
    return GAINING if mean > SURE * error else LOSING if mean < -SURE * error else UNSURE


def _stage(log: RunLog, setting: BatchSetting, rounds: NDArray[np.int_], ends: Array) -> Stage:
    def middle(name: str, default: float, average: Callable[[Array], np.float64] = np.median) -> float:
        series = log[name]
        return float(average(np.interp(ends[rounds], series.steps, series.values))) if len(series) else default

    own_setting = replace(
        setting,
        group_size=round(middle(m.GROUP_SIZE, setting.group_size)),
        prompts_per_step=round(middle(m.PROMPTS, setting.prompts_per_step)),
        refresh_interval=round(middle(m.INTERVAL, setting.refresh_interval)),
    )
    counts: Counter[tuple[int, int]] = sum((Counter(log.counts[index]) for index in rounds), Counter())
    prompt, completion = middle(m.PROMPT_LENGTH, 0.0), middle(m.LENGTH, 1.0)
    # Groups that could not be graded cost tokens too.
    groups = middle(m.NUM_GROUPS, sum(counts.values()) / len(rounds), np.mean)
    tokens = groups * (prompt + own_setting.group_size * completion)
    refresh = middle(m.phase_seconds("sync"), 0.0)
    gains, signals = (log[name].between(ends[rounds[0]], ends[rounds[-1]]).values for name in (m.GAIN, m.SIGNAL))
    # A gradient that is almost 0 has any share of signal, and would count for all others.
    signal = np.clip(signals, -1, 1).mean() if len(signals) else 0.0
    return Stage(
        step=float(log.history.steps[rounds].mean()),
        setting=own_setting,
        difficulty=fit_difficulty(counts),
        prompt_tokens=prompt,
        completion_tokens=completion,
        token_seconds=max(middle(m.ROUND_SECONDS, 0.0) - refresh, 0.0) / tokens,
        refresh_seconds=refresh,
        ess=min(middle(m.ESS, 1.0), 1.0) if own_setting.refresh_interval > 1 else 1.0,
        heat=heat_of(gains),
        signal=float(np.clip(signal, LEAST_SIGNAL, MOST_SIGNAL)),
    )


def step_tokens(setting: BatchSetting, stage: Stage) -> float:
    """Returns the prompt and completion tokens that one step samples, including the silent groups that it replaces."""
    return StepCost(stage.prompt_tokens, stage.completion_tokens).of(setting, stage.difficulty)


def predict(
    log: RunLog, stages: Sequence[Stage], setting: BatchSetting, seed: int = 0, rate: Rate | None = None
) -> Course:
    """Predicts the course that another run of the same task and model takes under `setting`.

    With the run's own setting, this predicts the run of another seed. `seed` is the seed of the drawn speeds; courses
    of the same log share the draws of its curve. `rate` is the other run's learning rate. By default it is this run's
    at the same step, and constant after the last one.
    """
    own_rate = measured_rate(log)
    distance, peak = distance_of(own_rate, log.steps_taken)
    rate = rate or own_rate
    places = np.linspace(0.0, LONGEST * distance[-1], round(LONGEST * POINTS))

    def along(steps: Array) -> Array:
        return np.interp(steps, np.arange(len(distance)), distance)

    curves = drawn_curves(replace(log.history, steps=along(log.history.steps)), places)
    generator = np.random.default_rng([seed, 1])
    centers = along(np.array([stage.step for stage in stages]))
    speeds = np.array([np.interp(places, centers, row) for row in _speeds(stages, setting, generator)])
    costs = np.array([[step_tokens(setting, stage), silent_share(setting, stage.difficulty)] for stage in stages])
    seconds = [
        stage.refresh_seconds / setting.refresh_interval + stage.token_seconds * tokens
        for stage, tokens in zip(stages, costs[:, 0], strict=True)
    ]
    by_place = [np.interp(places, centers, column) for column in (*costs.T, seconds)]

    cheapness = np.mean([step_tokens(stage.setting, stage) for stage in stages]) / np.mean(costs[:, 0])
    longest = LONGEST * min(max(1.0, float(cheapness)), LONGEST_OF_CHEAP / LONGEST)
    steps = np.linspace(0.0, longest * log.steps_taken, round(longest * POINTS))
    gap = steps[1]
    shares = rate(steps + gap / 2) / peak
    place = np.zeros(NUM_DRAWS)
    points = []
    for share in shares:
        at = np.clip(place / places[1], 0.0, len(places) - 1.0)
        points.append([_read(curves, at), *(_read(row[None], at) for row in by_place), 1.0 * (place > places[-1])])
        place = np.maximum(place + gap * _read(speeds, at) * share, 0.0)
    rates, tokens, silent, times, beyond = (np.array(column).T for column in zip(*points, strict=True))
    return Course(steps, rates, _summed(tokens, gap), _summed(times, gap), silent, beyond)


def measured_rate(log: RunLog) -> Rate:
    """Returns the run's learning rate as a function of the step, or 1 at every step if the log lacks it."""
    series = log[m.LEARNING_RATE]
    if not len(series) or not np.max(series.values) > 0:
        return np.ones_like
    return lambda steps: np.interp(steps, series.steps, series.values)


def distance_of(rate: Rate, num_steps: float) -> tuple[Array, float]:
    """Returns the distance [steps + 1] before and after each of the run's steps, and the highest learning rate.

    A step adds its learning rate, as a share of the highest, to the distance.
    """
    rates = rate(np.arange(np.ceil(num_steps)) + 0.5)
    return np.concatenate([[0.0], np.cumsum(rates / rates.max())]), float(rates.max())


def _read(rows: Array, at: Array) -> Array:
    """Reads each draw's row of [draws or 1, points] at its own, fractional point `at` [draws]."""
    below = np.minimum(at.astype(int), rows.shape[1] - 2)
    row_indices = np.arange(len(at)) if len(rows) > 1 else 0
    return rows[row_indices, below] + (at - below) * (rows[row_indices, below + 1] - rows[row_indices, below])


def _speeds(stages: Sequence[Stage], setting: BatchSetting, generator: np.random.Generator) -> Array:
    """Draws the speed under `setting` over the run's own speed, [draws, stages]. It is negative where noise costs more
    than a step gains."""
    power = generator.uniform(LEAST_POWER, GREATEST_POWER, NUM_DRAWS)
    luck = SEED_SPREAD * generator.standard_normal(NUM_DRAWS)
    prompt_noise = _log_uniform(generator, LEAST_PROMPT_NOISE, GREATEST_PROMPT_NOISE)
    drift_at_two = _log_uniform(generator, LEAST_DRIFT, GREATEST_DRIFT)
    loss = generator.uniform(0, GREATEST_LOSS, NUM_DRAWS)
    hot = generator.uniform(0, 1, NUM_DRAWS)
    columns = []
    for stage in stages:
        speed_here, speed_there = (
            progress_of_step(batch, stage.difficulty, prompt_noise) for batch in (stage.setting, setting)
        )
        # Without any group that speaks there is nothing to compare.
        ratio = speed_there / speed_here if np.all(speed_here > 0) and np.all(speed_there > 0) else 1.0
        interval = stage.setting.refresh_interval
        shortfall, at = (1 - stage.ess, interval) if interval > 1 else (drift_at_two, 2)
        # The shortfall grows as the square of the steps since the samples' policy, as in `refresh_interval`.
        shortfall_there = shortfall * ((setting.refresh_interval - 0.5) / (at - 0.5)) ** 2
        ess_there = np.maximum(1 - shortfall_there, LEAST_ESS) if setting.refresh_interval > 1 else 1.0
        by_noise = np.log(ratio) + 0.5 * np.log(ess_there / max(stage.ess, LEAST_ESS))
        noise_gap = 1 / setting.prompts_per_step - 1 / stage.setting.prompts_per_step
        ratio = np.exp(power * by_noise - loss * noise_gap)
        # A share s of a gradient is signal, and speed goes as √s: s' = 1/(1 + (1/s − 1)/ratio²).
        signal_there = 1 / (1 + (1 / stage.signal - 1) / ratio**2)
        least, most = stage.heat
        heat = least + hot * (most - least)
        columns.append(((signal_there / stage.signal) ** 0.5 - heat) / (1 - heat))
    return (np.array(columns) * np.exp(luck)).T


def _log_uniform(generator: np.random.Generator, least: float, greatest: float) -> Array:
    return np.exp(generator.uniform(np.log(least), np.log(greatest), NUM_DRAWS))


def drawn_curves(history: History, steps: Array) -> Array:
    """Draws the policy's pass rate at `steps` [draws, steps]: smoothed where it was measured, then continued by its
    trend.

    The steps, here and in `history`, may also be distances.
    """
    now = float(history.steps[-1])
    past = steps < now
    generator = np.random.default_rng(0)
    noisy_values = history.values + history.errors * generator.standard_normal((NUM_DRAWS, len(history)))
    smooth = np.clip(noisy_values @ _smoother(history, steps[past]).T, 0.0, 1.0)
    ahead, _ = follow(history).draws(steps[~past], NUM_DRAWS)
    return np.concatenate([smooth, ahead], axis=1)


def _smoother(history: History, steps: Array) -> Array:
    """Returns the matrix [steps, rounds] of a local linear regression (Cleveland, JASA 1979, with normal weights)."""
    distance = history.steps[None, :] - steps[:, None]
    width = max(BANDWIDTH * float(np.ptp(history.steps)), 2 * float(np.median(np.diff(history.steps))))
    weights = np.exp(-0.5 * (distance / width) ** 2) / history.errors**2
    zeroth, first, second = (np.sum(weights * distance**order, axis=1, keepdims=True) for order in (0, 1, 2))
    return weights * (second - first * distance) / np.maximum(zeroth * second - first**2, 1e-300)


def _summed(amounts: Array, gap: float) -> Array:
    """Returns the sums of `amounts` (per step) before each point [draws, points], with `gap` steps between points."""
    return np.concatenate([np.zeros((len(amounts), 1)), np.cumsum(amounts[:, :-1] * gap, axis=1)], axis=1)
