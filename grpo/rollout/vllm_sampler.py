"""This module runs vLLM's engine in the learner's process: token ids in, token ids and log-probabilities out.

Where ranks share one engine, it gets the prompts of all of them together.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import torch
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind

from grpo.config import SamplingConfig, UserError
from grpo.config.errors import Interrupted, require
from grpo.config.parts import SamplerSettings
from grpo.config.pass_through import passing_on
from grpo.host import ranks
from grpo.host.signals import leave_if_urgent
from grpo.host.terminal import say
from grpo.interfaces import Bucket, Collective, Draw, OnGroup
from grpo.models.files import ModelFiles
from grpo.rollout.engine_arguments import (
    MERGE_ADAPTERS,
    NO_ADAPTERS,
    adapter_arguments,
    colocated_arguments,
    engine_arguments,
    for_device,
    sample_seed,
    sampling_arguments,
)
from grpo.rollout.engine_use import EngineUse, cache_key, few_at_once
from grpo.rollout.model_classes import ModelClasses
from grpo.rollout.turns import Turn, Turns
from grpo.rollout.weight_names import FileForm
from grpo.types import Completion, Prompt, RolloutGroup
from grpo.types.weights import ADAPTER, ADAPTER_NUMBER, ADAPTERS, BASE, MERGED, NO_FILE

_TOO_LONG = re.compile(r"max_model_len \((\d+)\) is greater than the derived max_model_len \(([^)]*)\)")
Item = TypeVar("Item")
Asked = Sequence[tuple[Prompt, range]]
"""These are prompts, each with the numbers of its completions."""


class VllmSampler:
    """Implements `interfaces.Sampler` on a vLLM engine in this process.

    Each learner rank has an engine, or `rollout.tensor_parallel` ranks share one. Ranks that share an engine pool their
    prompts: each submits the prompts of all to its shard of the engine, and returns the groups of its own."""

    def __init__(
        self,
        settings: SamplerSettings,
        files: ModelFiles,
        device: torch.device,
        collective: Collective | None = None,
    ):
        """`collective` spans all learner ranks. It is needed when several ranks share an engine."""
        spread = settings.rollout.tensor_parallel
        self._settings = settings
        self._pool = partial(pooled, collective, spread)
        self._alone = spread == 1
        self._first_of_engine = spread == 1 or collective.rank % spread == 0
        self._tokenizer, self._stop_token_ids = files.tokenizer, files.stop_token_ids
        self._on_gpu = device.type == "cuda"
        self.policy_version = 0
        # This is vLLM's level of sleep. At level 2 weights are lost, at level 1 they wait in main memory.
        self._sleep_level, self._deepest_level = 1, 2
        self._file_form = FileForm(files)
        self._adapters, self._has_base = settings.adapters, settings.keeps_base
        # Requests name the adapter from the first refresh on, which brings it.
        self._adapted: dict[str, LoRARequest] = {}
        arguments = engine_arguments(settings, str(files.path), self._on_gpu, for_device(files, device))
        speculates = "speculative_config" in settings.rollout.engine_args
        arguments |= colocated_arguments(self._on_gpu, ranks.world_size(), spread, speculates)
        if self._adapters:
            layers = self._file_form.adapted_layers(settings.model.lora.target_modules)
            arguments |= adapter_arguments(settings.model.lora.rank, layers)
        with passing_on("rollout.sampling.extra", settings.rollout.sampling.extra, VLLMValidationError):
            self._parameters(settings.rollout.sampling, seed=0)
        classes = ModelClasses()
        if self._on_gpu:
            # vLLM checks that its share of the GPU is free. Torch keeps memory from loading the learner, which counts
            # as taken.
            torch.cuda.empty_cache()
        with _own_settings(device), nullcontext() if self._on_gpu else _own_shared_memory(collective, spread):
            with (
                passing_on("rollout.engine_args", settings.rollout.engine_args, VLLMValidationError),
                explaining_startup(self._on_gpu),
            ):
                self._llm = LLM(**arguments)
            self._llm.apply_model(classes.part)
        self._use = self._llm.llm_engine.logger_manager = EngineUse()
        # An earlier vLLM does not tell how many completions its cache holds.
        room = getattr(self._llm.llm_engine.vllm_config.cache_config, "kv_cache_max_concurrency", None)
        line = few_at_once(room, settings, ranks.world_size() // spread, cache_key(self._on_gpu))
        if line and not ranks.rank():
            say(f"grpo: {line}")
        if not self._on_gpu:
            self._llm.collective_rpc("take_onednn")
        elif self._adapters or any(self._llm.collective_rpc("lost_by_sleep")):
            self._deepest_level = 1

    def generate(self, draw: Draw, on_group: OnGroup | None = None) -> list[RolloutGroup]:
        sampling = draw.sampling or self._settings.rollout.sampling
        engine, most_seconds = self._llm.llm_engine, self._settings.rollout.group_deadline_seconds
        pooled_prompts, own_places = self._pool(list(zip(draw.prompts, draw.samples, strict=True)))
        outputs: dict[str, object] = {}
        groups: dict[int, RolloutGroup] = {}
        begun: dict[int, float] = {}
        places = {index: place for place, index in enumerate(own_places)}

        def advance() -> None:
            """Takes one engine step, and makes the groups of this rank's prompts that are then complete or given up."""
            self._leave_if_urgent()
            finished = self._advance(engine, outputs)
            late = {index for index, since in begun.items() if time.monotonic() - since > most_seconds}
            for index in (finished | late) & places.keys():
                prompt, samples = pooled_prompts[index]
                names = [f"{index}/{sample}" for sample in samples]
                if index in late or outputs.keys() >= {*names}:
                    if begun.pop(index, None) and index in late:
                        engine.abort_request([name for name in names if name not in outputs], internal=False)
                    place, completions = places[index], tuple(self._completion(outputs.get(name)) for name in names)
                    groups[place] = RolloutGroup(prompt, completions, self.policy_version, self.policy_version)
                    if on_group:
                        on_group(place, groups[place])

        if most_seconds:
            self._submit_as_room_is(pooled_prompts, sampling, advance, begun)
        else:
            self._submit_in_blocks(pooled_prompts, sampling, advance)
        while engine.has_unfinished_requests():
            advance()
        return [groups[index] for index in range(len(draw.prompts))]

    def _submit_in_blocks(self, prompts: Asked, sampling: SamplingConfig, advance: Callable[[], None]) -> None:
        # The number of prompts in a block is that of completions that the engine writes at once. If all prompts were
        # one block, no group of a long evaluation would be complete before all first samples are, and a deadline might
        # end it.
        size = self._settings.rollout.max_concurrent
        for start in range(0, len(prompts), size):
            block = list(enumerate(prompts[start : start + size], start))
            for index, (prompt, samples) in block:
                self._submit(f"{index}/{samples[0]}", samples[0], prompt, sampling)
            # One engine step ahead, the first sample of each prompt fills the prefix cache for its siblings.
            if not start and any(len(samples) > 1 for _, samples in prompts):
                advance()
            for index, (prompt, samples) in block:
                for sample in samples[1:]:
                    self._submit(f"{index}/{sample}", sample, prompt, sampling)

    def _submit_as_room_is(
        self, prompts: Asked, sampling: SamplingConfig, advance: Callable[[], None], begun: dict[int, float]
    ) -> None:
        """Submits no more than the engine writes at once, so that no group's time passes while it waits. `begun` gets
        the time at which each prompt was submitted."""
        engine = self._llm.llm_engine
        for index, (prompt, samples) in enumerate(prompts):
            while (under_way := engine.get_num_unfinished_requests()) and (
                under_way + len(samples) > self._settings.rollout.max_concurrent
            ):
                advance()
            begun[index] = time.monotonic()
            for sample in samples:
                self._submit(f"{index}/{sample}", sample, prompt, sampling)

    def serve(self, turns: Turns) -> None:
        engine = self._llm.llm_engine
        under_way: dict[str, Turn] = {}
        number = count()
        while (new_turns := turns.take(wait=not under_way)) is not None or under_way:
            for turn in new_turns or ():
                under_way[name := f"turn-{next(number)}"] = turn
                self._submit(name, turn.sample, turn.prompt, turn.sampling)
            self._leave_if_urgent()
            for output in engine.step() if under_way else ():
                if output.finished:
                    under_way.pop(output.request_id).completion.set_result(self._completion(output.outputs[0]))

    def _leave_if_urgent(self) -> None:
        """Drops all requests and raises `Interrupted` where the run has to save at once. Ranks that share an engine
        take its steps together, so they finish."""
        if self._alone:
            try:
                leave_if_urgent()
            except Interrupted:
                engine = self._llm.llm_engine
                engine.abort_request(list(engine.output_processor.request_states), internal=True)
                raise

    @staticmethod
    def _advance(engine, outputs: dict[str, object]) -> set[int]:
        """Takes one engine step. Returns the indices of the prompts of which the step has finished a completion."""
        finished_outputs = [output for output in engine.step() if output.finished]
        outputs.update({output.request_id: output.outputs[0] for output in finished_outputs})
        return {int(output.request_id.partition("/")[0]) for output in finished_outputs}

    def _submit(self, name: str, sample: int, prompt: Prompt, sampling: SamplingConfig) -> None:
        seed = sample_seed(self._settings.seed, prompt.prompt_id, sample, self.policy_version)
        parameters = self._parameters(sampling, seed)
        request = {"prompt_token_ids": list(prompt.token_ids)}
        self._llm.llm_engine.add_request(name, request, parameters, **self._adapted)

    def _parameters(self, sampling: SamplingConfig, seed: int) -> SamplingParams:
        # Only whole answers are returned. Otherwise this process would build an answer for every new token of every
        # completion.
        output_settings = {"output_kind": RequestOutputKind.FINAL_ONLY, "flat_logprobs": True}
        return SamplingParams(**sampling_arguments(sampling, self._stop_token_ids, seed), **output_settings)

    def _completion(self, output) -> Completion:
        if output is None:
            return Completion.given_up(self.policy_version)
        token_ids = tuple(output.token_ids)
        logprobs = tuple(output.logprobs.logprobs)
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        versions = ((self.policy_version, len(token_ids)),)
        return Completion(token_ids, logprobs, text, output.finish_reason == "length", versions)

    def begin_refresh(self) -> str:
        self._llm.collective_rpc("begin_refresh")
        if not self._adapters:
            return MERGED
        return ADAPTERS if self._has_base else BASE

    def load_weights(self, bucket: Bucket) -> None:
        try:
            self._llm.collective_rpc("receive_bucket", args=(self._file_form.of(bucket),))
        except (LookupError, ValueError, AttributeError, AssertionError) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise UserError(
                f"vLLM's code for this model has no place for what a refresh sends ({reason}): use "
                "rollout.engine=transformers"
            ) from error

    def finish_weights(self, policy_version: int) -> None:
        self._llm.collective_rpc("finish_refresh")
        if self._adapters:
            self._has_base, self._adapted = True, {"lora_request": LoRARequest(ADAPTER, ADAPTER_NUMBER, NO_FILE)}
        if self._on_gpu:
            self._make_room("kv_cache")
        if not self._llm.reset_prefix_cache():
            # vLLM only warns. Prompts that begin alike would then continue from activations of older weights.
            raise RuntimeError("vLLM did not empty its prefix cache after a refresh: some request still holds blocks")
        self.policy_version, self._sleep_level = policy_version, self._deepest_level

    def cache_usage(self) -> dict[str, float]:
        # If ranks share an engine, only the first of them reports.
        return self._use.take() if self._first_of_engine else {}

    def checksums(self) -> Sequence[Mapping[str, int]]:
        return self._llm.collective_rpc("weight_checksums")

    def sleep(self) -> None:
        """Frees the GPU memory of weights and cache.

        Until the first refresh, weights wait in main memory, since it is not known which ones no learner sends (see
        `grpo.weight_sync.engine_weights`). Later they are dropped, since the next refresh sends them again. They always
        wait where vLLM's model has tensors besides its weights that would be lost, and where a refresh sends adapters
        only.
        """
        if self._on_gpu:
            self._llm.sleep(level=self._sleep_level)

    def wake(self) -> None:
        """Takes back the memory for weights. The cache follows in `finish_weights`, after the last bucket."""
        if self._on_gpu:
            self._make_room("weights")

    def close(self) -> None:
        """Ends the engine, and with it torch.distributed, which vLLM ends too. With several ranks each engine lives
        until its process ends, since an orderly end would wait for ranks that are lost.

        On a GPU an engine is kept too. vLLM (0.32, csrc/cumem_allocator.cpp) unmaps all of its memory as it ends, also
        what an engine that sleeps has unmapped before. It remembers that error, and gives no later engine any memory.
        """
        if ranks.world_size() == 1 and not self._on_gpu:
            self._llm.llm_engine.engine_core.shutdown()
            del self._llm

    def _make_room(self, what: str) -> None:
        """Takes back memory that `sleep` freed, of "weights" or "kv_cache". The memory that PyTorch caches after the
        learner's last step is freed first, since it would leave no room."""
        torch.cuda.empty_cache()
        self._llm.wake_up([what])


@contextmanager
def explaining_startup(on_gpu: bool) -> Iterator[None]:
    """Turns vLLM's errors at its start, where memory or positions are too few, into a UserError that names the run's
    own keys."""
    cache = cache_key(on_gpu)
    helps = {
        "less than desired GPU memory": (
            "end other programs on the GPU, lower rollout.gpu_memory_fraction, or set learner.offload_states=true"
        ),
        "less than requested memory for kv": f"end other programs, or lower {cache}",
        "No available memory for the cache": f"raise {cache}",
        "larger than the available KV cache memory": f"raise {cache}, or lower model.max_length",
    }
    try:
        yield
    except ValueError as error:
        error_text = " ".join(str(error).split())
        if limit := _TOO_LONG.search(error_text):
            raise UserError(
                f"model.max_length={limit[1]} is more than the positions that vLLM finds in the model's config "
                f"({limit[2]}): lower model.max_length and rollout.sampling.max_tokens"
            ) from error
        require(not NO_ADAPTERS.search(error_text), MERGE_ADAPTERS)
        advice = next((advice for part, advice in helps.items() if part in error_text), None)
        if advice is None:
            raise
        raise UserError(f"vLLM has too little memory to start: {advice}. It says: {error_text[:300]}") from error


@contextmanager
def _own_shared_memory(collective: Collective | None, spread: int) -> Iterator[None]:
    """Gives an engine's shared memory, by which its `spread` ranks exchange data on a CPU, a unique name. Afterwards
    removes the memory's files.

    For ranks that torchrun started, vLLM (0.32) uses one name in all runs of a machine. Two runs would share the
    memory, and a killed run's files would stop all later runs. Collective when several ranks share an engine.
    """
    if spread == 1:
        yield
        return
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

    # The engine's first rank chooses the name of its shared memory.
    name = collective.gather(uuid4().hex)[collective.rank - collective.rank % spread]
    of_group = _CPUSHMDistributed.make_group_name
    _CPUSHMDistributed.make_group_name = staticmethod(lambda group: name + of_group(group).lstrip("/"))
    yield
    _CPUSHMDistributed.make_group_name = staticmethod(of_group)
    # All ranks have opened the shared memory, so it needs no name any more.
    for file in Path("/dev/shm").glob(f"{name}*"):
        file.unlink(missing_ok=True)


@contextmanager
def _own_settings(device: torch.device) -> Iterator[None]:
    """Restores what an engine changes in its process as it starts: random generators, environment variables that
    torchrun and torch rely on, the number of threads, and the current GPU."""
    environment, threads = dict(os.environ), torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    os.environ.clear()
    os.environ.update(environment)
    # On a CPU vLLM binds threads to cores, and nothing changes their number afterwards.
    if device.type == "cuda":
        torch.set_num_threads(threads)
        torch.cuda.set_device(device)


def pooled(collective: Collective, together: int, items: Sequence[Item]) -> tuple[list[Item], list[int]]:
    """Gathers the items of the `together` consecutive ranks that share an engine. Returns them and the places of this
    rank's items among them.

    All ranks of an engine get the same items in the same order, so that their schedulers take the same steps. Ranks
    take turns in this order, so that the groups of each rank are completed over the whole time that the engine writes.
    Collective when several ranks share an engine.
    """
    if together == 1:
        return list(items), [*range(len(items))]
    first = collective.rank - collective.rank % together
    members = collective.gather(list(items))[first : first + together]
    places = sorted((number, rank) for rank, of_rank in enumerate(members, first) for number in range(len(of_rank)))
    own_places = [place for place, (_, rank) in enumerate(places) if rank == collective.rank]
    return [members[rank - first][number] for number, rank in places], own_places
