"""This module converts weights to the form of a model's checkpoint files, which vLLM's loader expects.

Transformers gives some models' weights other names than their files have, and puts the experts of a layer into one
tensor: `mlp.experts.gate_up_proj` is what Mixtral's files have as `block_sparse_moe.experts.0.w1` and so on.
"""

from torch import Tensor
from torch.nn import Linear
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, WeightConverter, WeightRenaming, revert_weight_conversion

from grpo.interfaces import Bucket
from grpo.models.files import ModelFiles
from grpo.types.weights import adapted_weight

ALL_LINEAR = "all-linear"
"""peft's word for every linear layer but the output layer."""


class FileForm:
    """Converts a model's weights to the names and tensors of its checkpoint files."""

    def __init__(self, files: ModelFiles):
        self._model = files.without_values()
        changes = get_model_conversion_mapping(self._model, add_legacy=False)
        self._renamings = [
            change.reverse_transform()
            for change in reversed(changes)
            if isinstance(change, WeightRenaming) and not isinstance(change, PrefixChange)
        ]
        self._splits = any(
            isinstance(change, WeightConverter) and any(".experts.*." in name for name in change.source_patterns)
            for change in changes
        )

    def of(self, bucket: Bucket) -> list[tuple[str, Tensor]]:
        """Returns the weights under the names of the model's files. Experts become separate tensors if the files have
        them so, because some of vLLM's models (DeepSeek's, for one) cannot load them from one tensor."""
        if not self._splits:
            return [(self._name(name), tensor) for name, tensor in bucket]
        # Only linear layers are adapted.
        adapter_weights = [(self._name(name), tensor) for name, tensor in bucket if adapted_weight(name)[1]]
        full_weights = {name: tensor for name, tensor in bucket if not adapted_weight(name)[1]}
        return adapter_weights + list(revert_weight_conversion(self._model, full_weights).items())

    def adapted_layers(self, target_modules: str) -> list[str]:
        """Returns the last parts of the names of all layers that `target_modules` of `model.lora` adapts.

        "all-linear" means every linear layer but the output layer.
        """
        if target_modules != ALL_LINEAR:
            return sorted({name.strip().rpartition(".")[2] for name in target_modules.split(",")})
        head = self._model.get_output_embeddings()
        names = [name for name, module in self._model.named_modules() if isinstance(module, Linear) and module != head]
        return sorted({self._name(f"{name}.weight").split(".")[-2] for name in names})

    def _name(self, name: str) -> str:
        name, suffix = adapted_weight(name)
        for change in self._renamings:
            name, _ = change.rename_source_key(name)
        return name + suffix
