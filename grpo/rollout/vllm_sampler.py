"""This module runs vLLM's engine in the learner's process, on a CPU.

Token ids go in, token ids and log-probabilities come out. `engine_beside` gives the engine a process of its own.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

import torch
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind

from grpo.config import SamplingConfig, UserError
from grpo.config.errors import Interrupted
from grpo.config.parts import SamplerSettings
from grpo.config.pass_through import passing_on
from grpo.host import ranks
from grpo.host.signals import leave_if_urgent
from grpo.host.terminal import say
from grpo.interfaces import Bucket, Draw, OnGroup
from grpo.models.files import ModelFiles
from grpo.rollout.engine_arguments import (
    adapter_arguments,
    cache_key,
    engine_arguments,
    for_cpu,
    sample_seed,
    sampling_arguments,
    start_problem,
)
from grpo.rollout.engine_use import EngineUse, few_at_once
from grpo.rollout.model_classes import ModelClasses
from grpo.rollout.turns import Turn, Turns
from grpo.rollout.weight_names import FileForm
from grpo.types import Completion, Prompt, RolloutGroup
from grpo.types.weights import ADAPTER, ADAPTER_NUMBER, ADAPTERS, BASE, MERGED, NO_FILE

Asked = Sequence[tuple[Prompt, range]]
"""These are prompts, each with the numbers of its completions."""


class VllmSampler:
    """Implements `interfaces.Sampler` on a vLLM engine in the process of a learner rank, on a CPU."""

    def __init__(self, settings: SamplerSettings, files: ModelFiles):
        self._settings = settings
        self._tokenizer, self._stop_token_ids = files.tokenizer, files.stop_token_ids
        self.policy_version = 0
        self._file_form = FileForm(files)
        self._adapters, self._has_base = settings.adapters, settings.keeps_base
        # Requests name the adapter from the first refresh on, which brings it.
        self._adapted: dict[str, LoRARequest] = {}
        arguments = engine_arguments(settings, str(files.path), False, for_cpu(files))
        # `vllm.LLM` counts how its cache is used only with this setting. A server counts by default.
        arguments["disable_log_stats"] = False
        if ranks.world_size() > 1:
            # vLLM's own executor would begin a world of its own in a process that is in the learner's.
            arguments["distributed_executor_backend"] = "external_launcher"
        if self._adapters:
            layers = self._file_form.adapted_layers(settings.model.lora.target_modules)
            arguments |= adapter_arguments(settings.model.lora.rank, layers)
        with passing_on("rollout.sampling.extra", settings.rollout.sampling.extra, VLLMValidationError):
            self._parameters(settings.rollout.sampling, seed=0)
        classes = ModelClasses()
        with (
            _own_settings(),
            passing_on("rollout.engine_args", settings.rollout.engine_args, VLLMValidationError),
            explaining_startup(),
        ):
            self._llm = LLM(**arguments)
        self._llm.apply_model(classes.part)
        self._use = self._llm.llm_engine.logger_manager = EngineUse()
        # An earlier vLLM does not tell how many completions its cache holds.
        room = getattr(self._llm.llm_engine.vllm_config.cache_config, "kv_cache_max_concurrency", None)
        line = few_at_once(room, settings, ranks.world_size(), cache_key(on_gpu=False, beside=True))
        if line and not ranks.rank():
            say(f"grpo: {line}")
        self._llm.collective_rpc("take_onednn")

    def generate(self, draw: Draw, on_group: OnGroup | None = None) -> list[RolloutGroup]:
        sampling = draw.sampling or self._settings.rollout.sampling
        engine, most_seconds = self._llm.llm_engine, self._settings.rollout.group_deadline_seconds
        asked = list(zip(draw.prompts, draw.samples, strict=True))
        outputs: dict[str, object] = {}
        groups: dict[int, RolloutGroup] = {}
        begun: dict[int, float] = {}

        def advance() -> None:
            """Takes one engine step, and makes the groups of the prompts that are then complete or given up."""
            self._leave_if_urgent()
            finished = self._advance(engine, outputs)
            late = {index for index, since in begun.items() if time.monotonic() - since > most_seconds}
            for index in finished | late:
                prompt, samples = asked[index]
                names = [f"{index}/{sample}" for sample in samples]
                if index in late or outputs.keys() >= {*names}:
                    if begun.pop(index, None) and index in late:
                        engine.abort_request([name for name in names if name not in outputs], internal=False)
                    completions = tuple(self._completion(outputs.get(name)) for name in names)
                    groups[index] = RolloutGroup(prompt, completions, self.policy_version, self.policy_version)
                    if on_group:
                        on_group(index, groups[index])

        if most_seconds:
            self._submit_as_room_is(asked, sampling, advance, begun)
        else:
            self._submit_in_blocks(asked, sampling, advance)
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
        while (new_turns := turns.take(wait=not under_way)) is not None:
            for turn in new_turns:
                under_way[name := f"turn-{next(number)}"] = turn
                self._submit(name, turn.sample, turn.prompt, turn.sampling)
            self._leave_if_urgent()
            for output in engine.step() if under_way else ():
                if output.finished:
                    under_way.pop(output.request_id).completion.set_result(self._completion(output.outputs[0]))
        # These turns are of episodes that were given up.
        engine.abort_request([*under_way], internal=False)

    def _leave_if_urgent(self) -> None:
        """Drops all requests and raises `Interrupted` where the run has to save at once."""
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
        if not self._llm.reset_prefix_cache(reset_connector=True):
            # vLLM only warns. Prompts that begin alike would then continue from activations of older weights.
            raise RuntimeError("vLLM did not empty its prefix cache after a refresh: some request still holds blocks")
        self.policy_version = policy_version

    def cache_usage(self) -> dict[str, float]:
        return self._use.take()

    def checksums(self) -> Sequence[Mapping[str, int]]:
        return self._llm.collective_rpc("weight_checksums")

    def sleep(self) -> None:
        """Does nothing, because a CPU's memory has room for learner and engine."""

    def wake(self) -> None:
        """Does nothing, because an engine on a CPU never sleeps."""

    def close(self) -> None:
        """Ends the engine, and with it torch.distributed, which vLLM ends too. With several ranks each engine lives
        until its process ends, since an orderly end would wait for ranks that are lost."""
        if ranks.world_size() == 1:
            self._llm.llm_engine.engine_core.shutdown()
            del self._llm


@contextmanager
def explaining_startup() -> Iterator[None]:
    """Turns vLLM's errors at its start, where memory or positions are too few, into a UserError that names the run's
    own keys."""
    try:
        yield
    except ValueError as error:
        if line := start_problem(str(error), cache_key(on_gpu=False, beside=True)):
            raise UserError(line) from error
        raise


@contextmanager
def _own_settings() -> Iterator[None]:
    """Restores what an engine changes in its process as it starts: random generators, and environment variables that
    torchrun and torch rely on. Nothing changes the number of threads after vLLM has bound them to cores."""
    environment = dict(os.environ)
    with torch.random.fork_rng(devices=[]):
        yield
    os.environ.clear()
    os.environ.update(environment)
