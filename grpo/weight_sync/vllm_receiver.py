"""This module is the receiving end of a weight transfer. vLLM's worker process imports it.

In the learner's process buckets come by reference (`receive_bucket`). A server gets them by vLLM's own weight-transfer
protocol (`TransferEngine`, its backend "grpo"): through a `Channel`, or from memory that it shares with the learner.

vLLM's CPU build repacks linear weights for oneDNN and throws the originals away; a later load then fails,
or leaves a tied output embedding silently stale (logprobs wrong by 3 nats were measured). With the two
switches below, weights stay where they are and plain loading is exact, at 15–25 % of the CPU throughput.

LoRA's adapters stay adapters, beside the frozen weights (`grpo.weight_sync.vllm_adapters`).
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial, partialmethod
from typing import Any

import torch
from torch import nn
from torch.profiler import profile
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.activation import XIELU
from vllm.platforms import current_platform

from grpo.host.kernels import busy_seconds, watched
from grpo.host.tether import end_with_tether
from grpo.interfaces import Bucket
from grpo.weight_sync.channel import Channel, Manifest, Meeting, open_end, unpacked
from grpo.weight_sync.checksum import checksums
from grpo.weight_sync.engine_weights import (
    ExpertOrder,
    OwnParameters,
    as_sent,
    lost_by_sleep,
    named_weights,
    prepare_attention,
)
from grpo.weight_sync.shared_memory import Place
from grpo.weight_sync.vllm_adapters import Adapters

BACKEND = "grpo"
# The seconds that a worker on a CPU polls for the next message before it sleeps until it is woken. During sampling,
# messages follow each other faster.
BUSY_SECONDS = 0.01

# Apertus' activation has weights, which vLLM (0.32) keeps in bfloat16 whatever the model computes in. With no type they
# get the model's.
XIELU.__init__ = partialmethod(XIELU.__init__, dtype=None)

if current_platform.is_cpu():
    import vllm._custom_ops
    import vllm.model_executor.layers.utils

    vllm._custom_ops._supports_onednn = False
    vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda *args, **kwargs: False

    # Workers of one engine would poll for a whole second after each message, on the cores that a model computes on.
    SpinCondition.__init__ = partialmethod(SpinCondition.__init__, busy_loop_s=BUSY_SECONDS)


def onednn_linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Computes `torch.nn.functional.linear` by oneDNN, without a gradient."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


class Arrival:
    """Loads the weights of refreshes into an engine's model: `begin`, `load` for each bucket, then `finish`."""

    def __init__(self, model: nn.Module, dtype: torch.dtype):
        self._model, self._dtype = model, dtype
        self.adapters = Adapters(model)
        self._own_parameters: OwnParameters | None = None

    def begin(self) -> None:
        self.adapters.begin()
        with self.adapters.set_aside():
            self._own_parameters = self._own_parameters or OwnParameters(self._model)
            self._own_parameters.restore()
            self._experts = ExpertOrder(self._model)
            self._experts.begin()

    def load(self, bucket: Bucket) -> None:
        """Loads whole tensors under their Hugging Face names."""
        if weights := self.adapters.take(bucket):
            with self.adapters.set_aside():
                self._own_parameters.load(weights)

    def finish(self) -> None:
        """Arranges the loaded weights as vLLM's own loading does. The adapter follows, see `Adapters.finish`."""
        with self.adapters.set_aside():
            self._experts.finish()
            prepare_attention(self._model, self._dtype)
            # An engine with adapters never sleeps so deep that it would lose a weight.
            if not self.adapters:
                self._own_parameters.keep()


class WeightReceiver:
    """Receives weights in vLLM's worker, to which `worker_extension_cls` adds these methods. `collective_rpc` calls
    them."""

    _arrival: Arrival | None = None
    _watched: profile | None = None

    def take_onednn(self) -> None:
        """Makes layers in float32 multiply by oneDNN. Called once, on a CPU.

        For the few rows of decoding this is a quarter quicker than torch's own choice, and needs no repacked weights.
        A torch that was built without oneDNN (for macOS, say) has no such product, and layers stay as they are.
        """
        if not torch.backends.mkldnn.is_available():
            return
        for module in self.model_runner.model.modules():
            if hasattr(module, "cpu_linear") and module.weight.dim() == 2 and module.weight.dtype == torch.float32:
                module.cpu_linear = onednn_linear

    def end_broken_transfer(self) -> None:
        """Ends a transfer that the learner began and never finished, because the learner died or gave this server up.

        vLLM would refuse every further transfer otherwise. The next transfer sends all weights, and so replaces those
        that were left half loaded.
        """
        if getattr(self, "_weight_update_active", False):
            self.finish_weight_update()

    def lost_by_sleep(self) -> list[str]:
        """Returns the names of tensors that a sleep at level 2 would lose, see `grpo.weight_sync.engine_weights`."""
        return lost_by_sleep(self.model_runner.model)

    def processor_seconds(self) -> dict[str, float]:
        """Returns the processor seconds that this process has taken so far."""
        return {"seconds": time.process_time()}

    def watch_kernels(self) -> dict[str, float]:
        """Begins to watch the GPU's kernels, or ends it and returns the seconds in which some kernel ran."""
        if self._watched is None:
            self._watched = watched()
            return {}
        profiler, self._watched = self._watched, None
        return {"seconds": busy_seconds(profiler)}

    def begin_refresh(self) -> None:
        """Prepares for new weights. Called before the first bucket, in the learner's process."""
        self._arrival = self._arrival or Arrival(self.model_runner.model, self.model_config.dtype)
        self._arrival.begin()

    def receive_bucket(self, bucket: Bucket) -> None:
        """Loads a bucket, in the learner's process."""
        self._arrival.load(bucket)

    def finish_refresh(self) -> None:
        """Ends a refresh. Called after the last bucket, in the learner's process."""
        self._arrival.finish()
        self._arrival.adapters.finish()

    def place_adapter(self) -> None:
        """Puts a received adapter in its place, in a server. Called after the end of a refresh, at which vLLM removes
        adapters."""
        self.weight_transfer_engine.arrival.adapters.finish()

    def weight_checksums(self, whole: bool = False) -> Mapping[str, int]:
        """Returns checksums of the model's own weights and of its adapter, as far as the last refresh sent them, see
        `grpo.weight_sync.checksum`.

        Where tensor parallelism spreads a server's model over workers, whose shares may overlap, it returns those of
        the received buckets instead. With `whole` the shares are put together: those of a model without experts and
        without layers that keep a state.
        """
        transfer, spread = self.weight_transfer_engine, self.parallel_config.tensor_parallel_size > 1
        if transfer is not None and spread and not whole:
            return transfer.received
        adapters = (transfer.arrival if transfer else self._arrival).adapters
        sums = checksums(adapters.received() if spread else adapters.stored())
        if adapters.weights_came:
            with adapters.set_aside():
                weights = named_weights(self.model_runner.model)
                sums.update(checksums(as_sent(weights, self.model_config.dtype)))
        return sums


@dataclass
class ChannelInitInfo(WeightTransferInitInfo):
    """This message names a `Meeting` with the learner, and how long to wait there."""

    meeting: dict[str, Any]
    seconds: float


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """This message carries a bucket's `Manifest`. `places` say for each worker where in shared memory the bucket is;
    without them it comes through the channel."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    places: list[dict[str, Any]] = field(default_factory=list)


class TransferEngine(WeightTransferEngine[ChannelInitInfo, UpdateInfo]):
    """Receives weights by vLLM's protocol. `received` holds the checksums of the present update."""

    init_info_cls = ChannelInitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        # If both processes of the server's tether are killed, the kernel ends the server, but not its engine.
        end_with_tether()
        self._channel: Channel | None = None
        self._place: dict[str, Any] = {}
        self._memory: torch.Tensor | None = None
        self.received: Counter[str] = Counter()
        self.arrival = Arrival(self.model, self.model_config.dtype)

    def init_transfer_engine(self, init_info: ChannelInitInfo) -> None:
        self.shutdown()
        meeting, rank = Meeting(**init_info.meeting), 1 + self.parallel_config.rank
        store = meeting.join(init_info.seconds)
        self._channel = open_end(store, meeting.host, rank, meeting.world_size, self.device, init_info.seconds)

    def start_weight_update(self) -> None:
        self.received = Counter()
        self.arrival.begin()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        manifest = Manifest(update_info.names, update_info.dtypes, update_info.shapes)
        if update_info.places:
            bucket = unpacked(manifest, partial(self._shared, update_info.places[self.parallel_config.rank]))
        else:
            bucket = self._channel.receive(manifest)
        self.received.update(checksums(bucket))
        self.arrival.load(bucket)

    @staticmethod
    def trainer_send_weights(*arguments: Any, **named: Any) -> None:
        """Does nothing: vLLM 0.26 wants this method, but learners send by `grpo.weight_sync.server_link`."""

    def _shared(self, place: dict[str, Any], size: int) -> torch.Tensor:
        """Returns the first `size` bytes of the memory at `place`, which stays open until the end of the update."""
        if place != self._place:
            self._place, self._memory = place, Place(**place).open(self.device)
        return self._memory[:size]

    def finish_weight_update(self) -> None:
        self.arrival.finish()
        self._place, self._memory = {}, None

    def shutdown(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


WeightTransferEngineFactory.register_engine(BACKEND, TransferEngine)
