"""Forecasts made early in logged runs, against what came; and when a forecast would have stopped them.

    python benchmarks/backtest.py RUN...      (folders of runs or others' logs; some seconds a run)

From the first 30, 50 and 70 % of each run's steps its laws are fitted and the end is forecast; what came is the mean
pass rate of the last fifth of its rounds, whose own sampling error the interval does not hold. Beside it the forecast
that nothing changes: the mean of the last fifth of what had been seen. Stopping: at most `GAIN` to be gained by the
forecast's upper bound, three decisions in a row, against patience: no new best mean of ten rounds for `PATIENCE`
rounds. Only runs of `FEWEST` rounds or more are read.
"""

import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from grpo.dynamics.forecast import StopRule, forecast
from grpo.dynamics.identify import identify
from grpo.report.logs import read_log

FRACTIONS = (0.3, 0.5, 0.7)
FEWEST = 20
GAIN, PATIENCE, DECISIONS = 0.02, 30, 12


def average(values, errors):
    """Mean weighted by information."""
    return float(np.average(values, weights=errors**-2.0))


def last_fifth(history):
    count = max(1, len(history) // 5)
    return average(history.values[-count:], history.errors[-count:])


def early(log, fraction):
    """(identified, interval holds the end, width, |error|, |error| of no change) of a forecast made at `fraction`."""
    history, end = log.history, float(log.history.steps[-1])
    seen = history.until(history.steps[0] + fraction * (end - history.steps[0]))
    found = identify(seen, log.momentum, log.exponent)
    if found is None:
        return None
    ahead, came = forecast(found, end), last_fifth(history)
    # The end is what came: the forecast's mean over the same last fifth.
    last = ahead.steps >= history.steps[-max(1, len(history) // 5)]
    low, value, high = (float(curve[last].mean()) for curve in (ahead.low, ahead.value, ahead.high))
    return found.identified, low <= came <= high, high - low, abs(value - came), abs(last_fifth(seen) - came)


def stops(log):
    """Share of the run's steps taken until the forecast, and until patience, stops it, and pass rate forgone."""
    history = log.history
    end, rule = float(history.steps[-1]), StopRule(GAIN, 3, 0)
    state, by_forecast = rule.init(), end
    for step in np.linspace(end / DECISIONS, end, DECISIONS):
        found = identify(history.until(step), log.momentum, log.exponent)
        ahead = forecast(found, end) if found and found.identified else None
        stop, state = rule.next(ahead, int(step), state)
        if stop:
            by_forecast = float(step)
            break
    means = np.convolve(history.values, np.ones(10) / 10, "valid")
    waited = np.arange(len(means)) - np.array([np.argmax(means[: index + 1]) for index in range(len(means))])
    tired = np.argmax(waited >= PATIENCE) if (waited >= PATIENCE).any() else len(means) - 1
    by_patience = float(history.steps[min(tired + 9, len(history) - 1)])
    came = last_fifth(history)
    return [(step / end, came - last_fifth(history.until(step))) for step in (by_forecast, by_patience)]


def main(*paths):
    logs = [read_log(Path(path)) for path in paths]
    logs = [log for log in logs if len(log.history) >= FEWEST]
    table = Table("seen", "runs", "identified", "90 % interval holds the end", "width", "median error", "of no change")
    for fraction in FRACTIONS:
        found = [early(log, fraction) for log in track(logs, f"{fraction:.0%} seen")]
        identified, held, width, error, naive = np.array([each for each in found if each], float).T
        table.add_row(
            f"{fraction:.0%}",
            str(len(held)),
            f"{identified.sum():.0f}",
            f"{held.sum():.0f} ({held.mean():.0%}); of the identified {held[identified > 0].sum():.0f}",
            f"{np.median(width):.3f}",
            f"{np.median(error):.3f}",
            f"{np.median(naive):.3f}",
        )
    stopping = np.array([stops(log) for log in track(logs, "stopping")])
    second = Table("stopped by", "share of the steps", "pass rate forgone, mean", "worst")
    for index, name in enumerate(("forecast", "patience")):
        taken, forgone = stopping[:, index].T
        second.add_row(name, f"{taken.mean():.0%}", f"{forgone.mean():+.3f}", f"{forgone.max():+.3f}")
    Console().print(table, second)


if __name__ == "__main__":
    main(*sys.argv[1:])
