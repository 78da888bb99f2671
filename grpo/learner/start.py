"""This module gives a policy the weights that a run starts from: another run's checkpoint, or a peft adapter."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from safetensors import SafetensorError
from safetensors.torch import load_file

from grpo.config.earlier_run import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from grpo.config.errors import UserError, require
from grpo.learner.plain_data import only_plain_data
from grpo.learner.policy import Policy
from grpo.learner.shard_layout import SHARDS, WHOLE_WEIGHTS
from grpo.learner.weights import gathered


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
