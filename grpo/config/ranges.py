"""This part of `grpo.config.validate` checks every value by itself: numbers for their ranges, and choices.

Its tables say which values a key may have; `grpo.config.validate` refuses all others.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from typing import Any

from grpo.config.directory import config_directory
from grpo.config.engines import LearnerConfig
from grpo.config.errors import require
from grpo.config.leaves import leaves
from grpo.config.optimizer import with_learning_rate
from grpo.config.run import TrainConfig
from grpo.config.task import SourceRewardConfig


def under(section: str, names: str) -> tuple[str, ...]:
    """Returns the keys of several names of a section."""
    return tuple(f"{section}.{name}" for name in names.split())


# These numbers may be negative; all others may not.
SIGNED = ("normalization.exponent", "task.reward.correct_at", "gates[].below", "gates[].above")
# The keys of weights, which may be negative too, end like this.
WEIGHT = "parts[].weight"
SHARES = (
    *under("dynamics.adaptive", "max_clip_fraction min_ess min_saving stop_gain"),
    *("learner.min_lr_fraction", "objective.clip_low"),
    *("rollout.gpu_memory_fraction", "rollout.servers.gpu_memory_fraction"),
    *under("task.curriculum", "easy hard without_solve_rate width"),
)

PORTS = ("rollout.servers.port", "hardware.first_port")
# A whole number with more digits fits no counter of the run.
MOST_DIGITS = 18
# No run uses values beyond these; a mistyped exponent does.
UPPER = {
    **{"dynamics.group_size": 16384, "dynamics.adaptive.largest_group": 16384, "rollout.budget.largest": 16384},
    **{"evaluation.samples_per_problem": 16384, "model.lora.alpha": 16384},
    **{"objective.kl.coefficient": 1000, "objective.entropy_coefficient": 1000, "objective.selection.penalty": 1000},
    **{"objective.entropy_step": 1, "objective.entropy_target": 20},
    **{"weight_sync.bucket_mib": 65536, "rollout.max_concurrent": 100_000},
    # The servers that a launch starts have ports up to 200 higher.
    "hardware.first_port": 65_335,
    **{"hardware.gpu_memory_gib": 10_000, "checkpoint.grace_seconds": 86_400},
}
LOWER = {
    **{"learner.micro_batch_tokens": 16, "task.reward.memory_gib": 0.25, "task.limits.memory_gib": 0.25},
    "hardware.first_port": 1,
}
LAST_PORT = 65535
LAST_SEED = 2**32 - 1
"""`numpy.random.seed`, which vLLM calls with its engine's seed, takes 32 bits."""

CHOICES = {
    "normalization.name": ("dial", "pass_at_k", "reinforce_plus_plus"),
    "normalization.epsilon_in": ("std", "variance"),
    "normalization.parts": ("sum", "each"),
    "normalization.scope": ("group", "batch"),
    "objective.name": ("clip", "cispo", "unclipped", "sapo", "dppo", "gmpo"),
    "objective.ratio": ("token", "sequence", "sequence_token"),
    "objective.old_logprobs": ("learner", "sampler"),
    "objective.aggregation.level": ("token_mean", "sequence_mean", "constant", "prompt_mean"),
    "objective.selection.name": ("none", "clip_cov", "kl_cov", "top_entropy"),
    "objective.kl.estimator": ("k1", "k2", "k3"),
    "objective.kl.place": ("loss", "reward"),
    "objective.correction.level": ("none", "token", "sequence", "sequence_mean"),
    "objective.correction.mode": ("truncate", "mask"),
    "dynamics.name": ("fixed", "adaptive"),
    "dynamics.adaptive.cost": ("tokens", "seconds"),
    "model.head_precision": ("float32", "model", "auto"),
    "model.source": ("huggingface", "smollm2", "tiny"),
    "pipeline": ("off", "one_round", "continuous"),
    "rollout.engine": ("vllm", "vllm_server", "transformers"),
    "rollout.sleep": ("auto", "never", "cache", "all"),
    "rollout.precision": ("bfloat16", "float32", "auto"),
    "rollout.refill.fallback": ("silent", "short"),
    "learner.precision": ("bfloat16", "float32", "auto"),
    "learner.fused": ("auto", "never"),
    "learner.schedule": ("constant", "linear", "cosine"),
    "learner.layout": ("shared", "packed", "padded"),
    "learner.zero_stage": (0, 1, 2, 3),
    "task.data.source": ("file", "hub", "reasoning_gym", "arithmetic"),
    "task.data.bad_rows": ("skip", "refuse"),
    "task.data.selection.without_solve_rate": ("keep", "drop"),
    "task.curriculum.name": ("uniform", "weighted", "anneal", "online"),
    "task.prompt.too_long": ("skip", "refuse"),
    "task.limits.failed": ("spoil", "truncate"),
    "task.limits.sandbox": ("auto", "none"),
    "task.reward.sandbox": ("auto", "none"),
    "task.reward.overlong": ("keep", "zero", "mask", "soft"),
    "task.reward.extract": ("boxed", "tag", "final", "last_number", "last_line", "all"),
    "checkpoint.resume": (False, True, "auto"),
    "tracking.wandb": ("off", "offline", "online"),
    "tracking.completions": ("some", "all"),
    "hardware.shell": ("here", "ssh", "srun", "each"),
    "device": ("auto", "cpu", "cuda"),
}
IMPORTED = ("normalization.name", "objective.name", "objective.aggregation.level", "objective.kl.estimator")
"""These keys take the import path ``"package.module:function"`` of a function besides their choices."""
POSITIVE = (
    *("num_steps", "model.lora.alpha", "evaluation.samples_per_problem", "checkpoint.keep_last"),
    *under("dynamics", "group_size refresh_interval prompts_per_step passes"),
    *under("dynamics.adaptive", "decide_every smallest_group longest_interval"),
    *under("rollout", "deadline_seconds kv_cache_gib gpu_memory_fraction max_concurrent tensor_parallel"),
    *under("rollout.servers", "gpu_memory_fraction replicas tensor_parallel start_seconds request_seconds"),
    *under("rollout.sampling", "max_tokens temperature"),
    *("rollout.refill.max_waves", "rollout.budget.pilot"),
    *under("learner", "adam_epsilon deadline_seconds micro_batch_tokens logit_chunk_tokens max_skipped_steps"),
    *("learner.sequence_parallel", *under("weight_sync", "bucket_mib deadline_seconds")),
    *under("objective", "correction.cap entropy_step temperature_positive temperature_negative"),
    *under("task.curriculum", "block width anneal_prompts prior_samples half_life"),
    *under("task.reward", "workers timeout_seconds memory_gib"),
    *under("task.limits", "turns observed_tokens seconds memory_gib program_seconds program_characters at_once"),
    *under("hardware", "learner_nodes ranks_per_node"),
)


def check_values(config: TrainConfig, beginnings: str | tuple[str, ...] = "") -> None:
    """Raises UserError for a number out of its range, and for an unknown choice.

    Choices, and numbers that must be above 0, are checked for keys with one of these `beginnings`.
    """
    _check_ranges(config)
    for key, choices in ((key, choices) for key, choices in CHOICES.items() if key.startswith(beginnings)):
        value, imported = value_at(config, key), key in IMPORTED
        require(
            value != "False" or "off" not in choices,
            f'{key}: YAML reads off without quotes as false: write {key}: "off" in the file',
        )
        group = key.removesuffix(".name")
        is_recipe = value not in choices and (config_directory() / group / f"{value}.yaml").is_file()
        require(not is_recipe, f"{key}={value} is a choice of the whole group: write {group}={value}")
        require(
            value in choices or (imported and ":" in value),
            f"{key}={value!r} is unknown: choose one of {as_typed(choices)}"
            + (", or give an import path package.module:function" if imported else ""),
        )
    for key in (key for key in POSITIVE if key.startswith(beginnings)):
        require(value_at(config, key) > 0, f"{key}={value_at(config, key)} must be above 0")


def as_typed(choices: Iterable[bool | int | str]) -> str:
    """Returns choices as they are typed.

    >>> as_typed((False, True, "auto"))
    'false | true | auto'
    """
    return " | ".join(str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in choices)


def check_sizes(config: TrainConfig) -> None:
    """Raises UserError for a number that is far outside all use, in a run that trains."""
    for key, most in UPPER.items():
        require(value_at(config, key) <= most, f"{key}={value_at(config, key):g} must be at most {most}")
    for key, least in LOWER.items():
        require(value_at(config, key) >= least, f"{key}={value_at(config, key)} must be at least {least}")


def _check_ranges(config: TrainConfig) -> None:
    """Raises UserError for the first number that is infinite, NaN or outside its key's range."""
    require(config.seed <= LAST_SEED, f"seed={config.seed} must be at most {LAST_SEED}")
    for key, value in _numbers(config):
        # A whole number with more digits may be too large for the float that `math.isfinite` makes of it.
        is_float = isinstance(value, float)
        require(
            is_float or abs(value) < 10**MOST_DIGITS,
            f"{key}={value!s:.20}… is too large: give at most {MOST_DIGITS} digits",
        )
        require(math.isfinite(value), f"{key}={value} must be a finite number")
        require(value >= 0 or key in SIGNED or key.endswith(WEIGHT), f"{key}={value} must not be negative")
        require(value <= 1 or key not in SHARES, f"{key}={value} must lie between 0 and 1")
        require(value <= LAST_PORT or key not in PORTS, f"{key}={value} is no port: the last one is {LAST_PORT}")
    servers = config.rollout.servers
    last = servers.port + servers.replicas - 1
    require(
        not servers.port or last <= LAST_PORT,
        f"rollout.servers.replicas={servers.replicas} from rollout.servers.port={servers.port} on need ports up to "
        f"{last}, and the last one is {LAST_PORT}: lower one of the two",
    )
    for key, weight in _numbers(config):
        require(
            not key.endswith(WEIGHT) or not weight or 1e-6 <= abs(weight) <= 1e6,
            f"{key}={weight:g} must be 0, or lie between 1e-6 and 1e6 in size",
        )
    exponent = config.normalization.exponent
    require(abs(exponent) <= 10, f"normalization.exponent={exponent:g} must lie between -10 and 10; GRPO's is 1")
    _check_optimizer(with_learning_rate(config).learner)


def _check_optimizer(learner: LearnerConfig) -> None:
    """Raises UserError for settings with which AdamW overwrites the weights instead of training them.

    A step changes each weight by about the learning rate, and shrinks it by learning rate × weight decay
    (arXiv:1711.05101).
    """
    rate, betas = learner.learning_rate, learner.betas
    require(rate > 0, f"learner.learning_rate={rate:g} trains nothing: leave it out, and the run takes its default")
    require(
        rate < 0.5,
        f"learner.learning_rate={rate:g} is about the change that AdamW makes to every weight in each step, but "
        "weights are below 1: use 1e-6 to 1e-4",
    )
    require(
        rate * learner.weight_decay <= 0.1,
        f"learner.weight_decay={learner.weight_decay:g} times learner.learning_rate={rate:g} takes "
        f"{rate * learner.weight_decay:.0%} of every weight in each step: lower one of the two",
    )
    require(
        len(betas) == 2 and all(0 <= beta < 1 for beta in betas),
        f"learner.betas={betas} must be two numbers of at least 0 and below 1, e.g. [0.9, 0.999]",
    )


def _numbers(config: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields the key and value of every number, those in lists and in `task.reward.by_source` included.

    Other mappings are passed over: libraries or other checks know the ranges of their entries.
    """
    for name, value in leaves(config):
        key = f"{prefix}{name}"
        for source, entry in value.items() if isinstance(value, dict) else ():
            if isinstance(entry, SourceRewardConfig):
                yield from _numbers(entry, f"{key}.{source}.")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(value, list) and is_dataclass(item):
                yield from _numbers(item, f"{key}[].")
            elif isinstance(item, int | float) and not isinstance(item, bool):
                yield key, item


def value_at(config: Any, path: str) -> Any:
    """Returns the value at a dotted path, e.g. ``"learner.zero_stage"``."""
    for name in path.split("."):
        config = getattr(config, name)
    return config
