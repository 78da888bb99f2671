"""This module wraps the parts of a run with clocks and deadlines, so that the parts need no code for either.

It also tells a person what to change when a GPU has no memory left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from grpo.config import TrainConfig, UserError
from grpo.host.alive import slow
from grpo.interfaces import AskableSampler, Collector, Draw, Learner, OnGroup, Pending, Sampler, Task, WeightSync
from grpo.rollout.grading_thread import GradingThread
from grpo.telemetry.phases import Phases
from grpo.types import Collected, RolloutGroup, RoundPlan

EVALUATION = "evaluation"
LEARNING = (
    "lower learner.micro_batch_tokens, or set learner.gradient_checkpointing=true, learner.zero_stage=3 or "
    "learner.offload_states=true; where the sampler shares the GPU, lower rollout.gpu_memory_fraction too"
)
SAMPLING = "lower rollout.gpu_memory_fraction or rollout.max_concurrent"
REFRESHING = "lower weight_sync.bucket_mib or rollout.gpu_memory_fraction"
# vLLM's own allocator raises a RuntimeError of this text where an engine wakes and the GPU has no room for it.
OF_VLLM = "CUDA Error: out of memory"
# The advice for each phase; phases that are not named here get `LEARNING`.
HELPS = dict.fromkeys(("starting the sampler", "sample", "wait", "evaluation", "sleep"), SAMPLING) | {
    "sync": REFRESHING
}


class Timed:
    """This wrapper replaces some methods of `part`. It reads and sets every other attribute in `part` itself."""

    def __init__(self, part: Any, **methods: Callable):
        vars(self).update(methods, _part=part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._part, name, value)


class Clocks:
    """The clocks give every long call of a run a phase name, and the deadline that `config` sets for it.

    `phases` adds up the seconds of each phase.
    """

    def __init__(self, config: TrainConfig, phases: Phases):
        self._config, self.phases = config, phases

    def task(self, task: Task) -> Task:
        """Wraps a task so that grading is timed."""
        return Timed(task, grade=self._of_rollout("grade", task.grade))

    def grading(self, grading: GradingThread) -> GradingThread:
        """Wraps a grading thread so that waiting for its results after the last sample is timed."""
        return Timed(grading, results=self._of_rollout("grade", slow("grading completions", grading.results)))

    def sampler(self, sampler: Sampler) -> Sampler:
        """Wraps a sampler so that `generate` is timed."""
        return Timed(sampler, generate=self._of_rollout("sample", slow("writing completions", sampler.generate)))

    def evaluated(self, sampler: Sampler) -> Sampler:
        """Wraps a sampler for an evaluation, which may ask any number of problems: each group that is completed begins
        the deadline anew."""
        generate = sampler.generate

        @functools.wraps(generate)
        def by_group(draw: Draw, on_group: OnGroup | None = None) -> list[RolloutGroup]:
            def completed(place: int, group: RolloutGroup) -> None:
                self.phases.extend()
                if on_group:
                    on_group(place, group)

            return generate(draw, completed)

        return Timed(sampler, generate=self._of_rollout(EVALUATION, by_group))

    def evaluation_grading(self, grading: GradingThread) -> GradingThread:
        """Wraps a grading thread for an evaluation: each group that is graded begins the deadline anew."""
        graded_group = self._of_rollout(EVALUATION, grading.results)
        return Timed(grading, results=lambda graded: [scored for one in graded for scored in graded_group([one])])

    def resting(self, sampler: Sampler) -> Sampler:
        """Wraps a sampler so that `sleep` and `wake`, which free its memory and take it back, are timed. The memory of
        its cache comes back only at the end of a refresh, and counts as part of the refresh."""
        return Timed(sampler, **{name: self._of_rollout("sleep", getattr(sampler, name)) for name in ("sleep", "wake")})

    def asked(self, sampler: AskableSampler) -> AskableSampler:
        """Wraps a sampler that works in the background, so that waiting for a prompt's completions is timed."""

        def ask(draw: Draw) -> Sequence[Pending]:
            return [Timed(pending, result=self._of_rollout("sample", pending.result)) for pending in sampler.ask(draw)]

        return Timed(sampler, ask=ask)

    def learner(self, learner: Learner) -> Learner:
        """Wraps a learner so that its long methods are timed."""
        phases = {"add_logprobs": "logprobs", "step": "learn", "save": "save", "rewind": "load"}
        words = {"logprobs": "scoring completions", "learn": "taking an optimizer step", "save": "saving a checkpoint"}
        deadline, key = self._config.learner.deadline_seconds, "learner.deadline_seconds"
        timed = {
            method: self._timed(phase, slow(words.get(phase, phase), getattr(learner, method)), deadline, key)
            for method, phase in phases.items()
        }
        return Timed(learner, **timed)

    def between(self, phase: str, function: Callable) -> Callable:
        """Wraps a function that is called between two rounds, as the phase `phase` of
        `grpo.telemetry.phases.BETWEEN_ROUNDS`. Phases within it count as `phase` and keep their own deadlines."""
        return self._timed(phase, function, self._config.longest_wait_seconds, "learner.deadline_seconds")

    def offload(self, function: Callable) -> Callable:
        """Wraps a function that moves the learner's states to main memory or back."""
        deadline, key = self._config.learner.deadline_seconds, "learner.deadline_seconds"
        return self._timed("offload", function, deadline, key)

    def weight_sync(self, sync: WeightSync) -> WeightSync:
        """Wraps a weight sync so that `begin` and `refresh` are timed."""
        deadline, key = self._config.weight_sync.deadline_seconds, "weight_sync.deadline_seconds"
        methods = ("begin", "refresh")
        return Timed(sync, **{name: self._timed("sync", getattr(sync, name), deadline, key) for name in methods})

    def waited(self, function: Callable) -> Callable:
        """Wraps a function in which the loop waits for groups that are sampled in the background."""
        return self._of_rollout("wait", slow("waiting for completions", function))

    def _timed(self, phase: str, function: Callable, deadline_seconds: float, key: str) -> Callable:
        """Wraps a function as a timed phase whose error, when a GPU has no memory left, says what to change."""
        return self.phases.timed(phase, explaining_oom(phase)(function), deadline_seconds, key)

    def _of_rollout(self, phase: str, function: Callable) -> Callable:
        return self._timed(phase, function, self._config.rollout.deadline_seconds, "rollout.deadline_seconds")


class Beside:
    """This collector wraps a collector whose groups are sampled and graded in another thread.

    It adds that thread's seconds to what it collects, so that they count in the round that learns from the groups.
    `take_seconds` returns these seconds, and is called once the groups are there.
    """

    def __init__(self, collector: Collector, take_seconds: Callable[[], dict[str, float]]):
        self._collector, self._take_seconds = collector, take_seconds

    def collect(self, plan: RoundPlan, steps_left: int) -> Collected:
        collected = self._collector.collect(plan, steps_left)
        return replace(collected, seconds=self._take_seconds())

    def forget(self) -> None:
        self._collector.forget()


@contextmanager
def explaining_oom(phase: str) -> Iterator[None]:
    """Turns torch's OutOfMemoryError, and what vLLM raises instead, into a UserError that names the phase and the keys
    that lower memory use. It may also decorate a function."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and OF_VLLM not in str(error):
            raise
        message = " ".join(str(error).split()).partition(" Including")[0][:300]
        helps = HELPS.get(phase, LEARNING)
        raise UserError(f"the GPU has no memory left ({phase}): {helps}. {message}") from error
