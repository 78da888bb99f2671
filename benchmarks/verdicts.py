"""This script counts how often verdicts of a diagnosis are wrong: on simulated curves, flat noise and public logs.

    python benchmarks/verdicts.py [simulated=SEEDS] [flat=RUNS] [logs=DIR] [processes=N]      (20, 200, none and 2)

The true curve of a simulated run is known, and `WRONG` says when a verdict on it is wrong. A public log shows only
the measurement, so a verdict counts as wrong there if the measurement contradicts it by more than the sampling
error. "On the plateau" is asked after 30, 50, 70 and 85 % of the run, other verdicts at its end.
"""

import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.forecasts import SEEN, last_fifth_of
from benchmarks.log_of_curves import logged
from benchmarks.simulated_curves import KINDS, simulated, truth
from benchmarks.synthetic_logs import still
from grpo.insight.diagnosis.diagnostics import diagnose
from grpo.insight.diagnosis.evidence import FEWEST_ROUNDS, window_length
from grpo.insight.diagnosis.findings import DiagnosisRule
from grpo.insight.diagnosis.progress import plateau
from grpo.insight.logs.logs import read_log
from grpo.insight.logs.run_log import RunLog, Series

RULE = DiagnosisRule()
PLATEAU = "on the plateau"


def windows(curve):
    """Returns the means of the last window of the curve, of the window before it, and of the first."""
    length = window_length(len(curve))
    return curve[-length:].mean(), curve[-2 * length : -length].mean(), curve[:length].mean()


def fallen(curve):
    """Returns how far the mean of the last rounds is below that of the best window of as many rounds."""
    means = np.convolve(curve, np.full(FEWEST_ROUNDS, 1 / FEWEST_ROUNDS), "valid")
    return means.max() - means[-1]


def set_back(curve):
    """Returns the largest loss of the mean from one window of `FEWEST_ROUNDS` rounds to a later one."""
    means = np.convolve(curve, np.full(FEWEST_ROUNDS, 1 / FEWEST_ROUNDS), "valid")
    return (np.maximum.accumulate(means) - means).max()


# Verdict → whether it is wrong of a run with this true curve, of this kind.
WRONG = {
    "problems solved": lambda curve, kind: windows(curve)[0] < RULE.solved,
    "prompts too hard": lambda curve, kind: windows(curve)[0] > 2 * RULE.hopeless,
    "unstable": lambda curve, kind: fallen(curve) < RULE.collapse / 2,
    "setback": lambda curve, kind: set_back(curve) < RULE.collapse / 2,
    "underdamped": lambda curve, kind: kind != "swinging",
    "nothing learned": lambda curve, kind: windows(curve)[0] - windows(curve)[2] > RULE.flat,
    "no gain lately": lambda curve, kind: windows(curve)[0] - windows(curve)[1] > RULE.gain_left,
}


def of_curve(job):
    """Returns (verdict, whether it is wrong) of each verdict on one simulated run. The policy's wander is part of the
    true curve."""
    kind, seed = KINDS[job[0]], job[1]
    history, curve = simulated(kind, seed), truth(kind, np.random.default_rng([seed, job[0]]))
    log = RunLog(history, {"pass_rate": Series(history.steps, history.values)}, num_steps=int(history.steps[-1]))
    verdicts = [
        (finding.name, WRONG[finding.name](curve, kind.__name__))
        for finding in diagnose(log, RULE)
        if finding.name in WRONG
    ]
    end = float(history.steps[-1])
    for share in SEEN:
        seen = history.until(history.steps[0] + share * (end - history.steps[0]))
        early = RunLog(seen, {}, num_steps=int(end))
        if plateau(early, RULE):
            verdicts.append((PLATEAU, curve[-1] - curve[len(seen) - 1] > RULE.gain_left))
    return verdicts


def of_flat(seed):
    """Returns the same for a run in which nothing moves: verdicts on a change are wrong, those on a level are not."""
    names = {finding.name for finding in diagnose(logged(still(seed)), RULE)}
    true = {"nothing learned", PLATEAU, "prompts too hard", "problems solved", "prompts too easy"}
    return [(name, name not in true) for name in names]


def of_log(path):
    """Returns the same for a public log, for verdicts that the log's own numbers can decide."""
    log = read_log(path)
    verdicts = [(finding.name, False) for finding in diagnose(log, RULE)]
    history = log.history
    for share in SEEN if len(history) else ():
        seen = history.until(history.steps[0] + share * np.ptp(history.steps))
        if not plateau(RunLog(seen, {}, num_steps=int(history.steps[-1])), RULE):
            continue
        parts = [values[-max(len(values) // 5, 1) :] for values in (history.values, seen.values)]
        error = np.sqrt(sum(np.var(part, ddof=1) / len(part) for part in parts))
        gained = last_fifth_of(history) - last_fifth_of(seen)
        verdicts.append((PLATEAU, bool(gained > RULE.gain_left + 1.64 * error)))
    return verdicts


def main(*settings):
    given = dict(setting.split("=", 1) for setting in settings)
    curves = [(kind, seed) for seed in range(300, 300 + int(given.get("simulated", 20))) for kind in range(len(KINDS))]
    logs = sorted(Path(given["logs"]).glob("*.jsonl")) if "logs" in given else []
    groups = {"simulated": (of_curve, curves), "flat": (of_flat, range(int(given.get("flat", 200)))),
              "public": (of_log, logs)}  # fmt: skip
    said, wrong = defaultdict(Counter), defaultdict(Counter)
    with ProcessPoolExecutor(int(given.get("processes", 2))) as pool:
        for group, (judge, jobs) in groups.items():
            for verdicts in pool.map(judge, jobs, chunksize=4):
                said[group].update({name for name, _ in verdicts if name != PLATEAU})
                said[group].update(name for name, _ in verdicts if name == PLATEAU)
                wrong[group].update(name for name, false in verdicts if false)
    table = Table("verdict", *(f"{group}: said (wrong) of {len(jobs)}" for group, (_, jobs) in groups.items()))
    for name in sorted({name for counts in said.values() for name in counts}):
        table.add_row(name, *(f"{said[group][name]} ({wrong[group][name]})" for group in groups))
    Console().print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
