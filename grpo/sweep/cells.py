"""This module turns a preset and the arguments of the command line into the runs of a sweep."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from grpo.config import TrainConfig, UserError
from grpo.config.errors import require
from grpo.config.hydra import compose_config
from grpo.config.placement import gpus_wanted
from grpo.config.run import HardwareConfig
from grpo.config.saved import described
from grpo.config.sweep import SweepConfig, grid, plain
from grpo.config.unread import unread
from grpo.config.validate import validate
from grpo.host.terminal import say

MOST = 10_000
"""A sweep has at most this many runs, each with a folder and a line of its own."""
BUDGETS = ("steps", "samples", "tokens", "seconds")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell is one run of a sweep: a variant with a seed.

    `name` is the name of the run's folder. `verb` is the command of `grpo` that starts the run: "train", or "launch"
    for several ranks, server nodes or named hosts. `gpus` is the number of GPUs that the run uses on this machine;
    `elsewhere` says whether it uses other machines.
    """

    name: str
    variant: str
    seed: int
    overrides: tuple[str, ...]
    verb: str = "train"
    gpus: int = 1
    elsewhere: bool = False


def cells_of(sweep: SweepConfig, words: Sequence[str]) -> list[Cell]:
    """Returns all runs of a sweep, seed by seed, so that a stopped sweep has variants with the same seeds to compare.

    `words` are overrides of every run. Words in Hydra's sweep syntax (`key=1,2`) multiply the variants, one for each
    value. Raises `UserError` for a variant whose configuration is invalid, before any run starts.
    """
    _check(sweep)
    common = plain([*words])
    variants: dict[str, list[str]] = {}
    for (name, overrides), values in product(sweep.variants.items(), grid([*words])):
        full_name = " ".join([name, *(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())])
        require(full_name not in variants, f"the variant {full_name} comes twice: give each value once")
        variants[full_name] = [*common, *overrides, *(f"{key}={value}" for key, value in values.items())]
    runs = len(variants) * sweep.seeds
    require(runs <= MOST, f"this sweep has {runs:,} runs, and {MOST:,} are the most: lower seeds, or give fewer values")
    for word in common:
        key = _key(word)
        by_all = all(key in map(_key, overrides) for overrides in sweep.variants.values())
        require(not by_all, f"{word} has no effect, since every variant of this sweep sets {key}: leave it out")
    configs = _composed(variants)
    _refuse_equal(configs)
    _tell_other_problems(configs)
    spending = _budget(sweep, next(iter(configs.values())))
    _check_budget(sweep, spending, variants, configs)
    if sweep.budget == "steps" and sweep.amount:
        configs = {name: replace(config, num_steps=sweep.amount) for name, config in configs.items()}
    variants = _without_unread(variants, configs, common)
    hardware = {
        name: (_verb(config.hardware), _gpus(config), _elsewhere(config.hardware)) for name, config in configs.items()
    }
    return [
        Cell(
            f"{_folder(name)}-seed{seed}",
            name,
            seed,
            (*overrides, *spending, *_steps(sweep, spending, configs[name]), f"seed={seed}"),
            *hardware[name],
        )
        for seed in range(sweep.seeds)
        for name, overrides in variants.items()
    ]


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _verb(hardware: HardwareConfig) -> str:
    several = hardware.ranks > 1 or hardware.server_nodes or hardware.hosts
    return "launch" if several else "train"


def _gpus(config: TrainConfig) -> int:
    """Returns the number of GPUs that a run uses on this machine, or 0 if it uses other machines or the CPU."""
    none = _elsewhere(config.hardware) or config.device == "cpu"
    return 0 if none else max(config.hardware.ranks_per_node, gpus_wanted(config))


def _elsewhere(hardware: HardwareConfig) -> bool:
    return bool(hardware.hosts or hardware.server_nodes) or hardware.learner_nodes > 1


def _check(sweep: SweepConfig) -> None:
    if not sweep.variants:
        raise UserError("a sweep needs `variants`, which map a name to a list of overrides")
    if sweep.seeds < 1:
        raise UserError(f"seeds={sweep.seeds} must be above 0")
    if sweep.jobs < 0:
        raise UserError(f"jobs={sweep.jobs} must not be negative")
    if sweep.budget not in BUDGETS:
        raise UserError(f"budget={sweep.budget!r} is unknown: choose one of {' | '.join(BUDGETS)}")
    if sweep.amount < 0:
        raise UserError(f"amount={sweep.amount} must not be negative")
    if sweep.budget in ("tokens", "seconds") and sweep.amount <= 0:
        raise UserError(f"budget={sweep.budget} needs an amount, e.g. amount=100000")


def _composed(variants: Mapping[str, Sequence[str]]) -> dict[str, TrainConfig]:
    """Composes and validates the configuration of every variant."""
    configs = {}
    for name, overrides in variants.items():
        try:
            for word in (word for word in overrides if word.lstrip("+").startswith("seed=")):
                raise UserError(f"{word} has no effect, since a sweep gives each run its seed: seeds=N says how many")
            for word in (word for word in overrides if word.lstrip("+").startswith("checkpoint.resume=")):
                raise UserError(f"{word} has no effect, since the same command continues a sweep: leave it out")
            for word in (word for word in overrides if word.lstrip("+").startswith("output_dir=")):
                raise UserError(f"{word} has no effect, since each run has a folder of its own in that of the sweep")
            config = compose_config([*overrides])
            config = replace(config, model=described(config.model))
            # Validated as a dry run, which may have an output_dir in use: every cell gets a folder of its own.
            validate(replace(config, dry_run=True), config.hardware.ranks)
            require(not config.dry_run, "dry_run=true trains nothing: try one run by `grpo train` with these words")
        except UserError as error:
            raise UserError(f"the variant {name}: {error}") from error
        configs[name] = config
    return configs


def _refuse_equal(configs: Mapping[str, TrainConfig]) -> None:
    """Raises UserError for two variants of one configuration, whose runs would be the same, or of one folder."""
    earlier: dict[str, str] = {}
    for name, config in configs.items():
        # The words of a folder's name say when a run starts.
        same = earlier.setdefault(repr(replace(config, output_dir="")), name)
        require(same == name, f"the variants {same} and {name} have the same configuration: leave one of them out")
        same = earlier.setdefault(_folder(name), name)
        require(same == name, f"the variants {same} and {name} would share a folder: give one of them another name")


def _tell_other_problems(configs: Mapping[str, TrainConfig]) -> None:
    """Prints a line where variants take their problems from other data, since no report compares them then."""
    data = {name: [of_set.data for of_set in config.task.all_sets.values()] for name, config in configs.items()}
    first, *others = data
    other = next((name for name in others if data[name] != data[first]), None)
    if other is not None and configs[first].evaluation.num_problems:
        say(
            f"grpo: the variants {first} and {other} differ in task.data and so in held-out problems: grpo report "
            "will not compare them; grpo eval asks each model the problems of one file"
        )


def _without_unread(
    variants: Mapping[str, Sequence[str]], configs: Mapping[str, TrainConfig], common: Sequence[str]
) -> dict[str, list[str]]:
    """Returns the variants without those `common` words that have no effect in one of them but in another.

    dynamics=fixed,adaptive may stand beside dynamics.adaptive.largest_group=32. Raises `UserError` for any other word
    without effect.
    """
    messages = {name: unread(words, configs[name]) for name, words in variants.items()}
    for name, of_variant in messages.items():
        for word, message in of_variant.items():
            read_elsewhere = word in common and not all(word in others for others in messages.values())
            require(read_elsewhere, f"the variant {name}: {message}")
    return {name: [word for word in words if word not in messages[name]] for name, words in variants.items()}


def _budget(sweep: SweepConfig, first: TrainConfig) -> list[str]:
    """Returns the overrides that give all runs the same budget.

    Without an amount, `budget=steps` needs none, and `budget=samples` takes the samples of the configuration `first`.
    """
    if sweep.budget == "steps":
        return [f"num_steps={sweep.amount}"] if sweep.amount else []
    dynamics = first.dynamics
    samples = dynamics.group_size * dynamics.prompts_per_step * (-(-first.num_steps // dynamics.passes))
    return [f"limits.{sweep.budget}={sweep.amount or samples}"]


def _steps(sweep: SweepConfig, spending: Sequence[str], config: TrainConfig) -> list[str]:
    """Returns the override without which a run would end by its steps before it has its samples, if it would."""
    if sweep.budget != "samples":
        return []
    dynamics, adaptive = config.dynamics, config.dynamics.adaptive
    group, prompts = dynamics.group_size, dynamics.prompts_per_step
    if dynamics.name == "adaptive":
        group, prompts = min(group, adaptive.smallest_group), min(prompts, adaptive.fewest_prompts or prompts)
    [limit] = spending
    steps = -(-int(limit.partition("=")[2]) * dynamics.passes // (group * prompts))
    return [f"num_steps={steps}"] if steps > config.num_steps else []


def _check_budget(
    sweep: SweepConfig,
    spending: Sequence[str],
    variants: Mapping[str, Sequence[str]],
    configs: Mapping[str, TrainConfig],
) -> None:
    """Raises UserError where a variant sets what the budget sets for all, and where the budget is less than a round."""
    for setting, (name, words) in product(spending, variants.items()):
        own = next((word for word in words if _key(word) == _key(setting)), "")
        require(
            not own,
            f"{own} of the variant {name} has no effect, since the sweep's budget sets {setting}: leave it out, or set "
            "budget and amount otherwise",
        )
    for name, config in configs.items():
        dynamics = config.dynamics
        samples = dynamics.group_size * dynamics.prompts_per_step * (-(-dynamics.refresh_interval // dynamics.passes))
        require(
            sweep.budget != "samples" or not sweep.amount or sweep.amount >= samples,
            f"amount={sweep.amount} samples are less than a round of the variant {name}, which has {samples}: raise it",
        )


def _folder(name: str) -> str:
    """Replaces the characters of a name that have a meaning in Hydra's grammar or in paths by hyphens."""
    return re.sub(r"[^\w.-]+", "-", name)
