"""A sweep runs several variants of a run, each with several seeds."""

from dataclasses import dataclass, field


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
    # This many runs go side by side on this machine. With several, each sees only GPUs of its own.
    jobs: int = 1
    # This command runs `grpo` for one run, e.g. "srun grpo". "" is this Python. `train` follows it, or `launch` where a
    # run has several ranks or named machines (hardware=node). Such a command gives a run its GPUs itself.
    command: str = ""
    # Everything that a sweep writes lies in this folder. Its name holds no time, because the same command given again
    # continues the sweep that lies there.
    output_dir: str = "runs/sweep"
