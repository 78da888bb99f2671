"""This module loads a model that is only sampled from, not trained. `grpo eval` and `grpo solve-rates` measure it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from grpo import models
from grpo.config import LearnerConfig, ModelConfig, TaskConfig, TrainConfig
from grpo.config.folder import STATE_FILE
from grpo.host import ranks
from grpo.interfaces import Collective, Sampler
from grpo.learner.collective import TorchCollective
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.run import preflight
from grpo.run.checkpoints import read_config, require_whole
from grpo.run.lengths import fit_lengths
from grpo.run.parts import build_sampler, load_task, warm_start_examples
from grpo.tasks import VerifiableTask, loaded_task
from grpo.weight_sync.refresh import CheckedSync


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate is a model that is only sampled from. `load_task` gives this rank its share of one of `tasks`."""

    sampler: Sampler
    collective: Collective
    tasks: Sequence[TaskConfig]
    load_task: Callable[[TaskConfig], VerifiableTask]


def candidate(config: TrainConfig, tasks: Sequence[TaskConfig]) -> Candidate:
    """Loads the model at `model.path`: a Hugging Face directory, a hub name, or a checkpoint folder of a run.

    The model is made long enough for the prompts of `tasks`.
    """
    checkpoint = Path(config.model.path)
    trained = checkpoint if (checkpoint / STATE_FILE).exists() else None
    if trained:
        config.model, config.learner = saved_parts(config, read_config(trained))
    elif config.model.path:
        config.model.source = "huggingface"
    device = ranks.device(config)
    config = preflight.with_precision(config)
    path = models.resolve(config.model, lambda: warm_start_examples(config))
    tokenizer = models.load_tokenizer(path, config.model)
    config, fitted = fit_lengths(config, [loaded_task(task, tokenizer) for task in tasks], path)
    loaded = {task.config.name: task for task in fitted}
    if ranks.world_size() > 1:
        init_distributed(device, config.learner.deadline_seconds)
    collective = TorchCollective(device)
    learner = None
    if trained:
        require_whole(trained, collective)
        # The learner is built before the sampler, as in training, because vLLM changes the classes of some models.
        learner = load_checkpoint(config, path, trained, device)
    sampler = build_sampler(config, path, tokenizer, device, collective)
    if learner:
        CheckedSync.of(config).refresh(learner, sampler)

    def load(task: TaskConfig) -> VerifiableTask:
        own = replace(config, task=task)
        return load_task(own, tokenizer, collective.rank, collective.world_size, loaded[task.name])

    return Candidate(sampler, collective, [task.config for task in fitted], load)


def saved_parts(config: TrainConfig, saved: TrainConfig) -> tuple[ModelConfig, LearnerConfig]:
    """Returns the model and learner configs of a checkpoint, except for what the present command decides.

    That is how ranks share the work, since there may be another number of them, how long the present prompts are, and
    whether code that comes with the model may run.
    """
    present = {name: getattr(config.learner, name) for name in ("sequence_parallel", "hpz_partition_size")}
    now = {name: getattr(config.model, name) for name in ("max_length", "trust_remote_code")}
    model = replace(saved.model, **now)
    return model, replace(saved.learner, **present)


def load_checkpoint(config: TrainConfig, path: Path, checkpoint: Path, device: torch.device) -> DeepSpeedLearner:
    """Builds a learner and loads a checkpoint's shards into it."""
    init_distributed(device, config.learner.deadline_seconds)
    learner = DeepSpeedLearner(config, path, device, checkpoint)
    learner.load(str(checkpoint))
    return learner
