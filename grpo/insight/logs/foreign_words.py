"""This module puts advice into the terms of the framework that wrote a log.

The checks of a diagnosis name this project's keys. For logs of TRL or verl these become the keys of TRL's GRPOConfig
(1.10) or verl's trainer (0.8) that do the same. Keys without a counterpart, and logs of others, get plain words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

OURS, TRL, VERL, OTHER = "grpo", "trl", "verl", ""


class Words(NamedTuple):
    """These are the names of one setting: in plain words, in TRL and in verl. None stands for the plain words."""

    plain: str
    trl: str | None = None
    verl: str | None = None


ACTOR = "actor_rollout_ref.actor"
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
# Patterns of columns that only one framework logs.
MARKS = {
    TRL: re.compile(r"(train/)?(rewards/.+|completions/.+|completion_length|frac_reward_zero_std|clip_ratio.*)"),
    VERL: re.compile(r"(actor|critic|response_length)/.+"),
}


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
