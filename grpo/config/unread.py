"""This module refuses words that have no effect, since somebody who types a key means something by it.

A key counts as typed if it stands in a word and its value is not the default one. The rules leave alone
whatever a group's choice or a recipe sets, so one word may change a recipe, such as model.lora.rank=0.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf import OmegaConf

from grpo.config.errors import UserError
from grpo.config.hydra import config_directory
from grpo.config.leaves import differences, leaves
from grpo.config.ranges import as_typed, under, value_at
from grpo.config.run import TrainConfig
from grpo.config.saved import settings_of
from grpo.config.task import SelectionConfig


class Rule(NamedTuple):
    """A rule says when keys are read, and how to mend a word that is not. A key that ends in a dot is a section."""

    keys: tuple[str, ...]
    read: Callable[[TrainConfig], object]
    remedy: str


def _needing(keys: tuple[str, ...], needed: str) -> Rule:
    """Returns the rule of keys that are read only where `needed`, a word of the command line, is set.

    The word names a key that must not be 0, false or empty, or a key or group with its possible values. An import path
    may be in a value's place, since its function may read anything.
    """
    key, _, values = needed.partition("=")

    def read(config: TrainConfig) -> bool:
        part = value_at(config, key)
        value = getattr(part, "engine", getattr(part, "name", part))
        return as_typed([value]) in values.split("|") or ":" in str(value) if values else bool(value)

    word = f"{key}={values.partition('|')[0]}" if values else key
    return Rule(keys, read, f"{'add' if (config_directory() / key).is_dir() else 'set'} {word}")


def _rounds(config: TrainConfig) -> int:
    """Returns how many rounds a run has at most."""
    interval = config.dynamics.refresh_interval if config.dynamics.name == "fixed" else 1
    return -(-config.num_steps // interval)


def _selects_by_rate(selection: SelectionConfig) -> bool:
    return [*selection.solve_rate] != [0.0, 1.0] or selection.without_solve_rate == "drop"


# Keys → the word without which they are not read.
NEEDED = {
    (*under("model.lora", "alpha target_modules"), "rollout.merge_adapters"): "model.lora.rank",
    ("hardware.gpu_memory_gib",): "dry_run=true",
    ("dynamics.adaptive.",): "dynamics=adaptive",
    under("dynamics.adaptive", "stop_patience stop_min_steps"): "dynamics.adaptive.stop_gain",
    ("task.prompt.chat_template",): "task.prompt.chat=true",
    ("normalization.k",): "normalization=pass_at_k",
    ("normalization.epsilon_in",): "normalization.epsilon",
    under("objective", "clip_low clip_high"): "objective=clip|cispo|dppo|gmpo",
    under("objective", "temperature_positive temperature_negative"): "objective=sapo",
    ("objective.entropy_step",): "objective.entropy_target",
    ("objective.aggregation.constant_length",): "objective.aggregation.level=constant",
    ("objective.kl.",): "objective.kl.coefficient",
    ("objective.kl.refresh_rate",): "objective.kl.refresh_every",
    under("objective.correction", "level cap mode"): "objective.old_logprobs=learner",
    under("objective.correction", "cap mode"): "objective.correction.level=token|sequence|sequence_mean",
    ("objective.selection.share",): "objective.selection.name=top_entropy|clip_cov|kl_cov",
    under("objective.selection", "low high"): "objective.selection.name=clip_cov",
    ("objective.selection.penalty",): "objective.selection.name=kl_cov",
    under("rollout.refill", "max_waves fallback"): "rollout.refill.enabled=true",
    under("rollout.budget", "pilot largest"): "rollout.budget.enabled=true",
    (
        *under("rollout.servers", "replicas tensor_parallel urls host port first_gpu gpu_memory_fraction"),
        "hardware.server_nodes",
    ): "rollout=vllm_server",
    under("rollout", "own_process sleep"): "rollout=vllm",
    under("rollout", "kv_cache_gib enforce_eager servers.start_seconds servers.request_seconds"): (
        "rollout=vllm|vllm_server"
    ),
    ("rollout.max_staleness",): "pipeline=continuous",
    ("hardware.hosts",): "hardware.shell=ssh|srun|each",
    ("learner.dither",): "learner.precision=bfloat16|auto",
    ("learner.min_lr_fraction",): "learner.schedule=linear|cosine",
    under("evaluation", "samples_per_problem every_rounds temperature top_p top_k max_tokens greedy pass_at"): (
        "evaluation.num_problems"
    ),
    ("evaluation.suite_folder",): "evaluation.suite",
    under("tracking", "entity group job_type"): "tracking.wandb=online|offline",
    ("task.data.path",): "task.data.source=file|hub|reasoning_gym",
    under("task.data", "split subset"): "task.data.source=hub",
    ("task.data.selection.ngram",): "task.data.selection.evaluation_sets",
    ("task.prompt.tool_parser",): "task.episode",
    ("task.reward.overlong_buffer",): "task.reward.overlong=soft",
    under("task.curriculum", "solve_rate_column without_solve_rate"): "task.curriculum.name=weighted|anneal|online",
    ("task.curriculum.block",): "task.curriculum.name=weighted|anneal",
    ("task.curriculum.prior_samples",): "task.curriculum.name=weighted|online",
    under("task.curriculum", "easy hard width anneal_prompts"): "task.curriculum.name=anneal",
    under("task.curriculum", "half_life rest rest_silent"): "task.curriculum.name=online",
}
OF_ROWS = Rule(("task.data.limit",), lambda c: c.task.data.source in ("file", "hub"),
               "use task.data.size, which a generator has")  # fmt: skip

RULES = (
    *(_needing(keys, needed) for keys, needed in NEEDED.items()),
    Rule(("model.revision",), lambda c: c.model.source == "huggingface" and not Path(c.model.path).is_dir(),
         "give a model of the hub, by model=huggingface model.path=OWNER/NAME"),
    Rule(("dynamics.guard",), lambda c: c.dynamics.name == "fixed" or c.dynamics.guard,
         "use dynamics=fixed, since dynamics=adaptive always has its guard"),
    Rule(("dynamics.adaptive.decide_every",), lambda c: c.dynamics.adaptive.decide_every < _rounds(c),
         "make it fewer than the rounds of the run"),
    Rule(("dynamics.adaptive.stop_gain",), lambda c: c.dynamics.adaptive.stop_min_steps < c.num_steps,
         "make dynamics.adaptive.stop_min_steps less than num_steps"),
    Rule(("dynamics.refresh_interval",), lambda c: c.dynamics.refresh_interval <= c.num_steps,
         "make it at most num_steps, the steps of the whole run"),
    Rule(("evaluation.every_rounds",), lambda c: c.evaluation.every_rounds < _rounds(c),
         "make it fewer than the rounds of the run"),
    Rule(("normalization.epsilon",),
         lambda c: c.normalization.name != "dial" or any(c.normalization.dials) or c.normalization.parts == "each",
         "use normalization=grpo or another that divides by a number to which it is added"),
    Rule(under("normalization", "scope ddof"),
         lambda c: (c.normalization.name != "dial" or c.normalization.parts == "each"
                    or bool(c.normalization.exponent or c.normalization.min_std)),
         "set normalization.exponent, since σ to the power of 0 is 1"),
    Rule(("checkpoint.export_every",), lambda c: c.checkpoint.export_every <= _rounds(c),
         "make it at most the rounds of the run"),
    Rule(("tracking.profile_rounds",), lambda c: all(index < _rounds(c) for index in c.tracking.profile_rounds),
         "name rounds that num_steps and dynamics.refresh_interval leave room for, counted from 0"),
    Rule(("objective.kl.refresh_every",), lambda c: c.objective.kl.refresh_every < c.num_steps,
         "make it less than num_steps"),
    Rule(("task.limits.observed_tokens",), lambda c: not c.model.max_length,
         "set model.max_length=0, which then makes room for them"),
    Rule(("rollout.gpu_memory_fraction",), lambda c: c.rollout.engine == "vllm",
         "use rollout=vllm, or rollout.servers.gpu_memory_fraction for servers"),
    # grpo launch gives learners the addresses of the servers that it starts.
    Rule(under("rollout.servers", "replicas port first_gpu gpu_memory_fraction"),
         lambda c: not c.rollout.servers.urls or c.hardware.server_nodes,
         "leave out rollout.servers.urls, whose servers have been started already"),
    Rule(("rollout.refill.enabled",), lambda c: c.rollout.refill.max_waves > 1,
         "make rollout.refill.max_waves 2 or more, since the first wave counts"),
    Rule(("learner.schedule",), lambda c: c.learner.min_lr_fraction < 1,
         "make learner.min_lr_fraction less than 1, at which the rate would stay where it is"),
    Rule(("rollout.budget.largest",),
         lambda c: c.rollout.budget.largest > c.dynamics.group_size or c.dynamics.name != "fixed",
         "make it more than dynamics.group_size, which a prompt gets anyway"),
    Rule(("evaluation.greedy",), lambda c: c.evaluation.temperature != 0 or not c.evaluation.num_problems,
         "at evaluation.temperature=0 every completion is the likeliest one already"),
    Rule(under("tracking", "project tags"), lambda c: c.tracking.wandb != "off" or c.tracking.mlflow,
         "add tracking=wandb or tracking=mlflow"),
    Rule(under("task.data", "size options seed"), lambda c: c.task.data.source in ("reasoning_gym", "arithmetic"),
         "use a generator, or task.data.limit for the first rows of a file or a hub's data set"),
    Rule(under("task.data", "question_column answer_column choices_column id_column answer_pattern source_column "
               "bad_rows"), lambda c: c.task.data.source in ("file", "hub"),
         "use task=file or another task that reads rows, since a generator has no columns"),
    OF_ROWS,
    Rule(("task.data.selection.solve_rate_column",), lambda c: _selects_by_rate(c.task.data.selection),
         "set task.data.selection.solve_rate, e.g. to [0.1, 0.9]; a curriculum has task.curriculum.solve_rate_column"),
    Rule(("task.reward.format_pattern",), lambda c: any("format" in reward.weights for reward in c.task.rewards),
         "add the part format, e.g. task.reward.parts=[{name: math}, {name: format, weight: 0.1}]"),
)  # fmt: skip

MEANT = ("model.lora.alpha", "dynamics.guard")
"""Somebody who types these keys means their default values too, such as an alpha of 32."""

OF_TRAINING = (
    *("checkpoint.", "limits.", "num_steps", "normalization.", "objective.", "dynamics.", "dry_run"),
    *("evaluation.every_rounds", *under("learner", "learning_rate schedule warmup_steps weight_decay")),
    "learner.max_gradient_norm",
)
NOT_TRAINED = (
    Rule(OF_TRAINING, lambda _: False, "only grpo train reads it; use that"),
    Rule(("model.lora.",), lambda c: c.model.start, "give the folder of an adapter or a checkpoint as model.path"),
    Rule(("rollout.sampling.temperature",), lambda _: False, "set evaluation.temperature"),
    OF_ROWS,
)
"""These are the rules of commands that measure a model and do not train it."""

ALL_PROBLEMS = (
    *NOT_TRAINED,
    Rule(under("evaluation", "num_problems pass_at suite suite_folder every_rounds"), lambda _: False,
         "grpo solve-rates asks each selected problem: for fewer set task.data.limit, or task.data.size of a "
         "generator"),
)  # fmt: skip
"""These are the rules of `grpo solve-rates`."""

RULES_OF = {"train": RULES, "launch": RULES, "eval": NOT_TRAINED, "solve-rates": ALL_PROBLEMS}
"""These are the rules of each command that has some."""


def unread(words: Sequence[str], config: TrainConfig, rules: Sequence[Rule] = RULES) -> dict[str, str]:
    """Returns the words that have no effect in `config`, each with a message that says how to mend it."""
    changed = {key: value for key, _, value in differences(TrainConfig(), config)}
    for key in MEANT:
        if any(word.startswith(f"{key}=") for word in words):
            changed[key] = value_at(config, key)
    messages: dict[str, str] = {}
    for word in words:
        if other := _undoing(word, words, config):
            messages[word] = f"{word} has no effect here, since {other} undoes it: leave out one of the two"
        for key in _typed(word, changed):
            rule = next((rule for rule in rules if key.startswith(rule.keys) and not rule.read(config)), None)
            if rule:
                messages.setdefault(word, f"{key}={changed[key]} has no effect here: {rule.remedy}, or leave it out")
    return messages


def refuse_unread(words: Sequence[str], config: TrainConfig, rules: Sequence[Rule] = RULES) -> None:
    """Raises UserError for the first word that has no effect in `config`."""
    for message in unread(words, config, rules).values():
        raise UserError(message)


def _undoing(word: str, words: Sequence[str], config: TrainConfig) -> str:
    """Returns the words that undo another one: they set all keys of a group's choice back to their defaults, or name a
    folder that is read in place of `model.source`. A choice of one number, such as normalization=dial, only begins."""
    if word in ("model.source=tiny", "model.source=smollm2") and config.model.source not in word:
        return f"model.path={config.model.path}"
    group, _, choice = word.partition("=")
    if not (config_directory() / group / f"{choice}.yaml").is_file():
        return ""
    own, default = dict(leaves(OmegaConf.to_container(settings_of(word)))), TrainConfig()
    undoing = [other for other in words if other.partition("=")[0] in own]
    switches = len(undoing) == len(own) and not any(isinstance(value, float) for value in own.values())
    undone = switches and all(value_at(config, key) == value_at(default, key) != value for key, value in own.items())
    return " and ".join(undoing) if undone else ""


def _typed(word: str, keys: Iterable[str]) -> list[str]:
    """Returns those of `keys` that a word sets: `model.lora={alpha: 16}` sets model.lora.alpha, and
    task.data.options.size=9 an entry of task.data.options. A group sets none."""
    match = re.match(r"\+{0,2}([\w.]+)=", word)
    if not match or (config_directory() / match[1]).is_dir():
        return []
    return [key for key in keys if f"{key}.".startswith(f"{match[1]}.") or match[1].startswith(f"{key}.")]
