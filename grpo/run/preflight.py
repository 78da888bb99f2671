"""This module checks, before anything starts, that engine, model and functions of the loss fit together."""

import os
from collections.abc import Sequence

from grpo.algorithm.probe import check_functions
from grpo.config import TrainConfig
from grpo.config.errors import UserError, require
from grpo.config.placement import beside_learner, uses_running_servers
from grpo.host import kernels, ranks
from grpo.learner.small_copy import EXPERTS
from grpo.models.files import ModelFiles, setting_of
from grpo.rollout.engine_arguments import NAMES_WEIGHTS, RELEASES_CACHE, vllm_since, vllm_version
from grpo.tasks.prompt_encoding import PromptEncoder
from grpo.tasks.task import LoadedTask
from grpo.types import metrics as m

# The widths of attention heads that vLLM's CPU build (0.32) computes.
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
ENGINE_VARIABLE = "VLLM_ENABLE_V1_MULTIPROCESSING"


def check_own_functions(config: TrainConfig) -> None:
    """Tries the functions of the loss that are named by import path. Raises UserError for one that does not fit."""
    try:
        check_functions(config.normalization, config.objective)
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from error


def check_repeatable(config: TrainConfig) -> None:
    """Raises UserError where `deterministic` is asked for, and a clock decides what shares a batch or comes next. Time
    limits of rewards decide too, but of programs that hang."""
    if not config.deterministic:
        return
    require(
        config.pipeline != "continuous",
        "deterministic=true cannot hold with pipeline=continuous, where a clock decides which weights write which "
        "tokens: use pipeline=off or pipeline=one_round",
    )
    by_clock = config.dynamics.name == "adaptive" and config.dynamics.adaptive.cost == "seconds"
    require(
        not by_clock,
        "deterministic=true cannot hold where measured seconds decide about the next round: set "
        "dynamics.adaptive.cost=tokens",
    )
    for section, name in ((config.limits, "limits.seconds"), (config.rollout, "rollout.group_deadline_seconds")):
        seconds = getattr(section, name.partition(".")[2])
        require(
            not seconds, f"deterministic=true cannot hold with {name}={seconds:g}, where a clock decides: set it to 0"
        )
    require(
        not any(of_set.episode for of_set in config.task.all_sets.values()),
        "deterministic=true cannot hold with task.episode: the moment at which a turn arrives decides what shares its "
        "batch, and so the last bits",
    )
    for number, gate in enumerate(config.gates):
        require(
            gate.then == "refuse_export" or not gate.metric.startswith(m.BY_CLOCK),
            f"deterministic=true cannot hold where measured seconds or joules decide about the run: gates[{number}] "
            f"watches {gate.metric}; set then=refuse_export",
        )
    on_gpu = ranks.on_gpu(config.device)
    elsewhere = config.rollout.engine == "vllm_server" or beside_learner(config.rollout, on_gpu)
    require(
        on_gpu or not elsewhere,
        "deterministic=true cannot hold on a CPU with engines in processes of their own: the moment at which a request "
        "arrives decides what shares its batch, and so the last bits. Use rollout=vllm without rollout.own_process and "
        "rollout.tensor_parallel, or rollout=transformers",
    )


def check_deepspeed(config: TrainConfig) -> None:
    """Raises UserError for settings of `learner.deepspeed` that DeepSpeed refuses or does not know."""
    if config.learner.deepspeed:
        # DeepSpeed takes seconds to import.
        from grpo.learner.engine import check_passed_on

        check_passed_on(config.learner)


def check_vllm(config: TrainConfig) -> None:
    """Raises UserError where vLLM, or what its kernels are compiled with, is missing on this machine, where vLLM is too
    old for the servers that the run starts, and where an environment variable moves an engine out of this process."""
    rollout = config.rollout
    if rollout.engine == "transformers" or uses_running_servers(config.rollout):
        return
    version = vllm_version()
    require(
        bool(version),
        f"rollout.engine={rollout.engine} needs vLLM, which is not installed: run launch/setup.sh, or use "
        "rollout.engine=transformers",
    )
    require(
        rollout.engine == "vllm" or vllm_since(NAMES_WEIGHTS),
        f"rollout.engine=vllm_server needs vLLM {'.'.join(map(str, NAMES_WEIGHTS))} or newer, whose answers say which "
        f"weights wrote a token, and {version} is installed: install a newer one, or use rollout.engine=vllm",
    )
    require(
        rollout.sleep != "cache" or vllm_since(RELEASES_CACHE),
        f"rollout.sleep=cache needs vLLM {'.'.join(map(str, RELEASES_CACHE))} or newer, and {version} is installed: "
        "set it to all",
    )
    on_gpu = ranks.on_gpu(config.device)
    remedy = kernels.lacking() if on_gpu else kernels.lacking_on_cpu()
    lacks = "on a GPU lacks a compiler" if on_gpu else "on a CPU lacks a library"
    require(not remedy, f"rollout.engine={rollout.engine} {lacks}: {remedy}")
    elsewhere = os.environ.get(ENGINE_VARIABLE, "0")
    within = rollout.engine == "vllm" and not beside_learner(rollout, on_gpu)
    require(
        not within or elsewhere == "0",
        f"the environment variable {ENGINE_VARIABLE}={elsewhere} gives vLLM's engine a process of its own, and weights "
        "are passed within this one: unset it, or set rollout.own_process=true",
    )


def check_spread(config: TrainConfig, files: ModelFiles) -> None:
    """Raises UserError if the ranks that share an engine cannot divide the model, or span two machines."""
    spread, local = config.rollout.tensor_parallel, ranks.counts(config.hardware, config.dry_run)[1]
    if spread == 1:
        return
    key = f"rollout.tensor_parallel={spread}"
    require(
        local % spread == 0,
        f"{key} does not divide the {local} learner ranks of a machine: use a divisor of {local}, since an engine's "
        "ranks exchange data in every layer",
    )
    text = files.text
    kinds = {
        "experts": _has_experts(text),
        "layers with a state": files.keeps_state,
    }
    uncompared = [kind for kind, present in kinds.items() if present]
    require(
        not uncompared,
        f"{key}: {files.path} has {' and '.join(uncompared)}, whose shards cannot be compared with the learner's: use "
        "rollout=vllm_server with rollout.servers.tensor_parallel",
    )
    heads, shared = (max(1, count) for count in files.heads[:2])
    require(
        heads % spread == 0 and (shared % spread == 0 or spread % shared == 0),
        f"{key} cannot divide the model's {heads} attention heads, of which {shared} have keys and values: use a "
        "divisor of both",
    )


def check_adapters(config: TrainConfig, files: ModelFiles) -> None:
    """Raises UserError for adapters in a model with experts on a CPU. vLLM then computes the experts by Triton."""
    adapters = config.model.lora.rank and not config.rollout.merge_adapters and config.rollout.engine != "transformers"
    require(
        ranks.on_gpu(config.device) or not (adapters and _has_experts(files.text)),
        f"vLLM's CPU build runs no adapters in models with experts such as {files.path}: set "
        "rollout.merge_adapters=true, which adds them to the sampler's weights",
    )


def _has_experts(text: object) -> bool:
    return any(setting_of(text, name) for name in (*EXPERTS, "moe_num_experts"))


def check_vocabulary(files: ModelFiles, tasks: Sequence[LoadedTask]) -> None:
    """Raises UserError if a prompt of `tasks`, the end of every completion, or an end that the model's own files name
    has a token without a row in the model's embedding. Further tokens that no prompt has do no harm, and neither do
    rows without a token."""
    path, tokenizer, rows = files.path, files.tokenizer, files.text.vocab_size
    require(
        bool(files.stop_token_ids),
        f"the model in {path} names no token that ends a completion: set eos_token_id in its generation_config.json",
    )
    strange = [token for token in files.configured_ends if token >= rows]
    require(
        not strange,
        f"the model in {path} ends its completions with token {strange[:1]}, and it has embeddings of tokens up to "
        f"{rows - 1}: correct eos_token_id in its generation_config.json and config.json",
    )
    vocabulary = tokenizer.get_vocab()
    largest = max(vocabulary.values())
    if largest < rows:
        return
    what = (
        f"the tokenizer in {path} has tokens up to {largest}, and the model has embeddings of tokens up to {rows - 1}"
    )
    remedy = "give a model and a tokenizer that belong together"
    stop = files.stop_token_ids
    require(
        min(stop, default=0) < rows, f"{what}: no completion could end, since that needs token {stop[:1]}: {remedy}"
    )
    for task in tasks:
        for name, of_set in task.config.all_sets.items():
            encode = PromptEncoder(tokenizer, of_set.prompt)
            for problem in task.problems[name]:
                if (token := max(encode(problem))) >= rows:
                    raise UserError(f"{what}: the prompt of problem {problem.problem_id} has token {token}: {remedy}")


def check_cpu_heads(config: TrainConfig, files: ModelFiles) -> None:
    """Raises UserError if the model's attention heads have a width that vLLM's CPU build does not compute. The build
    itself would fail only at the first token."""
    elsewhere = config.dry_run or config.rollout.engine == "transformers" or uses_running_servers(config.rollout)
    heads = files.heads
    # Latent attention has widths of its own, see `grpo.rollout.engine_arguments.for_cpu`.
    if elsewhere or ranks.on_gpu(config.device) or not heads.count or getattr(files.text, "kv_lora_rank", None):
        return
    require(
        heads.width in CPU_HEADS,
        f"{files.path} has attention heads of {heads.width} numbers, and vLLM's CPU build computes "
        f"{', '.join(map(str, CPU_HEADS))} only: use rollout.engine=transformers",
    )
