"""This module prints what a run will do before it starts: placement, batches, memory and price.

The price counts the tokens to sample and to learn from, and the time and money that they take. A model's sizes come
from its config alone, without its weights.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from grpo.config import ModelConfig, TrainConfig
from grpo.config.errors import require
from grpo.config.memory_estimate import (
    ModelShape,
    at_its_largest,
    batch_table,
    certain_memory,
    engine_weights,
    memory_estimate,
    offloaded_bytes,
    optimizer_bytes,
    step_tokens,
)
from grpo.config.placement import gpus_wanted, num_serving, placement_table
from grpo.config.surprises import surprises
from grpo.host import device_memory, main_memory, ranks
from grpo.host.terminal import Terminal, facts_table
from grpo.learner.loading import with_lora
from grpo.models.files import ModelFiles, heads_of, setting_of
from grpo.tasks.solve_rates import MEASURED_LENGTH, PROMPT_LENGTH
from grpo.types import MachineConstants, Problem

# Without a GPU here, the tables are those of a machine with this many GPUs.
GPUS_ELSEWHERE = 8
# A run names as many places at most, and else the first and the last.
MOST_PLACES = 3

Places = Sequence[tuple[str, str]]
"""These are rows of (process, device)."""
Memory = Sequence[tuple[str, float, float]]
"""These are rows of (what, GiB while sampling, GiB while learning); the last one holds the sums."""


def print_price(
    config: TrainConfig, files: ModelFiles, machine: MachineConstants | None, problems: Sequence[Problem] = ()
) -> None:
    """Prints the run's price in tokens, and in hours if `machine` holds measured speeds. Called on rank 0 only.

    Where the `problems` have lengths that `grpo solve-rates` measured, these are counted.
    """
    parameters, lengths = model_shape(files).parameters, mean_lengths(problems)
    priced = price(config, parameters, ranks.counts(config.hardware, config.dry_run)[0], machine, lengths)
    of = f"by {config.hardware.measured}, measured on {machine.device}" if machine else "in tokens"
    header = (of, "in a round", f"in {priced.rounds} rounds")
    console = Terminal()
    title = "Price" if config.dynamics.name == "fixed" else "Price, at the batch that the schedule begins with"
    console.print(facts_table(title, header, price_rows(priced, config.hardware.price_per_hour)))
    if machine is None:
        console.print(
            "`grpo prove` measures a machine; hardware.measured=FILE then prices the run in hours", soft_wrap=True
        )


def print_tables(config: TrainConfig, files: ModelFiles) -> None:
    """Prints what runs where, the batch and the memory estimate, on rank 0: tables in a dry run, and else a line each.
    Warns if memory will not suffice.

    Without a GPU here, a run that needs GPUs is shown for a machine with `GPUS_ELSEWHERE` of them, or with all that its
    servers need. Raises UserError when there are too few GPUs here, or too little memory.
    """
    on_gpu, (count, local) = ranks.on_gpu(config.device), ranks.counts(config.hardware, config.dry_run)
    num_gpus = (torch.cuda.device_count() or max(local, gpus_wanted(config), GPUS_ELSEWHERE)) if on_gpu else 0
    places = placement_table(config, local, num_gpus)
    shape = model_shape(files, config.model)
    lacking = too_small_a_share(config, shape) or too_much_memory(config, shape, count, local)
    # A dry run may be meant for another machine.
    elsewhere = (on_gpu and not torch.cuda.is_available()) or (
        config.dry_run and bool(config.hardware.hosts or config.hardware.gpu_memory_gib)
    )
    require(not lacking or elsewhere, lacking)
    if ranks.rank():
        return
    console = Terminal()
    if on_gpu and not torch.cuda.is_available():
        console.print(
            f"no GPU here, so this is for another machine: the tables are those of one with {num_gpus} GPUs of "
            f"{gpu_gib(config):g} GiB",
            soft_wrap=True,
        )
    largest = at_its_largest(config)
    memory = memory_estimate(largest, shape, count, gpu_gib(config))
    name = config.model.path or config.model.source
    of_model = f"{name}, {shape.parameters / 1e6:,.1f} M parameters, {config.learner.precision}"
    if largest is not config:
        batch = largest.dynamics
        of_model += f", at the schedule's largest batch: {batch.prompts_per_step} prompts × {batch.group_size}"
    if config.dry_run:
        _print_as_tables(console, config, count, places, memory, of_model)
    else:
        for line in in_short(config, count, places, memory, of_model):
            console.print(line, soft_wrap=True)
    for line in filter(None, (*surprises(config), idle_gpus(config, local, torch.cuda.device_count() * on_gpu))):
        console.print(line, style="yellow", soft_wrap=True)
    _, sampling, learning = memory[-1]
    if config.learner.offload_optimizer and num_gpus:
        gib = optimizer_bytes(config, shape, count) * local / 2**30
        console.print(f"the optimizer takes {gib:.0f} GiB of this machine's main memory, and gradients some more")
    if config.learner.offload_states and num_gpus:
        host_bytes = offloaded_bytes(config, shape, count) + engine_weights(config, shape)
        gib = host_bytes * local / 2**30
        console.print(f"the learner's states and an engine's weights take up to {gib:.0f} GiB of main memory")
    if lacking:
        console.print(lacking, style="yellow", soft_wrap=True)
    here = gpu_gib(config) == device_memory.device_gib(config.device)
    if max(sampling, learning) > (free := device_memory.available_gib(config.device) if here else gpu_gib(config)):
        lower = "rollout.gpu_memory_fraction" if num_gpus and sampling > learning else "learner.micro_batch_tokens"
        console.print(
            f"the memory estimate of {max(sampling, learning):.1f} GiB per rank exceeds the {free:.1f} GiB that are "
            f"free: lower {lower}, set learner.gradient_checkpointing=true, or use more ranks with "
            "learner.zero_stage=3",
            style="yellow",
        )


def _print_as_tables(
    console: Terminal, config: TrainConfig, count: int, places: Places, memory: Memory, of_model: str
) -> None:
    console.print(facts_table("Placement", ("what", "where, on this node"), places))
    header = ("per optimizer step and round", "per rank", f"on {count} rank{'s' * (count > 1)}")
    title = "Batches" if config.dynamics.name == "fixed" else "Batches, as the schedule begins"
    console.print(facts_table(title, header, batch_table(config, count)))
    header = ("estimate, on one rank", "while sampling", "while learning")
    rows = [(name, _size(first), _size(second)) for name, first, second in memory]
    console.print(facts_table(f"Memory, {of_model}", header, rows))


def in_short(config: TrainConfig, count: int, places: Places, memory: Memory, of_model: str) -> Iterator[str]:
    """Yields what the tables of a dry run say, in a line for each."""
    dynamics, sizes = config.dynamics, {name: f"{total:,}" for name, _, total in batch_table(config, count)}
    shown = places if len(places) <= MOST_PLACES else [places[0], places[-1]]
    where = (", …, " if shown is not places else ", ").join(f"{what} on {place}" for what, place in shown)
    yield f"{where}: {of_model}; about {_size(memory[-1][1])} while sampling and {_size(memory[-1][2])} while learning"
    micro = sizes["micro-batches per step, about"]
    yield (
        f"each step: {dynamics.prompts_per_step:,} prompts × {dynamics.group_size} completions of at most "
        f"{config.rollout.sampling.max_tokens:,} tokens; micro-batches: about {micro} at that length"
        + (", as the schedule begins" if dynamics.name != "fixed" else "")
    )
    yield (
        f"the run: {config.num_steps:,} optimizer steps in {sizes['rounds']} rounds; dry_run=true shows all this as "
        "tables, with its price"
    )


def gpu_gib(config: TrainConfig) -> float:
    """Returns the size of a rank's GPU in GiB, which `hardware.gpu_memory_gib` may say for a dry run, or 0 for CPUs."""
    here, assumed = device_memory.device_gib(config.device), config.hardware.gpu_memory_gib
    return assumed if here and assumed and config.dry_run else here


def idle_gpus(config: TrainConfig, local: int, num_gpus: int) -> str:
    """Returns a line about GPUs of this machine that neither a rank nor a server uses, or "" where all are used.

    >>> idle_gpus(TrainConfig(), 1, 8)
    '7 of the 8 GPUs here are unused: `grpo launch … hardware=node` learns and samples on all of them'
    """
    unused = num_gpus - max(local, gpus_wanted(config))
    if unused <= 0:
        return ""
    # configs/hardware/node.yaml is that of eight GPUs.
    number = "" if num_gpus == GPUS_ELSEWHERE else f" hardware.ranks_per_node={num_gpus}"
    are = "is" if unused == 1 else "are"
    return (
        f"{unused} of the {num_gpus} GPUs here {are} unused: `grpo launch … hardware=node{number}` learns and samples "
        "on all of them"
    )


def too_small_a_share(config: TrainConfig, shape: ModelShape) -> str:
    """Returns a warning if vLLM's share of a GPU, in the learner's process, is smaller than its weights, or else ""."""
    gib, fraction = gpu_gib(config), config.rollout.gpu_memory_fraction
    weights = engine_weights(config, shape) / 2**30
    if config.rollout.engine != "vllm" or not gib or weights < fraction * gib:
        return ""
    return (
        f"rollout.gpu_memory_fraction={fraction:g} is {fraction * gib:.1f} GiB of a GPU, and the sampler's weights "
        f"alone take {weights:.1f}: raise it (up to 0.85 with learner.offload_states=true), or let several ranks "
        "share an engine by rollout.tensor_parallel"
    )


def too_much_memory(config: TrainConfig, shape: ModelShape, world_size: int, local: int) -> str:
    """Returns a line that compares the needed memory with the present memory if learner and sampler alone need more
    than this machine has, or else "". `local` is the number of ranks on a machine."""
    if gib := gpu_gib(config):
        at_rest_gib = offloaded_bytes(config, shape, world_size) / 2**30
        warning = (
            f"the learner's weights, gradients and optimizer take {at_rest_gib:,.1f} GiB of each GPU, which has "
            f"{gib:,.1f}: use more ranks with learner.zero_stage=3, learner.offload_optimizer=true, model.lora.rank, "
            "or a smaller model"
        )
        return warning if at_rest_gib > gib else ""
    learner, sampler = certain_memory(config, shape, world_size, local)
    available_gib = main_memory.total_gib()
    warning = (
        f"this run asks for {learner + sampler:,.1f} GiB of main memory (learner {learner:,.1f}, sampler "
        f"{sampler:,.1f}), and this machine has {available_gib:,.1f}: lower "
        f"rollout.kv_cache_gib={config.rollout.kv_cache_gib:g} or the number of ranks or servers, or use a smaller "
        "model"
    )
    return warning if learner + sampler > available_gib else ""


def _size(gib: float) -> str:
    if not gib:
        return "–"
    return f"{gib:.1f} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"


@dataclass(frozen=True, slots=True)
class Price:
    """A price holds the tokens and seconds of one round, and the number of rounds.

    sampled, learned  completion tokens that are sampled, and packed tokens that are learned from
    seconds           seconds of a round: (sampling, learning, refresh with all else); () if the machine is unknown
    overlapped        whether sampling and learning run at the same time
    devices           devices that the run holds
    by_measured_lengths  whether prompts and completions count by mean lengths, not by the largest ones
    refilled          whether further prompts, which do not count here, are sampled in place of silent groups
    """

    rounds: int
    sampled: int
    learned: int
    seconds: tuple[float, ...]
    overlapped: bool
    devices: int
    by_measured_lengths: bool = False
    refilled: bool = False

    @property
    def round_seconds(self) -> float:
        """Returns the seconds of a whole round.

        >>> Price(3, 100, 100, (4.0, 3.0, 0.5), False, 1).round_seconds
        7.5
        >>> Price(3, 100, 100, (4.0, 3.0, 0.5), True, 1).round_seconds
        4.5
        """
        sampling, learning, other = self.seconds
        return (max(sampling, learning) if self.overlapped else sampling + learning) + other

    @property
    def device_hours(self) -> float:
        return self.rounds * self.round_seconds * self.devices / 3600


def mean_lengths(problems: Sequence[Problem]) -> tuple[int, int] | None:
    """Returns the mean tokens of prompts and of completions, if `grpo solve-rates` measured them for most problems."""
    rows = [[problem.metadata.get(name) for name in (PROMPT_LENGTH, MEASURED_LENGTH)] for problem in problems]
    measured = [row for row in rows if all(isinstance(length, int | float) and length >= 1 for length in row)]
    if 2 * len(measured) <= len(rows) or not measured:
        return None
    prompt, completion = (round(fmean(lengths)) for lengths in zip(*measured, strict=True))
    return prompt, completion


def price(
    config: TrainConfig,
    parameters: int,
    world_size: int,
    machine: MachineConstants | None,
    lengths: tuple[int, int] | None = None,
) -> Price:
    """Prices a run of `world_size` learner ranks. Prompts and completions have the `lengths`, or else their maximum
    ones.

    Seconds are extrapolated from what `grpo prove` has measured on one device: in proportion to the model's parameters,
    except for the round's overhead, and with the work shared evenly among devices.
    """
    if lengths:
        config = deepcopy(config)
        prompt, sampling = config.task.prompt, config.rollout.sampling
        prompt.max_tokens, sampling.max_tokens = map(min, lengths, (prompt.max_tokens, sampling.max_tokens))
    dynamics = config.dynamics
    steps = dynamics.refresh_interval // dynamics.passes  # of one pass over a round's samples
    completions = dynamics.prompts_per_step * dynamics.group_size * steps
    sampled = completions * config.rollout.sampling.max_tokens
    learned = step_tokens(config, dynamics.prompts_per_step) * dynamics.refresh_interval
    serving = num_serving(config)
    samplers = serving or world_size
    seconds: tuple[float, ...] = ()
    if machine:
        larger = parameters / machine.parameters
        at_once = min(completions / samplers, config.rollout.max_concurrent)
        seconds = (
            larger * sampled / samplers / machine.sampling_speed(at_once),
            larger * learned / world_size / machine.learning_tokens_per_second,
            larger * machine.refresh_seconds + machine.round_overhead_seconds,
        )
    return Price(
        rounds=-(-config.num_steps // dynamics.refresh_interval),
        sampled=sampled,
        learned=learned,
        seconds=seconds,
        overlapped=config.pipeline != "off",
        devices=world_size + serving,
        by_measured_lengths=lengths is not None,
        refilled=config.rollout.refill.enabled,
    )


def price_rows(priced: Price, per_hour: float) -> list[tuple[str, str, str]]:
    """Returns table rows (what, in a round, in all rounds). `per_hour` is a device's hourly price, 0 if not known."""
    sure = "as measured" if priced.by_measured_lengths else "at most"
    sampled = f"{'as measured, ' * priced.by_measured_lengths}without refills" if priced.refilled else sure
    rows = [
        (f"completion tokens to sample, {sampled}", f"{priced.sampled:,}", f"{priced.sampled * priced.rounds:,}"),
        (f"packed tokens to learn from, {sure}", f"{priced.learned:,}", f"{priced.learned * priced.rounds:,}"),
    ]
    if not priced.seconds:
        return rows
    names = ("seconds of sampling", "seconds of learning", "seconds of refresh and all else")
    rows += [
        (name, f"{seconds:,.1f}", f"{seconds * priced.rounds:,.0f}")
        for name, seconds in zip(names, priced.seconds, strict=True)
    ]
    seconds_of_round, hours = priced.round_seconds, priced.rounds * priced.round_seconds / 3600
    together = " (sampling and learning at the same time)" if priced.overlapped else ""
    rows.append((f"seconds of a round, hours in all{together}", f"{seconds_of_round:,.1f}", f"{hours:,.2f}"))
    rows.append((f"device hours, on {priced.devices}", "", f"{priced.device_hours:,.2f}"))
    if per_hour:
        cost = f"{priced.device_hours * per_hour:,.2f}"
        rows.append((f"device hours × hardware.price_per_hour={per_hour:g}", "", cost))
    return rows


def model_shape(files: ModelFiles, adapted: ModelConfig | None = None) -> ModelShape:
    """Computes the sizes of a model from its config. For `adapted` see `shape_of`."""
    return shape_of(files.config, files.trust, adapted)


def shape_of(
    config: PretrainedConfig, trust_remote_code: bool = False, adapted: ModelConfig | None = None
) -> ModelShape:
    """Computes the sizes of the model that `config` describes, with the adapters that `adapted` asks for. Raises
    UserError for adapters that cannot be trained."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        parameters, adapters = sum(parameter.numel() for parameter in model.parameters()), 0
        if adapted and adapted.lora.rank:
            learning = with_lora(model, adapted).parameters()
            adapters = sum(parameter.numel() for parameter in learning if parameter.requires_grad)
    text = config.get_text_config()
    # Mamba 2 has another name for its heads, and some models have none.
    heads = heads_of(text)
    count = heads.count or setting_of(text, "num_heads") or 1
    width = heads.width or text.hidden_size // count
    return ModelShape(
        parameters=parameters,
        adapters=adapters,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        inner_width=inner_width(text),
        vocabulary=text.vocab_size,
        query_width=count * width,
        key_value_width=(heads.shared or count) * width,
    )


def inner_width(config: PretrainedConfig) -> int:
    """Returns the inner width of the feed-forward layers.

    GPT-2 and related models call it n_inner, and leave it out if it is four times the model's width.
    """
    widths = (getattr(config, name, None) for name in ("intermediate_size", "n_inner"))
    return next((width for width in widths if width), 4 * config.hidden_size)
