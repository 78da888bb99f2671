"""This module turns the statistics of one round into flat, named numbers. `grpo.types.metrics` says what each one is.

Percentiles and what depends on the kind of completion are added by `grpo.telemetry.breakdown`, and `rollout/…` by the
sampler (`grpo.rollout.engine_use`). A round of which no group could be graded logs no rewards and pass rates.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from grpo.types import Mean, RoundStatistics
from grpo.types import metrics as m
from grpo.types.rounds import ROUND

# All groups and completions that were sampled → the mean whose count is their number.
_SAMPLED = {m.NUM_GROUPS: m.PROMPT_LENGTH, m.NUM_COMPLETIONS: m.LENGTH}
# Kinds of completions that are counted separately by whether they are right.
_JUDGED = ("right", "wrong", "by_pass_rate")


def flatten(statistics: RoundStatistics, peak_tflops: float | None = None) -> dict[str, float]:
    """Returns all numbers of one round under stable names. Values that are not finite (the mean of nothing) are left
    out, and so are pass rates of a round that nothing judged.

    Throughput is the round's completion tokens (the sum behind ``"completions/length_mean"``) ÷ the phase's
    seconds. Means over optimizer steps, like `learner/…`, include the applied steps only. ``"throughput/mfu"``
    (model FLOPs utilization) is the learner's FLOP/s divided by `peak_tflops`, the peak of all devices together.
    """
    means = statistics.means
    values = {name: mean.value for name, mean in means.items()}
    values |= {name: means[length].count for name, length in _SAMPLED.items() if length in means}
    values |= _spreads(means)
    values |= _pass_rates(statistics) | _learner(statistics) | _plan(statistics)
    values |= {m.phase_seconds(phase): seconds for phase, seconds in statistics.seconds.items()}
    if length := means.get(m.LENGTH):
        for phase, name in m.SPEEDS.items():
            if seconds := statistics.seconds.get(phase):
                values[name] = length.total / seconds
    if seconds := statistics.seconds.get("learn"):
        values[m.TFLOPS] = sum(report.flops for report in statistics.reports) / seconds / 1e12
        if peak_tflops:
            values[m.MFU] = values[m.TFLOPS] / peak_tflops
    finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
    return finite if statistics.judged else without_pass_rates(finite)


def energy(by_rank: Sequence[Mapping[str, float]], metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the energy of a round as metrics. `by_rank` has the joules of each rank's machine by phase, or nothing
    for a rank that counts none, and `metrics` are the round's other ones. A machine that has lost a counter gives NaN,
    and there is no number of what it took part in.

    >>> energy([{"round": 30.0, "learn": 8.0}, {}], {"completions/length_mean": 5.0, "completions/num_sampled": 2.0})
    {'energy/round_joules': 30.0, 'energy/learn_joules': 8.0, 'energy/joules_per_token': 3.0}
    """
    total: Counter[str] = Counter()
    for joules in by_rank:
        total.update(joules)
    values = {m.phase_joules(phase): joules for phase, joules in total.items()}
    if total and (tokens := metrics.get(m.LENGTH, 0.0) * metrics.get(m.NUM_COMPLETIONS, 0.0)):
        values[m.TOKEN_ENERGY] = total[ROUND] / tokens
    return {name: value for name, value in values.items() if math.isfinite(value)}


def without_pass_rates(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics of a round without those that count right completions.

    >>> without_pass_rates({"reward/mean": 4.0, "pass_rate": 0.9, "completions/right/length_mean": 3.0})
    {'reward/mean': 4.0}
    """
    counting = (m.ALL_RIGHT, m.ALL_WRONG, m.EXPECTED_GAIN, *(f"completions/{kind}/" for kind in _JUDGED))
    return {
        name: value
        for name, value in metrics.items()
        if name.rpartition("/")[2] != m.PASS_RATE and not name.startswith(counting)
    }


def evaluation_numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """Returns all numbers of a held-out evaluation as `evaluation/…`, those of a source of its problems as
    `evaluation/source/<source>/…`, and those of a suite's sets as `evaluation/<set>/…`.

    They are the mean reward, pass@k, maj@k and greedy with the ends of their 95 % intervals, length and truncation, and
    under `evaluation/ungraded` the number of problems that could not be graded and are left out of the others.
    """
    values: dict[str, float] = {}
    intervals = {f"pass@{k}": interval for k, interval in result["pass@k"].items()} | {"pass@1": result["pass@1"]}
    if result["samples_per_problem"] > 2:
        intervals[f"maj@{result['samples_per_problem']}"] = result["maj@k"]
    if "greedy" in result:
        intervals["greedy"] = result["greedy"]
    for name, interval in intervals.items():
        values[name] = interval["value"]
        values |= {f"{name}_{end}": interval[end] for end in ("low", "high")}
    values |= {"reward_mean": result["mean_reward"]} if "mean_reward" in result else {}
    values |= {"length_mean": result["mean_length"], "truncated_fraction": result["truncated_fraction"]}
    if "ungraded" in result:
        values["ungraded"] = result["ungraded"]
    sources = {f"{m.SOURCE}{name}": of_source for name, of_source in result.get("sources", {}).items()}
    for name, set_result in {**sources, **result.get("suite", {})}.items():
        inner = evaluation_numbers(set_result).items()
        values |= {f"{name}/{key.removeprefix(m.EVALUATION)}": value for key, value in inner}
    return {f"{m.EVALUATION}{name}": value for name, value in values.items()}


def _spreads(means: Mapping[str, Mean]) -> dict[str, float]:
    """Returns the numbers that need second moments: the rewards' standard deviation, and the fraction of the samples
    that remains effective under importance weights (ESS)."""
    spreads = {}
    if (square := means.get(m.REWARD_SQUARE)) and square.count:
        spreads[m.REWARD_STD] = math.sqrt(max(0.0, square.value - means[m.REWARD].value ** 2))
    # "mismatch" weighs the learner at the round's start against the sampler; "policy" weighs the current policy against
    # the one at the round's start.
    for group, weight in (("mismatch", "weight"), ("policy", "ratio")):
        if (square := means.get(f"{group}/{weight}_squared")) and square.total:
            spreads[f"{group}/ess_fraction"] = means[f"{group}/{weight}"].effective_fraction(square)
    return spreads


def _pass_rates(statistics: RoundStatistics) -> dict[str, float]:
    counts = statistics.reward_counts.items()
    num_groups = sum(groups for _, groups in counts)
    if num_groups == 0:
        return {}
    unbiased = statistics.unbiased_counts.items()
    num_correct = sum(correct * groups for (correct, _), groups in unbiased)
    num_completions = sum(size * groups for (_, size), groups in unbiased)
    return {
        m.PASS_RATE: Mean(num_correct, num_completions).value,
        m.ALL_RIGHT: sum(g for (k, size), g in counts if k == size) / num_groups,
        m.ALL_WRONG: sum(g for (k, _), g in counts if k == 0) / num_groups,
    }


def _learner(statistics: RoundStatistics) -> dict[str, float]:
    applied = [report for report in statistics.reports if report.applied]
    num_applied = len(applied)
    return {
        m.GRADIENT_NORM: Mean(sum(report.gradient_norm for report in applied), num_applied).value,
        m.LEARNING_RATE: Mean(sum(report.learning_rate for report in applied), num_applied).value,
        m.SKIPPED: len(statistics.reports) - num_applied,
    }


def _plan(statistics: RoundStatistics) -> dict[str, float]:
    plan = statistics.plan
    coefficient = plan.entropy_coefficient
    entropy = {} if coefficient is None else {m.ENTROPY_COEFFICIENT: coefficient * plan.entropy_bonus}
    return {
        m.GROUP_SIZE: plan.group_size,
        m.INTERVAL: plan.refresh_interval,
        m.PROMPTS: plan.prompts_per_step,
        m.RATE_FACTOR: plan.learning_rate_factor,
    } | entropy
