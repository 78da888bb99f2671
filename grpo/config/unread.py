"""This module refuses words that have no effect, since somebody who types a key means something by it.

A key counts as typed if it stands in a word and its value is not the default one. The rules leave alone
whatever a group's choice or a recipe sets, so one word may change a recipe, such as model.lora.rank=0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from grpo.config.errors import UserError
from grpo.config.hydra import config_directory
from grpo.config.leaves import differences
from grpo.config.run import TrainConfig
from grpo.config.task import SelectionConfig


class Rule(NamedTuple):
    """A rule says when keys are read, and how to mend a word that is not. A key that ends in a dot is a section."""

    keys: tuple[str, ...]
    read: Callable[[TrainConfig], object]
    remedy: str


def _under(section: str, names: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names.split())


def _own(name: str, *choices: str) -> bool:
    """Says whether a choice is one of `choices`, or an import path, whose function may read anything."""
    return name in choices or ":" in name


def _rounds(config: TrainConfig) -> int:
    """Returns how many rounds a run has at most."""
    interval = config.dynamics.refresh_interval if config.dynamics.name == "fixed" else 1
    return -(-config.num_steps // interval)


def _selects_by_rate(selection: SelectionConfig) -> bool:
    return [*selection.solve_rate] != [0.0, 1.0] or selection.without_solve_rate == "drop"


def _tracked(config: TrainConfig) -> bool:
    return config.tracking.wandb != "off"


RULES = (
    Rule(
        (*_under("model.lora", "alpha target_modules"), "rollout.merge_adapters"),
        lambda c: c.model.lora.rank,
        "set model.lora.rank, e.g. to 16",
    ),
    Rule(
        ("model.revision",),
        lambda c: c.model.source == "huggingface" and not Path(c.model.path).is_dir(),
        "give a model of the hub, by model=huggingface model.path=OWNER/NAME",
    ),
    Rule(("hardware.gpu_memory_gib",), lambda c: c.dry_run, "add dry_run=true, whose tables it changes"),
    Rule(("dynamics.adaptive.",), lambda c: c.dynamics.name == "adaptive", "add dynamics=adaptive"),
    Rule(
        ("dynamics.adaptive.decide_every",),
        lambda c: c.dynamics.adaptive.decide_every < _rounds(c),
        "make it fewer than the rounds of the run",
    ),
    Rule(
        _under("dynamics.adaptive", "stop_patience stop_min_steps"),
        lambda c: c.dynamics.adaptive.stop_gain,
        "set dynamics.adaptive.stop_gain above 0",
    ),
    Rule(
        ("dynamics.adaptive.stop_gain",),
        lambda c: c.dynamics.adaptive.stop_min_steps < c.num_steps,
        "make dynamics.adaptive.stop_min_steps less than num_steps",
    ),
    Rule(
        ("dynamics.refresh_interval",),
        lambda c: c.dynamics.refresh_interval <= c.num_steps,
        "make it at most num_steps, the steps of the whole run",
    ),
    Rule(
        ("tracking.profile_rounds",),
        lambda c: all(index < _rounds(c) for index in c.tracking.profile_rounds),
        "name rounds that num_steps and dynamics.refresh_interval leave room for, counted from 0",
    ),
    Rule(("task.prompt.chat_template",), lambda c: c.task.prompt.chat, "add task.prompt.chat=true"),
    Rule(("normalization.k",), lambda c: _own(c.normalization.name, "pass_at_k"), "add normalization=pass_at_k"),
    Rule(("normalization.epsilon_in",), lambda c: c.normalization.epsilon, "set normalization.epsilon above 0"),
    Rule(
        _under("objective", "clip_low clip_high"),
        lambda c: _own(c.objective.name, "clip", "cispo", "dppo", "gmpo"),
        "choose an objective that clips, e.g. objective=clip",
    ),
    Rule(
        _under("objective", "temperature_positive temperature_negative"),
        lambda c: _own(c.objective.name, "sapo"),
        "add objective=sapo",
    ),
    Rule(("objective.entropy_step",), lambda c: c.objective.entropy_target, "set objective.entropy_target above 0"),
    Rule(
        ("objective.aggregation.constant_length",),
        lambda c: _own(c.objective.aggregation.level, "constant"),
        "set objective.aggregation.level=constant",
    ),
    Rule(("objective.kl.",), lambda c: c.objective.kl.coefficient, "set objective.kl.coefficient above 0"),
    Rule(
        ("objective.kl.refresh_every",),
        lambda c: c.objective.kl.refresh_every < c.num_steps,
        "make it less than num_steps",
    ),
    Rule(("objective.kl.refresh_rate",), lambda c: c.objective.kl.refresh_every, "set objective.kl.refresh_every"),
    Rule(
        ("objective.correction.level",),
        lambda c: c.objective.old_logprobs == "learner",
        "set objective.old_logprobs=learner",
    ),
    Rule(
        _under("objective.correction", "cap mode"),
        lambda c: c.objective.correction.level != "none" and c.objective.old_logprobs == "learner",
        "set objective.correction.level=token and objective.old_logprobs=learner",
    ),
    Rule(
        ("objective.selection.share",), lambda c: c.objective.selection.name != "none", "set objective.selection.name"
    ),
    Rule(
        _under("objective.selection", "low high"),
        lambda c: c.objective.selection.name == "clip_cov",
        "set objective.selection.name=clip_cov",
    ),
    Rule(
        ("objective.selection.penalty",),
        lambda c: c.objective.selection.name == "kl_cov",
        "set objective.selection.name=kl_cov",
    ),
    Rule(
        ("rollout.refill.enabled",),
        lambda c: c.rollout.refill.max_waves > 1,
        "make rollout.refill.max_waves 2 or more, since the first wave counts",
    ),
    Rule(
        _under("rollout.refill", "max_waves fallback"),
        lambda c: c.rollout.refill.enabled,
        "set rollout.refill.enabled=true",
    ),
    Rule(
        _under("rollout.budget", "pilot largest"), lambda c: c.rollout.budget.enabled, "set rollout.budget.enabled=true"
    ),
    Rule(
        _under("rollout.servers", "replicas tensor_parallel urls host port first_gpu gpu_memory_fraction"),
        lambda c: c.rollout.engine == "vllm_server",
        "add rollout=vllm_server",
    ),
    Rule(
        ("rollout.gpu_memory_fraction",),
        lambda c: c.rollout.engine == "vllm",
        "use rollout=vllm, or rollout.servers.gpu_memory_fraction for servers",
    ),
    Rule(_under("rollout", "own_process sleep"), lambda c: c.rollout.engine == "vllm", "use rollout=vllm"),
    Rule(
        _under("rollout", "kv_cache_gib enforce_eager servers.start_seconds servers.request_seconds"),
        lambda c: c.rollout.engine != "transformers",
        "use rollout=vllm",
    ),
    Rule(("rollout.max_staleness",), lambda c: c.pipeline == "continuous", "add pipeline=continuous"),
    Rule(
        ("hardware.hosts",),
        lambda c: c.hardware.shell != "here",
        "set hardware.shell=ssh, by which grpo launch reaches other machines",
    ),
    Rule(("hardware.server_nodes",), lambda c: c.rollout.engine == "vllm_server", "add rollout=vllm_server"),
    Rule(
        ("learner.schedule",),
        lambda c: c.learner.min_lr_fraction < 1,
        "make learner.min_lr_fraction less than 1, at which the rate would stay where it is",
    ),
    Rule(
        ("rollout.budget.largest",),
        lambda c: c.rollout.budget.largest > c.dynamics.group_size or c.dynamics.name != "fixed",
        "make it more than dynamics.group_size, which a prompt gets anyway",
    ),
    Rule(
        ("learner.min_lr_fraction",),
        lambda c: c.learner.schedule != "constant",
        "set learner.schedule to linear or cosine",
    ),
    Rule(
        _under("evaluation", "samples_per_problem every_rounds temperature top_p top_k max_tokens greedy pass_at"),
        lambda c: c.evaluation.num_problems,
        "set evaluation.num_problems above 0",
    ),
    Rule(
        ("evaluation.greedy",),
        lambda c: c.evaluation.temperature != 0 or not c.evaluation.num_problems,
        "at evaluation.temperature=0 every completion is the likeliest one already",
    ),
    Rule(("evaluation.suite_folder",), lambda c: c.evaluation.suite, "name sets in evaluation.suite"),
    Rule(_under("tracking", "entity group job_type"), _tracked, "add tracking=wandb"),
    Rule(
        _under("tracking", "project tags"),
        lambda c: _tracked(c) or c.tracking.mlflow,
        "add tracking=wandb or tracking=mlflow",
    ),
    Rule(
        ("task.data.path",),
        lambda c: c.task.data.source != "arithmetic",
        "set task.data.source=file too, since task.data.source=arithmetic makes its problems itself",
    ),
    Rule(
        _under("task.data", "split subset"),
        lambda c: c.task.data.source == "hub",
        "set task.data.source=hub, since only the hub's data sets have it",
    ),
    Rule(
        _under("task.data", "size options seed"),
        lambda c: c.task.data.source in ("reasoning_gym", "arithmetic"),
        "use a generator; of a file or a hub's data set, task.data.limit takes the first rows",
    ),
    Rule(
        _under(
            "task.data", "question_column answer_column choices_column id_column answer_pattern source_column bad_rows"
        ),
        lambda c: c.task.data.source in ("file", "hub"),
        "use task=file or another task that reads rows, since a generator has no columns",
    ),
    Rule(
        ("task.data.limit",),
        lambda c: c.task.data.source in ("file", "hub"),
        "use task.data.size, which a generator has",
    ),
    Rule(
        ("task.data.selection.ngram",),
        lambda c: c.task.data.selection.evaluation_sets,
        "name files in task.data.selection.evaluation_sets",
    ),
    Rule(
        ("task.data.selection.solve_rate_column",),
        lambda c: _selects_by_rate(c.task.data.selection),
        "set task.data.selection.solve_rate, e.g. to [0.1, 0.9]; a curriculum has task.curriculum.solve_rate_column",
    ),
    Rule(("task.prompt.tool_parser",), lambda c: c.task.episode, "set task.episode, whose tools the model calls"),
    Rule(
        ("task.reward.format_pattern",),
        lambda c: any("format" in reward.weights for reward in c.task.rewards),
        "add the part format, e.g. task.reward.parts=[{name: math}, {name: format, weight: 0.1}]",
    ),
    Rule(("task.reward.overlong_buffer",), lambda c: c.task.reward.overlong == "soft", "set task.reward.overlong=soft"),
    Rule(
        _under("task.curriculum", "solve_rate_column without_solve_rate"),
        lambda c: c.task.curriculum.name != "uniform",
        "set task.curriculum.name",
    ),
    Rule(
        _under("task.curriculum", "easy hard width anneal_prompts"),
        lambda c: c.task.curriculum.name == "anneal",
        "set task.curriculum.name=anneal",
    ),
    Rule(
        _under("task.curriculum", "half_life rest rest_silent"),
        lambda c: c.task.curriculum.name == "online",
        "set task.curriculum.name=online",
    ),
)

NOT_TRAINED = (
    Rule(
        ("checkpoint.", "limits.", "num_steps", "normalization.", "objective."),
        lambda _: False,
        "only grpo train reads it; use that",
    ),
)
"""These are the rules of commands that measure a model and do not train it."""

ALL_PROBLEMS = (
    *NOT_TRAINED,
    Rule(
        _under("evaluation", "num_problems pass_at suite suite_folder every_rounds"),
        lambda _: False,
        "grpo solve-rates asks each selected problem for its samples, and task.data.limit takes the first rows",
    ),
)
"""These are the rules of `grpo solve-rates`."""

RULES_OF = {"train": RULES, "launch": RULES, "eval": NOT_TRAINED, "solve-rates": ALL_PROBLEMS}
"""These are the rules of each command that has some."""


def unread(words: Sequence[str], config: TrainConfig, rules: Sequence[Rule] = RULES) -> dict[str, str]:
    """Returns the words that have no effect in `config`, each with a message that says how to mend it."""
    changed = {key: value for key, _, value in differences(TrainConfig(), config)}
    if any(word.startswith("model.lora.alpha=") for word in words):
        # People type 32, which is the default.
        changed["model.lora.alpha"] = config.model.lora.alpha
    messages: dict[str, str] = {}
    for word in words:
        for key in _typed(word, changed):
            rule = next((rule for rule in rules if key.startswith(rule.keys) and not rule.read(config)), None)
            if rule:
                messages.setdefault(word, f"{key}={changed[key]} has no effect here: {rule.remedy}, or leave it out")
    return messages


def refuse_unread(words: Sequence[str], config: TrainConfig, rules: Sequence[Rule] = RULES) -> None:
    """Raises UserError for the first word that has no effect in `config`."""
    for message in unread(words, config, rules).values():
        raise UserError(message)


def _typed(word: str, keys: Iterable[str]) -> list[str]:
    """Returns those of `keys` that a word sets: `model.lora={alpha: 16}` sets model.lora.alpha. A group sets none."""
    match = re.match(r"\+{0,2}([\w.]+)=", word)
    if not match or (config_directory() / match[1]).is_dir():
        return []
    return [key for key in keys if key == match[1] or key.startswith(f"{match[1]}.")]
