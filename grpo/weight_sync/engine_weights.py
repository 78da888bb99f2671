"""This module knows how vLLM keeps weights: where each is stored, which parameters no learner sends, what attention
computes from weights beforehand, and in which order experts lie."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from grpo.interfaces import Bucket
from grpo.weight_sync.checksum import DECAY, both_sums

# Bloom and Falcon give this name to the matrix of queries, keys and values, whose heads follow one another in their
# files.
_BY_HEAD = "query_key_value"


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights of a vLLM model under the names that learners send.

    Fused weights are split, rows that pad the vocabulary are cut off, and shards of tensor parallelism are put
    together. A weight that vLLM stores under another name or in another shape is yielded as it is stored. Parameters
    that attention has computed from others are left out. All ranks of an engine must call this function together.
    """
    fused_modules = getattr(model, "packed_modules_mapping", {})
    # GPT-2's files hold these matrices transposed, compared with the linear layers of other models.
    transposed_modules = (
        ("c_attn", "c_proj", "c_fc") if getattr(getattr(model, "config", None), "model_type", "") == "gpt2" else ()
    )
    modules, computed_names = dict(model.named_modules()), _computed_by_attention(model)
    for name, parameter in model.named_parameters():
        if name in computed_names:
            continue
        prefix, _, kind = name.rpartition(".")
        module, (parent, dot, leaf) = modules[prefix], prefix.rpartition(".")
        sizes = getattr(module, "output_partition_sizes", [])
        parts = fused_modules.get(leaf, [])
        stored, rows = parameter.detach(), parameter.shape[0] if parameter.dim() else 0
        # A fused parameter has parts, and every rank holds a share of each part.
        shares = stored.split(list(sizes)) if len(sizes) > 1 and sum(sizes) == rows else (stored,)
        pieces = [_whole(share, module, kind, index) for index, share in enumerate(shares)]
        if len(parts) == len(pieces) > 1:
            yield from ((f"{parent}{dot}{part}.{kind}", piece) for part, piece in zip(parts, pieces, strict=True))
            continue
        if leaf == _BY_HEAD and len(pieces) > 1:
            yield name, _by_head(pieces, module.total_num_kv_heads)
            continue
        whole_tensor = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
        vocabulary = getattr(module, "org_vocab_size", None)
        weight = whole_tensor if vocabulary is None else whole_tensor[:vocabulary]
        yield name, weight.t() if leaf in transposed_modules and kind == "weight" else weight


def as_sent(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yields an engine's weights in the type in which a learner sent them, `dtype`, where vLLM keeps them in float32.

    vLLM widens the routers of some models (GLM-4.5, MiniMax-M2, Ernie 4.5). Where a single number does not fit `dtype`,
    the weight is not what was sent, and is yielded as it is stored.
    """
    for name, weight in weights:
        # Learners compute the decay of a state-space layer in float32 too, so it is compared in float32.
        may_be_widened = weight.dtype != dtype and not name.endswith(DECAY)
        narrow = weight.to(dtype) if may_be_widened else weight
        yield name, narrow if may_be_widened and torch.equal(narrow.to(weight.dtype), weight) else weight


def _whole(shard: Tensor, module: nn.Module, kind: str, part: int = 0) -> Tensor:
    """Puts a weight or bias together from the shards of all ranks of an engine. `part` is its index in a fused
    weight."""
    if getattr(module, "tp_size", 1) == 1:
        return shard
    # vLLM's layers are imported only if several ranks share an engine.
    from vllm.distributed import tensor_model_parallel_all_gather
    from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    shard = shard.contiguous()
    if isinstance(module, RowParallelLinear):
        # A row-parallel layer adds its whole bias once, to the sum over ranks.
        return tensor_model_parallel_all_gather(shard, 1) if kind == "weight" else shard
    if not isinstance(module, (ColumnParallelLinear, VocabParallelEmbedding)):
        return shard
    whole_tensor = tensor_model_parallel_all_gather(shard, 0)
    # With fewer heads of keys and values than ranks, neighbouring ranks hold the same heads.
    copies = getattr(module, "num_kv_head_replicas", 1) if part else 1
    return whole_tensor.unflatten(0, (module.tp_size, -1))[::copies].flatten(0, 1)


def _by_head(pieces: Sequence[Tensor], num_heads: int) -> Tensor:
    """Puts queries, keys and values [heads·width, …] together as files have them: one of the `num_heads` heads of keys
    after another, with the queries that share it first. vLLM keeps all queries, then all keys, then all values."""
    return torch.cat([piece.unflatten(0, (num_heads, -1)) for piece in pieces], 1).flatten(0, 1)


class OwnParameters:
    """Own parameters are those of a vLLM model that no refresh sends, such as a bias that steers tokens to experts.
    transformers has that bias as a buffer.

    An engine that sleeps at level 2 loses all parameters, because vLLM (0.32, v1/worker/gpu_worker.py) saves buffers
    only. `restore` is called before the first bucket of a refresh, `load` for each bucket, `keep` after the last.
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self._sent_names: set[str] = set()
        self._kept_values: dict[str, Tensor] | None = None

    def restore(self) -> None:
        """Writes the kept parameters back into the model, which may have lost them since the last refresh."""
        parameters = dict(self._model.named_parameters())
        for name, value in (self._kept_values or {}).items():
            parameters[name].data.copy_(value)

    def load(self, bucket: Bucket) -> None:
        """Loads weights under their Hugging Face names."""
        loaded_names = self._model.load_weights(bucket)
        # If a model does not return which weights it has loaded, all of its parameters count as sent.
        self._sent_names.update(dict(self._model.named_parameters()) if loaded_names is None else loaded_names)

    def keep(self) -> None:
        """Keeps a copy in main memory of the parameters that the first refresh did not send. They never change."""
        if self._kept_values is None:
            parameters = self._model.named_parameters()
            derived_or_sent = self._sent_names | _computed_by_attention(self._model)
            unsent_values = {name: value.detach() for name, value in parameters if name not in derived_or_sent}
            self._kept_values = {name: value.to("cpu", copy=True) for name, value in unsent_values.items()}


# Attributes of attention that are made anew: the cache after each sleep, the others in each refresh.
_MADE_ANEW = {"kv_cache", "sinks", "_k_scale_cpu", "_v_scale_cpu"}


def lost_by_sleep(model: nn.Module) -> list[str]:
    """Returns the names of tensors that no refresh brings back to an engine that has slept at level 2.

    They are neither parameters, which are sent or kept, nor buffers, which vLLM saves. Examples are the slopes of ALiBi
    (Bloom, MPT), which vLLM (0.32) keeps as an attribute of its attention.
    """
    pointers = {tensor.untyped_storage().data_ptr() for tensor in chain(model.parameters(), model.buffers())}
    device = next(model.parameters()).device
    # A norm without a weight has a tensor of ones in its place, which nothing reads.
    read = [(name, module) for name, module in model.named_modules() if getattr(module, "has_weight", True)]
    return [
        f"{name}.{attribute}"
        for name, module in read
        for owner in (module, getattr(module, "impl", None))
        for attribute, value in getattr(owner, "__dict__", {}).items()
        if isinstance(value, Tensor) and value.device == device and value.numel()
        if value.untyped_storage().data_ptr() not in pointers and attribute not in _MADE_ANEW
    ]


def prepare_attention(model: nn.Module, dtype: torch.dtype) -> None:
    """Makes attention layers recompute what they derive from other weights. Called after the last bucket of a refresh.

    Multi-head latent attention decodes by parts of `kv_b_proj`, which are views of it as long as nothing is quantized.
    FlashInfer reads a copy of sinks in float32. vLLM derives both at the end of its own loading. The recomputed values
    are written where CUDA graphs read them.
    """
    for layer in _prepared_layers(model).values():
        layer.process_weights_after_loading(dtype)


def _prepared_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the layers of attention that vLLM prepares after loading, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "process_weights_after_loading") and hasattr(module, "get_attn_backend")
    }


def _computed_by_attention(model: nn.Module) -> set[str]:
    """Returns the names of parameters that attention layers have computed from others. These layers have no other
    parameters of their own."""
    layers = _prepared_layers(model).items()
    return {
        f"{name}.{parameter_name}"
        for name, layer in layers
        for parameter_name, _ in layer.named_parameters(recurse=False)
    }


class ExpertOrder:
    """Keeps a vLLM model's experts in the order and the width in which vLLM arranges them after its own loading.

    `begin` is called before the first weight of a refresh is loaded, `finish` after the last. `finish` makes vLLM
    arrange the loaded experts as it did at its start. Experts that were not sent stay unchanged: with LoRA only the
    adapters are sent after the first refresh. `finish` raises RuntimeError if the same weights have changed places.
    The first refresh of a run sends the weights that the engine has loaded itself, so it reveals a wrong order.
    """

    def __init__(self, model: nn.Module):
        self._layers = [module for module in model.modules() if _has_experts(module)]
        self._facts_before: list[Facts] = []
        self._ready: list[tuple[dict[str, Tensor], Facts]] = []

    def begin(self) -> None:
        self._facts_before = [_facts(layer) for layer in self._layers]
        self._ready = [(_narrow(layer), _facts(layer)) for layer in self._layers]

    def finish(self) -> None:
        for layer, (filled, ready) in zip(self._layers, self._ready, strict=True):
            if _facts(layer) == ready:
                for name, weights in filled.items():
                    getattr(layer, name).data = weights
                continue
            layer.quant_method.process_weights_after_loading(layer)
            if not layer.w13_weight.is_cuda:
                # On a CPU the call above does not redo the experts' own arrangement of their weights, so this line
                # does.
                layer.quant_method.moe_kernel.fused_experts.process_weights_after_loading(layer)
        self._ready = []
        for before, layer in zip(self._facts_before, self._layers, strict=True):
            after = _facts(layer)
            if any(old[0] == new[0] and old[1] != new[1] for old, new in zip(before, after, strict=True)):
                raise RuntimeError("a refresh leaves experts in another order than vLLM's own loading does")


Facts = list[tuple[int, int]]
"""For each parameter of a layer of experts, two checksums: one that ignores the order of values, and one that sees
it."""


def _facts(layer: nn.Module) -> Facts:
    return [both_sums(parameter) for parameter in layer.parameters()]


def _narrow(layer: nn.Module) -> dict[str, Tensor]:
    """Makes room for experts of the width in which they are sent, where vLLM's CPU build has padded the width with
    zeros to a multiple of 32. Returns the padded weights by name, or nothing where the width is the same."""
    width = layer.moe_config.intermediate_size_per_partition
    if layer.w13_weight.is_cuda or layer.w2_weight.shape[-1] == width:
        return {}
    dimensions = {"w13_weight": (1, 2 * width), "w13_bias": (1, 2 * width), "w2_weight": (2, width)}
    filled = {name: getattr(layer, name).data for name in dimensions if getattr(layer, name, None) is not None}
    for name, weights in filled.items():
        dimension, size = dimensions[name]
        shape = [*weights.shape[:dimension], size, *weights.shape[dimension + 1 :]]
        getattr(layer, name).data = weights.new_zeros(shape)
    return filled


def _has_experts(module: nn.Module) -> bool:
    return hasattr(module, "w13_weight") and hasattr(module, "quant_method")
