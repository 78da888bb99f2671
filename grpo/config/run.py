"""A run has a length, a schedule, evaluations, checkpoints, trackers and machines; their keys are defined here."""

from dataclasses import dataclass, field

from grpo.config.engines import LearnerConfig, ModelConfig, RolloutConfig, WeightSyncConfig
from grpo.config.loss import NormalizationConfig, ObjectiveConfig
from grpo.config.task import TaskConfig


@dataclass(kw_only=True)
class AdaptiveConfig:
    """The adaptive schedule chooses batch and refresh interval by what steps gain (`dynamics=adaptive`).

    See `grpo.dynamics.adaptive`. Without `dynamics=adaptive` only `grpo dynamics` reads these keys, and a run for which
    one is typed is refused.
    """

    # Decisions are this many rounds apart. The guard, which acts when a run goes wrong, looks at every round.
    decide_every: int = 4
    # The schedule takes no smaller group size than this; at least 2. In real runs no choice of the size did better than
    # 8 throughout, so the schedule takes 8 and chooses only where this or largest_group allows others.
    smallest_group: int = 8
    # The schedule takes no larger group size than this, nor than rollout.budget.largest where that is enabled; 16384 is
    # the most.
    largest_group: int = 8
    # The schedule also halves the prompts per optimizer step, down to this many; 0: never below prompts_per_step.
    fewest_prompts: int = 0
    # The schedule also doubles the prompts per optimizer step, up to this many; 0: never above prompts_per_step.
    most_prompts: int = 0
    # The schedule also changes the learning rate, by a factor on it, so that steps gain most. Where it may not and
    # would surely lower it, a line says so.
    learning_rate: bool = False
    # Progress should cost fewest tokens or seconds. Seconds are fitted to the run's own rounds; two runs of one seed
    # then differ, since their clocks do.
    cost: str = "tokens"
    # The schedule takes no longer refresh interval than this, in optimizer steps. It grows by one rung at a time: 1, 2,
    # 3, 4, 6, 8, 12, 16, 24, 32. 1 keeps every step on-policy.
    longest_interval: int = 8
    # The chosen interval keeps at least this effective share of samples (ESS) under importance weights.
    min_ess: float = 0.8
    # The chosen interval has at most this share of clipped tokens.
    max_clip_fraction: float = 0.1
    # A longer interval is taken only when it saves this share of the time for the same learning.
    min_saving: float = 0.05
    # The run stops when gaining more pass rate than this until num_steps has a probability below 10 % by the forecast.
    # 0.01 is one percentage point; 0 never stops it.
    stop_gain: float = 0.0
    # This many decisions in a row have to find so little gain before the run stops.
    stop_patience: int = 3
    # The run does not stop before this many optimizer steps.
    stop_min_steps: int = 50


@dataclass(kw_only=True)
class DynamicsConfig:
    """The dynamics say how many completions a prompt gets, and how many optimizer steps a round has."""

    # fixed keeps group size and refresh interval as configured. adaptive begins with them, changes the interval and,
    # where the keys of adaptive allow it, the learning rate, the group size and the prompts per step.
    name: str = "fixed"
    # With name=fixed, True has the guard watch the run as it does under adaptive. Where the pass rate collapses, it
    # halves the learning rate and returns to the checkpoint of the best policy; a fourth time it stops the run.
    guard: bool = False
    # A prompt gets this many completions, G (TRL: num_generations; verl: rollout.n), from 2 to 16384.
    group_size: int = 8
    # A round has this many optimizer steps, τ, on samples of one policy; then the sampler gets the new weights. 1 is
    # on-policy (TRL: steps_per_generation / gradient_accumulation_steps; verl: train_batch_size / ppo_mini_batch_size).
    refresh_interval: int = 1
    # A round learns from its samples this many times, μ, one pass after another. Its optimizer steps are divided among
    # the passes, so refresh_interval is a multiple of it (TRL: num_iterations; verl: ppo_epochs).
    passes: int = 1
    # One optimizer step learns from this many prompts, over all ranks (verl: ppo_mini_batch_size).
    prompts_per_step: int = 8
    # Diagnoses of the run are this many rounds apart. After a thousand rounds they are a fiftieth of the rounds so far
    # apart. Every finding is printed once. 0: only at the end.
    diagnose_every: int = 20
    adaptive: AdaptiveConfig = field(default_factory=AdaptiveConfig)


@dataclass(kw_only=True)
class EvaluationConfig:
    """An evaluation asks held-out problems before, during and after training."""

    # This many held-out problems are asked; 0: no evaluation.
    num_problems: int = 128
    # Each problem gets this many completions.
    samples_per_problem: int = 1
    # Evaluations are this many rounds apart; 0: only before and after training.
    every_rounds: int = 0
    # Completions of evaluations are drawn at this temperature.
    temperature: float = 1.0
    # Nucleus sampling of evaluations draws from the most probable tokens that hold this share of the probability; null
    # takes rollout.sampling.top_p.
    top_p: float | None = None
    # Tokens of evaluations are drawn from this many most probable ones; null takes rollout.sampling.top_k.
    top_k: int | None = None
    # A completion of an evaluation has at most this many tokens; null takes rollout.sampling.max_tokens.
    max_tokens: int | None = None
    # True adds one completion a problem at temperature 0.
    greedy: bool = False
    # pass@k is reported for these k, e.g. [1, 4], each once; each is at most samples_per_problem.
    pass_at: list[int] = field(default_factory=lambda: [1])
    # These problem sets are asked whole, one after another, e.g. [math500, aime24] (files of configs/task). In training
    # they come besides the held-out problems, and the best checkpoint is the best by the mean of their pass@1. A set
    # that the run trains on is refused. A file of your own, e.g. [test.parquet], is read as the run's own problems are,
    # and [DIR/task/mine.yaml] is a task of your own. `grpo eval` asks them instead. They have the run's
    # task.prompt.chat and chat_template_kwargs, and else their own prompt.
    suite: list[str] = field(default_factory=list)
    # A file NAME.jsonl in this folder, in Big-Math's row schema, is read instead of the hub. "" reads the hub.
    suite_folder: str = ""


@dataclass(kw_only=True)
class CheckpointConfig:
    """A checkpoint holds all that a run needs to go on."""

    # Checkpoints are this many rounds apart; 0: only at the end and on SIGTERM. Above 0, dynamics=adaptive saves one at
    # the start too, and its guard may go back to the one of the best policy, which is kept.
    every_rounds: int = 50
    # This many newest checkpoints are kept, and the best one besides.
    keep_last: int = 2
    # The checkpoints of every so many rounds are kept for good, e.g. 200 with every_rounds=50; 0: none.
    keep_every: int = 0
    # True continues the run in `output_dir`, which has to be named then, from its newest whole checkpoint. It is an
    # error when there is none. auto continues where there is a checkpoint and else begins, and a run that is finished
    # ends at once. A scheduler that restarts jobs needs that.
    resume: bool | str = False
    # Checkpoints, records and the exported model are copied to this address while the run goes on, e.g.
    # s3://bucket/runs/mine, gs://…, az://… or file:///mnt/… (fsspec; s3 needs the package s3fs, and so on). A run with
    # checkpoint.resume goes on from there where output_dir has no checkpoint. A store that fails ends no run. "" copies
    # nothing.
    upload: str = ""
    # A request to stop leaves this many seconds, such as 30 for a pod or 120 for a spot machine. The run then saves
    # after its present optimizer step, and gives up the rest of the round. 0: it finishes the round first, unless it is
    # asked twice.
    grace_seconds: float = 0.0
    # True writes the trained model as a Hugging Face directory at the end.
    export: bool = True
    # A model is written every so many rounds into output_dir/models/step-N, or the adapter alone with LoRA. All of them
    # are kept. 0: none.
    export_every: int = 0


@dataclass(kw_only=True)
class TrackingConfig:
    """Trackers show the numbers that metrics.jsonl, evaluations.jsonl and samples.jsonl always hold."""

    # Weights & Biases gets them at once (online), later by `wandb sync` (offline), or never (off). Online it takes no
    # step twice: of steps that a resumed run takes again it keeps the first numbers, the run's own files the last.
    wandb: str = "off"
    # True writes TensorBoard's event files into output_dir/tensorboard.
    tensorboard: bool = False
    # MLflow gets them at this tracking URI, e.g. http://127.0.0.1:5000, sqlite:///mlflow.db or file:mlruns. "": never.
    mlflow: str = ""
    # W&B's project and MLflow's experiment have this name. WANDB_PROJECT and MLFLOW_EXPERIMENT_NAME
    # replace the default one.
    project: str = "grpo"
    # The run belongs to this user or team of W&B; "" takes the one that is logged in.
    entity: str = ""
    # W&B puts runs of one group together, e.g. the seeds of a variant; "" leaves the run by itself.
    group: str = ""
    # W&B shows the run as this type of job.
    job_type: str = "train"
    # W&B and MLflow find the run by these tags, e.g. [gsm8k, lora].
    tags: list[str] = field(default_factory=list)
    # Each round writes some completions to samples.jsonl. all writes every one too, as Parquet files in
    # output_dir/completions.
    completions: str = "some"
    # Each round writes whole groups to samples.jsonl, until they have at least this many completions.
    samples_per_round: int = 4
    # These rounds, counted from 0, are recorded with torch's profiler, e.g. [3, 4]: a trace of every rank in
    # output_dir/profile, for ui.perfetto.dev. The first rounds are slower than the rest.
    profile_rounds: list[int] = field(default_factory=list)


@dataclass(kw_only=True)
class HardwareConfig:
    """The hardware says what `grpo launch` starts on which machine.

    `grpo train` is one rank of such a run, or a whole run in one process. With `dry_run=true` it shows what every rank
    of such a run takes, and prices it by `measured` and `price_per_hour`.
    """

    # The GPUs of this many machines learn. They come first in `hosts`.
    learner_nodes: int = 1
    # Each learning machine has this many ranks, one for each GPU that learns.
    ranks_per_node: int = 1
    # This many machines only serve, with rollout.servers.replicas servers each. 0: servers run beside the learner.
    server_nodes: int = 0
    # The machines have these names or addresses, as the launching one looks them up, e.g. [a, b]. [] takes this
    # machine, or those of the Slurm allocation. With shell=each, [FIRST] names the first one where no launcher does.
    hosts: list[str] = field(default_factory=list)
    # Commands are started on this machine (here), over ssh, or by Slurm's srun. With each, every machine starts the
    # same `grpo launch` by itself, as SkyPilot, dstack, Kubernetes, PAI or mpirun do: the run finds each machine's
    # place in what the launcher has set, and the machines meet at the first one's port.
    shell: str = "here"
    # This prove.json, which `grpo prove` has written on such a machine, lets a dry run tell how long the run takes.
    measured: str = ""
    # A dry run computes for GPUs of this many GiB, e.g. 24. 0 takes the GPU that is here, and 80 where there is none.
    gpu_memory_gib: float = 0.0
    # A device costs this much an hour, in any currency. A dry run prices the run by it, and the run's lines say what
    # was spent and what remains. 0: no price.
    price_per_hour: float = 0.0
    # Ranks of several machines meet at this port of the first one; servers listen from 100 ports higher on. A run on
    # one machine takes other ports where these are taken.
    first_port: int = 29500

    @property
    def ranks(self) -> int:
        """Returns the number of learner ranks on all machines."""
        return self.learner_nodes * self.ranks_per_node


@dataclass(kw_only=True)
class LimitsConfig:
    """Limits end a run before `num_steps`: it ends in the round in which the first of them is reached."""

    # The run ends after this many completions, those of silent and of replaced groups included. 0: no limit.
    samples: int = 0
    # The run ends after this many tokens of completions. 0: no limit.
    tokens: int = 0
    # The run ends after rounds of this many seconds in all; evaluations and checkpoints are not counted. 0: no limit.
    seconds: float = 0.0


@dataclass(kw_only=True)
class GateConfig:
    """A gate is a bound of a metric, and what happens when a run goes beyond it."""

    # The gate watches this number of metrics.jsonl, or of an evaluation: pass_rate, completions/repetition_fraction,
    # evaluation/pass@1, evaluation/math500/pass@1.
    metric: str = ""
    # The gate breaks when the metric is below this.
    below: float | None = None
    # The gate breaks when the metric is above this.
    above: float | None = None
    # True compares the difference to the metric's first value in the run, e.g. {metric: evaluation/mmlu/pass@1,
    # below: -0.02, from_start: true}. A gate that a resumed run adds compares with the first value after that, and
    # grpo export with the run's first.
    from_start: bool = False
    # The gate breaks after this many rounds, or evaluations, in a row beyond a bound.
    rounds: int = 1
    # stop ends the run. back returns to the newest checkpoint of a policy within all gates, and stops after three
    # returns. refuse_export goes on. After each of them `grpo export` refuses a model that broke the gate.
    then: str = "stop"


@dataclass(kw_only=True)
class TrainConfig:
    """The run is everything that `grpo train` reads; these keys stand at its top."""

    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    normalization: NormalizationConfig = field(default_factory=NormalizationConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    # Sampling and learning take turns (off). With servers they overlap. one_round samples the next round while this one
    # is learned from, and both end before weights change. continuous keeps sampling meanwhile, at most
    # rollout.max_staleness optimizer steps ahead.
    pipeline: str = "off"
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    weight_sync: WeightSyncConfig = field(default_factory=WeightSyncConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    # The run has this many optimizer steps in all (TRL: max_steps).
    num_steps: int = 100
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    # Gates are bounds of metrics, e.g. [{metric: completions/repetition_fraction, above: 0.2, then: back}].
    gates: list[GateConfig] = field(default_factory=list)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    # The seed decides the order of prompts, the samples and the first weights of adapters.
    seed: int = 0
    # True asks torch for deterministic kernels, and vLLM on a GPU for batch invariance (VLLM_BATCH_INVARIANT), so that
    # the same command gives the same bits. `grpo prove part=determinism` says whether it does, and at what price. CPUs
    # repeat runs without it, with an engine in the learner's process and single turns. Where a clock decides, as about
    # which turns of episodes share a batch, it is refused, but for the time limits of rewards, and servers that grade,
    # which may answer otherwise each time.
    deterministic: bool = False
    # Everything that a run writes lies in this folder. Its name may hold the start of the command: runs/mine/${start:}
    # becomes runs/mine/2026-11-23_19-02-11-4711, and under launch/slurm.sh runs/mine/job-17. The folder of a run that
    # is to be resumed has to be named.
    output_dir: str = "runs/default/${start:}"
    # The run computes on this device. auto is cuda where there is a GPU, else cpu.
    device: str = "auto"
    # True checks data, prompt and reward, prints the batch table, the memory estimate, the price of the run, the first
    # prompt and rewards of made-up answers, and stops. It needs neither a GPU nor the model's weights.
    dry_run: bool = False

    @property
    def longest_wait_seconds(self) -> float:
        """Returns how long ranks wait for one another at most: as long as every phase of a round may take together,
        which a phase between two rounds may take too."""
        return sum(part.deadline_seconds for part in (self.rollout, self.learner, self.weight_sync))

    @property
    def keeps_base(self) -> bool:
        """Says whether an engine takes the weights below adapters from the model's files, and not from the learner.

        It does where both have one GPU in turn, which need not have room for two models then. In float32 it would hold
        weights that a learner in bfloat16 has rounded.
        """
        adapters = self.model.lora.rank and not self.rollout.merge_adapters
        rounds = self.learner.precision == "bfloat16" and self.rollout.precision == "float32"
        return bool(adapters and self.learner.offload_states and not rounds)

    @property
    def largest_group(self) -> int:
        """Returns the largest group size that `dynamics=adaptive` may choose: a rollout budget cannot spend more."""
        largest, budget = self.dynamics.adaptive.largest_group, self.rollout.budget
        return min(largest, budget.largest) if budget.enabled else largest
