"""These tables say which values a key may have; `grpo.config.validate` refuses all others."""

from __future__ import annotations

from typing import Any

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
    "dynamics.adaptive.hold": ("prompts", "samples"),
    "model.head_precision": ("float32", "model", "auto"),
    "model.source": ("huggingface", "smollm2", "tiny"),
    "pipeline": ("off", "one_round", "continuous"),
    "rollout.engine": ("vllm", "vllm_server", "transformers"),
    "rollout.precision": ("bfloat16", "float32", "auto"),
    "rollout.refill.fallback": ("silent", "short"),
    "learner.precision": ("bfloat16", "float32", "auto"),
    "learner.schedule": ("constant", "linear", "cosine"),
    "learner.layout": ("shared", "packed", "padded"),
    "learner.zero_stage": (0, 1, 2, 3),
    "task.data.source": ("file", "hub", "reasoning_gym", "arithmetic"),
    "task.data.bad_rows": ("skip", "refuse"),
    "task.data.selection.without_solve_rate": ("keep", "drop"),
    "task.curriculum.name": ("uniform", "weighted", "anneal", "online"),
    "task.prompt.too_long": ("skip", "refuse"),
    "task.reward.overlong": ("keep", "mask", "soft"),
    "task.reward.extract": ("boxed", "tag", "final", "last_number", "last_line", "all"),
    "tracking.wandb": ("off", "offline", "online"),
    "tracking.completions": ("some", "all"),
    "hardware.shell": ("here", "ssh", "srun"),
    "device": ("auto", "cpu", "cuda"),
}

IMPORTED = ("normalization.name", "objective.name", "objective.aggregation.level", "objective.kl.estimator")
"""These keys take the import path ``"package.module:function"`` of a function besides their choices."""

POSITIVE = (
    "num_steps",
    "dynamics.group_size",
    "dynamics.refresh_interval",
    "dynamics.prompts_per_step",
    "dynamics.adaptive.decide_every",
    "dynamics.adaptive.smallest_group",
    "dynamics.adaptive.longest_interval",
    "model.lora.alpha",
    "rollout.deadline_seconds",
    "rollout.kv_cache_gib",
    "rollout.gpu_memory_fraction",
    "rollout.servers.gpu_memory_fraction",
    "rollout.sampling.max_tokens",
    "rollout.sampling.temperature",
    "rollout.max_concurrent",
    "rollout.tensor_parallel",
    "rollout.refill.max_waves",
    "rollout.budget.pilot",
    "rollout.servers.replicas",
    "rollout.servers.tensor_parallel",
    "rollout.servers.start_seconds",
    "rollout.servers.request_seconds",
    "learner.adam_epsilon",
    "learner.deadline_seconds",
    "learner.learning_rate",
    "learner.micro_batch_tokens",
    "learner.logit_chunk_tokens",
    "learner.max_skipped_steps",
    "learner.sequence_parallel",
    "weight_sync.bucket_mib",
    "weight_sync.deadline_seconds",
    "objective.correction.cap",
    "dynamics.passes",
    "task.curriculum.block",
    "task.curriculum.width",
    "task.curriculum.anneal_prompts",
    "task.curriculum.prior_samples",
    "task.curriculum.half_life",
    "task.reward.workers",
    "task.reward.timeout_seconds",
    "task.reward.memory_gib",
    "evaluation.samples_per_problem",
    "checkpoint.keep_last",
    "hardware.learner_nodes",
    "hardware.ranks_per_node",
)


def value_at(config: Any, path: str) -> Any:
    """Returns the value at a dotted path, e.g. ``"learner.zero_stage"``."""
    for name in path.split("."):
        config = getattr(config, name)
    return config
