"""This module samples on a vLLM engine that runs beside a learner rank, in a process of its own on the rank's device.

It is a vLLM server that only its own rank asks (or the `rollout.tensor_parallel` ranks whose GPUs it spreads over), so
that learner and engine do not wait for each other's Python. Weights reach it through memory that both processes share.
On a GPU the engine sleeps while the learner works. An engine that dies is started again, and the run goes on.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from grpo.config.parts import SamplerSettings
from grpo.host.network import LOOPBACK
from grpo.host.together import on_all
from grpo.interfaces import Collective
from grpo.models.files import ModelFiles
from grpo.rollout.fleet import Fleet
from grpo.rollout.server_sampler import ServerSampler
from grpo.types.weights import BASE


class EngineBeside(ServerSampler):
    """Implements `interfaces.Sampler` on a vLLM engine beside this rank."""

    def __init__(self, settings: SamplerSettings, files: ModelFiles, device: torch.device, collective: Collective):
        """Starts the engine, on the first of the ranks that share it. Collective over all ranks."""
        rollout, team = settings.rollout, collective.among(settings.rollout.tensor_parallel)
        server = replace(
            rollout.servers,
            **{"replicas": 1, "urls": [], "host": LOOPBACK, "port": 0, "tensor_parallel": rollout.tensor_parallel},
            first_gpu=device.index or 0,
            gpu_memory_fraction=rollout.gpu_memory_fraction,
        )
        # Each engine writes its share of a step.
        share = settings.step_completions * rollout.tensor_parallel // collective.world_size
        settings = replace(settings, rollout=replace(rollout, servers=server), step_completions=share)
        if device.type == "cuda":
            # vLLM checks that its share of the GPU is free. Torch keeps memory from loading the learner.
            torch.cuda.empty_cache()
        super().__init__(settings, files, device, collective, Fleet(settings, files, device, team, beside=True))
        self._all_ranks = collective

    def _versions(self, choice: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
        # It writes nothing during a refresh. Before vLLM 0.32 answers do not tell.
        return ((self.policy_version, len(choice["token_ids"])),)

    def begin_refresh(self) -> str:
        form = super().begin_refresh()
        # All ranks gather the same weights.
        return BASE if self._all_ranks.maximum(form == BASE) else form

    def ask_workers(self, method: str) -> list[dict[str, Any]]:
        """Calls a method of `grpo.weight_sync.vllm_receiver.WeightReceiver` in the engine's workers."""
        return self._fleet.ask_workers(method)

    def come_back(self) -> None:
        """Waits until engines that are lost answer again. Raises UserError, on all ranks, when one does not start."""
        on_all(self._all_ranks, self._fleet.wait_for_lost)

    def sleep(self) -> None:
        """Frees the GPU memory of weights and cache."""
        self._fleet.sleep()

    def wake(self) -> None:
        """Takes back the memory for weights. The cache follows in `finish_weights`, after the last bucket."""
        self._fleet.wake()
