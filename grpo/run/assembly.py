"""This module puts the parts of a run together into the `LoopParts` that the loop calls.

Some parts return the run to an earlier policy when the scheduler decides so (`Verdict.go_back`).

It decides how sampling and learning overlap. The loop is the same for all three; only the collector and the weight sync
differ:

pipeline=off          The round is sampled, graded and learned from in turn. Only grading overlaps, with sampling.
pipeline=one_round    A thread samples the next round during the learner's steps. The loop waits for this thread twice:
                      before it collects the round, and before it refreshes the weights. A refresh unblocks nothing:
                      `collect` begins the round after.
pipeline=continuous   Servers answer requests at all times, also during a refresh. The loop waits only for groups that
                      its round lacks. Each begun round asks for new prompts, at most `rollout.max_staleness` ahead.

A learner and a sampler may use one device in turn (`learner.offload_states`). From `wake` to `sleep` the device is the
sampler's, and the learner's states are in main memory. The learner's weights leave last, once they have been sent to
the sampler. Only then does the sampler allocate its cache. Weights below adapters leave with the rest.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from grpo.algorithm.batches import BatchMaker
from grpo.algorithm.normalization import GROUP_RELATIVE, silent
from grpo.config import NormalizationConfig, TaskConfig, TrainConfig
from grpo.config.errors import require
from grpo.config.placement import beside_learner
from grpo.dynamics.budget import further_tries
from grpo.dynamics.scheduler import build_scheduler
from grpo.host import ranks
from grpo.interfaces import Collective, Collector, Learner, Sampler, Task, WeightSync
from grpo.learner.learner import DeepSpeedLearner
from grpo.learner.offloading import LearnerStates
from grpo.loop import LoopParts
from grpo.rollout.checked_sampler import ReturningSampler, Wrapped, WrappedSampler
from grpo.rollout.collect import BudgetedCollector, PlainCollector, RefillingCollector
from grpo.rollout.grading_thread import GradingThread
from grpo.rollout.group_source import AheadCollector, AheadSource, OnDemandSource, Source
from grpo.run.checkpoints import CheckpointStore
from grpo.run.clocks import Clocks, TimedSampler, beside
from grpo.run.gates import RoundNumbers
from grpo.tasks.own_rewards import IN_TWO_TURNS, NO_ROUND
from grpo.types import ScoredGroup
from grpo.weight_sync.refresh import CheckedSync, Probe

# A probe of the sampler takes this many prompts per rank, and at most this many tokens per completion.
PROBED_PROMPTS, PROBED_TOKENS = 2, 16


def assemble(
    config: TrainConfig,
    task: Task,
    sampler: Sampler,
    learner: DeepSpeedLearner,
    store: CheckpointStore,
    clocks: Clocks,
    numbers: RoundNumbers,
) -> LoopParts:
    """Puts the parts of a run together. `clocks` times them; `store` holds the checkpoints for going back. Gates
    compare `numbers`."""
    collective = learner.collective
    if beside_learner(config.rollout, ranks.on_gpu(config.device)):
        sampler = ReturningSampler(sampler, lambda: sync.refresh(timed, sampler))
    collector, sync = build_pipeline(config, task, sampler, collective, clocks)
    laid_out = replace(config.learner, layout=learner.layout)
    timed = learner_in_turn(config, clocks.timed(learner, Learner), sampler, sync, clocks)
    parts = part_weights(config.task)
    return LoopParts(
        task=task,
        sampler=sampler,
        collector=collector,
        learner=timed,
        make_batches=BatchMaker(config.normalization, config.objective, laid_out, collective, parts, learner.cost),
        weight_sync=sync,
        scheduler=build_scheduler(config, collective.world_size, numbers),
        checkpoint_up_to=clocks.between("load", store.whole),
        go_back=clocks.between("load", GoingBack(collector, timed, sampler, sync)),
        collective=collective,
        clock=clocks.phases,
    )


def part_weights(task: TaskConfig) -> dict[str, float]:
    """Returns the weight of each part of the reward by its name, for normalization.parts=each.

    All sets then have the same parts (see `grpo.config.validate_task`). The soft penalty of long completions is a part
    too, also if only some sets have it.
    """
    penalized = any(reward.overlong == "soft" for reward in task.rewards)
    return task.rewards[0].weights | ({"overlong": 1.0} if penalized else {})


class GoingBack:
    """This object returns learner and sampler to a checkpoint. The count of optimizer steps does not go back."""

    def __init__(self, collector: Collector, learner: Learner, sampler: Sampler, weight_sync: WeightSync):
        self._collector = collector
        self._learner, self._sampler, self._weight_sync = learner, sampler, weight_sync

    def __call__(self, checkpoint: Path) -> None:
        """Goes back to `checkpoint`, which is undamaged. Collective."""
        # Groups sampled ahead come from the policy that is given up, so nothing is learned from them.
        self._collector.forget()
        self._learner.rewind(str(checkpoint))
        self._weight_sync.refresh(self._learner, self._sampler)


def build_pipeline(
    config: TrainConfig, task: Task, sampler: Sampler, collective: Collective, clocks: Clocks
) -> tuple[Collector, WeightSync]:
    """Builds the collector, which collects a round's groups, and the weight sync, which refreshes the sampler. `clocks`
    times both."""
    thread_seconds = clocks.phases.take
    probe, ahead = _probe(config, task, collective), config.pipeline != "off"
    checked = CheckedSync.of(config.weight_sync, config.learner, config.rollout, probe, ahead)
    sync = clocks.timed(checked, WeightSync)
    if config.pipeline == "off":
        grading = clocks.timed(GradingThread(task, collective=collective), GradingThread)
        return _build_collector(config, task, TimedSampler(sampler, clocks), grading, collective), sync
    if config.pipeline == "one_round":
        apart = collective.apart(config.rollout.deadline_seconds)
        grading = clocks.timed(GradingThread(task, collective=apart), GradingThread)
        inner = _build_collector(config, task, TimedSampler(sampler, clocks), grading, apart)
        collector = clocks.timed(AheadCollector(beside(inner, thread_seconds), task), AheadCollector)
        sync = Wrapped(sync, refresh=partial(_settled, collector.settle, sync.refresh))
    else:
        require(not task.grades_together, NO_ROUND)
        grading = GradingThread(clocks.timed(task, Task), thread_seconds)
        staleness = config.rollout.max_staleness
        ahead = AheadSource(task, TimedSampler(sampler, clocks), collective, staleness, grading, thread_seconds)
        collector = beside(_filled(config, ahead, collective), ahead.take_seconds)
    return clocks.timed(collector, Collector), sync


def _probe(config: TrainConfig, task: Task, collective: Collective) -> Probe:
    """Builds the probe, which samples short completions of the stream's first prompts after a refresh.

    The log-probabilities of sampler and learner are compared on these completions before the first round. When rounds
    are sampled ahead, they are compared so after every refresh, since the round's own groups come from an older policy.
    """
    cursor = task.cursor
    prompts = task.next_prompts(PROBED_PROMPTS * collective.world_size)
    task.cursor = cursor
    sampling = config.rollout.sampling
    return Probe(prompts, replace(sampling, max_tokens=min(PROBED_TOKENS, sampling.max_tokens)), collective)


def _settled(
    settle: Callable[[], None], refresh: Callable[[Learner, Sampler], None], learner: Learner, sampler: Sampler
) -> None:
    """Waits until no sampling is under way, then refreshes the sampler."""
    settle()
    refresh(learner, sampler)


def _build_collector(
    config: TrainConfig, task: Task, sampler: Sampler, grading: GradingThread, collective: Collective
) -> Collector:
    """Builds the collector that the config asks for: plain, with silent groups refilled, or with a rollout budget."""
    budget = config.rollout.budget
    if budget.enabled:
        require(not task.grades_together, IN_TWO_TURNS)
        exponent, mean_exponent = config.normalization.dials
        spread = partial(further_tries, largest=budget.largest, exponent=exponent, mean_exponent=mean_exponent)
        return BudgetedCollector(task, sampler, grading, budget, collective, spread)
    return _filled(config, OnDemandSource(task, sampler, grading), collective)


def _filled(config: TrainConfig, source: Source, collective: Collective) -> Collector:
    """Builds a collector without a budget, which takes its groups from `source`."""
    refill = config.rollout.refill
    if not refill.enabled:
        return PlainCollector(source)
    return RefillingCollector(source, refill, collective, partial(_is_silent, config.normalization))


def _is_silent(normalization: NormalizationConfig, scored: ScoredGroup) -> bool:
    """Says whether nothing can be learned from a group. Under a normalization outside `GROUP_RELATIVE`, such as a
    user's own, these are just the groups with equal rewards, or with no completion that is learned from."""
    if scored.silent or not any(scored.included):
        return True
    rewards = torch.tensor(scored.rewards, dtype=torch.float64)
    return normalization.name in GROUP_RELATIVE and silent(rewards, scored.included, normalization)


def sampler_in_turn(
    config: TrainConfig, learner: DeepSpeedLearner, build: Callable[[], Sampler], clocks: Clocks
) -> Sampler:
    """Builds a sampler whose `sleep` and `wake` are timed. With `learner.offload_states` the learner's states leave the
    device before the sampler is built and whenever it wakes, and the new sampler is left asleep."""
    if not config.learner.offload_states:
        return clocks.timed(build(), Sampler, "sleep", "wake")
    states = clocks.timed(learner.states(), LearnerStates)
    states.offload()
    sampler = SamplerInTurn(clocks.timed(build(), Sampler, "sleep", "wake"), states)
    sampler.sleep()
    return sampler


class SamplerInTurn(WrappedSampler):
    """This sampler has the device from `wake` to `sleep`, and a learner has it otherwise. The learner's weights leave
    last, once they have been sent. A sampler that sleeps already is left asleep: a round that was cut short is saved
    before the next refresh."""

    def __init__(self, sampler: Sampler, states: LearnerStates):
        super().__init__(sampler)
        self._states, self._asleep = states, False

    def wake(self) -> None:
        self._asleep = False
        self._states.offload(keep_weights=True)
        self._sampler.wake()

    def finish_weights(self, policy_version: int) -> None:
        self._states.offload()
        self._sampler.finish_weights(policy_version)

    def sleep(self) -> None:
        if not self._asleep:
            self._asleep = True
            self._sampler.sleep()
            self._states.reload()


@contextmanager
def turn_of_learner(config: TrainConfig, learner: Learner, sampler: Sampler, sync: WeightSync) -> Iterator[None]:
    """Gives the learner the device within a `with` between two rounds, and then the sampler again, refreshed.

    Does nothing without `learner.offload_states`.
    """
    if not config.learner.offload_states:
        yield
        return
    sampler.sleep()
    try:
        yield
    finally:
        sync.refresh(learner, sampler)


def learner_in_turn(
    config: TrainConfig, learner: Learner, sampler: Sampler, sync: WeightSync, clocks: Clocks
) -> Learner:
    """Wraps a learner so that `save` and `rewind`, which are called between rounds, first take the device from the
    sampler. Does nothing without `learner.offload_states`.

    After `save` the sampler gets the device back by a refresh, whose seconds count as the checkpoint's. After `rewind`
    the caller refreshes the sampler anyway.
    """
    if not config.learner.offload_states:
        return learner

    def save(directory: str) -> None:
        with turn_of_learner(config, learner, sampler, sync):
            learner.save(directory)

    def rewind(directory: str) -> None:
        sampler.sleep()
        learner.rewind(directory)

    return Wrapped(learner, save=clocks.between("save", save), rewind=rewind)
