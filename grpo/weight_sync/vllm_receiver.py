"""The receiving end of a weight transfer: vLLM imports this module in its worker process.

vLLM's CPU build repacks linear weights for oneDNN and throws the originals away; a later load then fails,
or leaves a tied output embedding silently stale (logprobs wrong by 3 nats were measured). With the two
switches below, weights stay where they are and plain loading is exact, at 15–25 % of the CPU throughput.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from vllm.platforms import current_platform

from grpo.weight_sync.checksum import checksums

if current_platform.is_cpu():
    import vllm._custom_ops
    import vllm.model_executor.layers.utils

    vllm._custom_ops._supports_onednn = False
    vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda *args, **kwargs: False


class WeightReceiver:
    """Mixed into vLLM's worker by `worker_extension_cls`; called through `collective_rpc`."""

    def arrange_weights(self) -> None:
        """To be called once, on a CPU: stores matrices column by column, shapes unchanged. The products of decoding,
        a few rows wide, are then up to half again as quick, and loading copies into the same storage."""
        for parameter in self.model_runner.model.parameters():
            if parameter.dim() == 2:
                parameter.data = parameter.data.t().contiguous().t()

    def receive_bucket(self, bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Loads whole tensors under their Hugging Face names."""
        self.model_runner.model.load_weights(bucket)

    def weight_checksums(self) -> Mapping[str, int]:
        """See `grpo.weight_sync.checksum`."""
        return checksums(self.model_runner.model.named_parameters())
