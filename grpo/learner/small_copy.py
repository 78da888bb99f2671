"""The config of a small model of the same architecture: few layers, but each kind of them, and short windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

WINDOW, VOCABULARY = 8, 96

_STANDARD = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
             "vocab_size")  # fmt: skip
# Widths between the matrices of feed-forward layers, and numbers of experts, as configs call them.
_INNER = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "ffn_dim", "n_inner")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_LINEAR_HEADS = ("linear_num_key_heads", "linear_num_value_heads")
# How many positions a query sees where it chooses blocks of them (MiniMax-M3): of a copy fewer than it has tokens.
_CHOSEN = {"index_block_size": 4, "index_topk_blocks": 2}
# Numbers of layers of the parts that see pictures or hear, which no text goes through.
_TOWER_LAYERS = ("num_hidden_layers", "depth")


def small_config(config: PretrainedConfig, num_layers: int, narrow: bool) -> PretrainedConfig:
    """The same architecture with its first `num_layers` layers, a small vocabulary and windows of `WINDOW` tokens;
    `narrow`: and with few heads, experts and features."""
    settings = config.to_dict()
    text = config.get_text_config()
    own = settings if text is config else settings["text_config"]
    names = {standard: text.attribute_map.get(standard, standard) for standard in _STANDARD}
    for name, value in list(own.items()):
        if isinstance(value, list) and len(value) == text.num_hidden_layers:
            own[name] = value[:num_layers]
        elif isinstance(value, bool) or not isinstance(value, int):
            continue
        elif name.endswith("_token_id"):
            own[name] = min(value, VOCABULARY - 1)
        elif _is_window(name) or name in _CHOSEN:
            own[name] = min(value, _CHOSEN.get(name, WINDOW))
    for tower in settings.values():
        if tower is not own and isinstance(tower, dict):
            tower.update({name: 1 for name in _TOWER_LAYERS if name in tower})
    own[names["num_hidden_layers"]] = num_layers
    own[names["vocab_size"]] = VOCABULARY
    if narrow:
        own.update(_narrow(text, own, names))
    return type(config).from_dict(settings)


def _is_window(name: str) -> bool:
    return ("window" in name and "layers" not in name) or name == "attention_chunk_size"


def _narrow(text: PretrainedConfig, own: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Widths of a small copy: at most two key heads, and the query heads that share them."""
    heads = text.num_attention_heads
    shared = getattr(text, "num_key_value_heads", None) or heads
    few_shared = min(shared, 2)
    few = few_shared * min(heads // shared, 3)
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    result = {names["num_attention_heads"]: few, names["hidden_size"]: few * width}
    if getattr(text, "num_key_value_heads", None):
        result[names["num_key_value_heads"]] = few_shared
    groups, chosen = own.get("n_group") or 1, own.get("num_experts_per_tok") or 1
    limits = dict.fromkeys({*_INNER, names["intermediate_size"]}, 64)
    limits |= dict.fromkeys(_EXPERTS, max(4, 2 * groups, chosen + 1))
    keys, values = (own.get(name) or 1 for name in _LINEAR_HEADS)
    limits |= dict(zip(_LINEAR_HEADS, (2, 2 * max(1, values // keys)), strict=True))
    return result | {name: min(own[name], limit) for name, limit in limits.items() if isinstance(own.get(name), int)}


def covering_layers(config: PretrainedConfig, on_meta: Callable[[PretrainedConfig], PreTrainedModel]) -> int:
    """How many of its first layers have every kind of layer: at least two. `on_meta` makes a model without memory."""
    count = config.get_text_config().num_hidden_layers
    layers = next(
        (module for module in on_meta(config).modules() if isinstance(module, nn.ModuleList) and len(module) == count),
        None,
    )
    if layers is None:
        return count
    kinds = [_kind(layer) for layer in layers]
    return next((number for number in range(min(2, count), count) if {*kinds[:number]} == {*kinds}), count)


def _kind(layer: nn.Module) -> frozenset[tuple[str, str, Any]]:
    """What tells a layer from others of its model: its parts' classes, and what in them is switched on or named."""
    facts = set()
    for module in layer.modules():
        facts.add((type(module).__name__, "", ""))
        for name, value in vars(module).items():
            if _is_window(name):
                facts.add((type(module).__name__, name, value is not None))
            elif isinstance(value, (bool, str)):
                facts.add((type(module).__name__, name, value))
    return frozenset(facts)
