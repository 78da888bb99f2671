"""Settings that a machine asks for follow from what was measured there, by five rules.

Rows   The learner's rows (learner.micro_batch_tokens) are the shortest that reach `ENOUGH_SPEED` of the fastest, among
       those whose peak memory is at most `MOST_MEMORY` of the device's. On a GPU, rows that were measured with their
       activations kept are learned from in that way (learner.gradient_checkpointing=false).
Chunk  On a GPU, a chunk of logits (learner.logit_chunk_tokens) doubles, up to a whole row, as long as the estimate of
       what it takes more keeps the peak within `MOST_MEMORY`. A whole row's logits are not computed again.
Place  Sampling and learning take turns on all N GPUs, unless a round with servers on k of them takes less than
       `WORTH_SERVERS` of one in turns, or the sampler does not fit beside the learner's states. In turns a round takes
       S(N) + L/N + R + O seconds. With servers, which sample the next round meanwhile, it takes
       max(S(k) + O, L/(N − k)) + R. S(n) is the time of n engines that share the completions, L that of one GPU for all
       learning, R that of a refresh, and O is the rest of a round. One GPU, or a CPU, always takes turns.
Share  In turns, the sampler has what the learner's states leave of the GPU, less `RESERVE_GIB`, in steps of `STEP`. On
       a CPU it has a cache for all completions of a round at once.
Many   On a GPU in turns, as many completions run at once (rollout.max_concurrent) as the cache of this share holds, up
       to `MOST_AT_ONCE`.
"""

import math
from dataclasses import dataclass

from grpo.config.memory_estimate import GIB, logit_bytes
from grpo.prove.facts import shown
from grpo.types import MachineConstants
from grpo.types.values import ROUNDING

ENOUGH_SPEED, MOST_MEMORY = 0.97, 0.9
WORTH_SERVERS = 0.9
# vLLM's own default on GPUs of 80 GB.
MOST_AT_ONCE = 1024
# This much memory is left free for CUDA itself, kernels' workspaces, CUDA graphs and fragmentation.
RESERVE_GIB, STEP = 3.0, 0.05
# This is the smallest cache on a CPU. With less than this share of a round's cache, sampling beside the learner is of
# no use.
LEAST_CACHE_GIB, LEAST_CACHE_SHARE = 0.125, 0.25


@dataclass(frozen=True, slots=True)
class Basis:
    """A basis holds facts about one round of one model, from which settings follow with the machine's constants.

    gpus                 0 is a machine without any
    device_gib           memory of one GPU, or main memory
    at_rest_gib          what a learner rank holds between steps
    rows                 (tokens of a row, packed tokens/s, peak GiB), by rising length
    packed_tokens        tokens that are learned from in a round
    checkpointing        whether rows were measured with activations that are computed again
    logit_chunk          tokens of a chunk of logits
    vocabulary           numbers of a token's logits
    sampler_weights_gib  weights of the sampler
    cache_gib            KV cache of all completions of a round
    completions          completions of a round
    completion_tokens    tokens of all completions of a round together
    """

    gpus: int
    device_gib: float
    at_rest_gib: float
    rows: tuple[tuple[int, float, float], ...]
    packed_tokens: float
    checkpointing: bool
    logit_chunk: int
    vocabulary: int
    sampler_weights_gib: float
    cache_gib: float
    completions: int
    completion_tokens: float


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting is an override of a run's configuration, and the reason for it."""

    word: str
    reason: str


def settings_of(constants: MachineConstants, basis: Basis) -> list[Setting]:
    """Returns the overrides that the machine asks for, by the rules at the top of this module.

    >>> constants = MachineConstants("a GPU", 1_500_000_000, ((8, 900.0), (256, 10_000.0)), 40_000.0, 0.5, 1.0)
    >>> rows = ((8192, 36_000.0, 40.0), (16384, 39_000.0, 50.0), (32768, 40_000.0, 60.0), (65536, 42_000.0, 79.0))
    >>> basis = Basis(1, 79.0, 26.0, rows, 200_000, False, 4096, 151_936, 3.1, 7.5, 256, 180_000)
    >>> for setting in settings_of(constants, basis):
    ...     print(setting.word)
    learner.micro_batch_tokens=16384
    learner.gradient_checkpointing=false
    learner.logit_chunk_tokens=16384
    rollout=vllm
    rollout.gpu_memory_fraction=0.6
    rollout.max_concurrent=1024
    """
    return [*_learner(basis), *(_placed(constants, basis) if basis.gpus else _on_cpu(basis))]


def _learner(basis: Basis) -> list[Setting]:
    fitting = [row for row in basis.rows if row[2] <= MOST_MEMORY * basis.device_gib] or list(basis.rows[:1])
    fastest = max(speed for _, speed, _ in fitting)
    tokens, speed, peak = next(row for row in fitting if row[1] >= ENOUGH_SPEED * fastest)
    reason = f"{shown(speed)} tokens/s, of {shown(fastest)} at best; peak {peak:.1f} of {basis.device_gib:.1f} GiB"
    settings = [Setting(f"learner.micro_batch_tokens={tokens}", reason)]
    if not basis.gpus:
        return settings
    if not basis.checkpointing:
        settings.append(Setting("learner.gradient_checkpointing=false", "these rows fit with all activations"))
    return [*settings, _logit_chunk(basis, tokens, peak)]


def _logit_chunk(basis: Basis, tokens: int, peak: float) -> Setting:
    def peak_with(chunk: int) -> float:
        return peak + logit_bytes(chunk - basis.logit_chunk, basis.vocabulary) / GIB

    chunk = basis.logit_chunk
    while chunk < tokens and peak_with(min(2 * chunk, tokens)) <= MOST_MEMORY * basis.device_gib:
        chunk = min(2 * chunk, tokens)
    reason = f"an estimated peak of {peak_with(chunk):.1f} of {basis.device_gib:.1f} GiB"
    return Setting(f"learner.logit_chunk_tokens={chunk}", reason)


def _on_cpu(basis: Basis) -> list[Setting]:
    cache = max(LEAST_CACHE_GIB, math.ceil(basis.cache_gib / LEAST_CACHE_GIB) * LEAST_CACHE_GIB)
    return [
        Setting("rollout=vllm", "sampling and learning take turns on a CPU"),
        Setting(f"rollout.kv_cache_gib={cache:g}", f"a round's completions take {basis.cache_gib:.2g} GiB"),
    ]


def _placed(constants: MachineConstants, basis: Basis) -> list[Setting]:
    gpus = basis.gpus
    room = basis.device_gib - basis.at_rest_gib - RESERVE_GIB
    fits = room >= basis.sampler_weights_gib + LEAST_CACHE_SHARE * basis.cache_gib
    if gpus > 1:
        in_turns = seconds_in_turns(constants, basis)
        serving = min(range(1, gpus), key=lambda count: seconds_beside(constants, basis, count))
        seconds_of_both = seconds_beside(constants, basis, serving)
        if not fits:
            return _beside(gpus, serving, "a sampler does not fit beside the learner's states")
        if seconds_of_both < WORTH_SERVERS * in_turns:
            return _beside(gpus, serving, f"{shown(seconds_of_both)} s a round, and {shown(in_turns)} s in turns")
    share = max(STEP, math.floor(room / basis.device_gib / STEP + ROUNDING) * STEP)
    memory_taken = f"the learner holds {basis.at_rest_gib:.1f} of {basis.device_gib:.1f} GiB between steps"
    reason = (
        memory_taken
        if fits
        else f"{memory_taken}, too much for a sampler: use a smaller model or learner.offload_optimizer=true"
    )
    place = [Setting("rollout=vllm", "the GPU samples and learns in turns")]
    if gpus > 1:
        place.append(Setting(f"hardware.ranks_per_node={gpus}", "every GPU samples and learns in turns"))
    cache_gib = share * basis.device_gib - basis.sampler_weights_gib
    at_once = max(1, min(MOST_AT_ONCE, math.floor(cache_gib * basis.completions / basis.cache_gib)))
    return [
        *place,
        Setting(f"rollout.gpu_memory_fraction={share:.2g}", reason),
        Setting(f"rollout.max_concurrent={at_once}", f"the cache of {max(0.0, cache_gib):.1f} GiB holds them"),
    ]


def sampling_seconds(constants: MachineConstants, basis: Basis, engines: int) -> float:
    """Returns the seconds that `engines` engines, which share the completions, take to sample a round."""
    return basis.completion_tokens / engines / constants.sampling_speed(basis.completions / engines)


def seconds_in_turns(constants: MachineConstants, basis: Basis) -> float:
    """Returns the seconds of a round in which every GPU samples and then learns."""
    learning = basis.packed_tokens / constants.learning_tokens_per_second / basis.gpus
    refreshing = constants.refresh_seconds + constants.round_overhead_seconds
    return sampling_seconds(constants, basis, basis.gpus) + learning + refreshing


def seconds_beside(constants: MachineConstants, basis: Basis, serving: int) -> float:
    """Returns the seconds of a round in which `serving` GPUs sample while the others learn."""
    sampling = sampling_seconds(constants, basis, serving) + constants.round_overhead_seconds
    learning = basis.packed_tokens / constants.learning_tokens_per_second / (basis.gpus - serving)
    return max(sampling, learning) + constants.refresh_seconds


def _beside(gpus: int, serving: int, reason: str) -> list[Setting]:
    learning = gpus - serving
    return [
        Setting("rollout=vllm_server", reason),
        Setting("pipeline=one_round", "servers sample the next round while the learner learns"),
        Setting(f"hardware.ranks_per_node={learning}", f"{learning} of {gpus} GPUs learn"),
        Setting(f"rollout.servers.replicas={serving}", f"{serving} of {gpus} GPUs sample"),
        Setting(f"rollout.servers.first_gpu={learning}", "the GPUs after the learner's"),
    ]
