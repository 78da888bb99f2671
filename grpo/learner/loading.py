"""This module loads a model's directory as a `Policy`, or says in one line why the model cannot be trained here.

It also gives a policy the weights that a run starts from: another run's checkpoint, or a peft adapter.
"""

import io
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stderr, redirect_stdout
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from grpo.algorithm.logprobs import LogitRule
from grpo.algorithm.packing import ONE_A_ROW
from grpo.config import ModelConfig
from grpo.config.errors import UserError, require
from grpo.config.saved import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from grpo.learner.policy import DTYPES, Policy, base_model, decoder_of
from grpo.learner.proof import Build, Proof, prove
from grpo.learner.resharding import SHARDS, WHOLE_WEIGHTS, only_plain_data
from grpo.learner.sequence_parallel import SequenceGroup
from grpo.learner.weights import gathered
from grpo.models.files import ModelFiles

# Names in configs of factors on the logits, and of divisors.
SCALES, DIVISORS = ("logit_scale", "lm_head_multiplier"), ("logits_scaling",)
SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
# Kinds of rotary position tables that depend on the length of the batch that is computed.
LENGTH_DEPENDENT = ("dynamic", "longrope")


def load_policy(
    files: ModelFiles,
    model: ModelConfig,
    precision: str,
    chunk: int,
    lora_seed: int | None = None,
    together: SequenceGroup | None = None,
    loading: AbstractContextManager[None] | None = None,
) -> Policy:
    """Loads the model in `files` as a `Policy`. Collective where the model is sharded.

    Weights are read within the context `loading`, see `grpo.learner.engine.sharded_loading`. `lora_seed` draws fresh
    adapters where `model.lora` asks for them; without a seed there are none. Weights of `model.start` are loaded last.
    Raises UserError for a model that cannot be computed exactly, whose heads cannot be split evenly over ranks, or that
    does not fit `model.start`.
    """
    config = files.config
    check_positions(files.path, config, model.max_length)
    proof = _proof(files, config.to_json_string())
    if together is not None:
        _check_heads(files, together.size, proof)
    implementation = {"attn_implementation": proof.way} if proof.way else {}
    with loading or nullcontext():
        language_model = AutoModelForCausalLM.from_pretrained(
            files.path,
            config=without_dropout(config),
            dtype=DTYPES[precision],
            trust_remote_code=files.trust,
            **implementation,
        )
    if lora_seed is not None and model.lora.rank:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(lora_seed)
            language_model = with_lora(language_model, model)
    else:
        _freeze_towers(language_model)
    rule = logit_rule(config, float32=model.head_precision == "float32")
    policy = Policy(language_model, chunk, rule, proof.in_trees, together)
    if model.start:
        take_start(policy, Path(model.start))
    return policy


def _freeze_towers(language_model: PreTrainedModel) -> None:
    """Excludes from training what no text goes through, such as a vision tower. It never gets a gradient, but
    `learner.weight_decay` would shrink it, and an optimizer would keep 12 bytes for each of its parameters."""
    layers = (decoder_of(language_model), language_model.get_output_embeddings())
    trained = {id(parameter) for layer in layers for parameter in layer.parameters()}
    for parameter in language_model.parameters():
        parameter.requires_grad_(id(parameter) in trained)


@cache
def _proof(files: ModelFiles, config_json: str) -> Proof:
    """Returns the proof of a model, whose config is `config_json`. A process proves each model once, and once more
    where another model has taken its place."""
    return prove_config(str(files.path), files.config, files.trust)


def proven_layout(files: ModelFiles, configured: str) -> str:
    """Returns how rows of a model are packed. Raises UserError where the model cannot be trained here."""
    return fitting_layout(configured, _proof(files, files.config.to_json_string()).in_trees)


def fitting_layout(configured: str, in_trees: bool) -> str:
    """Returns how rows are packed: as configured, or `ONE_A_ROW` where every completion needs a row of its own."""
    return configured if in_trees or configured == "padded" else ONE_A_ROW


def prove_config(path: str, config: PretrainedConfig, trust: bool = False) -> Proof:
    """Finds the way in which models of `config` are computed exactly, see `grpo.learner.proof`. Raises UserError where
    no way is exact."""
    return prove(path, config, builder(trust), logit_rule, without_dropout)


def builder(trust: bool) -> Build:
    """Returns a function that builds a model with random float64 weights from a config."""

    def build(config: PretrainedConfig, implementation: str | None) -> PreTrainedModel:
        # The grouped product of experts supports float32 only. Computing one expert after another gives the same
        # result.
        implementations = {"experts_implementation": "eager"}
        if implementation:
            implementations["attn_implementation"] = implementation
        # The config is copied, because transformers writes into it how the model was built.
        return AutoModelForCausalLM.from_config(
            deepcopy(config), dtype=torch.float64, trust_remote_code=trust, **implementations
        )

    return build


def logit_rule(config: PretrainedConfig, float32: bool = False) -> LogitRule:
    """Returns how the model scales and caps its logits, as its transformers config says under various names."""
    text = config.get_text_config()

    def product(names: tuple[str, ...]) -> float:
        result = 1.0
        for name in names:
            result *= getattr(text, name, None) or 1.0
        return result

    softcap = next((value for name in SOFTCAPS if (value := getattr(text, name, None))), None)
    return LogitRule(product(SCALES) / product(DIVISORS), softcap, float32)


def without_dropout(config: PretrainedConfig) -> PretrainedConfig:
    """Returns a copy of the config with all dropout and jitter rates at 0. A ratio of probabilities has to compare one
    function, not two dropout masks."""
    settings = config.to_dict()
    for part in (settings, settings.get("text_config") or {}):
        random = [name for name, value in part.items() if isinstance(value, float) and re.search("drop|jitter", name)]
        part.update(dict.fromkeys(random, 0.0))
    return type(config).from_dict(settings)


def longest_length(files: ModelFiles) -> float:
    """Returns the largest length in tokens that a model supports, or infinity where it has no limit."""
    made_for = getattr(files.text, "max_position_embeddings", None) or math.inf
    return min([made_for, *(limit for limit, _ in _limits(files.path, files.config))])


def most_positions(files: ModelFiles) -> float:
    """Returns the largest `model.max_length` that a model's config has positions for, or infinity where it names none.
    Scaled rotary positions reach further, by their factor."""
    tables = getattr(files.text, "rope_parameters", None) or {}
    factors = [table.get("factor") or 1 for table in (tables, *tables.values()) if isinstance(table, dict)]
    made_for = getattr(files.text, "max_position_embeddings", None) or math.inf
    return made_for * max([1, *factors])


def check_positions(path: str | Path, config: PretrainedConfig, max_length: int) -> None:
    """Raises UserError where learner and sampler may differ on sequences of up to `max_length` tokens."""
    for limit, reason in _limits(path, config):
        if max_length > limit:
            raise UserError(f"{reason}: set model.max_length={limit} or less, not {max_length}")


def _limits(path: str | Path, config: PretrainedConfig) -> Iterator[tuple[int, str]]:
    """Yields each number of tokens above which learner and sampler may differ, and why."""
    text = config.get_text_config()
    tables = getattr(text, "rope_parameters", None) or {}
    if tables and "rope_type" not in tables:
        tables = {name: table for name, table in tables.items() if isinstance(table, dict)}
    else:
        tables = {"": tables}
    longest = getattr(text, "max_position_embeddings", None)
    if sparse_tokens := getattr(text, "index_topk", None):
        yield (
            sparse_tokens,
            f"{path}: above {sparse_tokens} tokens every token chooses those that it attends, and others when it is "
            "computed another way",
        )
    for table in tables.values():
        if table.get("rope_type") in LENGTH_DEPENDENT:
            original = table.get("original_max_position_embeddings") or longest
            yield (
                original,
                f"{path}: above {original} tokens its rotary positions ({table['rope_type']}) depend on the length of "
                "what is computed together, so sampler and learner would differ",
            )
    if longest and not any(tables.values()):
        yield longest, f"{path} has {longest} positions"


def _check_heads(files: ModelFiles, ranks: int, proof: Proof) -> None:
    if not proof.in_trees:
        raise UserError(
            f"learner.sequence_parallel={ranks} shares out the tokens of a row over ranks, and {files.path} cannot be "
            f"computed that way ({proof.reason}): set it to 1"
        )
    heads, shared, _ = files.heads
    if heads % ranks or (shared % ranks and ranks % shared):
        raise UserError(
            f"learner.sequence_parallel={ranks} cannot share out the {heads} attention heads ({shared} of keys and "
            f"values) of {files.path}: use a number that divides them"
        )


def with_lora(language_model: PreTrainedModel, model: ModelConfig) -> nn.Module:
    """Returns the model with the adapters that the config asks for. Raises UserError where they could not be merged."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise UserError("model.lora.rank > 0 needs peft: pip install peft") from error
    targets = [name for part in model.lora.target_modules.split(",") if (name := part.strip())]
    # A model of the hub is recorded under its name there, which others can find, and not by its folder on this machine.
    of_hub = model.source == "huggingface" and not Path(model.path).is_dir()
    adapter = LoraConfig(
        revision=model.revision or None,
        r=model.lora.rank,
        lora_alpha=model.lora.alpha,
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        task_type="CAUSAL_LM",
    )
    width = language_model.config.get_text_config().hidden_size
    require(
        model.lora.rank <= width,
        f"model.lora.rank={model.lora.rank} is above the model's width {width}, which no change of its weights needs: "
        "8 to 64 are customary",
    )
    linear = [f".{name}" for name, module in language_model.named_modules() if isinstance(module, nn.Linear)]
    names = ",".join(sorted({name.rpartition(".")[2] for name in linear} - {"lm_head"}))
    # peft adapts the layers whose names end with a target, and passes over a target that ends none.
    unfit = [target for target in targets if not any(name.endswith(f".{target}") for name in linear)]
    require(
        not unfit or unfit == targets,
        f"model.lora.target_modules has {', '.join(unfit)}, which this model has not: its linear layers are {names}",
    )
    try:
        adapted_model = get_peft_model(language_model, adapter)
    except ValueError as error:
        raise UserError(
            f"model.lora.target_modules={','.join(targets)} fits no layer of this model: its linear layers are {names}"
        ) from error
    if of_hub and model.path:
        adapter.base_model_name_or_path = model.path
    _check_adapters(adapted_model)
    return adapted_model


def _check_adapters(adapted: nn.Module) -> None:
    """Raises UserError if an adapter changes anything but the weight of a linear layer, since only those are merged.

    The output layer is refused as well: `grpo.learner.policy.LogprobHead` multiplies its weight without the adapter,
    which would therefore not learn.
    """
    if hasattr(base_model(adapted).get_output_embeddings(), "lora_A"):
        raise UserError("model.lora.target_modules adapts the output layer, whose adapter is not trained: leave it out")
    linear = {
        id(parameter)
        for module in adapted.modules()
        if isinstance(getattr(module, "base_layer", None), nn.Linear)
        for parameter in module.parameters()
    }
    unused_adapters = [
        name for name, parameter in adapted.named_parameters() if "lora_" in name and id(parameter) not in linear
    ]
    if unused_adapters:
        raise UserError(
            f"model.lora.target_modules adapts {unused_adapters[0].split('.lora_')[0].split('base_model.model.')[-1]}, "
            "which is no linear layer (fused experts are not): name the linear layers, for example "
            "model.lora.target_modules=q_proj,k_proj,v_proj,o_proj"
        )


def take_start(policy: Policy, start: Path) -> None:
    """Gives a policy the trained weights of the checkpoint or the adapter in folder `start`. Collective where the
    policy is sharded. Raises UserError where the weights cannot be read or belong to another model."""
    if (start / ADAPTER_CONFIG).exists():
        _take_adapter(policy, start)
    else:
        _take_checkpoint(policy, start)


def _take_adapter(policy: Policy, folder: Path) -> None:
    # peft is imported here, because only policies with adapters need it to be installed.
    from peft import set_peft_model_state_dict

    model = policy.language_model
    adapter_names = [name for name, _ in model.named_parameters() if "lora_" in name]
    try:
        outcome = set_peft_model_state_dict(model, load_file(folder / ADAPTER_WEIGHTS))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"{folder} does not fit the model: {' '.join(str(error).split())[:300]}") from error
    missing_names = [name for name in adapter_names if name in outcome.missing_keys]
    strange_names = [*missing_names, *outcome.unexpected_keys]
    require(
        not strange_names,
        f"{folder} is an adapter of another model, which differs in {len(strange_names)} weights: {strange_names[:1]}",
    )


@torch.no_grad()
def _take_checkpoint(policy: Policy, checkpoint: Path) -> None:
    trained_parameters = {name: parameter for name, parameter in policy.named_parameters() if parameter.requires_grad}
    try:
        with only_plain_data(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            weights = _saved_weights(checkpoint)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"{checkpoint} is no checkpoint that this version can start from ({reason})") from error
    for name, parameter in trained_parameters.items():
        shape = getattr(parameter, "ds_shape", parameter.shape)
        require(
            name in weights and weights[name].shape == shape,
            f"{checkpoint} is of another model, which has no {name} of {tuple(shape)}: leave out model.path",
        )
    for name, parameter in trained_parameters.items():
        with gathered([parameter], modifier_rank=0):
            parameter.copy_(weights[name].contiguous())


def _saved_weights(checkpoint: Path) -> Mapping[str, Any]:
    """Returns the trained weights in a checkpoint by name, as tensors or as objects whose `contiguous` makes a tensor.

    Checkpoints of ZeRO 1 and 2 hold the whole model, which is read. With ZeRO 3 all ranks' float32 shards are read.
    """
    whole_files = sorted((checkpoint / SHARDS).glob(WHOLE_WEIGHTS))
    if whole_files:
        return torch.load(whole_files[0], map_location="cpu", mmap=True)["module"]
    return get_fp32_state_dict_from_zero_checkpoint(
        str(checkpoint), tag=SHARDS, exclude_frozen_parameters=True, lazy_mode=True
    )
