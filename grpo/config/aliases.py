"""This module maps key names of TRL, verl, OpenRLHF and vLLM to the names of the same settings here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

ALIASES = {
    "adapter": "model.start",
    "adapter_name_or_path": "model.start",
    "batch_size": "dynamics.prompts_per_step",
    "beta": "objective.kl.coefficient",
    "bf16": "learner.precision",
    "clip_ratio": "objective.clip_low",
    "clip_ratio_high": "objective.clip_high",
    "clip_ratio_low": "objective.clip_low",
    "custom_reward_function": "task.reward.parts",
    "dataset": "task.data.path",
    "dataset_name": "task.data.path",
    "entropy_coeff": "objective.entropy_coefficient",
    "epochs": "num_steps",
    "epsilon": "objective.clip_low",
    "epsilon_high": "objective.clip_high",
    "eval_steps": "evaluation.every_rounds",
    "group_size": "dynamics.group_size",
    "generate_max_len": "rollout.sampling.max_tokens",
    "gpu_memory_utilization": "rollout.gpu_memory_fraction",
    "grad_clip": "learner.max_gradient_norm",
    "gradient_accumulation_steps": "learner.micro_batch_tokens",
    "importance_sampling_level": "objective.ratio",
    "init_kl_coef": "objective.kl.coefficient",
    "kl_coef": "objective.kl.coefficient",
    "kl_loss_coef": "objective.kl.coefficient",
    "learning_rate": "learner.learning_rate",
    "lora_adapter_path": "model.start",
    "lora_alpha": "model.lora.alpha",
    "lora_r": "model.lora.rank",
    "lora_rank": "model.lora.rank",
    "loss_agg_mode": "objective.aggregation.level",
    "loss_type": "objective.aggregation.level",
    "lr": "learner.learning_rate",
    "lr_scheduler_type": "learner.schedule",
    "lr_warmup_steps": "learner.warmup_steps",
    "mask_truncated_completions": "task.reward.overlong",
    "max_completion_length": "rollout.sampling.max_tokens",
    "max_grad_norm": "learner.max_gradient_norm",
    "max_length": "model.max_length",
    "max_model_len": "model.max_length",
    "max_new_tokens": "rollout.sampling.max_tokens",
    "max_num_seqs": "rollout.max_concurrent",
    "max_prompt_length": "task.prompt.max_tokens",
    "max_response_length": "rollout.sampling.max_tokens",
    "max_steps": "num_steps",
    "max_tokens": "rollout.sampling.max_tokens",
    "micro_batch_size": "learner.micro_batch_tokens",
    "model_name_or_path": "model.path",
    "model_revision": "model.revision",
    "n": "dynamics.group_size",
    "n_gpus_per_node": "hardware.ranks_per_node",
    "n_samples_per_prompt": "dynamics.group_size",
    "nnodes": "hardware.learner_nodes",
    "num_generations": "dynamics.group_size",
    "num_iterations": "dynamics.passes",
    "num_train_epochs": "num_steps",
    "per_device_train_batch_size": "dynamics.prompts_per_step",
    "ppo_epochs": "dynamics.passes",
    "ppo_max_token_len_per_gpu": "learner.micro_batch_tokens",
    "ppo_micro_batch_size_per_gpu": "learner.micro_batch_tokens",
    "ppo_mini_batch_size": "dynamics.prompts_per_step",
    "project_name": "tracking.project",
    "report_to": "tracking.wandb",
    "resume_from_checkpoint": "checkpoint.resume",
    "reward_funcs": "task.reward.parts",
    "reward_weights": "task.reward.parts",
    "save_freq": "checkpoint.every_rounds",
    "save_steps": "checkpoint.every_rounds",
    "save_total_limit": "checkpoint.keep_last",
    "scale_rewards": "normalization.exponent",
    "steps": "num_steps",
    "steps_per_generation": "dynamics.refresh_interval",
    "system_prompt": "task.prompt.system",
    "temperature": "rollout.sampling.temperature",
    "tensor_parallel_size": "rollout.servers.tensor_parallel",
    "test_freq": "evaluation.every_rounds",
    "top_k": "rollout.sampling.top_k",
    "top_p": "rollout.sampling.top_p",
    "torch_dtype": "learner.precision",
    "total_epochs": "num_steps",
    "total_training_steps": "num_steps",
    "train_batch_size": "dynamics.prompts_per_step",
    "train_files": "task.data.path",
    "vllm_gpu_memory_utilization": "rollout.gpu_memory_fraction",
    "vllm_mode": "rollout.engine",
    "vllm_tensor_parallel_size": "rollout.servers.tensor_parallel",
    "warmup_steps": "learner.warmup_steps",
    "weight_decay": "learner.weight_decay",
}


def hint(key: str, known: Sequence[str]) -> str:
    """Returns the end of the message about an unknown key: the key that may be meant, or how to search."""
    if key in known:
        nested = "…"
        for name in reversed(key.split(".")):
            nested = f"{{{name}: {nested}}}"
        return f": a file nests keys, so write {nested[1:-1]}"
    if alias := ALIASES.get(key.rpartition(".")[2].lower()):
        return f"; here it is {alias}"
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else "; `grpo config WORD` searches all keys"
