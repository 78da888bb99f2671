"""This script measures what forecasts and laws say of curves that stand, and whether laws are found where they hold.

    python benchmarks/flat_curves.py OUTPUT.jsonl [curves=200]

A flat curve has 30 to 200 rounds of 4 to 32 prompts × 8 completions at a pass rate of .05 to .95. In each second one
the policy, or the topics of the prompts, wander by .3 logits with a memory of .6 to .95 from round to round. Others
follow a law and wander by .1 logits with a memory of .8. Resumable: a curve that OUTPUT holds is not made again.
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
from grpo.dynamics.history import history_of_values
from grpo.dynamics.identify import identify, laws
from grpo.dynamics.laws import History

LENGTHS, PROMPTS, MEMORIES = (30, 60, 100, 200), (4, 8, 32), (0.6, 0.8, 0.9, 0.95)
SPREAD, MEMORY = 0.1, 0.8
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


def lawful(seed):
    """Returns the measured curve of a law, and the law's name."""
    generator = np.random.default_rng([seed, 1])
    rounds, prompts = int(generator.choice(LENGTHS[1:])), int(generator.choice(PROMPTS))
    law = [law for law in laws(0.9, 1.0) if law.name not in ("line", "constant")][seed % 5]
    start, plateau = logit(generator.uniform(0.05, 0.4)), logit(generator.uniform(0.6, 0.9))
    time = generator.uniform(0.1, 0.25) * rounds
    free = {
        "oscillator": [start, plateau, np.log(0.1 / time), np.log(0.95)],
        "sigmoid": [start, plateau, np.log(time / 3), generator.uniform(0.3, 0.6) * rounds],
        "mixture": [start, plateau, np.log(time / 4)],
    }.get(law.name, [start, plateau, np.log(time)])
    steps = np.arange(float(rounds))
    rates = law.predict(np.array(free), steps, np.ones(rounds), np.zeros(rounds))
    wander = SPREAD * wandering(generator, rounds, MEMORY)
    return noisy(expit(logit(np.clip(rates, 0.005, 0.995)) + wander), prompts, seed), law.name


def facts_of_flat(seed):
    history, rate, memory = flat(seed)
    now, length = history.steps[-1], np.ptp(history.steps)
    forecasts = [forecast(history, now + share * length) for share in AHEAD]
    kappa = identify(history, 0.9)
    return {
        "memory": memory,
        "misses": [ahead.value[-1] - rate for ahead in forecasts],
        "widths": [ahead.high[-1] - ahead.low[-1] for ahead in forecasts],
        "narrowing": min(float(np.diff(ahead.high - ahead.low).min()) for ahead in forecasts),
        "identified": kappa.identified,
        "stiffness": [kappa.stiffness.low, kappa.stiffness.high],
    }


def facts_of_lawful(seed):
    history, name = lawful(seed)
    found = identify(history, 0.9)
    return {"law": name, "identified": found.identified, "best": found.fits[0].law.name}


KINDS = {"flat": facts_of_flat, "lawful": facts_of_lawful}


def report(rows):
    """Prints a table for flat curves, with and without wander, and one for curves of a law."""
    table = Table("flat curves", "number", "middle − truth", "width", "narrower", "identified", "greatest κ")
    for name, wanders in (("that stand", False), ("that wander", True)):
        facts = [row[2] for row in rows if row[0] == "flat" and (row[2]["memory"] > 0) == wanders]
        misses = np.array([fact["misses"] for fact in facts])
        errors = misses.std(axis=0) / len(facts) ** 0.5
        table.add_row(
            name,
            str(len(facts)),
            ", ".join(f"{miss:+.3f} ± {error:.3f}" for miss, error in zip(misses.mean(axis=0), errors, strict=True)),
            ", ".join(f"{width:.2f}" for width in np.mean([fact["widths"] for fact in facts], axis=0)),
            str(sum(fact["narrowing"] < -1e-9 for fact in facts)),
            str(sum(fact["identified"] for fact in facts)),
            f"{max(fact['stiffness'][1] for fact in facts):.3g}",
        )
    Console().print(table)
    table = Table("curves of a law", "number", "identified")
    lawful_facts = [row[2] for row in rows if row[0] == "lawful"]
    for name in sorted({fact["law"] for fact in lawful_facts}):
        found = [fact["identified"] for fact in lawful_facts if fact["law"] == name]
        table.add_row(name, str(len(found)), str(sum(found)))
    Console().print(table)


def main(output, *settings):
    number = int(dict(setting.split("=", 1) for setting in settings).get("curves", 200))
    path = Path(output)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {tuple(row[:2]) for row in rows}
    with path.open("a") as file:
        # Half of the flat curves stand and half wander, so there are `number` of each.
        for kind, seed in [*(("flat", seed) for seed in range(2 * number)), *(("lawful", s) for s in range(number))]:
            if (kind, seed) not in known:
                rows.append([kind, seed, KINDS[kind](seed)])
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
    report(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
