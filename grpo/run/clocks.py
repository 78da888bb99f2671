"""This module wraps the parts of a run with clocks and deadlines, so that the parts need no code for either.

It also tells a person what to change when a GPU has no memory left.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, ParamSpec, TypeVar, cast

import torch

from grpo.config import TrainConfig, UserError
from grpo.config.ranges import value_at
from grpo.host.alive import slow
from grpo.interfaces import AskableSampler, Collector, Draw, Learner, OnGroup, Pending, Sampler, Task, WeightSync
from grpo.learner.offloading import LearnerStates
from grpo.rollout.checked_sampler import Wrapped, WrappedSampler
from grpo.rollout.grading_thread import Graded, GradingThread
from grpo.rollout.group_source import AheadCollector
from grpo.telemetry.phases import Phases
from grpo.types import Collected, RolloutGroup, RoundPlan, ScoredGroup

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

ROLLOUT, LEARNER, SYNC = "rollout.deadline_seconds", "learner.deadline_seconds", "weight_sync.deadline_seconds"
Part = TypeVar("Part")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Timing(NamedTuple):
    """A timed call counts as `phase` and has the deadline that `key` sets. `words` say now and then that it goes on."""

    phase: str
    key: str
    words: str = ""


TIMINGS: dict[Callable, Timing] = {
    Task.grade: Timing("grade", ROLLOUT),
    GradingThread.results: Timing("grade", ROLLOUT, "grading completions"),
    Sampler.generate: Timing("sample", ROLLOUT, "writing completions"),
    Pending.result: Timing("sample", ROLLOUT),
    Sampler.sleep: Timing("sleep", ROLLOUT),
    Sampler.wake: Timing("sleep", ROLLOUT),
    Collector.collect: Timing("wait", ROLLOUT, "waiting for completions"),
    AheadCollector.settle: Timing("wait", ROLLOUT, "waiting for completions"),
    Learner.add_logprobs: Timing("logprobs", LEARNER, "scoring completions"),
    Learner.step: Timing("learn", LEARNER, "taking an optimizer step"),
    Learner.save: Timing("save", LEARNER, "saving a checkpoint"),
    Learner.rewind: Timing("load", LEARNER, "loading a checkpoint"),
    LearnerStates.offload: Timing("offload", LEARNER),
    LearnerStates.reload: Timing("offload", LEARNER),
    WeightSync.begin: Timing("sync", SYNC),
    WeightSync.refresh: Timing("sync", SYNC),
}
"""Each long call of a run has its row. The memory of a sampler's cache, which it takes back at the end of a refresh,
counts as part of the refresh."""

EVALUATING = Timing("evaluation", ROLLOUT)


class Clocks:
    """The clocks give every long call of a run a phase name, and the deadline that `config` sets for it.

    `phases` adds up the seconds of each phase, and `energy` its joules, where the machine counts them.
    """

    def __init__(self, config: TrainConfig, phases: Phases, energy: Phases | None = None):
        self._config, self.phases, self._energy = config, phases, energy

    def joules(self) -> dict[str, float]:
        """Returns the joules of this machine since the last call, in all (`ROUND`) and by phase, or nothing where it
        counts none. A phase has those of all that the machine did meanwhile."""
        if not self._energy:
            return {}
        spent = self._energy.end_round()
        self._energy.begin_round()
        return spent

    def timed(self, part: Part, interface: type, *names: str) -> Part:
        """Wraps a part so that those methods of its interface are timed that `TIMINGS` has, or only those `names`."""
        methods = [method for method in TIMINGS if vars(interface).get(method.__name__) is method]
        methods = [method for method in methods if not names or method.__name__ in names]
        calls = {method.__name__: self.call(TIMINGS[method], getattr(part, method.__name__)) for method in methods}
        return cast(Part, Wrapped(part, **calls))

    def evaluation_grading(self, grading: GradingThread) -> GradingThread:
        """Wraps a grading thread for an evaluation: each group that is graded begins the deadline anew."""
        graded_group = self.call(EVALUATING, grading.results)

        def results(graded: Sequence[Future[Graded]]) -> list[ScoredGroup]:
            return [scored for one in graded for scored in graded_group([one])]

        return cast(GradingThread, Wrapped(grading, results=results))

    def between(self, phase: str, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        """Wraps a function that is called between two rounds, as the phase `phase` of
        `grpo.telemetry.phases.BETWEEN_ROUNDS`. Phases within it count as `phase` and keep their own deadlines."""
        explained = self._metered(phase, explaining_oom(phase)(function))
        return self.phases.timed(phase, explained, self._config.longest_wait_seconds, LEARNER)

    def call(self, timing: Timing, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        """Wraps a function as a timed phase whose error, when a GPU has no memory left, says what to change."""
        explained = explaining_oom(timing.phase)(slow(timing.words, function) if timing.words else function)
        metered = self._metered(timing.phase, explained)
        return self.phases.timed(timing.phase, metered, value_at(self._config, timing.key), timing.key)

    def _metered(self, phase: str, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        return self._energy.measured(phase, function) if self._energy else function


class ClockedSampler(WrappedSampler):
    """This sampler has clocks that time some calls of another one."""

    def __init__(self, sampler: Sampler | AskableSampler, clocks: Clocks):
        super().__init__(sampler)
        self._clocks = clocks


class TimedSampler(ClockedSampler):
    """This sampler is timed when it writes completions, and when others wait for those that it writes beside them."""

    def generate(self, draw: Draw, on_group: OnGroup | None = None) -> list[RolloutGroup]:
        return self._clocks.call(TIMINGS[Sampler.generate], self._sampler.generate)(draw, on_group)

    def ask(self, draw: Draw) -> Sequence[Pending]:
        return [self._clocks.timed(pending, Pending) for pending in self._sampler.ask(draw)]


class EvaluatedSampler(ClockedSampler):
    """This sampler writes completions for an evaluation, which may ask any number of problems: each group that is
    completed begins the deadline anew."""

    def generate(self, draw: Draw, on_group: OnGroup | None = None) -> list[RolloutGroup]:
        def completed(place: int, group: RolloutGroup) -> None:
            self._clocks.phases.extend()
            if on_group:
                on_group(place, group)

        return self._clocks.call(EVALUATING, self._sampler.generate)(draw, completed)


def beside(collector: Collector, take_seconds: Callable[[], dict[str, float]]) -> Collector:
    """Wraps a collector whose groups are sampled and graded in another thread, and adds that thread's seconds to what
    it collects. `take_seconds` returns them, and is called once the groups are there."""

    def collect(plan: RoundPlan, steps_left: int) -> Collected:
        collected = collector.collect(plan, steps_left)
        return replace(collected, seconds=take_seconds())

    return cast(Collector, Wrapped(collector, collect=collect))


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
