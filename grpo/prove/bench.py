"""The bench holds what the parts of a proof share: a model of random weights, and the engines that run it.

It also measures peak memory between two calls, and fits a proof into a GPU's free memory before any engine starts. A
proof that needs more would end in the middle with a CUDA error. The learner's rows are shortened where that
suffices, unless their length was given. Otherwise the part is skipped, and its line says how much memory it needs.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo.algorithm.batches import BatchMaker
from grpo.config import TrainConfig
from grpo.config.hydra import compose_config
from grpo.config.memory_estimate import GIB, ModelShape, memory_estimate
from grpo.config.parts import LearnerSettings, SamplerSettings
from grpo.host import device_memory, ranks
from grpo.interfaces import Sampler
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.models import tiny
from grpo.models.files import ModelFiles
from grpo.prove.facts import LOOK, SLOW
from grpo.prove.sizes import SIZES, Shape, check_size, words_of
from grpo.run.parts import build_engine
from grpo.run.preparing import with_precision
from grpo.run.tables import shape_of
from grpo.telemetry.hardware import peak_memory
from grpo.types import Batch, Completion, Grade, Problem, Prompt, RolloutGroup, RoundPlan, ScoredGroup
from grpo.types import metrics as m
from grpo.weight_sync.refresh import CheckedSync

ROWS = "learner.micro_batch_tokens"
OFFLOAD = "learner.offload_optimizer=true"


def config_of(shape: Shape, **special: Any) -> Qwen2Config:
    """Returns the Qwen2 configuration of a shape. `special` are further arguments of Qwen2Config."""
    width, layers, heads, shared, inner, vocabulary = shape
    return Qwen2Config(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        intermediate_size=inner,
        vocab_size=vocabulary,
        max_position_embeddings=4096,
        **special,
    )


class Bench:
    """A bench holds a size's model and engines. Each engine starts when a part first needs it, and later parts share
    it."""

    def __init__(self, size: str, folder: Path, overrides: list[str], device: str = "auto"):
        """Composes the configuration of the bench from a size's name and a run's `overrides`.

        On a GPU, learner.micro_batch_tokens is lowered until a step fits into the free memory, unless the overrides
        set it. Raises UserError for an unknown size.
        """
        check_size(size)
        self.size_name, self.size, self.folder, self.path = size, SIZES[size], folder, folder / f"model-{size}"
        self.overrides = [f"device={device}", *overrides]
        self.words = words_of(self.size, self.path, self.overrides)
        self.config: TrainConfig = with_precision(compose_config(self.words))
        self.device = ranks.device(self.config.device)
        if self.room is not None and not any(word.startswith(f"{ROWS}=") for word in overrides):
            rows = fitting_rows(self.config, self.shape, ranks.world_size(), self.room)
            if rows and rows != self.config.learner.micro_batch_tokens:
                self.overrides.append(f"{ROWS}={rows}")
                self.words = words_of(self.size, self.path, self.overrides)
                self.config.learner.micro_batch_tokens = rows

    @cached_property
    def shape(self) -> ModelShape:
        return shape_of(config_of(self.size.shape), adapted=self.config.model)

    @cached_property
    def room(self) -> Room | None:
        """Returns the total and free memory of this rank's GPU before any engine starts, or None on a CPU."""
        if self.device.type != "cuda":
            return None
        return Room(device_memory.device_gib(self.config.device), device_memory.available_gib(self.config.device))

    def lacking(self, steps: bool) -> str:
        """Returns a message if a learner and a sampler do not fit into this rank's free GPU memory, else "". `steps`
        says whether the learner takes optimizer steps."""
        return lacking(self.config, self.shape, self.room, steps) if self.room else ""

    @property
    def slow(self) -> str:
        """Returns the verdict on a number that is outside of a bound of speed. No GPU has set these bounds yet."""
        return LOOK if self.device.type == "cuda" else SLOW

    @cached_property
    def files(self) -> ModelFiles:
        return ModelFiles(self.path)

    def build(self) -> None:
        """Writes the model and its tokenizer to `self.path`, unless that folder exists."""
        if self.path.exists():
            return
        tokenizer = tiny.character_tokenizer()
        ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        config = config_of(self.size.shape, **ends)
        with torch.random.fork_rng(devices=[]), torch.device(self.device):
            torch.manual_seed(0)
            model = Qwen2ForCausalLM(config)
        # Files of an interrupted proof must not be taken for a model.
        writing = self.path.with_name(f".writing-{self.path.name}")
        shutil.rmtree(writing, ignore_errors=True)
        tokenizer.save_pretrained(writing)
        model.to(torch.bfloat16 if self.device.type == "cuda" else torch.float32).save_pretrained(writing)
        writing.rename(self.path)
        del model
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @cached_property
    def learner(self) -> DeepSpeedLearner:
        self.build()
        init_distributed(self.device, 600)
        return DeepSpeedLearner(LearnerSettings.of(self.config), self.files, self.device)

    @cached_property
    def sampler(self) -> Sampler:
        """The engine that a run would have, which is started after the learner. It gets the memory that is left."""
        return build_engine(SamplerSettings.of(self.config), self.files, self.device, self.learner.collective)

    def sync(self) -> CheckedSync:
        """Builds a weight sync as configured."""
        return CheckedSync.of(self.config.weight_sync, self.config.learner, self.config.rollout)

    def prompts(self, seed: int = 0) -> list[Prompt]:
        """Returns a round's prompts, made of random tokens."""
        draw, size = random.Random(seed), self.size
        tokens = range(3, size.shape[-1])
        return [
            Prompt(Problem(f"p{seed}/{index}", "", ""), tuple(draw.choices(tokens, k=size.prompt_tokens)))
            for index in range(size.prompts)
        ]

    def made_up(self) -> list[RolloutGroup]:
        """Returns one round's groups with completions of random tokens, made without a sampler."""
        draw, size = random.Random(1), self.size
        tokens, logprobs = range(3, size.shape[-1]), (-5.0,) * size.completion_tokens
        groups = []
        for prompt in self.prompts():
            completions = tuple(
                Completion(tuple(draw.choices(tokens, k=size.completion_tokens)), logprobs, "", False)
                for _ in range(size.group_size)
            )
            groups.append(RolloutGroup(prompt, completions, 0, 0))
        return groups

    @property
    def grades(self) -> tuple[Grade, ...]:
        """Returns the grades of a group: every other completion is right."""
        return tuple(Grade(float(index % 2), index % 2 == 1, {}) for index in range(self.size.group_size))

    def batch(self, groups: list[RolloutGroup], row_tokens: int | None = None) -> Batch:
        """Makes the batch of one optimizer step from this rank's share of the groups, with `grades`.

        `row_tokens`, if given, replaces learner.micro_batch_tokens. Collective.
        """
        config, collective = self.config, self.learner.collective
        own_groups = groups[collective.rank :: collective.world_size]
        scored_groups = [ScoredGroup(group, self.grades, (True,) * self.size.group_size) for group in own_groups]
        settings = replace(config.learner, micro_batch_tokens=row_tokens or config.learner.micro_batch_tokens)
        make = BatchMaker(config.normalization, config.objective, settings, collective)
        plan = RoundPlan(self.size.group_size, 1, self.size.prompts)
        [batch] = make(self.learner.add_logprobs([scored_groups]), plan)
        return batch

    @cached_property
    def bandwidth(self) -> float:
        """Returns the bytes that a copy on the device reads and writes per second."""
        source = torch.ones(2**30 if self.device.type == "cuda" else 2**26, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * len(source) / self.seconds(lambda: target.copy_(source), 8)

    def seconds(self, action: Callable[[], Any], times: int = 3) -> float:
        """Returns the median seconds of `times` calls of `action`, after one call as a warm-up."""
        durations = []
        for _ in range(1 + times):
            start = time.perf_counter()
            action()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            durations.append(time.perf_counter() - start)
        return median(durations[1:])


def reset_peak(device: torch.device) -> None:
    """Resets the peak to the memory that is held now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        # Linux: 5 sets a process's peak of resident memory to what it has (proc_pid_clear_refs(5)).
        Path("/proc/self/clear_refs").write_text("5")


def peak_gib(device: torch.device) -> float:
    """Returns the largest memory since the last `reset_peak` in GiB: of PyTorch's tensors on a GPU, or of the whole
    process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    return peak_memory()[m.PEAK_RSS]


def allocated_gib(device: torch.device) -> float:
    """Returns the memory that is held now in GiB, and resets the peak."""
    reset_peak(device)
    return peak_gib(device)


def peak_of_tensors_gib(action: Callable[[], Any], device: torch.device) -> float:
    """Returns the peak memory of the tensors that `action` makes on the device, in GiB."""
    if device.type == "cuda":
        allocated_before = allocated_gib(device)
        action()
        return peak_gib(device) - allocated_before
    # A process takes more memory than its tensors, so their allocations are counted. Memory from before may be freed.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    live_bytes = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live_bytes += event.nbytes()
            peak = max(peak, live_bytes)
    return peak / GIB


@dataclass(frozen=True, slots=True)
class Room:
    """A room is one GPU's memory in GiB: the total, and what is free."""

    gpu_gib: float
    free_gib: float


def refreshing_gib(config: TrainConfig, shape: ModelShape, gpu_gib: float) -> float:
    """Returns the GiB of a lone rank that samples and sends weights but takes no step. Before the first step AdamW
    lacks its two moments, of four bytes a parameter each."""
    sampling = memory_estimate(config, shape, 1, gpu_gib)[-1][1]
    is_offloaded = config.learner.offload_optimizer or config.learner.offload_states
    return sampling - (0.0 if is_offloaded else 8 * shape.parameters / GIB)


def fitting_rows(config: TrainConfig, shape: ModelShape, num_ranks: int, room: Room) -> int | None:
    """Returns the row length in tokens with which learning fits: the configured one, halved until it fits. Returns None
    if no row that can hold the longest sequence fits."""
    tokens = config.learner.micro_batch_tokens
    while tokens >= config.model.max_length:
        shorter = replace(config, learner=replace(config.learner, micro_batch_tokens=tokens))
        if memory_estimate(shorter, shape, num_ranks, room.gpu_gib)[-1][2] <= room.free_gib:
            return tokens
        tokens //= 2
    return None


def lacking(config: TrainConfig, shape: ModelShape, room: Room, steps: bool) -> str:
    """Returns "" if one rank that samples and learns in turn fits into its GPU, else a message with the memory that it
    needs and what to try. Without `steps` the rank takes no optimizer steps: it samples and sends weights."""

    def needed(chosen: TrainConfig) -> float:
        if not steps:
            return refreshing_gib(chosen, shape, room.gpu_gib)
        return max(memory_estimate(chosen, shape, 1, room.gpu_gib)[-1][1:])

    if needed(config) <= room.free_gib:
        return ""
    lighter = replace(config, learner=replace(config.learner, offload_optimizer=True))
    # With the optimizer offloaded there is room for other rows.
    rows = fitting_rows(lighter, shape, 1, room) or 0
    lighter.learner.micro_batch_tokens = rows
    fits = needed(lighter) <= room.free_gib and (rows or not steps)
    advice = OFFLOAD if fits else "a smaller size"
    return f"needs {needed(config):.0f} GiB of a GPU, of which {room.free_gib:.0f} are free: try {advice}"
