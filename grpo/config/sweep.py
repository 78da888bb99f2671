"""A sweep: several variants of a run, several seeds of each."""

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class SweepConfig:
    """What `grpo sweep` reads besides the keys of a run; presets are the files of `configs/sweep`."""

    # Name → overrides of the run. The first is what the others are compared with.
    variants: dict[str, list[str]] = field(default_factory=dict)
    # Runs of each variant, with seeds 0 … seeds − 1. The same seed asks the same prompts of the same first policy.
    seeds: int = 3
    # What all runs may spend alike: steps | samples | tokens | seconds, and how much of it; 0: what num_steps comes to
    # in the first variant (steps, samples).
    budget: str = "steps"
    amount: int = 0
    # Above 0: a search. Optuna tries that many values of the keys given as key=interval(a,b), tag(log,interval(a,b)),
    # range(a,b) or a,b,c, `batch` of them at a time, for the highest held-out score.
    trials: int = 0
    batch: int = 1
    # What runs `grpo` for one run, e.g. "python -m grpo.cli launch" for one of several processes (hardware=node) or
    # machines; "": this Python, one process.
    command: str = ""
    output_dir: str = "runs/sweep"
