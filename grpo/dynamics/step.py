"""This module computes the progress of one optimizer step under Adam, and the cost of the step.

Adam divides a common factor of the gradient away. So where noise is most of the gradient, a step's progress is
proportional to its gradient's signal-to-noise ratio. With B groups this is √B times the ratio of one group.
"""

from dataclasses import dataclass

import numpy as np

from grpo.dynamics.difficulty import Array, Difficulty
from grpo.dynamics.sigma import drift, silent_rate

# The variance of a prompt's own part of the gradient, over the variance of one completion's score. With this value the
# law gives the measured speeds of the tiny model at other group sizes and batches (benchmarks/results/dynamics.md,
# "What if").
PROMPT_NOISE = 1.0
# Where silent groups are replaced, the share of groups that are not silent counts as at least this, so that the number
# of sampled groups stays finite.
LEAST_SPEAKING = 0.05


@dataclass(frozen=True, slots=True)
class BatchSetting:
    """A batch setting says how one optimizer step is sampled and weighed.

    group_size, prompts_per_step, refresh_interval   G, B and τ
    exponent, mean_exponent   the dials' α and β
    refilled                  whether other prompts replace silent groups (DAPO)
    passes                    number of steps that learn from each group
    """

    group_size: int
    prompts_per_step: int
    refresh_interval: int = 1
    exponent: float = 1.0
    mean_exponent: float = 0.0
    refilled: bool = False
    passes: int = 1


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step cost holds the costs of a prompt, of a completion and of a step whatever it samples, all in one `unit`."""

    prompt: float
    completion: float
    fixed: float = 0.0
    unit: str = "token"

    def of(self, setting: BatchSetting, difficulty: Difficulty) -> float:
        """Returns the cost of one step, including the silent groups that are replaced."""
        group = self.prompt + setting.group_size * self.completion
        return self.fixed + asked_groups(setting, difficulty) * group / setting.passes


def silent_share(setting: BatchSetting, difficulty: Difficulty) -> float:
    """Returns the share of silent groups among all that are sampled."""
    return float(difficulty.weights @ silent_rate(difficulty.pass_rates, setting.group_size))


def asked_groups(setting: BatchSetting, difficulty: Difficulty) -> float:
    """Returns the number of groups that a step asks for, which is above B where silent groups are replaced."""
    informative = 1 - silent_share(setting, difficulty) if setting.refilled else 1.0
    return setting.prompts_per_step / max(informative, LEAST_SPEAKING)


def progress_of_step(
    setting: BatchSetting, difficulty: Difficulty, prompt_noise: float | Array = PROMPT_NOISE
) -> Array:
    """Returns the signal-to-noise ratio of a step's gradient at ESS 1, up to a factor that all settings share."""
    dials = setting.exponent, setting.mean_exponent
    # A replaced group is as if all those that were asked had been learned from, of which the silent ones say nothing.
    groups = asked_groups(setting, difficulty)
    return groups**0.5 * signal_to_noise(difficulty, setting.group_size, *dials, prompt_noise)


def signal_to_noise(
    difficulty: Difficulty,
    size: int,
    exponent: float,
    mean_exponent: float = 0.0,
    prompt_noise: float | Array = PROMPT_NOISE,
) -> Array:
    """Returns the signal-to-noise ratio of one group's gradient: its mean over the root of its noise variance.

    A group is a sample of two stages, prompts and their completions (Cochran, Sampling Techniques, 1977, chapter 10).
    By the identity of arXiv:2607.00152 its gradient is w·σ²·Δs, w = σ^(−α)·p^(−β). Δs is the difference of the mean
    scores of right and wrong completions. Δs has a part that all prompts share, the signal; a part of the prompt's
    own, of variance ρ; and the noise of its completions, of variance 1/(G·σ²). So the ratio is

        E[w·σ²] / √(ρ·E[w²·σ⁴] + E[w²·σ²]/G)

    up to a factor that all sizes share. The ratio of B groups is √B times as large. It is 0 when every group is silent.
    ρ is `prompt_noise`, of any shape, and the result has the same shape.
    """
    rates, shares = difficulty.pass_rates, difficulty.weights
    signal = float(shares @ drift(rates, size, exponent, mean_exponent=mean_exponent))
    # `drift` at exponent a is E[σ^(2−a)], so w²·σ² is that at 2α, and w²·σ⁴ that at 2α − 2.
    within, between = (
        float(shares @ drift(rates, size, 2 * exponent - less, mean_exponent=2 * mean_exponent)) for less in (0, 2)
    )
    noise = within / size + np.asarray(prompt_noise) * between
    return signal / noise**0.5 if signal > 1e-12 and within > 1e-12 else np.zeros_like(noise)
