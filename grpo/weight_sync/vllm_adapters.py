"""This module gives vLLM's model the learner's LoRA adapter, as an adapter of vLLM's own. vLLM's worker imports it.

vLLM (0.32) computes W·x + B·(A·x) as the learner does, so nothing of the adapter is rounded away. It loads adapters
from files only; here they come as tensors, and take the place of the one adapter that the engine has room for. Its
layers stand around the model's own layers, which a refresh and checksums want to find under their own names.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.functional import linear
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.lora.utils import parse_fine_tuned_lora_name, replace_submodule

from grpo.interfaces import Bucket
from grpo.types.weights import ADAPTER_NUMBER, DOWN_SUFFIX, adapted_weight

# Latent attention decodes by parts of this matrix, beside which vLLM computes no adapter.
_READ_APART = "kv_b_proj"


def add_one_adapter(
    self: PunicaWrapperCPU,
    y: Tensor,
    x: Tensor,
    lora_a_stacked: tuple[Tensor, ...],
    lora_b_stacked: tuple[Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    **unused: object,
) -> None:
    """Adds the adapter's part to the outputs `y` [tokens, width] of a layer with inputs `x`.

    All tokens have the same adapter here. vLLM's own code for CPUs copies the adapter for every token.
    """
    if self.no_lora:
        return
    rows, start = y.view(-1, y.shape[-1]), 0
    for down, up, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
        rows[:, start : start + width] += scale * linear(linear(x.view(-1, x.shape[-1]), down[0, 0]), up[0, 0])
        start += width


PunicaWrapperCPU.add_lora_linear = add_one_adapter


class Adapters:
    """Holds the place of the learner's adapter in a vLLM model. It is false for an engine without adapters.

    `begin` is called before the first bucket of a refresh, `take` for each bucket, `finish` after the last.
    `weights_came` says whether the present refresh has sent weights beside adapters.
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self._manager = getattr(model, "lora_manager", None)
        self._received: dict[str, Tensor] = {}
        self.weights_came = False
        # Where vLLM keeps each layer's adapter: its own layer there, and the place among those fused into it.
        self._places = {}
        for module_name, layer in self._manager.modules.items() if self else ():
            names = self._manager.packed_modules.get(module_name, [module_name])
            self._places |= {name: (layer, index) for index, name in enumerate(names)}

    def __bool__(self) -> bool:
        return self._manager is not None

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Puts the model's own layers back in their places within a `with`."""
        layers = dict(self._manager.modules) if self else {}
        for name, layer in layers.items():
            replace_submodule(self._model, name, layer.base_layer)
        try:
            yield
        finally:
            for name, layer in layers.items():
                replace_submodule(self._model, name, layer)

    def begin(self) -> None:
        self._received, self.weights_came = {}, False

    def take(self, bucket: Bucket) -> list[tuple[str, Tensor]]:
        """Keeps the adapters' halves in a bucket. Returns its weights. Raises LookupError for an adapter of a layer to
        which vLLM adds none."""
        weights = []
        for name, tensor in bucket:
            weight, suffix = adapted_weight(name)
            if not suffix:
                weights.append((name, tensor))
                continue
            module_name = self._module_name(name)
            if module_name not in self._places or module_name.endswith(_READ_APART):
                raise LookupError(f"it adds no adapter to {weight}; rollout.merge_adapters=true needs none")
            # The next bucket uses the same memory.
            self._received[name] = tensor.clone()
        self.weights_came = self.weights_came or bool(weights)
        return weights

    def finish(self) -> None:
        """Puts the received adapter in the place of the one before."""
        if not self._received:
            return
        rank = next(len(half) for name, half in self._received.items() if name.endswith(DOWN_SUFFIX))
        # B is scaled already, so that alpha / rank is 1.
        helper = PEFTHelper(r=rank, lora_alpha=rank, target_modules=[])
        tensors = {_as_in_peft(name): half for name, half in self._received.items()}
        device = next(iter(tensors.values())).device
        adapter = LoRAModel.from_lora_tensors(
            ADAPTER_NUMBER, tensors, helper, str(device), weights_mapper=self._mapper()
        )
        self._manager.remove_adapter(ADAPTER_NUMBER)
        self._manager.add_adapter(adapter)
        self._manager.activate_adapter(ADAPTER_NUMBER)

    def received(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the halves of the present refresh."""
        yield from self._received.items()

    def stored(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the halves of the present refresh, as the engine computes with them, under the names that were sent.
        The engine has one worker."""
        for name, half in self._received.items():
            layer, index = self._places[self._module_name(name)]
            stacked = layer.lora_a_stacked if name.endswith(DOWN_SUFFIX) else layer.lora_b_stacked
            yield name, stacked[min(index, len(stacked) - 1)][0, 0, : len(half), : half.shape[1]]

    def _mapper(self) -> object:
        mapper = getattr(self._model, "hf_to_vllm_mapper", None)
        # An earlier vLLM takes the mapper as it is.
        return mapper.get_rename_mapper() if hasattr(mapper, "get_rename_mapper") else mapper

    def _module_name(self, name: str) -> str:
        return parse_fine_tuned_lora_name(_as_in_peft(name), self._mapper())[0]


def _as_in_peft(name: str) -> str:
    """Returns peft's name of an adapter's half.

    >>> _as_in_peft("model.layers.0.mlp.up_proj.weight.lora_A")
    'base_model.model.model.layers.0.mlp.up_proj.lora_A.weight'
    """
    weight, suffix = adapted_weight(name)
    return f"base_model.model.{weight.removesuffix('.weight')}{suffix}.weight"
