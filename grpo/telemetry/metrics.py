"""This module turns the statistics of one round into flat, named numbers.

Names are `group/name`. A `_fraction` is in [0, 1]. Lengths are in tokens, `_seconds` in seconds, and log-probabilities,
entropy and KL in nats. Names come from these fields of `RoundStatistics`:

    pass_rate                                                            `unbiased_counts`
    groups/all_correct_fraction, groups/all_wrong_fraction               `reward_counts`
    plan/…                                                               `plan`
    learner/…                                                            `reports`, one per optimizer step
    time/round_seconds                                                   `seconds`, the wall-clock time of the round
    time/<phase>_seconds, throughput/…                                   `seconds` of the round's phases
    reward/…, groups/silent_fraction, completions/…, policy/…, step/…,
    source/<source>/…, mismatch/…, correction/…, staleness/…, throughput/…imbalance  `means` of the round and its steps

Rewards, pass rates and fractions of groups leave out groups that could not be graded, because a server did not answer
or the problem's own answer cannot be read. A round of which no group could be graded does not log them.
`groups/num_sampled` and `completions/num_sampled` count all that was sampled. Where problems have no answers and
rewards are not only 0, 1 and −1, nothing says which completions are right, so no pass rates are logged.

Percentiles and what depends on the kind of completion are added by `grpo.telemetry.breakdown`, and `rollout/…` by the
sampler (`grpo.rollout.engine_use`). `policy/loss` is the loss that each step lowers, before gradient clipping.

`throughput/imbalance` divides the floating-point operations of the busiest learner rank by those of the mean rank, in
optimizer steps: the excess over 1 is how long the mean rank waits, relative to how long it computes. Under ZeRO 2 and
3, whose ranks wait for each other in every micro-batch, the busiest rank is that of each micro-batch.
`throughput/logprobs_imbalance` is the same ratio for the passes that compute old and reference log-probabilities, and
`throughput/sample_imbalance` for the seconds of sampling.

`step/gain` is how far the loss falls along the optimizer step before, at the slope of that step's end, and
`step/cosine` the cosine between that step and the direction in which the loss falls. Below zero the step went too far.
`step/length` is the length of that step, the norm of the change of the weights.
`step/signal` is the share of a gradient's squared norm that is signal and not noise (`grpo.learner.step_products`).
`path/gain` and `path/cosine` are the same for the path of the last `path/steps` steps, the gain for one of them.

`mismatch/…` compares the sampler's log-probabilities with the learner's at the start of the round. When the round was
sampled by the newest weights, this is the difference between the two engines. When it was sampled ahead (`pipeline`),
it also includes what was learned in between. With objective.old_logprobs=sampler only the round's first step is
measured. `correction/…` holds the share of tokens whose importance weight was outside the bounds of
`objective.correction`, and the share of tokens whose completion was vetoed.

`time/sleep_seconds` is the time in which an engine in the learner's process frees its GPU memory, and later takes back
the memory of its weights. `time/sync_seconds` is the rest of a refresh, including the time to take back the memory
of its KV cache.

When rounds are sampled ahead, sampling and grading run in parallel with the loop. Their seconds belong to the round
whose tokens they made, so the phases of a round can add up to more than the round. Evaluation, saving, exporting
and loading happen between two rounds. They are reported with the second round but are not part of its seconds. Work
that they cause counts as theirs: where sampler and learner take turns on a GPU, a checkpoint's seconds include a
refresh.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grpo.types import Mean, RoundStatistics

# A round's list of [correct completions, group size, number of such groups], from which `grpo dynamics replay` can
# reconstruct what happened.
COUNTS, FIRST_COUNTS = "groups/counts", "groups/first_counts"
# All groups and completions that were sampled → the mean whose count is their number.
_SAMPLED = {"groups/num_sampled": "prompts/length_mean", "completions/num_sampled": "completions/length_mean"}
# A round's text that says why the next round's plan is what it is.
REASON = "plan/next_reason"
# This number is 1 for a round after which the run went back to an earlier policy.
WENT_BACK = "run/went_back"
# Kinds of completions that are counted separately by whether they are right.
_JUDGED = ("right", "wrong", "by_pass_rate")
# Metric → the phase whose seconds divide the round's completion tokens.
_THROUGHPUT = {
    "throughput/sample_tokens_per_second": "sample",
    "throughput/learn_tokens_per_second": "learn",
}


def flatten(statistics: RoundStatistics, peak_tflops: float | None = None) -> dict[str, float]:
    """Returns all numbers of one round under stable names. Values that are not finite (the mean of nothing) are left
    out.

    Throughput is the round's completion tokens (the sum behind ``"completions/length_mean"``) ÷ the phase's
    seconds. Means over optimizer steps, like `learner/…`, include the applied steps only. ``"throughput/mfu"``
    (model FLOPs utilization) is the learner's FLOP/s divided by `peak_tflops`, the peak of all devices together.
    """
    means = statistics.means
    values = {name: mean.value for name, mean in means.items()}
    values |= {name: means[length].count for name, length in _SAMPLED.items() if length in means}
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


def without_pass_rates(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics of a round without those that count right completions.

    >>> without_pass_rates({"reward/mean": 4.0, "pass_rate": 0.9, "completions/right/length_mean": 3.0})
    {'reward/mean': 4.0}
    """
    counting = ("groups/all_correct_", "groups/all_wrong_", *(f"completions/{kind}/" for kind in _JUDGED))
    return {
        name: value
        for name, value in metrics.items()
        if name.rpartition("/")[2] != "pass_rate" and not name.startswith(counting)
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
    sources = {f"source/{name}": of_source for name, of_source in result.get("sources", {}).items()}
    for name, set_result in {**sources, **result.get("suite", {})}.items():
        inner = evaluation_numbers(set_result).items()
        values |= {f"{name}/{key.removeprefix('evaluation/')}": value for key, value in inner}
    return {f"evaluation/{name}": value for name, value in values.items()}


def _spreads(means: Mapping[str, Mean]) -> dict[str, float]:
    """Returns the numbers that need second moments: the rewards' standard deviation, and the fraction of the samples
    that remains effective under importance weights (ESS)."""
    spreads = {}
    if (square := means.get("reward/square")) and square.count:
        spreads["reward/std"] = math.sqrt(max(0.0, square.value - means["reward/mean"].value ** 2))
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
    coefficient = plan.entropy_coefficient
    entropy = {} if coefficient is None else {"plan/entropy_coefficient": coefficient * plan.entropy_bonus}
    return {
        "plan/group_size": plan.group_size,
        "plan/refresh_interval": plan.refresh_interval,
        "plan/prompts_per_step": plan.prompts_per_step,
        "plan/learning_rate_factor": plan.learning_rate_factor,
    } | entropy
