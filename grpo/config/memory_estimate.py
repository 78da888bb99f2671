"""The batch table and the memory estimate are computed from a configuration before anything starts."""

from dataclasses import dataclass, replace

from grpo.config.placement import starts_servers
from grpo.config.run import TrainConfig

GIB = 2**30
BYTES = {"bfloat16": 2, "float32": 4}
# GiB on a GPU beyond what is counted: CUDA itself, kernels' workspaces, and CUDA graphs, which a sleeping engine keeps.
RUNTIME_GIB = 1.5
# Numbers that DeepSpeed reduces at once, and that it holds whole under ZeRO-3 (its reduce_bucket_size and
# stage3_max_live_parameters).
BUCKET, LIVE = 500_000_000, 1_000_000_000


# A GPU keeps this share free where an engine stays awake beside the learner, because the estimate is approximate.
SPARE = 0.1


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The shape holds the dimensions of a transformer on which its memory depends.

    `parameters` counts every weight once. `inner_width` is the width between the matrices of a feed-forward layer.
    `query_width` and `key_value_width` are the widths of all heads together. `adapters` counts the weights of LoRA
    adapters where only they are trained, and is 0 where all weights are.
    """

    parameters: int
    layers: int
    width: int
    inner_width: int
    vocabulary: int
    query_width: int
    key_value_width: int
    adapters: int = 0

    @property
    def learning(self) -> int:
        """Returns the number of weights that have gradients and moments."""
        return self.adapters or self.parameters


def batch_table(config: TrainConfig, world_size: int) -> list[tuple[str, int, int]]:
    """Returns rows (quantity, per rank, in all) of the sizes of one optimizer step and of one round."""
    dynamics, sampling = config.dynamics, config.rollout.sampling
    prompts = dynamics.prompts_per_step
    sequences = prompts * dynamics.group_size
    answer_tokens = sequences * sampling.max_tokens
    tokens = step_tokens(config, prompts)
    # Ranks that compute rows together pool their tokens. Rows that no further completion fits into are not quite full.
    micro = -(-tokens * config.learner.sequence_parallel // world_size // config.learner.micro_batch_tokens)
    rounds = -(-config.num_steps // dynamics.refresh_interval)

    def row(name: str, total: int) -> tuple[str, int, int]:
        return name, total // world_size, total

    return [
        ("tokens of a prompt, at most", config.task.prompt.max_tokens, config.task.prompt.max_tokens),
        ("tokens of a prompt and its completion, at most", config.model.max_length, config.model.max_length),
        row("prompts (groups) per step", prompts),
        row("completions per step", sequences),
        row("completion tokens per step, at most", answer_tokens),
        row("packed tokens per step, at most", tokens),
        row("micro-batches per step, about", max(1, micro) * world_size),
        row("completions per round", sequences * dynamics.refresh_interval // dynamics.passes),
        ("optimizer steps per round (refresh interval)", dynamics.refresh_interval, dynamics.refresh_interval),
        ("rounds", rounds, rounds),
        ("optimizer steps", config.num_steps, config.num_steps),
    ]


def at_its_largest(config: TrainConfig) -> TrainConfig:
    """Returns the config with the largest batch that dynamics=adaptive may choose."""
    dynamics, adaptive = config.dynamics, config.dynamics.adaptive
    if dynamics.name != "adaptive":
        return config
    group = max(dynamics.group_size, config.largest_group)
    prompts = max(dynamics.prompts_per_step, adaptive.most_prompts)
    return replace(config, dynamics=replace(dynamics, prompts_per_step=prompts, group_size=group))


def memory_estimate(
    config: TrainConfig, shape: ModelShape, world_size: int, gpu_gib: float = 0.0
) -> list[tuple[str, float, float]]:
    """Returns rows (what, GiB while sampling, GiB while learning) of one rank. The last row holds the sums.

    Sampling and learning take turns, so a rank needs the larger of the two sums. `gpu_gib` is the size of the rank's
    GPU; 0 means a CPU, where an engine keeps its memory while the learner works. The estimate is approximate: it leaves
    out fragmentation.
    """
    states = _learner_states(config, shape, world_size)
    passes = _learner_passes(config, shape, world_size, on_gpu=bool(gpu_gib))
    # The learner's states may wait in main memory while an engine on the same GPU samples.
    share_staying = 0.0 if config.learner.offload_states and gpu_gib else 1.0
    rows = [(name, share_staying * amount, amount) for name, amount in states]
    rows += [(name, 0.0, amount) for name, amount in passes]
    if config.rollout.engine == "vllm" and gpu_gib:
        # The engine fills the rest of its share with the cache, and may sleep while the learner works.
        sleep = config.rollout.sleep
        share, weights = config.rollout.gpu_memory_fraction * gpu_gib * GIB, engine_weights(config, shape)
        # Before the engine takes its cache, a refresh has the learner's weights beside the sampler's.
        sent = states[0][1] if share_staying == 0 and not config.keeps_base else 0.0
        rest = max(share - weights, sent)
        rows.append(("sampler weights", weights, weights if sleep in ("never", "cache") else 0.0))
        rows.append(("sampler's KV cache and graphs", rest, rest if sleep == "never" else 0.0))
    elif config.rollout.engine != "vllm_server":
        # Servers have devices of their own.
        rows += [(name, amount, amount) for name, amount in _sampler(config, shape, world_size)]
    if gpu_gib:
        rows += [(name, 0.0, amount) for name, amount in _deepspeed_buffers(config, shape)]
        rows.append(("runtime and CUDA graphs", RUNTIME_GIB * GIB, RUNTIME_GIB * GIB))
    in_gib = [(name, sampling / GIB, learning / GIB) for name, sampling, learning in rows]
    return [*in_gib, ("in all", sum(row[1] for row in in_gib), sum(row[2] for row in in_gib))]


def least_sleep(config: TrainConfig, shape: ModelShape, world_size: int, gpu_gib: float) -> str:
    """Returns the `rollout.sleep` that gives back least of an engine's memory and still leaves the learner what it
    needs of a GPU of `gpu_gib`, by the estimate and with `SPARE` beside it."""
    for sleep in ("never", "cache"):
        awake = replace(config, rollout=replace(config.rollout, sleep=sleep))
        if not config.learner.offload_states and memory_estimate(awake, shape, world_size, gpu_gib)[-1][2] < (
            (1 - SPARE) * gpu_gib
        ):
            return sleep
    return "all"


def engine_weights(config: TrainConfig, shape: ModelShape) -> float:
    """Returns the bytes of sampler weights on one rank, for an engine in the learner's process."""
    return BYTES[config.rollout.precision] * shape.parameters / config.rollout.tensor_parallel


def certain_memory(config: TrainConfig, shape: ModelShape, world_size: int, local: int) -> tuple[float, float]:
    """Returns the GiB that the learner and the sampler take on a machine of CPUs with `local` ranks, whatever they do.

    A learner holds weights, gradients and optimizer. An engine takes `rollout.kv_cache_gib` as it starts. Memory
    that depends on the lengths of completions is left out.
    """
    rollout = config.rollout
    learner = local * offloaded_bytes(config, shape, world_size) / GIB
    weights = BYTES[rollout.precision] * shape.parameters / GIB
    if rollout.engine == "transformers":
        return learner, local * weights
    if rollout.engine == "vllm":
        return learner, local / rollout.tensor_parallel * (weights + rollout.kv_cache_gib)
    here = starts_servers(config.rollout) and not config.hardware.server_nodes
    return learner, rollout.servers.replicas * (weights + rollout.kv_cache_gib) if here else 0.0


def offloaded_bytes(config: TrainConfig, shape: ModelShape, world_size: int) -> float:
    """Returns the most bytes of main memory that one rank's offloaded learner states take while an engine samples."""
    return sum(amount for _, amount in _learner_states(config, shape, world_size))


def optimizer_bytes(config: TrainConfig, shape: ModelShape, world_size: int) -> float:
    """Returns the bytes of one rank's share of AdamW's two moments, and of float32 masters of bfloat16 weights."""
    return (8 + (4 if config.learner.precision == "bfloat16" else 0)) * shape.learning / world_size


def _learner_states(config: TrainConfig, shape: ModelShape, world_size: int) -> list[tuple[str, float]]:
    """Returns rows (what, bytes) of what a learner always holds: weights, gradients, optimizer, reference."""
    learner = config.learner
    unsharded_bytes = BYTES[learner.precision] * (shape.parameters + shape.adapters)
    weights = unsharded_bytes / (world_size if learner.zero_stage == 3 else 1)
    gradients = 4 * shape.learning / (world_size if learner.zero_stage >= 2 else 1)
    rows = [("learner weights", weights), ("learner gradients (float32)", gradients)]
    if not learner.offload_optimizer:
        rows.append(("optimizer moments and masters", optimizer_bytes(config, shape, world_size)))
    if config.objective.kl.coefficient and not config.model.lora.rank:
        rows.append(("reference weights", weights))
    return rows


def _learner_passes(config: TrainConfig, shape: ModelShape, world_size: int, on_gpu: bool) -> list[tuple[str, float]]:
    """Returns rows (what, bytes) of what the forward and backward pass of a micro-batch take."""
    learner = config.learner
    size = BYTES[learner.precision]
    # Each rank that computes a row together with others holds a share of the row.
    num_ranks = learner.sequence_parallel
    own_tokens = step_tokens(config, config.dynamics.prompts_per_step // world_size)
    tokens = min(learner.micro_batch_tokens, own_tokens * num_ranks) // num_ranks
    chunk = min(learner.logit_chunk_tokens, tokens)
    # Attention is computed in float32 on a CPU.
    token_bytes = activation_bytes(shape, size, learner.gradient_checkpointing, size if on_gpu else BYTES["float32"])
    rows = [
        (f"activations of {tokens:,} tokens", tokens * token_bytes),
        (f"logits of {chunk:,} tokens", logit_bytes(chunk, shape.vocabulary)),
    ]
    if not config.model.lora.rank:
        # There are a sum over chunks, and the chunk that is added to it.
        rows.append(("gradient of the output layer", (4 + size) * shape.vocabulary * shape.width))
    return rows


def _deepspeed_buffers(config: TrainConfig, shape: ModelShape) -> list[tuple[str, float]]:
    """Returns rows (what, bytes) of the buffers that DeepSpeed takes on a GPU while the learner works."""
    learner = config.learner
    size = BYTES[learner.precision]
    # Stage 2 fills one buffer while the other is reduced.
    buffers = 2 if learner.zero_stage == 2 else 1
    rows = [("gradients that are reduced", buffers * size * min(BUCKET, shape.learning))]
    if learner.zero_stage == 3:
        embeddings = 2 * shape.vocabulary * shape.width
        rows.append(("weights that are gathered", size * min(embeddings + LIVE, shape.parameters)))
    return rows


def _sampler(config: TrainConfig, shape: ModelShape, world_size: int) -> list[tuple[str, float]]:
    """Returns rows (what, bytes) of what an engine in the learner's process needs for weights and KV cache."""
    dynamics, rollout = config.dynamics, config.rollout
    concurrent = min(rollout.max_concurrent, dynamics.group_size * dynamics.prompts_per_step // world_size)
    size = BYTES[rollout.precision]
    cache = 2 * shape.layers * shape.key_value_width * size
    return [
        ("sampler weights", engine_weights(config, shape)),
        (f"KV cache in use by {concurrent:,} completions", cache * concurrent * config.model.max_length),
    ]


def activation_bytes(shape: ModelShape, size: int, checkpointing: bool, attended: int) -> int:
    """Returns the bytes that autograd keeps of one token for the backward pass, over all layers.

    A number takes `size` bytes, and within attention `attended` bytes. The count is that of Llama and Qwen2 in
    transformers. Both norms of a layer keep their input in float32, the normalized input, and the scaled result.
    Attention keeps queries, keys, values, its output and a copy for the next matrix. The feed-forward layer keeps four
    tensors between its matrices. Norms of queries and keys (Qwen3), and the pieces of trees too long for a mask, add up
    to a quarter. With `checkpointing` only the input of each layer is kept, and one layer at a time is computed again.
    """
    norms = (8 + 4 * size) * shape.width
    attention = attended * 2 * (shape.query_width + shape.key_value_width)
    layer = norms + attention + size * (shape.query_width + 4 * shape.inner_width)
    return shape.layers * size * shape.width + layer if checkpointing else shape.layers * layer


def logit_bytes(tokens: int, vocabulary: int) -> int:
    """Returns the bytes of a chunk's logits, probabilities and gradients, in float32."""
    return 3 * tokens * vocabulary * BYTES["float32"]


def step_tokens(config: TrainConfig, prompts: int) -> int:
    """Returns the most tokens in the rows of `prompts` prompts.

    learner.layout=shared counts a prompt once; the other layouts count it before each of its completions.
    """
    group = config.dynamics.group_size
    copies = 1 if config.learner.layout == "shared" else group
    return prompts * (copies * config.task.prompt.max_tokens + group * config.rollout.sampling.max_tokens)
