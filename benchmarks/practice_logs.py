"""This module simulates logs of failures and healthy runs as people meet them in practice; no check was made for them.

The kinds and the findings that count as hits were written down before the diagnosis had seen any of these logs.
`diagnosis.py` counts hits and false alarms. Each kind changes the curves of a healthy run (`synthetic_logs.healthy`).
"""

import numpy as np
from scipy.special import expit

from benchmarks.synthetic_logs import healthy, ramp


def share_of(curves):
    """Returns time as a share of the run, from 0 to 1, for each round."""
    return np.linspace(0, 1, len(curves["pass"]))


def late(curves, start, width=0.03):
    """Returns a smooth step from 0 to 1 at the share `start` of the run."""
    return expit((share_of(curves) - start) / width)


def long_run(seed, fewest=100, most=300):
    return healthy(seed, int(np.random.default_rng([seed, 1]).integers(fewest, most)))


# Failures.


def judge_drifts(seed):
    """A judge model gives ever higher rewards to answers that get no better after the first third."""
    curves = long_run(seed)
    curves["pass"] = np.minimum(0.3 + 0.15 * ramp(curves, 0), 0.35) - 0.08 * late(curves, 0.6, 0.1)
    curves["held_out"] = curves["pass"].copy()
    curves["parts"] = {"judge": 0.4 + 0.45 * late(curves, 0.5, 0.15)}
    curves["length_pay"] = curves["parts"]["judge"]
    return curves


def penalty_too_strong(seed):
    """A length penalty sets in, and the model gives up thinking: it answers in a fifth of the tokens, and worse."""
    curves = long_run(seed)
    start = curves["generator"].uniform(0.3, 0.6)
    curves["length"] = curves["length"] * (1 - 0.8 * late(curves, start))
    curves["pass"] = np.maximum(curves["pass"] - 0.25 * late(curves, start), 0.02)
    curves["held_out"] = np.maximum(curves["held_out"] - 0.25 * late(curves, start), 0.02)
    return curves


def template_mismatch(seed):
    """The chat template is another model's: all rewards are 0 for a third of the run, and then a few are above 0."""
    curves = long_run(seed)
    curves["pass"] = 0.012 * late(curves, 0.4)
    curves["held_out"], curves["spread"] = curves["pass"].copy(), 0.1
    curves["format_weight"] = 0.0
    return curves


def kl_holds_back(seed):
    """The KL coefficient is so large that the policy stays where it began."""
    curves = long_run(seed)
    level = curves["pass"][0]
    curves["pass"][:], curves["held_out"][:], curves["kl"][:] = level, level, 1e-4
    for name in ("entropy", "length", "truncated", "format"):
        curves[name] = np.full(len(curves["pass"]), curves[name][0])
    return curves


def warmup_too_long(seed):
    """The learning rate still rises when the run ends, so next to nothing was learned."""
    curves = kl_holds_back(seed)
    curves["learning_rate"] = 1e-6 * share_of(curves) / 4
    curves["pass"] = curves["pass"] + 0.015 * share_of(curves) ** 2
    curves["kl"] = 0.002 * share_of(curves) ** 2
    return curves


def swings_grow(seed):
    """Samples are too old for the learning rate: the pass rate swings more and more."""
    curves = long_run(seed, 150)
    time = share_of(curves)
    swing = 0.25 * time**1.5 * np.sin(2 * np.pi * curves["generator"].uniform(5, 9) * time)
    curves["pass"] = np.clip(0.45 + 0.1 * time + swing, 0.02, 0.95)
    curves["held_out"] = curves["pass"].copy()
    curves["ess"] = np.full(len(time), 0.88)
    return curves


def entropy_bonus_too_large(seed):
    """The entropy bonus wins: entropy quadruples, answers stop getting better and then get slightly worse."""
    curves = long_run(seed)
    up = late(curves, 0.45, 0.1)
    curves["entropy"] = curves["entropy"][0] * (1 + 3 * up)
    curves["pass"] = np.minimum(curves["pass"], 0.45) - 0.06 * up
    curves["held_out"] = curves["pass"] - 0.02
    curves["length"] = curves["length"][0] * (1 + 0.5 * up)
    return curves


def groups_of_two(seed):
    """Two completions a prompt: three groups of four are silent, though nothing is wrong with the problems."""
    curves = long_run(seed)
    curves["group_size"], curves["prompts"], curves["spread"] = 2, 32, 2.0
    curves["pass"] = np.clip(0.12 + 0.05 * share_of(curves), 0, 1)
    curves["held_out"] = curves["pass"].copy()
    return curves


def lost_at_restart(seed):
    """The run goes on from the first model by mistake, and does not get back to where it was."""
    curves = long_run(seed)
    rounds = len(curves["pass"])
    at = int(curves["generator"].uniform(0.6, 0.8) * rounds)
    for name in ("pass", "held_out", "entropy", "length", "truncated", "kl", "format"):
        curves[name] = np.concatenate([curves[name][:at], curves[name][: rounds - at]])
    return curves


def late_gibberish(seed):
    """In the last eighth the model falls apart."""
    curves = long_run(seed)
    gone = late(curves, 0.93, 0.01)
    curves["pass"], curves["held_out"] = curves["pass"] * (1 - 0.95 * gone), curves["held_out"] * (1 - 0.95 * gone)
    curves["entropy"] = curves["entropy"] * (1 + 4 * gone)
    return curves


def wrong_reference(seed):
    """The reference is another model than the one that is trained, so their KL is large from the first round on."""
    curves = long_run(seed)
    curves["kl"] = np.full(len(curves["pass"]), curves["generator"].uniform(0.8, 3))
    return curves


def broken_answer_part(seed):
    """The part that grades answers never finds one; the format is learned."""
    curves = long_run(seed)
    curves["pass"][:], curves["held_out"][:] = 0.0, 0.0
    curves["format_weight"], curves["format"] = 0.5, 0.3 + 0.6 * ramp(curves, 0)
    return curves


def rate_ends_early(seed):
    """The schedule of the learning rate ends after a third of the run, and the rest learns nothing."""
    curves = long_run(seed, 120)
    time = share_of(curves)
    curves["learning_rate"] = 1e-6 * np.clip(1 - 3 * time, 0, 1)
    frozen = int(np.ceil(len(time) / 3))
    for name in ("pass", "held_out", "entropy", "length", "truncated", "kl", "format"):
        curves[name][frozen:] = curves[name][frozen]
    curves["pass"] = np.minimum(curves["pass"], 0.75)
    return curves


def late_overfitting(seed):
    """The few problems are learned by heart: held out rises at first and falls from the middle of the run on."""
    curves = long_run(seed)
    curves["pass"] = np.maximum(curves["pass"], 0.2 + 0.75 * ramp(curves, 0))
    curves["held_out"] = 0.25 + 0.25 * late(curves, 0.2, 0.08) - 0.2 * late(curves, 0.65, 0.1)
    return curves


def seldom_logged_collapse(seed):
    """A log with a row every ten steps, whose last third is lost."""
    curves = healthy(seed, 300)
    curves["pass"] = curves["pass"] * (1 - 0.7 * late(curves, 0.75, 0.02))
    curves["held_out"] = curves["held_out"] * (1 - 0.7 * late(curves, 0.75, 0.02))
    curves["every"], curves["counted"] = 10, False
    return curves


# Healthy runs.


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


# Kind of failure → the findings that tell it.
FAILING = {
    judge_drifts: {"reward part gamed", "reward hacking or overfitting"},
    penalty_too_strong: {"unstable", "setback", "shorter and worse"},
    template_mismatch: {"prompts too hard", "nothing learned", "no answers found"},
    kl_holds_back: {"nothing learned"},
    warmup_too_long: {"nothing learned", "long warm-up"},
    swings_grow: {"underdamped", "unstable", "setback", "stale sampler"},
    entropy_bonus_too_large: {"entropy runs off", "unstable"},
    groups_of_two: {"prompts too hard", "prompts too easy"},
    lost_at_restart: {"unstable", "setback"},
    late_gibberish: {"unstable"},
    wrong_reference: {"KL runs off", "far from the reference"},
    broken_answer_part: {"reward part gamed", "constant reward", "prompts too hard", "answers hardly count"},
    rate_ends_early: {"no gain lately", "on the plateau", "learning rate ended"},
    late_overfitting: {"reward hacking or overfitting"},
    seldom_logged_collapse: {"unstable"},
}
HEALTHY = (
    *(easy_first, penalty_that_works, slow_warmup, learns_after_a_hundred, tiny_batch, many_pairs, two_sets),
    *(thinking_grows, dip_at_restart, reward_rescaled, entropy_bonus, saturated, seldom_logged, swings_fade),
    no_kl_term,
)
# What may be said of a healthy run of a kind besides what `diagnosis.TRUE` allows of all.
ALSO_TRUE = {swings_fade: {"underdamped", "setback"}}
