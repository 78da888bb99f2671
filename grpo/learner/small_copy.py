"""This module makes configs of small models of the same architecture: few layers, but each kind, and short windows."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

WINDOW, CHOSEN, VOCABULARY = 8, 2, 96
"""In a small copy, these are the tokens of an attention window, the blocks that sparse attention chooses, and the
tokens of the vocabulary."""

FEW, ALL = 0, 10**9
SIZES = ((1, FEW), (1, 2), (1, 1), (1, 4), (1, 8), (1, ALL), (3, 2))
"""These sizes of small copies are tried in this order: a multiple of `covering_layers`, and `heads` of `small_config`.
The last size has more layers, since some models share weights between layers that are far apart."""

_STANDARD = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
             "vocab_size")  # fmt: skip
# Names in configs for inner widths of feed-forward layers, and for numbers of experts, experts per token and groups of
# experts.
_INNER = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size_mlp",
          "ffn_dim", "n_inner")  # fmt: skip
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk")
_GROUPS = ("n_group", "num_expert_group")
_LINEAR_HEADS = ("linear_num_key_heads", "linear_num_value_heads")
# Settings that limit attention to some earlier tokens, besides those named "window": its reach, and blocks it chooses.
_REACH = ("attention_chunk_size", "local_attention", "index_block_size")
# A model computes otherwise from these positions on, and again at each multiple (Llama 4).
_FROM = ("floor_scale",)
# The number of single tokens (index_topk) stays: `loading.check_positions` refuses lengths at which they are chosen.
_CHOSEN = ("index_topk_blocks",)
# Flags of layers that only concern a cache of keys and values.
_OF_CACHE = ("store_full_length_kv",)
# Numbers of layers of vision and audio towers, which no text goes through.
_TOWER_LAYERS = ("num_hidden_layers", "depth")


def small_config(config: PretrainedConfig, num_layers: int, heads: int = FEW) -> PretrainedConfig:
    """Returns the same architecture with its first `num_layers` layers, a small vocabulary and windows of `WINDOW`
    tokens.

    heads   FEW: at most two key heads and the hidden size that they need; few experts, narrow feed-forward layers
            a number: that many key heads, with all heads and widths divided alike; the rest as with FEW
            ALL: heads, widths and experts of the model itself
    """
    settings = config.to_dict()
    text = config.get_text_config()
    text_settings = settings if text is config else settings["text_config"]
    names = {standard: text.attribute_map.get(standard, standard) for standard in _STANDARD}
    for name, value in list(text_settings.items()):
        text_settings[name] = _shortened(name, value, text.num_hidden_layers, num_layers)
    for tower in settings.values():
        if tower is not text_settings and isinstance(tower, dict):
            tower.update({name: 1 for name in _TOWER_LAYERS if name in tower})
    text_settings[names["num_hidden_layers"]] = num_layers
    text_settings[names["vocab_size"]] = VOCABULARY
    divisor = _divisor(text_settings, names, heads) if heads else 1
    if heads == FEW:
        text_settings.update(_narrow(text, text_settings, names))
    elif divisor > 1:
        text_settings.update(
            {name: max(1, value // divisor) for name, value in text_settings.items() if _is_width(name, value, names)}
        )
    if heads == FEW or divisor > 1:
        text_settings.update(_limited(text_settings, names))
    return type(config).from_dict(settings)


def _shortened(name: str, value: Any, count: int, num_layers: int) -> Any:
    """Returns a setting for a small copy that has only the first `num_layers` of `count` layers."""
    if isinstance(value, list) and len(value) == count:
        return value[:num_layers]
    if name == "per_layer_config" and value:
        return {layer: own for layer, own in value.items() if int(layer) < num_layers}
    if name == "num_kv_shared_layers" and value:
        # The layers that share are the last ones.
        return max(0, value - (count - num_layers))
    if name == "compress_rates":
        return {kind: min(rate, WINDOW) for kind, rate in value.items()}
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    limits = {
        VOCABULARY - 1: name.endswith("_token_id"),
        VOCABULARY: name.startswith("vocab_size"),
        WINDOW: _is_window(name) or name in _FROM,
        CHOSEN: name in _CHOSEN,
    }
    return min([value, *(limit for limit, applies in limits.items() if applies)])


def _is_window(name: str) -> bool:
    return ("window" in name and "layers" not in name) or name in _REACH


def _is_width(name: str, value: Any, names: Mapping[str, str]) -> bool:
    """Says whether a setting grows with the model's width, such as a number of features or heads, or an inner width of
    attention."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return "hidden_size" in name or "heads" in name or name.endswith("lora_rank") or name in _standard_widths(names)


def _standard_widths(names: Mapping[str, str]) -> set[str]:
    return {names[standard] for standard in ("hidden_size", "num_attention_heads", "num_key_value_heads")}


def _divisor(settings: Mapping[str, Any], names: Mapping[str, str], heads: int) -> int:
    """Returns the divisor of all widths that leaves `heads` key heads, or `heads` query heads if the model has one key
    head."""
    all_counts = [value for name, value in settings.items() if "heads" in name and _is_width(name, value, names)]
    head_counts = (settings.get(names[standard]) or 0 for standard in ("num_key_value_heads", "num_attention_heads"))
    count = next((value for value in head_counts if value > 1), max(all_counts, default=1))
    return max(1, count // heads)


def _narrow(text: PretrainedConfig, settings: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Returns settings for at most two key heads, and the query heads that share them."""
    heads = text.num_attention_heads
    num_key_value_heads = getattr(text, "num_key_value_heads", None) or heads
    few_shared = min(num_key_value_heads, 2)
    few = few_shared * min(heads // num_key_value_heads, 3)
    # If layers differ in the width of their heads, the whole model's config has no `head_dim` to ask for.
    width = settings.get("head_dim") or text.hidden_size // heads
    result = {names["num_attention_heads"]: few, names["hidden_size"]: few * width}
    if getattr(text, "num_key_value_heads", None):
        result[names["num_key_value_heads"]] = few_shared
    keys, values = (settings.get(name) or 1 for name in _LINEAR_HEADS)
    linear = dict(zip(_LINEAR_HEADS, (2, 2 * max(1, values // keys)), strict=True))
    return result | {
        name: min(settings[name], limit) for name, limit in linear.items() if isinstance(settings.get(name), int)
    }


def _limited(settings: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Returns a config's widths of feed-forward layers, which may be a list, and numbers of experts, cut down for a
    small copy."""
    groups, per_token = (max(settings.get(name) or 1 for name in kind) for kind in (_GROUPS, PER_TOKEN))
    limits = dict.fromkeys({*_INNER, names["intermediate_size"]}, 64)
    limits |= dict.fromkeys(EXPERTS, max(4, 2 * groups, per_token + 1))
    cut: dict[str, Any] = {}
    for name, limit in limits.items():
        value = settings.get(name)
        if isinstance(value, int):
            cut[name] = min(value, limit)
        elif isinstance(value, list):
            cut[name] = [min(width, limit) for width in value]
    return cut


def covering_layers(config: PretrainedConfig, on_meta: Callable[[PretrainedConfig], PreTrainedModel]) -> int:
    """Returns the smallest number of first layers, at least two, that include every kind of layer. `on_meta` builds a
    model without memory for its weights."""
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
    """Returns what distinguishes the kinds of layers of a model: the classes of a layer's parts, and their settings
    that are flags, names or windows."""
    facts = set()
    for module in layer.modules():
        facts.add((type(module).__name__, "", ""))
        for name, value in vars(module).items():
            if _is_window(name):
                facts.add((type(module).__name__, name, value is not None))
            elif isinstance(value, (bool, str)) and name not in _OF_CACHE:
                facts.add((type(module).__name__, name, value))
    return frozenset(facts)
