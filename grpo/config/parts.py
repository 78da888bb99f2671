"""This module takes out of a run's configuration what its learner and its sampler need. Neither sees the rest."""

from dataclasses import dataclass
from typing import Self

from grpo.config.engines import LearnerConfig, ModelConfig, RolloutConfig
from grpo.config.loss import ObjectiveConfig
from grpo.config.optimizer import with_learning_rate
from grpo.config.run import TrainConfig


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """A learner needs three sections of a configuration, and a few keys of others.

    temperature           temperature at which completions are sampled, of whose distribution log-probabilities are
    sent_precision        the sampler's precision, in which weights are sent
    bucket_mib            size of the buckets in which weights are sent
    passes, num_steps     passes over the samples of a round, and optimizer steps of the run
    longest_wait_seconds  how long ranks wait for one another at most
    sends_base            whether a refresh reads weights that are not trained, and not adapters only
    """

    model: ModelConfig
    learner: LearnerConfig
    objective: ObjectiveConfig
    temperature: float
    sent_precision: str
    bucket_mib: int
    passes: int
    num_steps: int
    seed: int
    longest_wait_seconds: float
    sends_base: bool

    @classmethod
    def of(cls, config: TrainConfig) -> Self:
        return cls(
            model=config.model,
            learner=with_learning_rate(config).learner,
            objective=config.objective,
            temperature=config.rollout.sampling.temperature,
            sent_precision=config.rollout.precision,
            bucket_mib=config.weight_sync.bucket_mib,
            passes=config.dynamics.passes,
            num_steps=config.num_steps,
            seed=config.seed,
            longest_wait_seconds=config.longest_wait_seconds,
            sends_base=not config.keeps_base,
        )


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """A sampler needs two sections of a configuration, and a few keys of others.

    step_completions  completions of an optimizer step, which all engines together write
    refresh_seconds   deadline of a refresh
    continuous        whether sampling goes on while weights are replaced
    output_dir        the run's folder, in which servers write their logs
    keeps_base        whether an engine takes the weights below adapters from the model's files
    """

    model: ModelConfig
    rollout: RolloutConfig
    seed: int
    step_completions: int
    refresh_seconds: float
    continuous: bool
    output_dir: str
    keeps_base: bool = False

    @property
    def adapters(self) -> bool:
        """Says whether the sampler gets adapters as adapters, beside the model's own weights."""
        return self.model.lora.rank > 0 and not self.rollout.merge_adapters

    @classmethod
    def of(cls, config: TrainConfig) -> Self:
        return cls(
            model=config.model,
            rollout=config.rollout,
            seed=config.seed,
            step_completions=config.dynamics.group_size * config.dynamics.prompts_per_step,
            refresh_seconds=config.weight_sync.deadline_seconds,
            continuous=config.pipeline == "continuous",
            output_dir=config.output_dir,
            keeps_base=config.keeps_base,
        )
