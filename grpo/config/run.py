"""One run: everything above, and how long, how seeded, how watched."""

from dataclasses import dataclass, field

from grpo.config.engines import LearnerConfig, ModelConfig, RolloutConfig, WeightSyncConfig
from grpo.config.loss import NormalizationConfig, ObjectiveConfig
from grpo.config.task import TaskConfig


@dataclass(kw_only=True)
class AdaptiveConfig:
    """What `dynamics=adaptive` may do, see `grpo.dynamics.adaptive`."""

    # Rounds between two decisions, once there are enough for a fit (before that: every round). The guard looks at
    # every round.
    decide_every: int = 5
    # Group sizes allowed.
    smallest_group: int = 4
    largest_group: int = 64
    # Share of the gradient's limit G → ∞ that may be lost to small groups.
    max_shortfall: float = 0.25
    # Standard deviation of the curve about the plateau, as a share of the improvement that is left.
    max_fluctuation: float = 0.5
    # What stays as configured when G changes: "prompts" or "samples" per optimizer step.
    hold: str = "prompts"
    # Largest refresh interval. 1: every step on-policy.
    longest_interval: int = 8
    # How staleness is made, which decides the threshold: sample_and_hold | constant_lag | fresh.
    staleness: str = "sample_and_hold"
    # c = κτ/(1−μ) may reach this share of its threshold, and the damping ratio ζ must stay at least that.
    max_gain_share: float = 0.5
    min_damping_ratio: float = 0.7
    # Effective share of samples under importance weights, and share of clipped tokens, at the interval chosen.
    min_ess: float = 0.8
    max_clip_fraction: float = 0.1
    # A longer interval must save this share of the time per step.
    min_saving: float = 0.05
    # Stop when at most this pass rate is to be gained until num_steps, `stop_patience` decisions in a row and not
    # before `stop_min_steps`. 0: never.
    stop_gain: float = 0.0
    stop_patience: int = 3
    stop_min_steps: int = 50


@dataclass(kw_only=True)
class DynamicsConfig:
    # fixed: group size and refresh interval as configured. adaptive: they are where a run begins.
    name: str = "fixed"
    # Completions per prompt (G).
    group_size: int = 8
    # Optimizer steps per round (τ).
    refresh_interval: int = 1
    # Prompts in one optimizer step, over all ranks.
    prompts_per_step: int = 8
    # Rounds between two diagnoses of the run, whose findings are printed once each; after a thousand of them a fiftieth
    # of the rounds so far. 0: only at the end.
    diagnose_every: int = 20
    adaptive: AdaptiveConfig = field(default_factory=AdaptiveConfig)


@dataclass(kw_only=True)
class EvaluationConfig:
    """Held-out evaluation before, during and after training."""

    # Held-out problems asked; 0: no evaluation.
    num_problems: int = 128
    samples_per_problem: int = 1
    # Rounds between two evaluations; 0: only before and after.
    every_rounds: int = 0
    temperature: float = 1.0
    # Besides, one completion a problem at temperature 0.
    greedy: bool = False
    # k of the reported pass@k; each at most samples_per_problem.
    pass_at: list[int] = field(default_factory=lambda: [1])
    # Problem sets asked whole, one after another, e.g. [math500, aime24] (files of configs/task). In training they are
    # asked besides the held-out problems, and the best checkpoint is then the best by the mean of their pass@1; `grpo
    # eval` asks them instead.
    suite: list[str] = field(default_factory=list)
    # Folder with NAME.jsonl of sets in Big-Math's row schema, which are read instead of the hub; "": none.
    suite_folder: str = ""


@dataclass(kw_only=True)
class CheckpointConfig:
    # Rounds between two checkpoints; 0: only at the end and on SIGTERM. Above 0, dynamics=adaptive saves one at the
    # start too, and its guard may go back to the one of the best policy, which is kept.
    every_rounds: int = 50
    keep_last: int = 2
    # Continue the run in `output_dir` from its newest whole checkpoint. An error when there is none.
    resume: bool = False
    # Write the trained model as a Hugging Face directory at the end.
    export: bool = True


@dataclass(kw_only=True)
class TrackingConfig:
    # metrics.jsonl, evaluations.jsonl and samples.jsonl are always written. wandb: off | offline | online.
    wandb: str = "off"
    # Event files in output_dir/tensorboard.
    tensorboard: bool = False
    # Tracking URI, e.g. http://127.0.0.1:5000, sqlite:///mlflow.db, file:mlruns; "": off.
    mlflow: str = ""
    # Of W&B, and the experiment of MLflow.
    project: str = "grpo"
    # Completions written to samples.jsonl each round.
    samples_per_round: int = 4


@dataclass(kw_only=True)
class HardwareConfig:
    """What `grpo launch` starts where. `grpo train` is one rank of it, or a whole run in one process."""

    # Machines whose GPUs learn, and ranks on each; they come first in `hosts`.
    learner_nodes: int = 1
    ranks_per_node: int = 1
    # Machines that only serve, rollout.servers.replicas each. Without any, servers run beside the learner.
    server_nodes: int = 0
    # Names of the machines, as the launching one looks them up, or addresses; empty: this one, or those of the Slurm
    # allocation.
    hosts: list[str] = field(default_factory=list)
    # How a command is started on a machine: here | ssh | srun.
    shell: str = "here"
    # Where ranks meet on the first machine; servers listen from 100 ports higher on. A run on one machine takes others
    # where these are taken.
    first_port: int = 29500


@dataclass(kw_only=True)
class LimitsConfig:
    """A run ends after `num_steps`, or in the round in which the first of these is spent; 0: no limit."""

    # Completions, those of silent and of replaced groups included.
    samples: int = 0
    # Tokens of completions.
    tokens: int = 0
    # Of rounds, by the clock on the wall; evaluations and checkpoints come on top.
    seconds: float = 0.0


@dataclass(kw_only=True)
class TrainConfig:
    """What `grpo train` reads."""

    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    normalization: NormalizationConfig = field(default_factory=NormalizationConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    # off: sample, then learn. With servers, one_round: the next round is sampled while this one is learned from, and
    # both end before weights change. continuous: sampling goes on through that, rollout.max_staleness steps ahead.
    pipeline: str = "off"
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    weight_sync: WeightSyncConfig = field(default_factory=WeightSyncConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    # Optimizer steps in all.
    num_steps: int = 100
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    # Seeds the order of prompts, the samples and the weights that are drawn.
    seed: int = 0
    # Everything a run writes is in here.
    output_dir: str = "runs/default"
    # cpu | cuda | auto (cuda where there is one).
    device: str = "auto"
    # Print the batch table and the memory estimate, and stop.
    dry_run: bool = False
