"""This module puts the parts of a run together into the `LoopParts` that the loop calls."""

from __future__ import annotations

from dataclasses import replace

from grpo.algorithm.batches import BatchMaker
from grpo.config import TaskConfig, TrainConfig
from grpo.dynamics.scheduler import build_scheduler
from grpo.interfaces import Sampler, Task
from grpo.learner.learner import DeepSpeedLearner
from grpo.loop import LoopParts
from grpo.run.checkpoints import CheckpointStore
from grpo.run.clocks import Clocks
from grpo.run.going_back import GoingBack
from grpo.run.pipeline import build_pipeline
from grpo.run.turns import learner_in_turn


def assemble(
    config: TrainConfig,
    task: Task,
    sampler: Sampler,
    learner: DeepSpeedLearner,
    store: CheckpointStore,
    clocks: Clocks,
) -> LoopParts:
    """Puts the parts of a run together. `clocks` times them; `store` holds the checkpoints for going back."""
    collective = learner.collective
    collector, sync = build_pipeline(config, task, sampler, collective, clocks)
    laid_out = replace(config.learner, layout=learner.layout)
    timed = learner_in_turn(config, clocks.learner(learner), sampler, sync, clocks)
    parts = part_weights(config.task)
    return LoopParts(
        task=task,
        sampler=sampler,
        collector=collector,
        learner=timed,
        make_batches=BatchMaker(config.normalization, config.objective, laid_out, collective, parts, learner.cost),
        weight_sync=sync,
        scheduler=build_scheduler(config, collective.world_size),
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
