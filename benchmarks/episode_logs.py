"""This module makes logs of runs with episodes: the healthy kinds and the failures that people meet with agents."""

from dataclasses import replace

import numpy as np
from scipy.special import expit, logit

from benchmarks.log_of_curves import logged
from benchmarks.synthetic_logs import healthy
from grpo.insight.logs.run_log import Series

# The shares at a run's beginning and at its end, of a model that learns to use its tool.
LEARNS = {
    **{"without_calls": (0.5, 0.05), "unreadable": (0.1, 0.01), "failed_calls": (0.2, 0.05)},
    **{"out_of_turns": (0.15, 0.03), "failed": (0.005, 0.005), "turns": (1.6, 2.2)},
}
HEALTHY = {
    "learns to use its tool": {},
    "calls always": {"without_calls": (0.02, 0.0)},
    "seldom calls": {"without_calls": (0.97, 0.9), "turns": (1.04, 1.1)},
    "calls less and less": {"without_calls": (0.3, 0.6), "turns": (1.9, 1.5)},
    "a clumsy model": {"unreadable": (0.25, 0.1), "failed_calls": (0.5, 0.35), "out_of_turns": (0.5, 0.3)},
    "a conversation without tools": {"without_calls": (1.0, 1.0), "turns": (3.0, 3.0), "failed_calls": (0.0, 0.0)},
}
# Failure → its shares, and the finding that names it.
FAILING = {
    "no call ever made": ({"without_calls": (1.0, 0.995), "turns": (1.0, 1.005)}, "no calls"),
    "reward without tool use": ({"without_calls": (0.3, 0.99), "turns": (1.9, 1.01)}, "tools given up"),
    "calls that fail to parse": ({"unreadable": (0.4, 0.35)}, "unreadable calls"),
    "one tool's errors": ({"failed_calls": (0.65, 0.7)}, "tools fail"),
    "all truncated by turns": ({"out_of_turns": (0.7, 0.8)}, "out of turns"),
    "an environment that breaks": ({"failed": (0.12, 0.12)}, "episodes fail"),
}
EPISODES = 256


def log_of_episodes(shares, seed, rounds=None):
    """Returns the log of a healthy run whose completions are episodes with these shares."""
    curves = healthy(seed) if rounds is None else healthy(seed, rounds=rounds)
    log = logged(curves)
    steps, generator = log["pass_rate"].steps, np.random.default_rng([seed, 7])
    # Shares wander about their course, as those of real runs do.
    course, series = np.exp(-4 * np.linspace(0, 1, len(steps))), {}
    for name, (first, last) in (LEARNS | shares).items():
        mean, luck = last + (first - last) * course, generator.standard_normal(len(steps))
        if name == "turns":
            series["episodes/turns_mean"] = Series(steps, np.maximum(mean + 0.05 * (mean - 1) * luck, 1))
            continue
        wandering = expit(logit(np.clip(mean, 1e-4, 1 - 1e-4)) + 0.25 * luck)
        series[f"episodes/{name}_fraction"] = Series(steps, generator.binomial(EPISODES, wandering) / EPISODES)
    return replace(log, series={**log.series, **series})
