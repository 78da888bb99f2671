"""This module implements `grpo dynamics whatif`: it predicts what a run would have done under other settings, on
the terminal and on a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grpo.config import UserError
from grpo.config.engines import LearnerConfig
from grpo.config.errors import require
from grpo.config.folder import WHATIF_PAGE_FILE
from grpo.config.optimizer import learning_rate_factor
from grpo.config.ranges import check_values
from grpo.config.run import TrainConfig
from grpo.config.saved import from_dict
from grpo.config.start import run_name
from grpo.config.sweep import grid, plain
from grpo.dynamics.history import FEWEST_POINTS
from grpo.dynamics.scheduler import batch_setting
from grpo.dynamics.step import BatchSetting
from grpo.host.terminal import Terminal
from grpo.insight.logs.finished_runs import differing_keys
from grpo.insight.logs.logs import read_log, run_config
from grpo.insight.logs.run_log import RunLog
from grpo.insight.pages import style
from grpo.insight.pages.glossary import compact, duration
from grpo.insight.pages.page import Block, Kind, Number, Page, publish
from grpo.insight.pages.style import BLACK, BLUE, GREEN, ORANGE, in_percent, legend_below, tell
from grpo.insight.pages.verdict import BAD, GOOD, UNSURE
from grpo.insight.plans.request import Budget
from grpo.insight.plans.whatif import (
    GAINING,
    GREATEST_LOSS,
    LONGEST,
    Course,
    Stage,
    has_risen,
    predict,
    quarter_means,
    stages_of,
    step_tokens,
)
from grpo.types import metrics as m

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Array = NDArray[np.float64]

# The prediction models the effect of these keys only.
KNOWN = (
    "dynamics.group_size",
    "dynamics.prompts_per_step",
    "dynamics.refresh_interval",
    "normalization.exponent",
    "normalization.mean_exponent",
    "normalization.scope",
    "rollout.refill.enabled",
)
MOST_ALTERNATIVES = 24
LARGEST_GROUP = 1024
AGAIN = "the same again"
# The number of iterations that fit the learning-rate schedule to the budget, see `course_within`.
SCHEDULE_ROUNDS = 3
# An alternative counts as better or worse from this probability on. Losses of speed below this share are not reported,
# and no smaller difference between groups with equal rewards and groups that are all right or all wrong.
SURE, REPORTED_LOSS, REPORTED_SILENCE = 0.9, 0.1, 0.02
SUMMARY = {
    GOOD: "Another setting would have done better than the run's own.",
    UNSURE: "None of these settings is sure to do better than the run's own.",
    BAD: "The run's own setting does better than each of these.",
}
CAPTION = (
    "Each number is a median of predictions, with the interval of 90 % in brackets. “Steps” are the optimizer steps "
    "that the budget pays for, and “silent” is the share of silent groups at the end. “Tokens a step” compares the "
    "price of a step with the run's. “Tokens to last rate” are what it takes to reach the pass rate at which the run "
    "ended."
)
COLUMNS = ("setting", "pass rate", "steps", "silent", "tokens\na step", "tokens to\nlast rate", "time")
COLORS = (BLACK, BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer is the prediction for one alternative when the budget is spent.

    name       the alternative's overrides, or `AGAIN`
    price      tokens per step, divided by the tokens per step of the run
    end        name → quantity [draws] when the budget is spent, as `Course.at` returns it
    to_target  tokens [draws] until the mean pass rate of the run's last tenth is reached; ∞ if it never is
    """

    name: str
    price: float
    end: Mapping[str, Array]
    to_target: Array


def write_whatif(path: Path, words: Sequence[str], budget: Budget | None = None, output: Path | None = None) -> None:
    """Predicts the alternatives that `words` name, prints a table of them, and writes a page into `output`.

    Without `output` it lies in the run's folder.

    A word with commas names several values, and words are combined: ``dynamics.group_size=4,16 normalization=dr_grpo``.
    `budget` is what each alternative may spend, by default the tokens of the run. Raises `UserError` when the log does
    not allow a prediction, or a word changes a key that is not in `KNOWN`.
    """
    log, config = read_log(path), run_config(path)
    settings = alternatives(config, words)
    if not log.dialled:
        raise UserError(
            f"{path} does not weigh its groups by the dials (see normalization.name and parts), so nothing is predicted"
        )
    if len(log.history) < FEWEST_POINTS:
        raise UserError(f"{path} has {len(log.history)} rounds; a prediction needs at least {FEWEST_POINTS}")
    require(
        not log[m.WENT_BACK].values.any(),
        f"{path} went back to an earlier policy, so it shows no course from its start on: ask a run that did not",
    )
    first, last = quarter_means(log.history)
    require(
        has_risen(log.history),
        f"{path} has not surely learned: its pass rate was {first:.1%} in its first quarter and {last:.1%} in its "
        "last, so it does not show the course that other settings would take",
    )
    run = from_dict(config)
    stages = stages_of(log, batch_setting(run))
    same_course = predict(log, stages, settings[AGAIN])
    budget = budget or Budget("tokens", float(np.median(same_course.at("steps", log.steps_taken)["tokens"])))
    courses = {
        name: course_within(budget, run, log, stages, setting, index)
        for index, (name, setting) in enumerate(settings.items())
    }
    amounts = {name: float(np.median(course.spent(budget.unit)[:, -1])) for name, course in courses.items()}
    name = min(amounts, key=lambda name: amounts[name])
    require(
        amounts[name] >= budget.amount,
        f"{budget.words} are more than can be predicted of {name!r} from {log.steps_taken:,.0f} steps: ask for at most "
        f"{budget.unit}={math.floor(amounts[name])}",
    )
    answers = [answer(name, courses[name], settings[name], stages, budget, log) for name in settings]
    mood = mood_of(answers)
    draw = partial(draw_courses, log=log, courses=courses, unit=budget.unit, amount=budget.amount)
    compared = Page(
        *("What if", run_name(path)),
        verdict=[SUMMARY[mood], *verdicts(answers)],
        mood=mood,
        blocks=[
            Block(Kind.TABLE, [COLUMNS, *table_rows(answers)], "Settings compared", legend=CAPTION),
            Block(Kind.CHARTS, [draw], "Charts"),
            Block(Kind.LINES, [*lines(log, budget, settings.values()), *noise_lines(stages)], "How this was predicted"),
        ],
        numbers=numbers_of(answers),
        about=f"each setting spends {budget.words}",
        words=("pass rate", "group", "silent group", "optimizer step", "τ", "α, β"),
    )
    publish(compared, (output or path) / WHATIF_PAGE_FILE, Terminal())


def course_within(
    budget: Budget, run: TrainConfig, log: RunLog, stages: Sequence[Stage], setting: BatchSetting, seed: int
) -> Course:
    """Predicts an alternative's course, with the learning-rate schedule stretched to the steps that the budget allows.

    When the budget is spent, the schedule is as far advanced as the run's at its last step. The number of steps is
    known only from a predicted course, so prediction and schedule are iterated `SCHEDULE_ROUNDS` times.
    """
    course = predict(log, stages, setting, seed)
    for _ in range(SCHEDULE_ROUNDS if run.learner.schedule != "constant" else 0):
        steps = float(np.median(course.at(budget.unit, budget.amount)["steps"]))
        num_steps = steps * run.num_steps / log.steps_taken
        course = predict(log, stages, setting, seed, partial(scheduled_rate, learner=run.learner, num_steps=num_steps))
    return course


def scheduled_rate(steps: Array, learner: LearnerConfig, num_steps: float) -> Array:
    """Returns the learning rates that `learner` schedules at `steps` of a run of `num_steps`."""
    return np.array([learner.learning_rate * learning_rate_factor(step, learner, num_steps) for step in steps])


def alternatives(saved_config: Mapping[str, Any], words: Sequence[str]) -> dict[str, BatchSetting]:
    """Returns the run's own setting under the name `AGAIN`, then each alternative under its overrides.

    `saved_config` is the run's config.json. Raises `UserError` for alternatives that cannot be predicted.
    """
    common_words, base_config = plain(words), from_dict(saved_config)
    settings = {AGAIN: batch_setting(base_config)}
    combinations = grid(words)
    if len(combinations) >= MOST_ALTERNATIVES:
        raise UserError(f"these are {len(combinations)} alternatives; ask for at most {MOST_ALTERNATIVES - 1}")
    for swept_values in combinations:
        overrides = [*common_words, *(f"{key}={value}" for key, value in swept_values.items())]
        if not overrides:
            raise UserError("name what to change, for example dynamics.group_size=4,16 or normalization=dr_grpo")
        other_config = from_dict(saved_config, overrides)
        changed_keys = differing_keys({"run": asdict(base_config), "other": asdict(other_config)})
        if unknown_keys := sorted(changed_keys.keys() - {*KNOWN}):
            raise UserError(f"no prediction is made for {unknown_keys[0]}; it is made for {', '.join(KNOWN)}")
        _check(other_config)
        settings[" ".join(overrides)] = batch_setting(other_config)
    return settings


def _check(config: TrainConfig) -> None:
    """Raises `UserError` for an alternative with invalid `dynamics` settings, or with too small or too large groups."""
    check_values(config, "dynamics.")
    size = config.dynamics.group_size
    require(1 < size <= LARGEST_GROUP, f"dynamics.group_size={size} must lie between 2 and {LARGEST_GROUP}")


def answer(
    name: str, course: Course, setting: BatchSetting, stages: Sequence[Stage], budget: Budget, log: RunLog
) -> Answer:
    """Summarizes an alternative's predicted course at the point where the budget is spent."""
    prices = [step_tokens(setting, stage) / step_tokens(stage.setting, stage) for stage in stages]
    level = float(np.mean(log.history.values[-max(1, len(log.history) // 10) :]))
    return Answer(name, float(np.mean(prices)), course.at(budget.unit, budget.amount), course.cost("tokens", level))


def lines(log: RunLog, budget: Budget, settings: Collection[BatchSetting]) -> list[str]:
    """Returns sentences on the budget that alternatives share, and on the assumptions of the prediction."""
    premises = [
        f"each alternative spends {budget.words}; intervals are of 90 %",
        "assumed: all settings learn along the same curve, faster or slower, as their gradients are less or more noisy",
        "assumed: seconds grow with tokens, and everything else stays as it was",
    ]
    silent, equal = (sum(_mean(log, name) for name in names) for names in ([m.SILENT], [m.ALL_WRONG, m.ALL_RIGHT]))
    if abs(silent - equal) > REPORTED_SILENCE:
        premises.append(
            f"“silent” counts the groups that are all right or all wrong, {equal:.0%} of this run's; {silent:.0%} had "
            "equal rewards, since its reward knows more than right and wrong"
        )
    if np.all(log.history.intervals <= 1) and any(setting.refresh_interval > 1 for setting in settings):
        premises.append("this run had no refresh interval above 1, so what a longer one does is a wide guess")
    numbers = [setting.prompts_per_step for setting in settings]
    slower = 1 - np.exp(-GREATEST_LOSS * (1 / min(numbers) - 1 / max(numbers)))
    if slower > REPORTED_LOSS:
        premises.append(f"a step with {min(numbers)} prompts may be up to {slower:.0%} slower than by its noise alone")
    return premises


def _mean(log: RunLog, name: str) -> float:
    """Returns the mean of a metric over the run, or NaN without any values."""
    return float(np.mean(log[name].values)) if len(log[name]) else math.nan


def noise_lines(stages: Sequence[Stage]) -> list[str]:
    """Says where the price of noise is not known or high, since predictions for other batches are wide there."""
    doubtful = sum(stage.heat != GAINING for stage in stages)
    if not doubtful:
        return []
    return [
        f"in {doubtful} of {len(stages)} parts of the run the products of its steps with new gradients are not "
        "measured or not surely positive, so noise may have cost much of what the steps gained, and larger batches may "
        "gain more"
    ]


def table_rows(answers: Sequence[Answer]) -> list[list[str]]:
    """Returns a row of cells, in the order of `COLUMNS`, for the run's own setting and for each alternative."""
    return [
        [
            row.name if row.name == AGAIN else _narrow(row.name),
            interval(row.end["rates"], "{:.1%}".format),
            f"{np.median(row.end['steps']):,.0f}",
            f"{np.median(row.end['silent']):.0%}",
            f"{row.price:.2f} ×",
            interval(row.to_target, compact),
            duration(float(np.median(row.end["seconds"]))),
        ]
        for row in answers
    ]


def _narrow(name: str) -> str:
    """Returns an alternative's words, one a line and without their sections, for 80 columns.

    >>> _narrow("dynamics.group_size=4 normalization=dr_grpo")
    'group_size=4\\ndr_grpo'
    """
    return name.replace("dynamics.", "").replace("normalization=", "").replace(" ", "\n")


def mood_of(answers: Sequence[Answer]) -> str:
    """Returns `GOOD` if an alternative is surely better than the run's own setting, `BAD` if all are surely worse, and
    `UNSURE` otherwise."""
    same, *others = answers
    chances = [_chance(other, same) for other in others]
    return GOOD if max(chances) >= SURE else BAD if max(chances) <= 1 - SURE else UNSURE


def _chance(other: Answer, same: Answer) -> float:
    """Returns the probability that a setting ends above the run's own. Equal ends count as half."""
    ours, theirs = other.end["rates"], same.end["rates"]
    return float(np.mean(ours > theirs) + np.mean(ours == theirs) / 2)


def numbers_of(answers: Sequence[Answer]) -> list[Number]:
    """Returns the predicted final pass rates of the run's own setting and of the two best alternatives."""
    same, *others = answers
    best = sorted(others, key=lambda other: -float(np.median(other.end["rates"])))[:2]
    bounds = {row.name: np.quantile(row.end["rates"], [0.05, 0.5, 0.95]) for row in (same, *best)}
    return [
        Number(name, f"{middle:.0%}", f"pass rate; 90 % interval {low:.0%} to {high:.0%}")
        for name, (low, middle, high) in bounds.items()
    ]


def verdicts(answers: Sequence[Answer]) -> list[str]:
    """Says of each alternative whether it does better than the run's own setting, and how sure that is."""
    same, *others = answers
    sentences = []
    for other in others:
        chance = _chance(other, same)
        if chance >= SURE:
            judgement = f"better, with probability {chance:.0%}"
        elif chance <= 1 - SURE:
            judgement = f"worse, with probability {1 - chance:.0%}"
        else:
            judgement = f"not decided (better with probability {chance:.0%})"
        sentences.append(f"{other.name}: {judgement}")
    for row in answers:
        if (share := float(np.mean(row.end["beyond"] > 0))) > 1 - SURE:
            sentences.append(
                f"{row.name}: in {share:.0%} of its predictions it goes more than {LONGEST:g} times as far as the run "
                "went, and no pass rate is predicted there, so it may come higher: a smaller budget tells more"
            )
    return sentences


def interval(draws: Array, form: Callable[[float], str]) -> str:
    """Formats the median of draws and, below it, their 90 % interval, so that a table fits into 80 letters."""
    low, middle, high = (form(float(bound)) for bound in np.quantile(draws, [0.05, 0.5, 0.95], method="nearest"))
    return f"{middle}\n[{low},\n{high}]"


def draw_courses(axes: Axes, log: RunLog, courses: Mapping[str, Course], unit: str, amount: float) -> str:
    """Draws the measured pass rates, and predicted courses with 90 % intervals, until `amount` of `unit` is spent."""
    from matplotlib.ticker import EngFormatter

    same_course = next(iter(courses.values()))
    # Steps are counted, so the curves have no points between two of them.
    amounts = np.linspace(0, amount, 60)
    amounts = np.unique(np.round(amounts)) if unit == "steps" else amounts
    spent_amounts = np.interp(log.history.steps, same_course.steps, np.median(same_course.spent(unit), axis=0))
    axes.plot(spent_amounts, log.history.values, ".", color="0.6", markersize=3, label="measured")
    for color, (name, course) in zip(cycle(COLORS), courses.items(), strict=False):
        rates = np.array([course.at(unit, spent_then)["rates"] for spent_then in amounts])
        low, middle, high = np.quantile(rates, [0.05, 0.5, 0.95], axis=1)
        axes.fill_between(amounts, low, high, color=color, alpha=0.12, linewidth=0)
        (line,) = axes.plot(amounts, middle, color=color, label=name)
        ends = zip(amounts, middle, low, high, strict=True)
        tell(line, [(style.plain(x), f"{value:.1%} ({least:.1%} to {most:.1%})") for x, value, least, most in ends])
    axes.set_xlabel(f"{unit} spent")
    axes.set_ylabel("pass rate")
    in_percent(axes)
    axes.set_title("What each setting would have reached")
    axes.set_xlim(0, amount)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    legend_below(axes)
    return "Points are what the run measured. Lines are medians of predictions, and a shaded band holds 90 % of them."
