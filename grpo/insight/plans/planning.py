"""This module plans a run before it starts: group size, refresh interval and steps, from pass rates and lengths.

A plan proposes the size that the adaptive schedule takes: 8, since no choice did better in real runs. Where a person
allows others, it proposes the one at which a step gains most for its cost: the first choice of the schedule, before
anything is measured (`grpo.dynamics.gain`). Its heat is then taken to be half of the signal of a step with 16
completions of each prompt, where prompts are solved half of the time. Harder and easier prompts are silent more often
and carry less signal, so they ask for larger groups. Cost is counted in tokens, or in seconds where a machine has been
measured (`grpo prove`).

The refresh interval is proposed only for a measured machine: the shortest at which the fixed costs of a round, like
the refresh of the sampler, take little of its time. Only the run shows how off-policy a longer interval would be.
"""

from dataclasses import dataclass

import numpy as np

from grpo.dynamics.difficulty import Difficulty
from grpo.dynamics.gain import PRIOR_HEAT
from grpo.dynamics.group_size import sizes_between
from grpo.dynamics.refresh_interval import LADDER
from grpo.dynamics.sigma import drift, mean_fidelity, silent_rate
from grpo.dynamics.step import signal_to_noise
from grpo.insight.plans.request import PlanRequest
from grpo.types import MachineConstants

# Heat is taken to be `PRIOR_HEAT` of the signal of a step with this many completions of prompts of this difficulty.
USUAL_SIZE, MEDIUM = 16, Difficulty(np.array([0.5]), np.array([1.0]))
# These sizes are compared whatever is allowed.
SHOWN = 2, 64
EXPONENTS = (0.0, 0.5, 1.0, 1.5, 2.0)
# The harder half of the prompts should get at least this share of the gradient.
FAIR_SHARE = 0.4
# A round may spend this share of its time on its fixed costs, which do not depend on its number of steps.
MOST_OVERHEAD = 0.1


@dataclass(frozen=True, slots=True)
class SizeOption:
    """A size option is one group size with its consequences.

    silent      share of silent groups
    fidelity    mean fidelity of the gradient (`sigma.mean_fidelity`), for information only
    steps       optimizer steps for which the tokens suffice; None without a budget
    seconds     seconds of one step at τ = 1; None if no machine was measured
    progress    expected gain per cost, as a share of that of the best size
    """

    size: int
    silent: float
    fidelity: float
    steps: int | None
    seconds: float | None
    progress: float


@dataclass(frozen=True, slots=True)
class RunProposal:
    """A run proposal holds all group sizes with their consequences, the proposed one, and the proposed τ.

    allowed    smallest and largest group size that may be proposed
    interval   the proposed refresh interval τ
    overhead   share of a round's time that its fixed costs take at the proposed τ; None if no machine was measured
    """

    sizes: tuple[SizeOption, ...]
    size: SizeOption
    interval: int
    overhead: float | None
    allowed: tuple[int, int]


def propose(difficulty: Difficulty, request: PlanRequest, machine: MachineConstants | None = None) -> RunProposal:
    """Proposes the allowed group size that gains most for its cost, and the refresh interval (1 without a machine)."""
    sizes, allowed = size_options(difficulty, request, machine), (request.smallest, request.largest)
    options = [option for option in sizes if option.size in sizes_between(*allowed)]
    best = max(options, key=lambda option: option.progress)
    if machine is None:
        return RunProposal(sizes, best, 1, None, allowed)
    shares = {interval: _overhead(request, machine, best.size, interval) for interval in LADDER}
    interval = next((interval for interval in LADDER if shares[interval] <= MOST_OVERHEAD), LADDER[-1])
    return RunProposal(sizes, best, interval, shares[interval], allowed)


def size_options(
    difficulty: Difficulty, request: PlanRequest, machine: MachineConstants | None = None
) -> tuple[SizeOption, ...]:
    """Returns one option for each group size of the ladder up to 64, and for each that the request allows."""
    rates, shares = difficulty.pass_rates, difficulty.weights
    sizes = sorted({*sizes_between(*SHOWN), *sizes_between(request.smallest, request.largest)})
    tokens = {size: step_tokens(request, size) for size in sizes}
    seconds = {size: step_seconds(request, machine, size) for size in sizes} if machine else {}
    dials = request.exponent, request.mean_exponent
    medium = float(signal_to_noise(MEDIUM, USUAL_SIZE, *dials))
    aims = {size: float(signal_to_noise(difficulty, size, *dials)) / medium for size in sizes}
    progress = {size: max(aim - PRIOR_HEAT / 2, 0.0) / seconds.get(size, tokens[size]) for size, aim in aims.items()}
    if not any(progress.values()):
        # No size is expected to gain anything, so the one with the best aim is.
        progress = {size: float(aim == max(aims.values())) for size, aim in aims.items()}
    best = max(progress.values()) or 1.0
    return tuple(
        SizeOption(
            size=size,
            silent=float(shares @ silent_rate(rates, size)),
            fidelity=mean_fidelity(rates, shares, size, request.exponent, request.ddof, request.mean_exponent),
            steps=int(request.budget_tokens // tokens[size]) if request.budget_tokens else None,
            seconds=seconds.get(size),
            progress=progress[size] / best,
        )
        for size in sizes
    )


def step_tokens(request: PlanRequest, size: int) -> float:
    """Returns the prompt and completion tokens of one optimizer step."""
    return request.prompts_per_step * (request.prompt_tokens + size * request.completion_tokens)


def step_seconds(request: PlanRequest, machine: MachineConstants, size: int, interval: int = 1) -> float:
    """Returns the seconds of one optimizer step on one device, including its share of the round's fixed costs."""
    overhead_seconds = (machine.refresh_seconds + machine.round_overhead_seconds) / interval
    return _sampled_and_learned(request, machine, size, interval) + overhead_seconds


def _sampled_and_learned(request: PlanRequest, machine: MachineConstants, size: int, interval: int) -> float:
    """Returns the seconds of sampling one step's completions and learning from them.

    A round samples the completions of all its steps at once, which sets the sampling speed.
    """
    completions = request.prompts_per_step * size
    sampled = completions * request.completion_tokens / machine.sampling_speed(completions * interval)
    return sampled + step_tokens(request, size) / machine.learning_tokens_per_second


def _overhead(request: PlanRequest, machine: MachineConstants, size: int, interval: int) -> float:
    seconds = step_seconds(request, machine, size, interval)
    return 1 - _sampled_and_learned(request, machine, size, interval) / seconds


def speaking_band(size: int) -> tuple[float, float]:
    """Returns the lowest and highest pass rate at which at most half of the groups are silent.

    Groups have `size` completions, so the condition is p^G + (1 − p)^G ≤ ½ with G = `size`.
    """
    rates = np.linspace(0, 0.5, 1001)
    low = float(rates[np.argmax(silent_rate(rates, size) <= 0.5)])
    return low, 1 - low


def balanced_exponent(difficulty: Difficulty, size: int) -> float:
    """Returns the smallest of `EXPONENTS` that gives the harder half of the prompts at least `FAIR_SHARE` of the
    gradient.

    Only prompts that can give a gradient (0 < p < 1) count. If no exponent is enough, it returns GRPO's 1. A higher
    exponent gives hard prompts more weight and adds noise.
    """
    inside = (difficulty.pass_rates > 0) & (difficulty.pass_rates < 1)
    rates, shares = difficulty.pass_rates[inside], difficulty.weights[inside] / difficulty.weights[inside].sum()
    below = np.cumsum(shares) - shares
    harder = np.clip((0.5 - below) / shares, 0, 1)
    for exponent in EXPONENTS:
        contributions = shares * drift(rates, size, exponent)
        if harder @ contributions >= FAIR_SHARE * contributions.sum():
            return exponent
    return 1.0
