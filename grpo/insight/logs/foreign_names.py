"""This module maps other frameworks' names of metrics to ours.

There is a table for each framework. Its names were read in these files of these versions.

trl        TRL 1.10: trl/trainer/grpo_trainer.py, GRPOTrainer's `_metrics`. Before 0.17: `completion_length`,
           `clip_ratio`, and parts of the reward as `rewards/x`
verl       verl 0.8: verl/trainer/ppo/metric_utils.py, ray_trainer.py; verl/workers/actor/dp_actor.py. Its fraction of
           tokens clipped on either side is read as the upper side's, on which most of the clipping happens
openrlhf   OpenRLHF 0.11: openrlhf/trainer/ppo_trainer.py, openrlhf/trainer/ray/ppo_actor.py
prime_rl   prime-rl 0.8: src/prime_rl/orchestrator/metrics.py, src/prime_rl/trainer/rl/train.py
slime      slime 0.3: slime/observability/rollout_metrics.py, slime/backends/megatron_utils/loss.py and model.py
rlprobe    rlprobe 0.1: rlprobe/schemas/__init__.py, a recorder of TRL's runs

The Trainer of transformers, OpenRLHF and slime put `train/` before these names when they log to TensorBoard or Weights
& Biases.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from grpo.insight.logs.run_log import Series
from grpo.telemetry.json_lines import Row

TRL = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "frac_reward_zero_std": "groups/silent_fraction",
    "entropy": "policy/entropy",
    "kl": "policy/reference_kl",
    "clip_ratio/low_mean": "policy/clip_low_fraction",
    "clip_ratio/high_mean": "policy/clip_high_fraction",
    "clip_ratio": "policy/clip_high_fraction",
    "completions/mean_length": "completions/length_mean",
    "completion_length": "completions/length_mean",
    "completions/clipped_ratio": "completions/truncated_fraction",
    "sampling/sampling_logp_difference/mean": "mismatch/mean_abs",
    "grad_norm": "learner/gradient_norm",
    "learning_rate": "learner/learning_rate",
    "step_time": "time/round_seconds",
}
VERL = {
    "critic/score/mean": "pass_rate",
    "critic/rewards/mean": "reward/mean",
    "actor/entropy": "policy/entropy",
    "actor/entropy_loss": "policy/entropy",
    "actor/kl_loss": "policy/reference_kl",
    "actor/pg_clipfrac": "policy/clip_high_fraction",
    "actor/pg_clipfrac_lower": "policy/clip_low_fraction",
    "actor/grad_norm": "learner/gradient_norm",
    "actor/lr": "learner/learning_rate",
    "response_length/mean": "completions/length_mean",
    "response_length/clip_ratio": "completions/truncated_fraction",
    "perf/time_per_step": "time/round_seconds",
}
OPENRLHF = {
    "rollout/reward_mean": "reward/mean",
    "rollout/reward_std": "reward/std",
    "rollout/response_length_mean": "completions/length_mean",
    "rollout/truncated_rate": "completions/truncated_fraction",
    "response_length": "completions/length_mean",
    "entropy_loss": "policy/entropy",
    "ppo_clip_ratio": "policy/clip_high_fraction",
    "actor_grad_norm": "learner/gradient_norm",
    "actor_lr": "learner/learning_rate",
    "timing/step_total": "time/round_seconds",
}
SLIME = {
    "rollout/raw_reward": "reward/mean",
    "rollout/response_len/mean": "completions/length_mean",
    "rollout/truncated_ratio": "completions/truncated_fraction",
    "rollout/repetition_frac": "completions/repetition_fraction",
    "pg_clipfrac": "policy/clip_high_fraction",
    "kl_loss": "policy/reference_kl",
    "train_rollout_logprob_abs_diff": "mismatch/mean_abs",
    "lr-pg_0": "learner/learning_rate",
    "perf/step_time": "time/round_seconds",
}
PRIME_RL = {
    "optim/grad_norm": "learner/gradient_norm",
    "optim/lr": "learner/learning_rate",
    "entropy/all/mean": "policy/entropy",
}
RLPROBE = {
    "reward_mean": "reward/mean",
    "kl_mean": "policy/reference_kl",
    "entropy_mean": "policy/entropy",
    "clip_fraction": "policy/clip_high_fraction",
    "adv_std": "advantages/std",
    "adv_zero_frac": "advantages/zero_fraction",
    "zero_variance_group_frac": "groups/silent_fraction",
    "nan_count": "learner/skipped_steps",
    "lr": "learner/learning_rate",
    "completion_len_mean": "completions/length_mean",
    "truncation_rate": "completions/truncated_fraction",
    "repetition_rate": "completions/repetition_fraction",
    "step_time_s": "time/round_seconds",
}
NAMES = RLPROBE | SLIME | OPENRLHF | PRIME_RL | VERL | TRL
# In prime-rl's names, [^/]+ after `all` matches an agent's name. `all` is over every completion, and `effective`, which
# is not read, over the completions that were trained on.
PATTERNS = (
    (re.compile(r"train/agg/all/[^/]+/reward/mean"), "reward/mean"),
    (re.compile(r"train/agg/all/[^/]+/reward/std"), "reward/std"),
    (re.compile(r"train/agg/all/[^/]+/rewards/(?P<part>[^/]+)/mean"), "reward/part/{part}"),
    (re.compile(r"train/agg/all/[^/]+/solved_all"), "groups/all_correct_fraction"),
    (re.compile(r"train/agg/all/[^/]+/solved_none"), "groups/all_wrong_fraction"),
    (re.compile(r"train/agg/all/[^/]+/num_output_tokens/mean"), "completions/length_mean"),
    (re.compile(r"train/agg/all/[^/]+/is_truncated/mean"), "completions/truncated_fraction"),
    # A part of the reward in TRL, in TRL before 0.17, and in rlprobe.
    (re.compile(r"rewards/(?P<part>[^/]+)/mean|rewards/(?P<old>[^/]+)|reward_component\.(?P<probe>.+)"), "reward/part"),
)
# A column whose name matches holds held-out scores, by TRL, verl, OpenRLHF, slime or prime-rl, or an older version.
HELD_OUT = re.compile(
    r"eval_(reward|accuracy)|eval/.*(reward|accuracy|pass|score).*|eval/[\w.]+|eval/.+/avg@\d+"
    r"|(eval/)?eval_.+_pass1|val-core/.+/mean@\d+|val/test_score/.+"
)
# Columns whose names match `HELD_OUT` and this pattern too hold something else than scores.
NO_SCORE = re.compile(
    r".*(length|_len|_std|/std|time|loss|ratio|epoch|step|runtime|per_second|kl|entropy|frac|tokens|clip|truncated).*"
)
# The names of a row's step, in order of preference. In slime's logs rollout, train and eval rows have different ones.
STEPS = (
    *("step", "global_step", "train/global_step", "training/global_step", "trainer/global_step", "eval/global_step"),
    *("rollout/step", "train/step", "eval/step", "_step", "Step", "iteration"),
)


def step_of(row: Row) -> float | None:
    """Returns the step of a row, or None if it has none."""
    return next((row[name] for name in STEPS if is_number(row.get(name)) and math.isfinite(row[name])), None)


def numbers_of(row: Row) -> dict[str, float]:
    """Returns the numeric values of a row except its step, under the log's own names."""
    return {name: value for name, value in row.items() if name not in STEPS and is_number(value)}


def our_name(name: str) -> str:
    """Returns our name of a metric, or `name` itself if the tables do not have it.

    >>> our_name("train/rewards/accuracy_reward/mean"), our_name("train/agg/all/solver/solved_none"), our_name("loss")
    ('reward/part/accuracy_reward', 'groups/all_wrong_fraction', 'loss')
    """
    for candidate in (name, name.removeprefix("train/")):
        if candidate in NAMES:
            return NAMES[candidate]
        for pattern, our_pattern in PATTERNS:
            if match := pattern.fullmatch(candidate):
                part = next((group for group in match.groups() if group), "")
                return f"reward/part/{part}" if "part" in our_pattern else our_pattern
    return name


def held_out_score(series: Mapping[str, Series], rate_name: str) -> str | None:
    """Returns the name of the column with held-out scores between 0 and 1, or None.

    A column whose name contains `rate_name`, the part of the reward that grades answers, is preferred.
    """
    names = [name for name in series if HELD_OUT.fullmatch(name) and not NO_SCORE.fullmatch(name)]
    rate_like_names = [name for name in names if series[name].values.min() >= 0 and series[name].values.max() <= 1]
    return min(rate_like_names, key=lambda name: not (rate_name and rate_name in name), default=None)


def is_number(value: Any) -> bool:
    """Tells whether a value of a log is a number that fits into a float. NaN and infinity are, booleans are not."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
