"""This module simulates healthy runs that look odd, as people meet them in practice, for which no check was made.

The kinds and the findings that count as hits were written down before the diagnosis had seen any of these logs.
`diagnosis.py` counts hits and false alarms. Each kind changes the curves of a healthy run (`synthetic_logs.healthy`).
"""

import numpy as np
from scipy.special import expit

from benchmarks.synthetic_logs import healthy, late, long_run, share_of


def easy_first(seed):
    """Prompts come in the order of their difficulty, which the log does not say. Held-out problems are solved better
    and better."""
    curves = long_run(seed)
    curves["pass"] = 0.8 - 0.4 * share_of(curves) + 0.15 * (1 - np.exp(-3 * share_of(curves)))
    return curves


def penalty_that_works(seed):
    """A length penalty sets in, completions get half as long, and answers go on getting better."""
    curves = long_run(seed)
    curves["length"] = curves["length"] * (1 - 0.5 * late(curves, 0.4))
    curves["truncated"] = curves["truncated"] * (1 - 0.8 * late(curves, 0.4))
    return curves


def slow_warmup(seed):
    """Nothing happens while the learning rate warms up over the first third."""
    curves = long_run(seed, 150)
    time = share_of(curves)
    shift = np.maximum(time - 0.33, 0) / 0.67
    for name in ("pass", "held_out", "entropy", "length", "truncated", "kl", "format"):
        curves[name] = np.interp(shift, time, curves[name])
    curves["learning_rate"] = 1e-6 * np.clip(time / 0.33, 0, 1)
    return curves


def learns_after_a_hundred(seed):
    """The pass rate stays low for a hundred rounds, and then the model learns the task."""
    curves = healthy(seed, 250)
    level = expit((np.arange(250) - 140) / 12)
    curves["pass"] = 0.04 + 0.6 * level
    curves["held_out"] = 0.04 + 0.55 * level
    return curves


def tiny_batch(seed):
    """Two prompts with four completions each."""
    curves = long_run(seed)
    curves["prompts"], curves["group_size"] = 2, 4
    return curves


def many_pairs(seed):
    """64 prompts with two completions each: half of the groups are silent, and the run learns."""
    curves = long_run(seed)
    curves["prompts"], curves["group_size"], curves["spread"] = 64, 2, 0.5
    curves["pass"] = 0.25 + 0.4 * (1 - np.exp(-3 * share_of(curves)))
    curves["held_out"] = curves["pass"] - 0.05 * share_of(curves)
    return curves


def two_sets(seed):
    """Half of the prompts are from an easy set, and half from a hard one, which is learned."""
    curves = long_run(seed)
    curves["spread"] = 2.5
    curves["pass"] = 0.45 + 0.25 * (1 - np.exp(-3 * share_of(curves)))
    curves["held_out"] = curves["pass"] - 0.05
    return curves


def thinking_grows(seed):
    """Completions get three times as long and more of them right."""
    curves = long_run(seed)
    grown = 1 - np.exp(-2 * share_of(curves))
    curves["pass"], curves["held_out"] = 0.15 + 0.5 * grown, 0.15 + 0.45 * grown
    curves["length"] = curves["length"][0] * (1 + 2.5 * grown)
    curves["truncated"] = 0.01 + 0.09 * grown
    return curves


def dip_at_restart(seed):
    """After a restart without the optimizer's moments a few gradients are large, and the pass rate dips for a while."""
    curves = long_run(seed)
    at = int(curves["generator"].uniform(0.3, 0.7) * len(curves["pass"]))
    dip = np.zeros(len(curves["pass"]))
    dip[at : at + 6] = np.linspace(0.1, 0.02, 6)
    curves["pass"] = np.maximum(curves["pass"] - dip, 0.01)
    curves["norm"][at : at + 2] *= 8
    curves["seconds"][at] *= 4
    return curves


def reward_rescaled(seed):
    """From a known step on a right answer earns 10 instead of 1."""
    curves = long_run(seed)
    curves["reward_scale"] = np.where(share_of(curves) > 0.5, 10.0, 1.0)
    return curves


def entropy_bonus(seed):
    """An entropy bonus lifts the entropy by half at the start and holds it there."""
    curves = long_run(seed)
    curves["entropy"] = curves["entropy"][0] * (1 + 0.5 * (1 - np.exp(-8 * share_of(curves))))
    return curves


def saturated(seed):
    """The run reaches 95 % in its first third and stays there."""
    curves = long_run(seed)
    curves["pass"] = 0.4 + 0.55 * (1 - np.exp(-12 * share_of(curves)))
    curves["held_out"] = curves["pass"] - 0.03
    curves["entropy"] = curves["entropy"][0] * (0.08 + 0.92 * np.exp(-12 * share_of(curves)))
    return curves


def seldom_logged(seed):
    """A log with a row every ten steps, and an evaluation on thirty problems every hundred."""
    curves = healthy(seed, 300)
    curves["every"], curves["counted"], curves["evaluations"], curves["problems"] = 10, False, 3, 30
    return curves


def swings_fade(seed):
    """The pass rate swings about its rise at first, and less and less."""
    curves = long_run(seed, 150)
    time = share_of(curves)
    swing = 0.1 * np.exp(-6 * time) * np.sin(2 * np.pi * 6 * time)
    curves["pass"] = np.clip(curves["pass"] + swing, 0.01, 0.99)
    return curves


def no_kl_term(seed):
    """Without a KL term the policy moves far and steadily from its reference, and learns. A judge's part of the reward
    rises with the answers."""
    curves = long_run(seed)
    curves["kl"] = 0.01 + curves["generator"].uniform(0.2, 0.8) * share_of(curves)
    progress = 1 - np.exp(-3 * share_of(curves))
    curves["pass"], curves["held_out"] = 0.2 + 0.45 * progress, 0.2 + 0.42 * progress
    curves["parts"] = {"judge": 0.3 + 0.4 * progress}
    return curves


HEALTHY = (
    *(easy_first, penalty_that_works, slow_warmup, learns_after_a_hundred, tiny_batch, many_pairs, two_sets),
    *(thinking_grows, dip_at_restart, reward_rescaled, entropy_bonus, saturated, seldom_logged, swings_fade),
    no_kl_term,
)
# Findings that are true of a healthy kind of run, besides those of `diagnosis.TRUE`, which may be true of all.
ALSO_TRUE = {swings_fade: {"underdamped", "setback"}}
