"""A model's files lie in one folder. Everybody who reads them, before and during a run, reads them here."""

from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from grpo.config.errors import UserError, first_line, require
from grpo.config.plain_json import read_object
from grpo.models.resolve import CONFIG, OWN_CODE

GENERATION = "generation_config.json"
# Files with these names and config.json tell a model and its tokenizer from others.
IDENTIFYING = ("*.safetensors", "tokenizer*.json", "*.jinja")
# Kinds of layers, as transformers' configs call them, that carry a state from token to token.
STATES = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}


class Heads(NamedTuple):
    """These are a model's attention heads: how many there are, how many have keys and values of their own, and how many
    numbers each has. A model without heads has 0 of each."""

    count: int
    shared: int
    width: int


@dataclass(frozen=True)
class ModelFiles:
    """Reads the files of the model in the folder `path`. With `trust` Python code that comes with them runs
    (`model.trust_remote_code`)."""

    path: Path
    trust: bool = False

    @property
    def identity(self) -> list[tuple[str, str]]:
        """Returns what tells the files of model and tokenizer from others, without reading weights: each with its name
        in the hub's cache, which is its digest, or else with its size, and config.json with its text."""
        files = sorted(file for pattern in IDENTIFYING for file in self.path.glob(pattern))
        stored = [(file.name, file.resolve()) for file in files]
        return [
            (name, file.name if file.parent.name == "blobs" else str(file.stat().st_size)) for name, file in stored
        ] + [(CONFIG, (self.path / CONFIG).read_text())]

    @property
    def config(self) -> PretrainedConfig:
        """Returns a copy of the model's config, since transformers writes into a config how the model was built."""
        return deepcopy(self._config)

    @cached_property
    def _config(self) -> PretrainedConfig:
        return AutoConfig.from_pretrained(self.path, trust_remote_code=self.trust)

    @property
    def text(self) -> PretrainedConfig:
        """Returns the config of the language model, which is a part of one that sees too."""
        return self.config.get_text_config()

    @property
    def heads(self) -> Heads:
        return heads_of(self.text)

    @property
    def keeps_state(self) -> bool:
        """Says whether the model has layers that carry a state from token to token, such as linear attention."""
        return not STATES.isdisjoint(getattr(self.text, "layer_types", None) or ())

    def without_values(self) -> PreTrainedModel:
        """Builds the model, whose weights take no memory since they have no values."""
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(self.config, trust_remote_code=self.trust)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Returns the model's tokenizer. Raises `UserError` when there is none or it cannot be loaded."""
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(self.path), trust_remote_code=self.trust)
            tokenizer("a")  # some mistakes in its files are noticed by the first text only
            return tokenizer
        except Exception as error:  # the tokenizers library raises no more specific error
            hint = OWN_CODE
            if "trust_remote_code" not in str(error):
                hint = f"save one there with save_pretrained ({first_line(error)})"
            raise UserError(f"cannot load the tokenizer of {self.path}: {hint}") from error

    @property
    def configured_ends(self) -> list[int]:
        """Returns the tokens that end a completion by generation_config.json, or by config.json if there is no such
        file."""
        file = self.path / GENERATION
        configured = read_object(file).get("eos_token_id") if file.exists() else self._end_of_config()
        tokens = _given(configured if isinstance(configured, list) else [configured])
        wrong = [token for token in tokens if type(token) is not int]
        require(not wrong, f"{self.path}: eos_token_id={configured} is no token's number: correct it in {GENERATION}")
        return tokens

    @property
    def stop_token_ids(self) -> list[int]:
        """Returns every token that ends a completion: the tokenizer's end of sequence and the model's own."""
        return sorted({*self.configured_ends, *_given([self.tokenizer.eos_token_id])})

    def _end_of_config(self) -> int | list[int] | None:
        """Returns what config.json says, and not the default of the model's class, which may be any word of another
        tokenizer."""
        try:
            config, _ = PretrainedConfig.get_config_dict(self.path)
        except OSError:
            return None
        return config.get("eos_token_id", config.get("text_config", {}).get("eos_token_id"))


def _given(tokens: list[int | None]) -> list[int]:
    return [token for token in tokens if token is not None]


def heads_of(text: PretrainedConfig) -> Heads:
    """Returns the attention heads of the language model with this config."""
    count = setting_of(text, "num_attention_heads") or 0
    width = setting_of(text, "head_dim") or (text.hidden_size // count if count else 0)
    return Heads(count, setting_of(text, "num_key_value_heads") or count, width)


def setting_of(config: PretrainedConfig, name: str) -> int | None:
    """Returns the integer setting `name` of a model's config, or None if there is none.

    The config is read as a dictionary, since its attribute would raise for a setting that differs between layers.
    """
    value = config.to_dict().get(config.attribute_map.get(name, name))
    return value if isinstance(value, int) else None
