"""A learner and a sampler have one device in turn (`learner.offload_states`).

The device is the sampler's from `wake` to `sleep`, and the learner's states are in main memory meanwhile. Its weights
leave last, once they have been sent, and the sampler's cache gets its memory after that.
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
    """Builds a sampler that is timed as it sleeps and wakes. It finds the device free of the learner's states if that
    is configured, and is left asleep then."""
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
    """Gives the learner the device between two rounds, and then the sampler, if they have it in turn."""
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
    """Wraps a learner that is saved and rewound between rounds, where the sampler has the device if that is
    configured. It gets the device back after a checkpoint; after going back the loop refreshes it anyway. All of this
    counts as a checkpoint's seconds."""
    if not config.learner.offload_states:
        return learner

    def save(directory: str) -> None:
        with turn_of_learner(config, learner, sampler, sync):
            learner.save(directory)

    def rewind(directory: str) -> None:
        sampler.sleep()
        learner.rewind(directory)

    return Timed(learner, save=clocks.between("save", save), rewind=rewind)
