"""What vLLM makes of weights: where in its storage each is, and the experts that it keeps in an order of its own."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from grpo.weight_sync.checksum import bit_sum, placed_sum


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights of a vLLM model under the names that learners send: fused ones cut apart, rows that fill up the
    vocabulary cut off. What is stored under another name or in another shape comes as it is stored."""
    fused = getattr(model, "packed_modules_mapping", {})
    # GPT-2 is trained with matrices that lie the other way round than in everybody's linear layers.
    lying = ("c_attn", "c_proj", "c_fc") if getattr(getattr(model, "config", None), "model_type", "") == "gpt2" else ()
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        prefix, _, kind = name.rpartition(".")
        module, (parent, dot, leaf) = modules[prefix], prefix.rpartition(".")
        sizes = getattr(module, "output_partition_sizes", [])
        parts = fused.get(leaf, [])
        rows = parameter.shape[0] if parameter.dim() else 0
        if leaf in lying and kind == "weight":
            yield name, parameter.detach().t()
        elif len(parts) == len(sizes) > 1 and sum(sizes) == rows:
            pieces = parameter.detach().split(list(sizes))
            yield from ((f"{parent}{dot}{part}.{kind}", piece) for part, piece in zip(parts, pieces, strict=True))
        else:
            vocabulary = getattr(module, "org_vocab_size", rows)
            yield name, parameter.detach()[:vocabulary] if vocabulary < rows else parameter.detach()


class ExpertOrder:
    """The experts of a vLLM model, which it may keep in an order of its own after loading.

    `begin` is called before the first weight of a refresh is loaded, `finish` after the last. `finish` has vLLM
    arrange what was loaded as it did at its start. It raises RuntimeError where the same weights lie elsewhere
    afterwards: so the first refresh of a run, which sends what the engine itself has loaded, shows a wrong order.
    """

    def __init__(self, model: nn.Module):
        self._layers = [module for module in model.modules() if _has_experts(module)]
        self._before: list[list[tuple[int, int]]] = []

    def begin(self) -> None:
        self._before = self._facts()

    def finish(self) -> None:
        for layer in self._layers:
            layer.quant_method.process_weights_after_loading(layer)
            if not layer.w13_weight.is_cuda:
                # On a CPU that leaves the experts' own arrangement, which is made once, to be made again.
                layer.quant_method.moe_kernel.fused_experts.process_weights_after_loading(layer)
        for before, after in zip(self._before, self._facts(), strict=True):
            if any(old[0] == new[0] and old[1] != new[1] for old, new in zip(before, after, strict=True)):
                raise RuntimeError("a refresh leaves experts in another order than vLLM's own loading does")

    def _facts(self) -> list[list[tuple[int, int]]]:
        """Of every parameter of every layer of experts: its bits, whatever their order, and in their order."""
        return [[(bit_sum(each), placed_sum(each)) for each in layer.parameters()] for layer in self._layers]


def _has_experts(module: nn.Module) -> bool:
    return hasattr(module, "w13_weight") and hasattr(module, "quant_method")
