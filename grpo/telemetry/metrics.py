"""From the facts of one round to flat, named numbers.

Names are `group/name`; a `_fraction` is in [0, 1], lengths are in tokens, `_seconds` in seconds, log-probabilities,
entropy and KL in nats. Where a name comes from:

    pass_rate, groups/all_correct_fraction, groups/all_wrong_fraction    `reward_counts`
    plan/…                                                               the round's plan
    learner/…                                                            its optimizer steps
    time/round_seconds                                                   `seconds`: a round by the clock on the wall
    time/<phase>_seconds, throughput/…                                   `seconds` of its phases
    reward/…, groups/silent_fraction, completions/…, policy/…,
    mismatch/…, correction/…, staleness/…                                `means` of the round and its steps

`mismatch/…` holds the sampler's log-probabilities against the learner's of the round's start. Where a round is sampled
by the newest weights, that is the engines' difference; where it is sampled ahead (`pipeline`), what was learned in
between is in it too. With objective.old_logprobs=sampler only the round's first step is measured. `correction/…` holds
the shares of tokens whose importance weight was outside the bounds of `objective.correction`, and of tokens whose
completion has a veto.

Where rounds are sampled ahead, sampling and grading run beside the loop and belong to the round whose tokens they made:
the round's own seconds are then less than those of its phases. Evaluation, saving and loading come between two rounds;
they are told with the second one and are no part of its seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grpo.types import Mean, RoundStatistics

# Of a round: [correct completions, group size, how many groups]. With it a run's dynamics can be replayed.
COUNTS = "groups/counts"
# Of a round: why the next one's plan is what it is.
REASON = "plan/next_reason"
# Of a round: 1 where the run went back to an earlier policy after it.
WENT_BACK = "run/went_back"
# Metric → the phase whose seconds divide the round's completion tokens.
_THROUGHPUT = {
    "throughput/sample_tokens_per_second": "sample",
    "throughput/learn_tokens_per_second": "learn",
}


def flatten(statistics: RoundStatistics, peak_tflops: float | None = None) -> dict[str, float]:
    """All numbers of one round under stable names. What is not finite (the mean of nothing) is left out.

    Throughput is the round's completion tokens (the sum behind ``"completions/length_mean"``) ÷ the phase's
    seconds. Means of optimizer steps, like `learner/…`, are over the applied ones only. ``"throughput/mfu"``
    (model FLOPs utilization) is the share of `peak_tflops`, that of all devices together, which the learner's
    optimizer steps made use of.
    """
    means = statistics.means
    values = {name: mean.value for name, mean in means.items()}
    values |= _spreads(means)
    values |= _pass_rates(statistics) | _learner(statistics) | _plan(statistics)
    values |= {f"time/{phase}_seconds": seconds for phase, seconds in statistics.seconds.items()}
    if length := means.get("completions/length_mean"):
        for name, phase in _THROUGHPUT.items():
            if seconds := statistics.seconds.get(phase):
                values[name] = length.total / seconds
    if seconds := statistics.seconds.get("learn"):
        values["throughput/learn_tflops"] = sum(report.flops for report in statistics.reports) / seconds / 1e12
        if peak_tflops:
            values["throughput/mfu"] = values["throughput/learn_tflops"] / peak_tflops
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def evaluation_numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """All numbers of a held-out evaluation as `evaluation/…`: pass@k, maj@k and greedy with the ends of their 95 %
    intervals, length and truncation; those of a suite's sets as `evaluation/<set>/…`."""
    values: dict[str, float] = {}
    intervals = {f"pass@{k}": each for k, each in result["pass@k"].items()} | {"pass@1": result["pass@1"]}
    if result["samples_per_problem"] > 2:
        intervals[f"maj@{result['samples_per_problem']}"] = result["maj@k"]
    if "greedy" in result:
        intervals["greedy"] = result["greedy"]
    for name, interval in intervals.items():
        values[name] = interval["value"]
        values |= {f"{name}_{end}": interval[end] for end in ("low", "high")}
    values |= {"length_mean": result["mean_length"], "truncated_fraction": result["truncated_fraction"]}
    for name, each in result.get("suite", {}).items():
        inner = evaluation_numbers(each).items()
        values |= {f"{name}/{key.removeprefix('evaluation/')}": value for key, value in inner}
    return {f"evaluation/{name}": value for name, value in values.items()}


def _spreads(means: Mapping[str, Mean]) -> dict[str, float]:
    """What second moments are for: the rewards' standard deviation, and the share of samples that importance
    weights leave effective."""
    spreads = {}
    if (square := means.get("reward/square")) and square.count:
        spreads["reward/std"] = math.sqrt(max(0.0, square.value - means["reward/mean"].value ** 2))
    # The learner at the round's start against the sampler, and the policy against the round's first.
    for group, weight in (("mismatch", "weight"), ("policy", "ratio")):
        if (square := means.get(f"{group}/{weight}_squared")) and square.total:
            spreads[f"{group}/ess_fraction"] = means[f"{group}/{weight}"].effective_fraction(square)
    return spreads


def _pass_rates(statistics: RoundStatistics) -> dict[str, float]:
    counts = statistics.reward_counts.items()
    num_groups = sum(groups for _, groups in counts)
    if num_groups == 0:
        return {}
    num_correct = sum(correct * groups for (correct, _), groups in counts)
    num_completions = sum(size * groups for (_, size), groups in counts)
    return {
        "pass_rate": Mean(num_correct, num_completions).value,
        "groups/all_correct_fraction": sum(g for (k, size), g in counts if k == size) / num_groups,
        "groups/all_wrong_fraction": sum(g for (k, _), g in counts if k == 0) / num_groups,
    }


def _learner(statistics: RoundStatistics) -> dict[str, float]:
    applied = [report for report in statistics.reports if report.applied]
    num_applied = len(applied)
    return {
        "learner/gradient_norm": Mean(sum(report.gradient_norm for report in applied), num_applied).value,
        "learner/learning_rate": Mean(sum(report.learning_rate for report in applied), num_applied).value,
        "learner/skipped_steps": len(statistics.reports) - num_applied,
    }


def _plan(statistics: RoundStatistics) -> dict[str, float]:
    plan = statistics.plan
    return {
        "plan/group_size": plan.group_size,
        "plan/refresh_interval": plan.refresh_interval,
        "plan/prompts_per_step": plan.prompts_per_step,
        "plan/learning_rate_factor": plan.learning_rate_factor,
    }
