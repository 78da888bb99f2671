"""The trained model is exported as a Hugging Face directory that transformers and vLLM load."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedTokenizerBase

from grpo.config.errors import UserError, require
from grpo.host.disk import FULL, remove, room
from grpo.host.together import on_first
from grpo.interfaces import Collective
from grpo.learner.policy import DTYPES, Policy, base_model
from grpo.learner.weights import gathered, saved_buffers, weight_buckets
from grpo.models.resolve import CONFIG

CARD_FILE = "README.md"
EXPORT_DTYPES = DTYPES | {"float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder is the target of an export: the weights, the tokenizer, and the texts of its other files by their names,
    such as a model card.

    It appears whole or not at all: it is filled under another name, and an older folder at `path` stays until then.
    """

    path: Path
    tokenizer: PreTrainedTokenizerBase
    texts: Mapping[str, str]

    def fill(self, write: Callable[[Path], object]) -> None:
        """Fills the folder: `write` saves the model, then tokenizer and texts follow. Raises OSError or
        SafetensorError."""
        writing, before = (self.path.with_name(f".{name}-{self.path.name}") for name in ("writing", "removing"))
        for folder in (writing, before):
            remove(folder)
        try:
            writing.mkdir(parents=True)
            write(writing)
            self.tokenizer.save_pretrained(writing)
            for name, text in self.texts.items():
                (writing / name).write_text(text, encoding="utf-8")
            # safetensors gives its files to the owner alone. All get the rights of a usual file, which others may read.
            for file in filter(Path.is_file, writing.iterdir()):
                shutil.copymode(writing / CARD_FILE, file)
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise
        if os.path.lexists(self.path):
            os.rename(self.path, before)
        os.rename(writing, self.path)
        remove(before)


def export(policy: Policy, dtype: str, folder: Folder, collective: Collective) -> None:
    """Writes all weights and saved buffers, with adapters merged into the weights. Collective; the first rank writes.

    Raises UserError when the folder cannot be written, and when float16 cannot hold the weights.
    """
    weights: dict[str, torch.Tensor] = {}
    for bucket in weight_buckets(policy, 2**30, EXPORT_DTYPES[dtype]):
        if collective.rank == 0:
            weights |= {name: tensor.cpu().clone() for name, tensor in bucket}
    weights |= {name: buffer.cpu().clone() for name, buffer in saved_buffers(policy.language_model).items()}
    model = base_model(policy.language_model)

    def write(writing: Path) -> None:
        large = next((name for name, tensor in weights.items() if dtype == "float16" and tensor.isinf().any()), "")
        require(not large, f"{large} has weights above 65504, the most that float16 holds: give dtype=bfloat16")
        model.save_pretrained(writing, state_dict=weights)
        # It names the type of the model's own weights, in which these would be loaded.
        file = writing / CONFIG
        file.write_text(json.dumps(_of_dtype(json.loads(file.read_text()), dtype), indent=2) + "\n")

    on_first(collective, lambda: _fill(folder, write))


def _of_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Returns a model's config, and those within it, with `dtype` as the type of the weights."""
    inner = {name: _of_dtype(value, dtype) for name, value in config.items() if isinstance(value, dict)}
    named = {name: dtype for name, value in config.items() if name == "dtype" and isinstance(value, str)}
    return {**config, **inner, **named}


def export_adapter(policy: Policy, folder: Folder, collective: Collective) -> None:
    """Writes the LoRA adapter in peft's format. Collective; the first rank writes.

    Raises UserError when the folder cannot be written.
    """
    model = policy.language_model
    adapters = [parameter for name, parameter in model.named_parameters() if "lora_" in name]
    with gathered(adapters):
        on_first(collective, lambda: _fill(folder, model.save_pretrained))


def _fill(folder: Folder, write: Callable[[Path], object]) -> None:
    try:
        folder.fill(write)
    except (OSError, SafetensorError) as error:
        may_be_full = not isinstance(error, OSError) or error.errno in FULL
        space = f"; {room(folder.path.parent)}: free some space, or" if may_be_full else ":"
        raise UserError(
            f"the model could not be written to {folder.path} ({error}){space} give another folder"
        ) from error
