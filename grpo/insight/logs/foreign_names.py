"""This module maps other frameworks' names of metrics to ours, and puts our advice into their words.

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

The checks of a diagnosis name this project's keys. For logs of TRL or verl these become the keys of TRL's GRPOConfig
(1.10) or verl's trainer (0.8) that do the same. Keys without a counterpart, and logs of others, get plain words.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from grpo.insight.logs.run_log import Series
from grpo.telemetry.json_lines import Row

TRL_NAMES = {
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
VERL_NAMES = {
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
OPENRLHF_NAMES = {
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
SLIME_NAMES = {
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
PRIME_RL_NAMES = {
    "optim/grad_norm": "learner/gradient_norm",
    "optim/lr": "learner/learning_rate",
    "entropy/all/mean": "policy/entropy",
}
RLPROBE_NAMES = {
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
NAMES = RLPROBE_NAMES | SLIME_NAMES | OPENRLHF_NAMES | PRIME_RL_NAMES | VERL_NAMES | TRL_NAMES
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
STEP_NAMES = frozenset(STEPS)
OURS, TRL, VERL, OTHER = "grpo", "trl", "verl", ""
ACTOR = "actor_rollout_ref.actor"
# Patterns of columns that only one framework logs.
MARKS = {
    TRL: re.compile(r"(train/)?(rewards/.+|completions/.+|completion_length|frac_reward_zero_std|clip_ratio.*)"),
    VERL: re.compile(r"(actor|critic|response_length)/.+"),
}


def step_of(row: Row) -> float | None:
    """Returns the step of a row, or None if it has none."""
    return next((row[name] for name in STEPS if is_number(row.get(name)) and math.isfinite(row[name])), None)


def numbers_of(row: Row) -> dict[str, float]:
    """Returns the numeric values of a row except its step, under the log's own names."""
    # Most values are floats, of which a long log has millions.
    return {
        name: value
        for name, value in row.items()
        if name not in STEP_NAMES and (type(value) is float or is_number(value))
    }


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


class Words(NamedTuple):
    """These are the names of one setting: in plain words, in TRL and in verl. None stands for the plain words."""

    plain: str
    trl: str | None = None
    verl: str | None = None


RATE = Words("learning rate", "learning_rate", f"{ACTOR}.optim.lr")
# A phrase in our advice → its names elsewhere. `PATTERN` tries longer phrases before the phrases that they contain.
WORDS = {
    ", or dynamics=adaptive with its guard": Words(""),
    ", or dynamics=adaptive": Words(""),
    " (dynamics=adaptive dynamics.adaptive.stop_gain=0.02)": Words(""),
    ", or a lower task.reward.correct_at if what is rewarded counts as right": Words(""),
    " (task.reward.extract)": Words(""),
    "half of learner.learning_rate": Words("half the learning rate"),
    "learner.learning_rate": RATE,
    "learner/learning_rate": RATE,
    "learner.warmup_steps": Words("number of warm-up steps", "warmup_steps", f"{ACTOR}.optim.lr_warmup_steps"),
    " (learner.schedule, num_steps)": Words(""),
    "learner.precision=float32": Words("training in float32", "bf16=false"),
    "learner.max_gradient_norm=0.5": Words("gradients clipped at 0.5", "max_grad_norm=0.5", f"{ACTOR}.grad_clip=0.5"),
    "objective.clip_high=0.28": Words(
        "an upper clip bound of 0.28", "epsilon_high=0.28", f"{ACTOR}.clip_ratio_high=0.28"
    ),
    "objective.clip_high": Words("upper clip bound", "epsilon_high", f"{ACTOR}.clip_ratio_high"),
    "objective.entropy_coefficient=0.001": Words("an entropy bonus of 0.001", None, f"{ACTOR}.entropy_coeff=0.001"),
    "objective.entropy_coefficient": Words("entropy bonus", None, f"{ACTOR}.entropy_coeff"),
    "objective.kl.coefficient=0.01": Words(
        "a KL term with coefficient 0.01", "beta=0.01", f"{ACTOR}.use_kl_loss=True with {ACTOR}.kl_loss_coef=0.01"
    ),
    "objective.kl.coefficient": Words("coefficient of the KL term", "beta", f"{ACTOR}.kl_loss_coef"),
    "learner.max_gradient_norm": Words("limit of gradient norms", "max_grad_norm", f"{ACTOR}.grad_clip"),
    "objective.correction.level=token": Words(
        "importance weights that correct for it", "vllm_importance_sampling_correction=true"
    ),
    "objective=dr_grpo": Words("the loss of Dr. GRPO", "loss_type=dr_grpo"),
    "a smaller dynamics.refresh_interval": Words("fewer steps between two updates of the sampler"),
    "dynamics.refresh_interval=1": Words("new samples for every optimizer step"),
    "dynamics.group_size": Words("group size", "num_generations", "actor_rollout_ref.rollout.n"),
    "dynamics.prompts_per_step": Words("the number of prompts per step", None, "data.train_batch_size"),
    "normalization=dapo to replace silent groups": Words(
        "other prompts in place of silent groups, as DAPO does",
        None,
        "algorithm.filter_groups.enable=True in the DAPO recipe",
    ),
    "normalization=dapo": Words("other prompts in place of silent groups, as DAPO does"),
    "rollout.sampling.max_tokens": Words("limit of tokens", "max_completion_length", "data.max_response_length"),
    "rollout.precision=float32": Words("a sampler in float32"),
    "task.prompt.chat and task.prompt.template": Words("the chat template"),
    "task.prompt.template": Words("the prompt"),
    "task.reward.extract=final": Words("a parser of answers that accepts more forms"),
    "task.reward.overlong=mask": Words("cut completions left out of the loss", "mask_truncated_completions=true"),
    "task.reward.overlong=keep": Words("no penalty"),
    "task.reward.overlong=soft task.reward.overlong_buffer=64": Words("DAPO's soft penalty of overlong completions"),
    "task.reward.overlong=soft": Words("DAPO's soft penalty of overlong completions"),
    "raise task.reward.timeout_seconds, set task.reward.workers=8": Words("allow more time for grading"),
    "task.reward.timeout_seconds=20 task.reward.workers=4": Words("more time and more processes for grading"),
    " than task.reward.timeout_seconds allows": Words(" than is allowed"),
    "choose another task.data.answer_column, or set task.data.answer_pattern or task.reward.parts=[{name: exact}]": (
        Words("compare the answers of the problems with what the reward function reads")
    ),
    " in the form that task.reward.extract looks for": Words(" in the form that is looked for"),
    "in task.reward.parts": Words("in the reward", "in reward_weights"),
    "task.reward.parts": Words("reward"),
    "read samples.jsonl": Words("read some completions"),
    "in samples.jsonl": Words("in some completions"),
    "groups/silent_fraction": Words("the share of silent groups", "frac_reward_zero_std"),
}
PATTERN = re.compile("|".join(re.escape(key) for key in sorted(WORDS, key=len, reverse=True)))


def framework_of(columns: Iterable[str]) -> str:
    """Returns the framework that wrote a log, by its columns' names, or "" if it is not known.

    >>> framework_of(["reward", "completions/mean_length"]), framework_of(["reward", "kl"])
    ('trl', '')
    """
    names = set(columns)
    return next((framework for framework, mark in MARKS.items() if any(map(mark.fullmatch, names))), OTHER)


def in_words_of(framework: str, advice: str) -> str:
    """Returns our advice with our keys replaced by a framework's keys or plain words.

    >>> in_words_of("trl", "half of learner.learning_rate, or objective.kl.coefficient=0.01")
    'half the learning rate, or beta=0.01'
    """
    if framework == OURS:
        return advice

    def known(match: re.Match[str]) -> str:
        words = WORDS[match.group()]
        return {TRL: words.trl, VERL: words.verl}.get(framework) or words.plain

    return PATTERN.sub(known, advice)
