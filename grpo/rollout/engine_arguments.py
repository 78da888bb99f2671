"""This module turns a sampler's settings into vLLM's arguments, for an engine in this process and for servers alike.
It also names the run's keys for what vLLM says as it fails to start.

It also seeds every completion, see `sample_seed` for what that repeats. It says which vLLM is installed, without
importing it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from importlib import metadata
from typing import TYPE_CHECKING, Any

from grpo.config import SamplingConfig, UserError
from grpo.config.errors import require
from grpo.config.parts import SamplerSettings
from grpo.models.files import ModelFiles

if TYPE_CHECKING:
    import torch

CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks for which vLLM (0.32) makes room. Others get the next larger one."""
NO_ADAPTERS = re.compile(r"does not support LoRA|could not be wrapped by any LoRA layer")
"""vLLM says this as it starts with a model to whose layers it adds no adapters."""
MERGE_ADAPTERS = (
    "vLLM adds no adapters to this model's layers: set rollout.merge_adapters=true, which adds them to its weights, or "
    "rollout.engine=transformers"
)
_TOO_LONG = re.compile(r"max_model_len \((\d+)\) is greater than the derived max_model_len \(([^)]*)\)")
LATENT_WIDTH = 576
"""The only width of a token's cache entry that vLLM's CPU build (0.32) takes in multi-head latent attention."""

FLASH_WIDTH = 256
"""The widest attention heads that every version of FlashAttention in vLLM computes."""

# vLLM for GPUs and its CPU build are two distributions of one package.
# The first version whose servers release their cache alone, and whose answers say which weights wrote a token.
RELEASES_CACHE = NAMES_WEIGHTS = (0, 32)
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def for_cpu(files: ModelFiles) -> dict[str, Any]:
    """Returns the arguments of `vllm.LLM` that its CPU build needs for this model. Raises UserError for latent
    attention that the CPU build cannot run, and for an environment variable by which it would ignore the cache's
    size."""
    space = os.environ.get(CACHE_VARIABLE)
    require(
        not space,
        f"the environment variable {CACHE_VARIABLE}={space} would replace rollout.kv_cache_gib: unset it, and set that "
        "key",
    )
    # vLLM keeps the states of a common prefix only with prefill in chunks, which the CPU build does without.
    arguments: dict[str, Any] = {"enable_prefix_caching": False} if files.keeps_state else {}
    text = files.text
    if rank := getattr(text, "kv_lora_rank", None):
        width = rank + text.qk_rope_head_dim
        require(
            width == LATENT_WIDTH,
            f"{files.path} keeps {width} numbers of a token for its latent attention, and vLLM's CPU build takes "
            f"{LATENT_WIDTH} only: use rollout.engine=transformers",
        )
        # The other backend, by AMX, repacks weights and throws the originals away, so no refresh could be loaded.
        arguments["attention_backend"] = "CPU_MLA"
        # The CPU kernel of rotary positions misreads queries with three dimensions. The formula in torch does not.
        arguments["compilation_config"] = {"custom_ops": ["-rotary_embedding"]}
    return arguments


def for_device(files: ModelFiles, device: torch.device) -> dict[str, Any]:
    """Returns the arguments of `vllm.LLM` that it needs for this model on this device, which `for_cpu` knows for CPUs.

    On data-centre Blackwell vLLM (0.32) would take FlashInfer, whose kernels nvcc compiles, which a machine may lack.
    """
    import torch

    if device.type != "cuda":
        return for_cpu(files)
    blackwell = torch.cuda.is_available() and torch.cuda.get_device_capability(device)[0] == 10
    plain = not getattr(files.text, "kv_lora_rank", None) and files.heads.width <= FLASH_WIDTH
    return {"attention_backend": "FLASH_ATTN"} if blackwell and plain else {}


def engine_arguments(
    settings: SamplerSettings, model_path: str, on_gpu: bool, special: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the arguments of `vllm.LLM` that a run sets. `special` comes from `for_device`."""
    rollout, model = settings.rollout, settings.model
    arguments = {
        "model": model_path,
        "dtype": rollout.precision,
        "max_model_len": model.max_length,
        "max_num_seqs": rollout.max_concurrent,
        "seed": settings.seed,
        "trust_remote_code": model.trust_remote_code,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "worker_extension_cls": "grpo.weight_sync.vllm_receiver.WeightReceiver",
        "use_tqdm_on_load": False,
    }
    if model.head_precision == "float32":
        arguments["hf_overrides"] = {"head_dtype": "float32"}
    if on_gpu:
        arguments |= {
            "gpu_memory_utilization": rollout.gpu_memory_fraction,
            "enforce_eager": rollout.enforce_eager,
        }
        # Users name the backend by several arguments, of which vLLM takes one.
        chosen = any(name.startswith("attention") for name in rollout.engine_args)
        return arguments | ({} if chosen else special or {}) | rollout.engine_args
    # A seeded request that is prefilled in chunks crashes the CPU build, and its default block of
    # 128 tokens would keep short prompts out of the prefix cache.
    arguments |= {
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(2048, model.max_length),
        "kv_cache_memory_bytes": int(rollout.kv_cache_gib * 2**30),
        "block_size": 32,
        **(special or {}),
    }
    for name in rollout.engine_args:
        # Servers take names with hyphens too, as flags.
        if name.replace("-", "_") in arguments:
            raise UserError(f"rollout.engine_args.{name} is set by the run itself on a CPU: leave it out")
    return arguments | rollout.engine_args


def adapter_arguments(rank: int, layers: Sequence[str]) -> dict[str, Any]:
    """Returns the arguments of `vllm.LLM` that make room for one adapter of this rank beside layers with these names.

    >>> adapter_arguments(12, ["q_proj"])
    {'enable_lora': True, 'max_loras': 1, 'max_lora_rank': 16, 'lora_target_modules': ['q_proj']}
    """
    room = next((possible for possible in RANKS if possible >= rank), None)
    require(
        room is not None,
        f"model.lora.rank={rank} is above {RANKS[-1]}, the most that vLLM takes: lower it, or set "
        "rollout.merge_adapters=true",
    )
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room, "lora_target_modules": list(layers)}


def sleep_arguments(speculates: bool) -> dict[str, Any]:
    """Returns the arguments of an engine that gives its GPU to a learner in turn. `speculates` says whether the engine
    has a draft model."""
    # No refresh sends the weights of a draft model, so they have to survive the engine's sleep.
    return {"enable_sleep_mode": True} | ({"sleep_preserve_parameter_names": ["draft.*"]} if speculates else {})


def sampling_arguments(sampling: SamplingConfig, stop_token_ids: Sequence[int], seed: int) -> dict[str, Any]:
    """Returns the arguments of `vllm.SamplingParams` for one completion with its tokens' log-probabilities."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "stop_token_ids": list(stop_token_ids),
        "seed": seed,
        "logprobs": 0,
        # Text is made from token ids afterwards; the engine needs it only to find what it should stop at.
        "detokenize": bool(sampling.stop),
    } | sampling.extra


def command_line(arguments: dict[str, Any]) -> list[str]:
    """Returns the arguments of an engine as words for `vllm serve`.

    >>> command_line({"max_num_seqs": 8, "enforce_eager": True, "use_tqdm_on_load": False})
    ['--max-num-seqs', '8', '--enforce-eager', '--no-use-tqdm-on-load']
    """
    words: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


def cache_key(on_gpu: bool, beside: bool) -> str:
    """Returns the key that sets the size of an engine's cache. The engine is one `beside` a learner, or else a server
    with devices of its own."""
    if not on_gpu:
        return "rollout.kv_cache_gib"
    return "rollout.gpu_memory_fraction" if beside else "rollout.servers.gpu_memory_fraction"


def start_problem(said: str, cache: str) -> str:
    """Returns a line for what vLLM has said as it ended at its start, or "" for what names no key of a run. `cache` is
    the key that sets the cache's size."""
    text = " ".join(said.split())
    if limit := _TOO_LONG.search(text):
        return (
            f"model.max_length={limit[1]} is more than the positions that vLLM finds in the model's config "
            f"({limit[2]}): lower model.max_length and rollout.sampling.max_tokens"
        )
    if NO_ADAPTERS.search(text):
        return MERGE_ADAPTERS
    helps = {
        "less than desired GPU memory": (
            f"end other programs on the GPU, lower {cache}, or set learner.offload_states=true"
        ),
        "less than requested memory for kv": f"end other programs, or lower {cache}",
        "No available memory for the cache": f"raise {cache}",
        "larger than the available KV cache memory": f"raise {cache}, or lower model.max_length",
    }
    for part, advice in helps.items():
        if part in text:
            around = text[max(0, text.index(part) - 150) : text.index(part) + 150]
            return f"vLLM has too little memory to start: {advice}. It says: {around}"
    return ""


def sample_seed(run_seed: int, prompt_id: str, sample_index: int, policy_version: int) -> int:
    """Returns the seed in [0, 2⁶³) of one completion. Every completion of a run has its own.

    The seed fixes the random numbers of a completion, and not the probabilities that they meet. Kernels on a GPU sum in
    an order that depends on what else is in the batch, so logits differ in their last bits from run to run, and one
    such bit may turn a token. `deterministic` asks for kernels without this. Nothing repeats which completions share a
    batch where requests arrive at servers by the clock, where rounds are sampled ahead, or where a server is lost. On a
    CPU in this process, with one number of threads, the same command gives the same bits.

    >>> sample_seed(0, "mawps-17@0", 3, 120) == sample_seed(0, "mawps-17@0", 3, 120)
    True
    """
    name = f"{run_seed}/{prompt_id}/{sample_index}/{policy_version}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") >> 1


def vllm_version() -> str:
    """Returns the version of the installed vLLM, without what names its build, or "" where there is none."""
    for distribution in DISTRIBUTIONS:
        try:
            return metadata.version(distribution).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return ""


def vllm_since(version: tuple[int, int]) -> bool:
    """Tells whether the installed vLLM is of this version or a later one. One that is not here is taken for new."""
    installed = vllm_version()
    return not installed or tuple(map(int, re.findall(r"\d+", installed)[:2])) >= version
