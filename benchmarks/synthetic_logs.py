"""This module simulates the curves of runs: healthy ones, one of each failure, and still ones.

`log_of_curves.logged` makes of them the log that a run would have left.
"""

import numpy as np
from scipy.special import expit, logit

GROUP_SIZE, PROMPTS = 8, 16


def noise(generator, rounds, size, memory=0.5):
    """Returns AR(1) noise of standard deviation `size`."""
    steps = generator.standard_normal(rounds)
    values = np.empty(rounds)
    values[0] = steps[0]
    for index in range(1, rounds):
        values[index] = memory * values[index - 1] + np.sqrt(1 - memory**2) * steps[index]
    return size * values


def healthy(seed, rounds=None):
    """Returns the curves of a healthy run of a few hundred rounds, by name. Failures change some of the curves."""
    generator = np.random.default_rng(seed)
    rounds = rounds or int(generator.integers(40, 300))
    time = np.arange(rounds)
    first, last = generator.uniform(0.05, 0.4), generator.uniform(0.5, 0.98)
    relaxation = generator.uniform(0.1, 0.5) * rounds
    level = last + (first - last) * np.exp(-time / relaxation)
    progress = (level - first) / (last - first)
    return {
        "generator": generator,
        "pass": level,
        "held_out": level - generator.uniform(0, 0.1) * progress,
        "entropy": generator.uniform(0.8, 2.5) * (1 - generator.uniform(0.3, 0.8) * progress),
        "length": generator.uniform(20, 400) * (1 + generator.uniform(-0.5, 0.25) * progress),
        "truncated": generator.uniform(0.1, 0.6) * (1 - 0.9 * progress),
        "norm": generator.uniform(0.1, 2) * np.ones(rounds),
        "clip_high": np.full(rounds, generator.uniform(0, 0.05)),
        # The mean cosine of a step and the next gradient, in units of its scatter.
        "cosine": np.full(rounds, 0.1),
        "ess": np.full(rounds, generator.uniform(0.93, 1.0)),
        "mismatch": np.full(rounds, generator.uniform(1e-5, 0.04)),
        "kl": generator.uniform(0.001, 0.05) * progress,
        "format": 0.5 + 0.4 * progress,
        "skipped": np.zeros(rounds),
        "failed": np.zeros(rounds),
        "spread": 1.2,
        # The reward beside the answers: what a part is worth, what length is worth, and what else was paid.
        "format_weight": 0.1,
        "length_pay": np.zeros(rounds),
        "kept_spread": np.ones(rounds),
        "repeated": np.full(rounds, generator.uniform(0, 0.05)),
        "seconds": np.full(rounds, generator.uniform(2, 40)),
        "silent": np.zeros(rounds),
        "no_answer": np.full(rounds, 0.05),
        # How rounds were asked and logged: rows are means over `every` rounds, and a log may lack its counts.
        "group_size": GROUP_SIZE,
        "prompts": PROMPTS,
        "every": 1,
        "counted": True,
        "evaluations": 12,
        "problems": 100,
        "reward_scale": np.ones(rounds),
        "learning_rate": np.full(rounds, 1e-6),
        "parts": {},
    }


def ramp(curves, start=0.3):
    """Returns a curve that is 0 until `start` of the run, and then rises to 1."""
    return np.clip(np.linspace(-start / (1 - start), 1, len(curves["pass"])), 0, 1)


def share_of(curves):
    """Returns time as a share of the run, from 0 to 1, for each round."""
    return np.linspace(0, 1, len(curves["pass"]))


def late(curves, start, width=0.03):
    """Returns a smooth step from 0 to 1 at the share `start` of the run."""
    return expit((share_of(curves) - start) / width)


def long_run(seed, fewest=100, most=300):
    return healthy(seed, int(np.random.default_rng([seed, 1]).integers(fewest, most)))


def hacked(curves):
    curves["held_out"] = np.minimum(curves["held_out"], curves["held_out"][len(curves["pass"]) // 2])
    curves["pass"] = np.linspace(0.3, 0.8, len(curves["pass"]))
    curves["held_out"][:] = 0.4


def gamed(curves):
    curves["pass"][:] = curves["pass"][0]
    curves["format"] = 0.3 + 0.5 * ramp(curves, 0.1)


def too_hard(curves):
    curves["pass"][:], curves["spread"] = 0.004, 0.3


def too_easy(curves):
    # Most problems are solved, the rest never: nothing mixed is left.
    curves["pass"][:], curves["spread"] = 0.75, 40.0


def concentrated(curves):
    curves["pass"] = np.minimum(curves["pass"], 0.5)
    curves["entropy"] = 1.5 * np.exp(-5 * ramp(curves, 0.1))
    curves["kl"] = 0.01 + 0.5 * ramp(curves, 0.1)


def collapsed(curves):
    kept = 1 - 0.9 * (ramp(curves, 0.5) > 0.3)
    curves["pass"], curves["held_out"] = curves["pass"] * kept, curves["held_out"] * kept


def exploding(curves):
    curves["norm"] = curves["norm"] * np.exp(4 * ramp(curves))


def spiking(curves):
    curves["norm"] = curves["norm"] * np.where(curves["generator"].random(len(curves["norm"])) < 0.12, 40, 1)


def not_finite(curves):
    curves["skipped"] = (curves["generator"].random(len(curves["skipped"])) < 0.2).astype(float)


def clipped(curves):
    curves["clip_high"] = 0.02 + 0.4 * ramp(curves, 0.1)


def stale(curves):
    curves["ess"] = 0.98 - 0.5 * ramp(curves, 0.1)


def mismatched(curves):
    curves["mismatch"] = 0.01 + 0.5 * ramp(curves, 0.1)


def growing_length(curves):
    curves["pass"][:] = curves["pass"][0]
    curves["length"] = curves["length"][0] * (1 + 1.5 * ramp(curves, 0.1))


def truncated(curves):
    curves["pass"][:] = curves["pass"][0]
    curves["truncated"] = 0.3 + 0.4 * ramp(curves, 0.0)


def failing_grader(curves):
    curves["failed"] = np.full(len(curves["failed"]), 0.08)


def bought(curves):
    """Makes the reward rise with length from the middle of the run on, while the answers get no better."""
    late = ramp(curves, 0.4)
    curves["pass"] = np.minimum(curves["pass"], 0.3)
    curves["length"] = curves["length"][0] * (1 + 2 * late)
    curves["length_pay"] = 0.6 * late


def format_dominating(curves):
    """Makes the format's reward, learned at once, twenty times that of the answers."""
    curves["format_weight"], curves["format"] = 20.0, np.minimum(0.4 + 8 * ramp(curves, 0.0), 0.95)
    curves["pass"] = np.minimum(curves["pass"], 0.3)


def diverging(curves):
    curves["kl"] = 0.02 + 4 * ramp(curves, 0.2) ** 2


def signal_lost(curves):
    curves["kept_spread"] = np.maximum(1 - 2 * ramp(curves, 0.2), 0.02)
    curves["pass"] = np.minimum(curves["pass"], 0.6)


def repeating(curves):
    curves["repeated"] = 0.02 + 0.6 * ramp(curves, 0.3)


def slowing(curves):
    curves["seconds"] = curves["seconds"] * (1 + 2 * ramp(curves, 0.2))


def silenced(curves):
    """Makes groups fall silent one by one, while the pass rate stays in the middle."""
    curves["silent"] = 0.9 * ramp(curves, 0.3)
    curves["pass"] = np.minimum(curves["pass"], 0.55)


def without_answers(curves):
    curves["pass"][:], curves["no_answer"] = 0.02, np.full(len(curves["pass"]), 0.96)


def spiking_rarely(curves):
    late = np.arange(len(curves["norm"])) >= len(curves["norm"]) // 10
    chosen = curves["generator"].choice(np.flatnonzero(late), size=7, replace=False)
    curves["norm"][chosen] *= 80


# Right finding → function that makes such a run. Where a bar stands, either name is right; a space makes a second case.
FAILURES = {
    "reward hacking or overfitting": hacked,
    "reward part gamed": gamed,
    "prompts too hard": too_hard,
    "prompts too easy": too_easy,
    "entropy collapse": concentrated,
    "unstable": collapsed,
    "growing gradients": exploding,
    "gradient spikes": spiking,
    "gradients not finite": not_finite,
    "clipped high": clipped,
    "stale sampler": stale,
    "sampler mismatch": mismatched,
    "length without reward": growing_length,
    "truncated": truncated,
    "grading fails": failing_grader,
    "reward bought by length": bought,
    "answers hardly count": format_dominating,
    "KL runs off": diverging,
    "no signal": signal_lost,
    "repetition": repeating,
    "rounds take longer": slowing,
    "prompts too hard|prompts too easy": silenced,
    "gradient spikes ": spiking_rarely,
    "no answers found": without_answers,
}


def still(seed, rounds=None):
    """Returns a run in which nothing moves: every metric keeps its level, and the pass rate only scatters."""
    curves = healthy(seed, rounds)
    generator = curves["generator"]
    for name, values in curves.items():
        if isinstance(values, np.ndarray):
            curves[name] = np.full(len(values), values[-1])
    level, memory = generator.uniform(0.1, 0.85), generator.choice([0.0, 0.3, 0.6])
    own = noise(generator, len(curves["pass"]), generator.uniform(0, 0.8), memory)
    curves["pass"] = expit(logit(level) + own)
    curves["truncated"][:] = generator.uniform(0, 0.2)
    return curves
