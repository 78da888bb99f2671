"""This script compares early forecasts with outcomes, on simulated curves, public logs and logs of this framework.

    python benchmarks/forecasts.py OUTPUT.jsonl [simulated=SEEDS] [logs=DIR] [runs=DIR] [laws=1]

Each run is forecast from its first 30, 50, 70 and 85 %; the outcome is the mean pass rate of its last fifth of rounds.
The interval score is the width of the 90 % interval plus 20 times the outcome's distance from it (Gneiting & Raftery,
JASA 2007). `logs` names a folder of logs with a column `pass_rate`; `runs` names a folder with runs of this framework,
at any depth. `laws=1` adds the earlier method: the laws of the curve, averaged by their Akaike weights. Resumable: a
forecast that OUTPUT holds already is not made again. "Stop here" is claimed if a gain of more than .02 has a
probability below 10 %. A claim is wrong if the last fifth of the run is better by more than that than the last fifth of
the rounds that were seen.
"""

import json
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.simulated_curves import KINDS, evaluated, simulated
from grpo.dynamics.forecast import forecast, forecast_held_out
from grpo.dynamics.identify import identify, supported
from grpo.dynamics.stop_rule import UNLIKELY
from grpo.insight.logs.logs import read_log
from grpo.insight.logs.run_log import FEWEST_EVALUATIONS

SEEN = (0.3, 0.5, 0.7, 0.85)
WORTHWHILE = 0.02
FEWEST = 6


def histories(simulated_seeds, logs, runs):
    """Yields (group, name, curve) of every run."""
    for seed in range(simulated_seeds):
        for kind in KINDS:
            yield "simulated", f"{kind.__name__} {seed}", simulated(kind, seed)
    for path in sorted(Path(logs).glob("*.jsonl")) if logs else ():
        yield "logs", path.stem, read_log(path, "pass_rate").history
    for path in sorted(Path(runs).glob("**/metrics.jsonl")) if runs else ():
        yield "runs", str(path.parent.relative_to(runs)), read_log(path.parent).history


def last_fifth_of(history):
    """Returns the mean pass rate of the last fifth of the rounds, weighted by information."""
    number = max(1, len(history) // 5)
    return float(np.average(history.values[-number:], weights=history.errors[-number:] ** -2.0))


def by_trend(seen, end, last_fifth):
    ahead = forecast(seen, end)
    last = ahead.steps >= last_fifth
    return [ahead.chance(WORTHWHILE), *(float(curve[last].mean()) for curve in (ahead.low, ahead.value, ahead.high))]


def by_laws(seen, end, last_fifth):
    steps = np.linspace(seen.steps[-1], end, 50)
    everything = np.concatenate([seen.steps[:-1], steps])
    extended = [np.concatenate([own[:-1], np.full(50, own[-1])]) for own in (seen.intervals, seen.lags)]
    fits = identify(seen, 0.9).fits
    drawn = [fit.law.predict(free, everything, *extended)[-50:] for fit, draws in supported(fits) for free in draws]
    interval = np.quantile(np.clip(drawn, 0, 1), [0.05, 0.5, 0.95], axis=0)[:, steps >= last_fifth].mean(axis=1)
    return [1.0, *interval.tolist()]


def backtest(history, method):
    """Yields (share seen, pass rate then, chance of a gain, low, median, high, outcome) for each forecast."""
    end, number = float(history.steps[-1]), max(1, len(history) // 5)
    came = last_fifth_of(history)
    for share in SEEN:
        seen = history.until(history.steps[0] + share * (end - history.steps[0]))
        if len(seen) >= FEWEST:
            yield [share, last_fifth_of(seen), *method(seen, end, history.steps[-number]), came]


def backtest_held_out(held_out, training):
    """Yields the same rows as `backtest` for held-out evaluations; the outcome is the last evaluation."""
    end = float(held_out.steps[-1])
    for share in SEEN:
        seen = held_out.until(share * end)
        if len(seen) >= FEWEST_EVALUATIONS:
            ahead = forecast_held_out(seen, training.until(share * end), end)
            interval = [float(curve[-1]) for curve in (ahead.low, ahead.value, ahead.high)]
            yield [share, float(seen.values[-1]), ahead.chance(WORTHWHILE), *interval, float(held_out.values[-1])]


def scores(rows):
    """Returns the means of (covered, width, interval score, missed above) over rows that end with low, median, high and
    outcome."""
    low, _, high, came = np.array([row[-4:] for row in rows], float).T
    miss = np.maximum(low - came, 0) + np.maximum(came - high, 0)
    return (miss == 0).mean(), (high - low).mean(), (high - low + 20 * miss).mean(), (came > high).mean()


def main(output, *settings):
    given = dict(setting.split("=", 1) for setting in settings)
    methods = {"trend": by_trend, **({"laws": by_laws} if given.get("laws") else {})}
    path = Path(output)
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {tuple(row[:3]) for row in done}
    with path.open("a") as file:
        for group, name, history in histories(int(given.get("simulated", 16)), given.get("logs"), given.get("runs")):
            for method in methods:
                if (method, group, name) not in known:
                    row = [method, group, name, list(backtest(history, methods[method]))]
                    done.append(row)
                    file.write(json.dumps(row) + "\n")
                    file.flush()
        for seed in range(int(given.get("simulated", 16))):
            for kind in KINDS:
                if ("trend", "held out", f"{kind.__name__} {seed}") not in known:
                    rows = list(backtest_held_out(evaluated(kind, seed), simulated(kind, seed)))
                    done.append(["trend", "held out", f"{kind.__name__} {seed}", rows])
                    file.write(json.dumps(done[-1]) + "\n")
        folders = sorted(Path(given["runs"]).glob("**/metrics.jsonl")) if "runs" in given else ()
        for name, log in ((str(path.parent), read_log(path.parent)) for path in folders):
            curve = log.held_out_history()
            if curve is not None and ("trend", "runs, held out", name) not in known:
                done.append(["trend", "runs, held out", name, list(backtest_held_out(curve, log.history))])
                file.write(json.dumps(done[-1]) + "\n")
    table = Table(
        "runs", "by", "seen", "forecasts", "covered", "missed above", "width", "interval score", "stop here (wrong)"
    )
    for group in sorted({row[1] for row in done}):
        for method in methods:
            for share in SEEN:
                forecasts = [
                    row for m, g, _, rows in done if (m, g) == (method, group) for row in rows if row[0] == share
                ]
                if forecasts:
                    covered, width, score, above = scores(forecasts)
                    stops = [row[-1] - row[1] for row in forecasts if row[2] < UNLIKELY]
                    claims = f"{len(stops)} ({sum(gain > WORTHWHILE for gain in stops)})"
                    cells = (f"{covered:.0%}", f"{above:.0%}", f"{width:.2f}", f"{score:.2f}", claims)
                    table.add_row(group, method, f"{share:.0%}", str(len(forecasts)), *cells)
    Console().print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
