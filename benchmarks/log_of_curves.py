"""This module draws the log that a run with given curves would have left, with the noise of real runs."""

from collections import Counter

import numpy as np
from scipy.special import expit, logit

from benchmarks.synthetic_logs import noise
from grpo.dynamics.history import history_of, history_of_values, pass_rate
from grpo.insight.logs.run_log import RunLog, Series


def silent(counts, share, generator):
    """Returns a round's counts after this share of the groups became all right or all wrong, at the same mean rate."""
    drawn = Counter()
    for k, size in counts.elements():
        mixed = generator.random() >= share
        drawn[(k if mixed else size * int(generator.random() < k / size), size)] += 1
    return drawn


def counts_of(curves):
    """Draws the counts of each round's groups: (right, completions) → number of groups."""
    generator = curves["generator"]
    size, number = curves["group_size"], curves["prompts"]
    counts = []
    for rate in np.clip(curves["pass"], 1e-3, 1 - 1e-3):
        rates = expit(logit(rate) + curves["spread"] * generator.standard_normal(number))
        if curves["spread"] > 10:
            rates = (generator.random(number) < rate).astype(float)
        counts.append(Counter((int(k), size) for k in generator.binomial(size, rates)))
    if curves["silent"].any():
        counts = [silent(outcomes, share, generator) for outcomes, share in zip(counts, curves["silent"], strict=True)]
    return counts


def series_of(curves, counts):
    """Draws the value of every metric in every round, by name."""
    generator, rounds = curves["generator"], len(curves["pass"])
    size, number = curves["group_size"], curves["prompts"]

    # These have a generator of their own, so that the other metrics are drawn as before they were logged.
    luck_of_steps = np.random.default_rng([rounds, size, number]).standard_normal(rounds)

    def share(condition):
        return np.array([sum(n for pair, n in outcomes.items() if condition(*pair)) / number for outcomes in counts])

    def positive(values, scatter):
        return np.maximum(values * np.exp(noise(generator, rounds, scatter)), 0)

    def fraction(values):
        return generator.binomial(size * number, np.clip(values, 0, 1)) / (size * number)

    passed = np.array([pass_rate(outcomes)[0] for outcomes in counts])
    formatted = fraction(curves["format"])
    series = {
        "pass_rate": passed,
        "reward/mean": (passed + curves["format_weight"] * formatted + curves["length_pay"])
        / (1 + curves["format_weight"])
        * curves["reward_scale"],
        "reward/std": positive(np.sqrt(passed * (1 - passed)) * curves["kept_spread"], 0.05),
        "reward/part/number": passed,
        "reward/part/format": formatted,
        "groups/silent_fraction": share(lambda k, n: k in (0, n)),
        "groups/all_correct_fraction": share(lambda k, n: k == n),
        "groups/all_wrong_fraction": share(lambda k, n: k == 0),
        "policy/entropy": positive(curves["entropy"], 0.15),
        "policy/reference_kl": positive(curves["kl"], 0.3),
        "policy/clip_high_fraction": positive(curves["clip_high"], 0.3),
        "policy/clip_low_fraction": positive(0.5 * curves["clip_high"], 0.3),
        "step/cosine": 0.035 * (curves["cosine"] + luck_of_steps),
        "policy/ess_fraction": np.minimum(curves["ess"] + noise(generator, rounds, 0.01), 1),
        "mismatch/mean_abs": positive(curves["mismatch"], 0.2),
        "completions/length_mean": positive(curves["length"], 0.08),
        "completions/truncated_fraction": fraction(curves["truncated"]),
        "completions/no_answer_fraction": curves["no_answer"],
        "completions/failed_fraction": fraction(curves["failed"]),
        "completions/timed_out_fraction": np.zeros(rounds),
        "completions/repetition_fraction": fraction(curves["repeated"]),
        "time/round_seconds": positive(curves["seconds"], 0.15),
        "learner/gradient_norm": positive(curves["norm"], 0.4),
        "learner/skipped_steps": curves["skipped"],
        "learner/learning_rate": curves["learning_rate"],
    }
    return series | {f"reward/part/{name}": fraction(values) for name, values in curves["parts"].items()}


def logged(curves):
    """Returns the log that a run with these curves would have left."""
    generator, rounds = curves["generator"], len(curves["pass"])
    steps, counts = np.arange(1, rounds + 1.0), counts_of(curves)
    series = series_of(curves, counts)
    evaluated = np.arange(0, rounds, max(rounds // curves["evaluations"], 1))
    problems = curves["problems"]
    held_out = generator.binomial(problems, np.clip(curves["held_out"][evaluated], 0, 1)) / problems
    every, whole = curves["every"], rounds // curves["every"] * curves["every"]
    logged_at = steps[:whole].reshape(-1, every)[:, -1]
    rows = {name: values[:whole].reshape(-1, every).mean(axis=1) for name, values in series.items()}
    counted = curves["counted"]
    return RunLog(
        history=history_of(zip(steps.astype(int), [1] * rounds, [0] * rounds, counts, strict=True))
        if counted
        else history_of_values(logged_at, rows["pass_rate"]),
        series={name: Series(logged_at, values) for name, values in rows.items()},
        counts=counts if counted else (),
        held_out=Series(evaluated.astype(float), held_out),
        num_steps=2 * rounds,
    )
