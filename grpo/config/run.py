"""One run: everything above, and how long, how seeded, how watched."""

from dataclasses import dataclass, field

from grpo.config.engines import LearnerConfig, ModelConfig, RolloutConfig, WeightSyncConfig
from grpo.config.loss import NormalizationConfig, ObjectiveConfig
from grpo.config.task import TaskConfig


@dataclass(kw_only=True)
class DynamicsConfig:
    # fixed: group size and refresh interval as configured.
    name: str = "fixed"
    # Completions per prompt (G).
    group_size: int = 8
    # Optimizer steps per round (τ).
    refresh_interval: int = 1
    # Prompts in one optimizer step, over all ranks.
    prompts_per_step: int = 8


@dataclass(kw_only=True)
class EvaluationConfig:
    """Held-out evaluation before, during and after training."""

    # Held-out problems asked; 0: no evaluation.
    num_problems: int = 128
    samples_per_problem: int = 1
    # Rounds between two evaluations; 0: only before and after.
    every_rounds: int = 0
    temperature: float = 1.0
    # k of the reported pass@k; each at most samples_per_problem.
    pass_at: list[int] = field(default_factory=lambda: [1])


@dataclass(kw_only=True)
class CheckpointConfig:
    # Rounds between two checkpoints; 0: only at the end and on SIGTERM.
    every_rounds: int = 50
    keep_last: int = 2
    # Continue the run in `output_dir`. An error when there is nothing to continue.
    resume: bool = False
    # Write the trained model as a Hugging Face directory at the end.
    export: bool = True


@dataclass(kw_only=True)
class TrackingConfig:
    # metrics.jsonl is always written. wandb: off | offline | online.
    wandb: str = "off"
    project: str = "grpo"
    # Completions written to samples.jsonl each round.
    samples_per_round: int = 4


@dataclass(kw_only=True)
class TrainConfig:
    """What `grpo train` reads."""

    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    normalization: NormalizationConfig = field(default_factory=NormalizationConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    weight_sync: WeightSyncConfig = field(default_factory=WeightSyncConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    # Optimizer steps in all.
    num_steps: int = 100
    # Seeds the order of prompts, the samples and the weights that are drawn.
    seed: int = 0
    # Everything a run writes is in here.
    output_dir: str = "runs/default"
    # cpu | cuda | auto (cuda where there is one).
    device: str = "auto"
    # Print the batch table and the memory estimate, and stop.
    dry_run: bool = False
