"""A sweep runs several variants of a run, each with several seeds. Words give the variants: Hydra's `key=1,2`,
`key=range(...)` and `key=interval(...)`."""

from dataclasses import dataclass, field
from itertools import product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from grpo.config.complaints import one_line
from grpo.config.errors import UserError, require


@dataclass(kw_only=True)
class SweepConfig:
    """The sweep is what `grpo sweep` reads besides the keys of a run; presets are the files of `configs/sweep`."""

    # Each variant has a name and overrides of the run, e.g. {G8: [dynamics.group_size=8]}. The others are compared with
    # the first one.
    variants: dict[str, list[str]] = field(default_factory=dict)
    # Each variant is run with the seeds 0 … seeds − 1. The same seed asks the same prompts of the same first policy.
    seeds: int = 3
    # The sweep's budget is what every run may spend alike, counted in steps, samples, tokens or seconds. It sets
    # num_steps or one of `limits`; rollout.budget is something else.
    budget: str = "steps"
    # Every run may spend this many of the budget's units, e.g. 20000 samples. 0 keeps num_steps (budget=steps) or takes
    # the completions of the first variant's num_steps (budget=samples); tokens and seconds need a number.
    amount: int = 0
    # This many runs go side by side on this machine. With several, each sees only GPUs of its own. 0 fills the GPUs of
    # this machine, and runs one after another on a CPU.
    jobs: int = 0
    # This command runs `grpo` for one run, e.g. "srun grpo". "" is this Python. `train` follows it, or `launch` where a
    # run has several ranks or named machines (hardware=node). Such a command gives a run its GPUs itself.
    command: str = ""
    # Everything that a sweep writes lies in this folder. Its name holds no time, because the same command given again
    # continues the sweep that lies there.
    output_dir: str = "runs/sweep"


def grid(overrides: list[str]) -> list[dict[str, str]]:
    """Returns every combination of the words in Hydra's sweep syntax, a=1,2 b=range(3), as key → value.

    Words without sweep syntax are ignored. If no word has it, the only combination is empty. Raises UserError for a
    word that Hydra cannot read, and for an interval, which has no finite list of values.
    """
    values_of = {}
    for override in _parsed(overrides):
        if isinstance(override.value(), IntervalSweep):
            word = override.input_line
            raise UserError(f"{word} has no end of values: name some as in a=1,2")
        if override.is_sweep_override():
            values_of[override.get_key_element()] = list(override.sweep_string_iterator())
    return [dict(zip(values_of, values, strict=True)) for values in product(*values_of.values())]


def plain(overrides: list[str]) -> list[str]:
    """Returns the words that are not in Hydra's sweep syntax."""
    pairs = zip(overrides, _parsed(overrides), strict=True)
    return [word for word, override in pairs if not override.is_sweep_override()]


def _parsed(overrides: list[str]) -> list[Override]:
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise UserError(one_line(error)) from error
    for override in parsed:
        value = override.value()
        require(not isinstance(value, Glob), f"{override.input_line}: name the values or choices, as in a,b")
        empty = isinstance(value, RangeSweep) and (not value.step or not [*value.range()])
        require(
            not empty,
            f"{override.input_line} holds no value: write range(START,STOP,STEP), whose values end before STOP",
        )
    return parsed
