"""The parts of a run, each made from its configuration: what training and evaluation share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedTokenizerBase

from grpo import launch_check, models
from grpo.config import LearnerConfig, ModelConfig, TaskConfig, TrainConfig, UserError
from grpo.config.hydra import compose_suite
from grpo.config.saved import from_dict
from grpo.config.validate import validate_evaluation
from grpo.interfaces import Collective, Sampler
from grpo.learner.checkpoint import STATE_FILE, read_state, require_whole
from grpo.learner.collective import TorchCollective
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.rollout.checked import CheckedSampler
from grpo.tasks import VerifiableTask, build_task, load_problems, select, split
from grpo.weight_sync.refresh import CheckedSync


def load_task(
    config: TrainConfig, tokenizer: PreTrainedTokenizerBase, rank: int = 0, world_size: int = 1
) -> VerifiableTask:
    """The configured task, of this rank."""
    max_tokens = config.rollout.sampling.max_tokens
    exponent = config.normalization.exponent
    return build_task(
        config.task,
        tokenizer,
        seed=config.seed,
        max_tokens=max_tokens,
        exponent=exponent,
        rank=rank,
        world_size=world_size,
    )


def load_suite(config: TrainConfig) -> list[TaskConfig]:
    """The sets of `evaluation.suite`. Raises `UserError` for one that cannot be had or does not fit, before any engine
    starts."""
    suite = compose_suite(config)
    for task in suite:
        validate_evaluation(replace(config, task=task))
        load_problems(task.data)
    return suite


def warm_start_examples(config: TrainConfig) -> list[tuple[str, str]]:
    """(prompt, answer) of the problems that may be trained on: what a tiny model's warm start learns from."""
    problems, _ = select(load_problems(config.task.data)[0], config.task.data.selection)
    train, _ = split(problems, config.task.data.held_out_fraction)
    template = config.task.prompt.template
    return [(template.replace("{question}", problem.question), problem.answer) for problem in train]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that is asked and not trained. `load_task` gives this rank its share of a task."""

    sampler: Sampler
    collective: Collective
    load_task: Callable[[TaskConfig], VerifiableTask]


def candidate(config: TrainConfig) -> Candidate:
    """The model at `model.path`: a Hugging Face directory, a hub name, or a checkpoint folder of a run."""
    checkpoint = Path(config.model.path)
    trained = checkpoint if (checkpoint / STATE_FILE).exists() else None
    if trained:
        config.model, config.learner = saved_parts(config, from_dict(read_state(trained)["config"]))
    elif config.model.path:
        config.model.source = "huggingface"
    device = launch_check.device(config)
    config = launch_check.with_precision(config)
    path = models.resolve(config.model, lambda: warm_start_examples(config))
    tokenizer = models.load_tokenizer(path, config.model)
    if launch_check.world_size() > 1:
        init_distributed(device, config.learner.deadline_seconds)
    collective = TorchCollective(device)
    learner = None
    if trained:
        require_whole(trained, collective)
        # Before the sampler, as in training.
        learner = load_checkpoint(config, path, trained, device)
    sampler = build_sampler(config, path, tokenizer, device, collective)
    if learner:
        CheckedSync(config.weight_sync.max_mismatch).refresh(learner, sampler)

    def load(task: TaskConfig) -> VerifiableTask:
        return load_task(replace(config, task=task), tokenizer, collective.rank, collective.world_size)

    return Candidate(sampler, collective, load)


def saved_parts(config: TrainConfig, saved: TrainConfig) -> tuple[ModelConfig, LearnerConfig]:
    """The model and the learner of a checkpoint. How ranks share the work, and whether code that comes with a model may
    run, is this command's to say, not the checkpoint's."""
    here = {name: getattr(config.learner, name) for name in ("sequence_parallel", "hpz_partition_size")}
    model = replace(saved.model, trust_remote_code=config.model.trust_remote_code)
    return model, replace(saved.learner, **here)


def load_checkpoint(config: TrainConfig, path: Path, checkpoint: Path, device: torch.device) -> DeepSpeedLearner:
    """A learner that has read a checkpoint's shards."""
    init_distributed(device, config.learner.deadline_seconds)
    learner = DeepSpeedLearner(config, path, device)
    learner.load(str(checkpoint))
    return learner


def build_sampler(
    config: TrainConfig,
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    collective: Collective,
) -> Sampler:
    """The configured sampler, checked; the engine's package is imported only when it is used."""
    model = AutoConfig.from_pretrained(path, trust_remote_code=config.model.trust_remote_code).get_text_config()
    return CheckedSampler(_engine(config, path, tokenizer, device, collective), model.vocab_size)


def _engine(
    config: TrainConfig,
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    collective: Collective,
) -> Sampler:
    if config.rollout.engine == "vllm_server":
        from grpo.rollout.server_sampler import ServerSampler

        return ServerSampler(config, path, tokenizer, device, collective)
    if config.rollout.engine == "transformers":
        from grpo.rollout.transformers_sampler import TransformersSampler

        return TransformersSampler(config, path, tokenizer, device)
    try:
        from grpo.rollout.vllm_sampler import VllmSampler
    except ImportError as error:
        raise UserError(f"rollout.engine=vllm: {error}; install vLLM or use rollout.engine=transformers") from error
    return VllmSampler(config, path, tokenizer, device)
