"""This script measures what forecasts say of curves that stand.

    python benchmarks/flat_curves.py OUTPUT.jsonl [curves=200]

A flat curve has 30 to 200 rounds of 4 to 32 prompts × 8 completions at a pass rate of .05 to .95. In each second one
the policy, or the topics of the prompts, wander by .3 logits with a memory of .6 to .95 from round to round. Resumable:
a curve that OUTPUT holds is not made again.
"""

import json
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.signal import lfilter
from scipy.special import expit, logit

from grpo.dynamics.forecast import forecast
from grpo.dynamics.history import History, history_of_values

LENGTHS, PROMPTS, MEMORIES = (30, 60, 100, 200), (4, 8, 32), (0.6, 0.8, 0.9, 0.95)
GROUP_SIZE = 8
# A forecast goes as far ahead as these shares of its log are long.
AHEAD = (0.5, 1.0, 3.0)


def wandering(generator, rounds, memory):
    """Returns an AR(1) series of standard deviation 1."""
    own = generator.standard_normal(rounds + 200)
    return lfilter([np.sqrt(1 - memory**2)], [1, -memory], own)[200:]


def flat(seed):
    """Returns the measured curve, its pass rate and the memory of its wander, 0 where it stands."""
    generator = np.random.default_rng([seed, 0])
    rounds, prompts = int(generator.choice(LENGTHS)), int(generator.choice(PROMPTS))
    rate, memory = generator.uniform(0.05, 0.95), seed % 2 * float(generator.choice(MEMORIES))
    rates = expit(logit(rate) + 0.3 * (memory > 0) * wandering(generator, rounds, memory))
    return noisy(rates, prompts, seed), rate, memory


def noisy(rates, prompts, seed):
    """Returns a measured curve, which for half of the seeds is of bare values, as other frameworks log them."""
    rounds, tried = len(rates), GROUP_SIZE * prompts
    values = np.random.default_rng(seed).binomial(tried, rates) / tried
    if seed // 2 % 2:
        return history_of_values(np.arange(1, rounds + 1), values)
    errors = np.sqrt(np.maximum(rates * (1 - rates), 0.01) / tried)
    return History(np.arange(float(rounds)), values, errors, np.ones(rounds), np.zeros(rounds))


def facts(seed):
    history, rate, memory = flat(seed)
    now, length = history.steps[-1], np.ptp(history.steps)
    forecasts = [forecast(history, now + share * length) for share in AHEAD]
    return {
        "memory": memory,
        "misses": [ahead.value[-1] - rate for ahead in forecasts],
        "widths": [ahead.high[-1] - ahead.low[-1] for ahead in forecasts],
        "narrowing": min(float(np.diff(ahead.high - ahead.low).min()) for ahead in forecasts),
    }


def report(rows):
    """Prints a row for curves that stand, and one for those that wander."""
    table = Table("flat curves", "number", "middle − truth", "width", "narrower")
    for name, wanders in (("that stand", False), ("that wander", True)):
        known = [of_curve for _, of_curve in rows if (of_curve["memory"] > 0) == wanders]
        misses = np.array([fact["misses"] for fact in known])
        errors = misses.std(axis=0) / len(known) ** 0.5
        table.add_row(
            name,
            str(len(known)),
            ", ".join(f"{miss:+.3f} ± {error:.3f}" for miss, error in zip(misses.mean(axis=0), errors, strict=True)),
            ", ".join(f"{width:.2f}" for width in np.mean([fact["widths"] for fact in known], axis=0)),
            str(sum(fact["narrowing"] < -1e-9 for fact in known)),
        )
    Console().print(table)


def main(output, *settings):
    number = int(dict(setting.split("=", 1) for setting in settings).get("curves", 200))
    path = Path(output)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {seed for seed, _ in rows}
    with path.open("a") as file:
        # Half of the curves stand and half wander, so there are `number` of each.
        for seed in range(2 * number):
            if seed not in known:
                rows.append([seed, facts(seed)])
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
    report(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
