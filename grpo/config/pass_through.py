"""This module checks settings that are passed on unchanged to vLLM, DeepSpeed and transformers, under their own names.

A setting that the run itself controls is refused, and the error names the key to use instead.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from grpo.config.engines import ModelConfig
from grpo.config.errors import UserError, require
from grpo.config.leaves import entries
from grpo.config.optimizer import chosen_optimizer
from grpo.config.ranges import value_at
from grpo.config.run import TrainConfig

RUN = ""
"""This value marks a setting without a key: it follows from other settings, or the run's exactness depends on it."""

ENGINE_ARGS = {
    "model": "model.path",
    "tokenizer": "model.path",
    "dtype": "rollout.precision",
    "max_model_len": "model.max_length",
    "max_num_seqs": "rollout.max_concurrent",
    "seed": "seed",
    "trust_remote_code": "model.trust_remote_code",
    "hf_overrides": "model.config",
    "enforce_eager": "rollout.enforce_eager",
    "gpu_memory_utilization": "rollout.gpu_memory_fraction, or rollout.servers.gpu_memory_fraction",
    "kv_cache_memory_bytes": "rollout.kv_cache_gib",
    "tensor_parallel_size": "rollout.tensor_parallel, or rollout.servers.tensor_parallel",
    "host": "rollout.servers.host",
    "port": "rollout.servers.port",
    "api_key": "the variable GRPO_SERVER_KEY",
    **dict.fromkeys(
        (
            *("generation_config", "logprobs_mode", "enable_prefix_caching", "worker_extension_cls"),
            *("disable_log_stats", "use_tqdm_on_load", "enable_sleep_mode", "distributed_executor_backend"),
            "sleep_preserve_parameter_names",
            *("data_parallel_size", "pipeline_parallel_size", "served_model_name", "weight_transfer_config"),
            *("enable_scale_out", "disable_uvicorn_access_log", "middleware", "quantization", "load_format"),
            *("enable_lora", "max_loras", "max_lora_rank", "lora_target_modules", "lora_dtype"),
        ),
        RUN,
    ),
}
SAMPLING = {
    **{name: f"rollout.sampling.{name}" for name in ("temperature", "top_p", "top_k", "max_tokens", "stop")},
    **dict.fromkeys(("stop_token_ids", "seed", "logprobs", "prompt_logprobs", "n", "detokenize"), RUN),
    **dict.fromkeys(("output_kind", "flat_logprobs"), RUN),
}
DEEPSPEED = {
    "zero_optimization.stage": "learner.zero_stage",
    "zero_optimization.offload_optimizer": "learner.offload_optimizer",
    "zero_optimization.zero_hpz_partition_size": "learner.hpz_partition_size",
    "bf16": "learner.precision",
    "fp16": "learner.precision",
    "gradient_clipping": "learner.max_gradient_norm",
    "optimizer.params.lr": "learner.learning_rate",
    "optimizer.params.betas": "learner.betas",
    "optimizer.params.eps": "learner.adam_epsilon",
    "optimizer.params.weight_decay": "learner.weight_decay",
    "optimizer.params.max_grad_norm": "learner.max_gradient_norm",
    "scheduler": "learner.schedule",
    **dict.fromkeys(
        (
            *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
            *("managed_gradient_accumulation", "data_types", "tensor_parallel", "sequence_parallel_size"),
            *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
            # These change by what a sum over ranks is divided, or leave out the gradient's norm.
            *("gradient_allreduce_op", "prescale_gradients", "gradient_predivide_factor", "sparse_gradients"),
            "zero_optimization.compute_grad_norm",
            # These compute another model, or in another precision.
            *("amp", "torch_autocast", "compression_training", "quantize_training", "weight_quantization"),
            *("progressive_layer_drop", "eigenvalue", "pipeline", "expert_parallel", "hybrid_engine"),
            # These choose batches, or how checkpoints are read.
            *("curriculum_learning", "data_efficiency", "elasticity", "autotuning", "checkpoint"),
        ),
        RUN,
    ),
}
MODEL = {
    **dict.fromkeys(("dtype", "torch_dtype"), "learner.precision and rollout.precision"),
    **dict.fromkeys(("architectures", "model_type", "auto_map", "vocab_size", "quantization_config"), RUN),
    **dict.fromkeys(("attn_implementation", "_attn_implementation", "use_cache"), RUN),
}
# These settings have settings of their own.
NESTED = ("learner.deepspeed.zero_optimization", "rollout.engine_args.speculative_config")
# Settings by which vLLM alone draws from some tokens, or ends a completion, and the values that turn them off.
FULL_DISTRIBUTION = {
    "rollout.sampling.top_p": 1,
    "rollout.sampling.top_k": 0,
    "rollout.sampling.stop": [],
    "evaluation.top_p": 1,
    "evaluation.top_k": 0,
}
# Further settings of sampling that do not change the distribution of any token.
NEUTRAL = {"ignore_eos"}


def check_pass_through(config: TrainConfig) -> None:
    """Raises UserError for the first passed-on setting that the run itself controls, or that conflicts with another."""
    rollout = config.rollout
    _check("rollout.engine_args", rollout.engine_args, ENGINE_ARGS)
    _check("rollout.sampling.extra", rollout.sampling.extra, SAMPLING)
    ignored = rollout.sampling.extra.get("ignore_eos", False)
    require(isinstance(ignored, bool), f"rollout.sampling.extra.ignore_eos={ignored}: it takes true or false")
    require(all(rollout.sampling.stop), "rollout.sampling.stop holds an empty text, which stops nothing: leave it out")
    _check("learner.deepspeed", config.learner.deepspeed, DEEPSPEED)
    for section, _, name in (key.rpartition(".") for key in NESTED):
        value = value_at(config, section).get(name) or {}
        require(isinstance(value, Mapping), f"{section}.{name}={value} takes keys and values, {{KEY: VALUE}}")
    chosen_optimizer(config.learner)
    check_model_settings(config.model)
    require(
        rollout.engine != "transformers" or not (rollout.engine_args or rollout.sampling.extra),
        "rollout.engine_args and rollout.sampling.extra are vLLM's, and rollout.engine is transformers: use "
        "rollout.engine=vllm, or leave them out",
    )
    for key, off in FULL_DISTRIBUTION.items():
        value = value_at(config, key)
        require(
            rollout.engine != "transformers" or value in (None, off),
            f"{key}={value} is vLLM's, and rollout.engine is transformers, which draws from all tokens and knows no "
            "stop strings: leave it out, or use rollout.engine=vllm",
        )
    drafted = "model" in (rollout.engine_args.get("speculative_config") or {})
    require(
        not drafted or rollout.engine == "vllm_server",
        "rollout.engine_args.speculative_config.model is lost while an engine in the learner's process sleeps: use "
        "rollout=vllm_server, or a method without a model (ngram)",
    )


def check_model_settings(model: ModelConfig) -> None:
    """Raises UserError for a setting in `model.config` that the run itself controls. A checkpoint brings some too."""
    _check("model.config", model.config, MODEL)


def check_training(config: TrainConfig) -> None:
    """Raises UserError for sampling settings by which sampler and learner would differ in token probabilities."""
    for name in config.rollout.sampling.extra:
        require(
            name in NEUTRAL,
            f"rollout.sampling.extra.{name}: training takes {', '.join(NEUTRAL)} alone, since what vLLM has besides "
            "may change probabilities of tokens, and the learner scores those of the model; `grpo eval` takes it",
        )


@contextmanager
def passing_on(key: str, settings: Mapping[str, Any], *error_kinds: type[Exception]) -> Iterator[None]:
    """Turns the error of a library that refuses `settings`, which `key` passes on to it, into a UserError of
    one line. `error_kinds` are the library's own kinds of errors. Where nothing is passed on, errors are left alone."""
    try:
        yield
    except (TypeError, ValueError, AssertionError, *error_kinds) as error:
        if not settings or isinstance(error, UserError):
            raise
        message = " ".join(str(error).partition("For further information")[0].split())
        raise UserError(f"{key}={dict(settings)} is refused: {message[:400]}") from error


def _check(path: str, settings: Mapping[str, Any], key_of_setting: Mapping[str, str]) -> None:
    for name, _ in entries(settings):
        # Servers take names with hyphens too, as flags.
        own_key = key_of_setting.get(name.replace("-", "_"))
        require(
            own_key is None,
            f"{path}.{name} is set by the run itself: " + (f"use {own_key}" if own_key else "leave it out"),
        )
