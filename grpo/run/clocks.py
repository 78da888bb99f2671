"""Clocks and deadlines around the parts of a run, which know nothing of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from grpo.config import TrainConfig
from grpo.interfaces import AskableSampler, Collector, Learner, Pending, Sampler, Task, WeightSync
from grpo.telemetry import Phases
from grpo.types import Collected, RoundPlan

EVALUATION = "evaluation"


class Timed:
    """`part` with `methods` in place of its own. Everything else is asked of the part, and set in it."""

    def __init__(self, part: Any, **methods: Callable):
        vars(self).update(methods, _part=part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._part, name, value)


class Clocks:
    """Gives every wait of a run the name of its phase, and the deadline that `config` sets for it. `phases` is where
    their seconds add up."""

    def __init__(self, config: TrainConfig, phases: Phases):
        self._config, self.phases = config, phases

    def task(self, task: Task, phase: str = "grade") -> Task:
        return Timed(task, grade=self._of_rollout(phase, task.grade))

    def sampler(self, sampler: Sampler, phase: str = "sample") -> Sampler:
        return Timed(sampler, generate=self._of_rollout(phase, sampler.generate))

    def asked(self, sampler: AskableSampler) -> AskableSampler:
        """A sampler that is asked ahead. Its phase is the time that somebody waits for a prompt's completions."""

        def ask(*arguments: Any) -> Sequence[Pending]:
            return [
                Timed(pending, result=self._of_rollout("sample", pending.result)) for pending in sampler.ask(*arguments)
            ]

        return Timed(sampler, ask=ask)

    def learner(self, learner: Learner) -> Learner:
        phases = {"add_logprobs": "logprobs", "step": "learn", "save": "save", "rewind": "load"}
        deadline, key = self._config.learner.deadline_seconds, "learner.deadline_seconds"
        timed = {
            method: self.phases.timed(phase, getattr(learner, method), deadline, key)
            for method, phase in phases.items()
        }
        return Timed(learner, **timed)

    def weight_sync(self, sync: WeightSync) -> WeightSync:
        deadline, key = self._config.weight_sync.deadline_seconds, "weight_sync.deadline_seconds"
        return Timed(sync, refresh=self.phases.timed("sync", sync.refresh, deadline, key))

    def waited(self, function: Callable) -> Callable:
        """The loop waits here for what is sampled beside it."""
        return self._of_rollout("wait", function)

    def _of_rollout(self, phase: str, function: Callable) -> Callable:
        return self.phases.timed(phase, function, self._config.rollout.deadline_seconds, "rollout.deadline_seconds")


class Beside:
    """A collector whose groups another thread samples and grades. Their seconds go with them, to the round that learns
    from them; `take_seconds` gives them once the groups are there."""

    def __init__(self, collector: Collector, take_seconds: Callable[[], dict[str, float]]):
        self._collector, self._take_seconds = collector, take_seconds

    def collect(self, plan: RoundPlan, steps_left: int) -> Collected:
        collected = self._collector.collect(plan, steps_left)
        return replace(collected, seconds=self._take_seconds())

    def forget(self) -> None:
        self._collector.forget()
