"""This module simulates failures as people meet them in practice, for which no check was made.

The kinds and the findings that count as hits were written down before the diagnosis had seen any of these logs.
`diagnosis.py` counts hits and false alarms. Each kind changes the curves of a healthy run (`synthetic_logs.healthy`).
"""

import numpy as np

from benchmarks.synthetic_logs import healthy, late, long_run, ramp, share_of


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
