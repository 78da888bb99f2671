"""This script compares early forecasts with outcomes, on simulated curves, public logs and logs of this framework.

    python benchmarks/forecasts.py OUTPUT.jsonl [simulated=SEEDS] [logs=DIR] [runs=DIR]

Each run is forecast from its first 30, 50, 70 and 85 %; the outcome is the mean pass rate of its last fifth of rounds.
The interval score is the width of the 90 % interval plus 20 times the outcome's distance from it (Gneiting & Raftery,
JASA 2007). `logs` names a folder of logs with a column `pass_rate`; `runs` names a folder with runs of this framework,
at any depth. Resumable: a forecast that OUTPUT holds already is not made again. "Stop here" is claimed if a gain of
more than .02 has a probability below 10 %. A claim is wrong if the last fifth of the run is better by more than that
than the last fifth of the rounds that were seen.
"""

import json
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.simulated_curves import KINDS, evaluated, simulated
from grpo.dynamics.adaptive import UNLIKELY
from grpo.dynamics.forecast import forecast, forecast_held_out
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


def interval_of(seen, end, last_fifth):
    ahead = forecast(seen, end)
    last = ahead.steps >= last_fifth
    return [ahead.chance(WORTHWHILE), *(float(curve[last].mean()) for curve in (ahead.low, ahead.value, ahead.high))]


def backtest(history):
    """Yields (share seen, pass rate then, chance of a gain, low, median, high, outcome) for each forecast."""
    end, number = float(history.steps[-1]), max(1, len(history) // 5)
    came = last_fifth_of(history)
    for share in SEEN:
        seen = history.until(history.steps[0] + share * (end - history.steps[0]))
        if len(seen) >= FEWEST:
            yield [share, last_fifth_of(seen), *interval_of(seen, end, history.steps[-number]), came]


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
    path = Path(output)
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {tuple(row[:2]) for row in done}
    with path.open("a") as file:
        for group, name, history in histories(int(given.get("simulated", 16)), given.get("logs"), given.get("runs")):
            if (group, name) not in known:
                done.append([group, name, list(backtest(history))])
                file.write(json.dumps(done[-1]) + "\n")
                file.flush()
        for seed in range(int(given.get("simulated", 16))):
            for kind in KINDS:
                if ("held out", f"{kind.__name__} {seed}") not in known:
                    rows = list(backtest_held_out(evaluated(kind, seed), simulated(kind, seed)))
                    done.append(["held out", f"{kind.__name__} {seed}", rows])
                    file.write(json.dumps(done[-1]) + "\n")
        folders = sorted(Path(given["runs"]).glob("**/metrics.jsonl")) if "runs" in given else ()
        for name, log in ((str(path.parent), read_log(path.parent)) for path in folders):
            curve = log.held_out_history()
            if curve is not None and ("runs, held out", name) not in known:
                done.append(["runs, held out", name, list(backtest_held_out(curve, log.history))])
                file.write(json.dumps(done[-1]) + "\n")
    table = Table(
        "runs", "seen", "forecasts", "covered", "missed above", "width", "interval score", "stop here (wrong)"
    )
    for group in sorted({row[0] for row in done}):
        for share in SEEN:
            forecasts = [row for other, _, rows in done if other == group for row in rows if row[0] == share]
            if forecasts:
                covered, width, score, above = scores(forecasts)
                stops = [row[-1] - row[1] for row in forecasts if row[2] < UNLIKELY]
                claims = f"{len(stops)} ({sum(gain > WORTHWHILE for gain in stops)})"
                cells = (f"{covered:.0%}", f"{above:.0%}", f"{width:.2f}", f"{score:.2f}", claims)
                table.add_row(group, f"{share:.0%}", str(len(forecasts)), *cells)
    Console().print(table)
    table = Table("kind of simulated run", *(f"covered at {share:.0%}" for share in SEEN))
    for kind in KINDS:
        rows = [
            row
            for group, name, rows in done
            if (group, name.split()[0]) == ("simulated", kind.__name__)
            for row in rows
        ]
        of_shares = [[row for row in rows if row[0] == share] for share in SEEN]
        table.add_row(kind.__name__, *(f"{scores(forecasts)[0]:.0%}" if forecasts else "–" for forecasts in of_shares))
    Console().print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
