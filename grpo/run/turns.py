"""This module lets a learner and a sampler use one device in turn (`learner.offload_states`).

From `wake` to `sleep` the device is the sampler's, and the learner's states are in main memory. The learner's weights
leave last, once they have been sent to the sampler. Only then does the sampler allocate its cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grpo.config import TrainConfig
from grpo.interfaces import Learner, Sampler, WeightSync
from grpo.learner.learner import DeepSpeedLearner
from grpo.run.clocks import Clocks, Timed


def sampler_in_turn(
    config: TrainConfig, learner: DeepSpeedLearner, build: Callable[[], Sampler], clocks: Clocks
) -> Sampler:
    """Builds a sampler whose `sleep` and `wake` are timed. With `learner.offload_states` the learner's states leave the
    device before the sampler is built and whenever it wakes, and the new sampler is left asleep."""
    if not config.learner.offload_states:
        return clocks.resting(build())
    states = learner.states()
    offload, reload = clocks.offload(states.offload), clocks.offload(states.reload)
    offload()
    sampler = clocks.resting(build())

    def wake() -> None:
        offload(keep_weights=True)
        sampler.wake()

    def finish_weights(policy_version: int) -> None:
        offload()
        sampler.finish_weights(policy_version)

    def sleep() -> None:
        sampler.sleep()
        reload()

    sleep()
    return Timed(sampler, wake=wake, finish_weights=finish_weights, sleep=sleep)


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

    return Timed(learner, save=clocks.between("save", save), rewind=rewind)
