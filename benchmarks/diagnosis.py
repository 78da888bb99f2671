"""This script counts the diagnosis's false alarms on healthy and still simulated runs, and its hits on each failure.

python benchmarks/diagnosis.py [HEALTHY] [EACH_FAILURE]      (300 and 50 by default; some minutes)
python benchmarks/diagnosis.py practice [EACH]      (failures and healthy runs from practice_*.py, 100 of each kind)
python benchmarks/diagnosis.py episodes [EACH]      (runs with tools, from episode_logs.py, 100 of each kind)
"""

import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import episode_logs
from benchmarks.log_of_curves import logged
from benchmarks.practice_failures import FAILING
from benchmarks.practice_healthy import ALSO_TRUE, HEALTHY
from benchmarks.synthetic_logs import FAILURES, healthy, still
from grpo.insight.diagnosis.diagnostics import diagnose

# These findings are true of the healthy runs: they are solved, on their plateau, or without progress lately.
TRUE = {"problems solved", "on the plateau", "no gain lately"}


def failing(name, seed):
    """Returns the curves of a run with the failure of this name."""
    curves = healthy(10_000 + seed)
    FAILURES[name](curves)
    return curves


def names(job):
    """Returns the names of the findings on one run. `job` is (function that makes the run's curves, seed)."""
    make, seed = job
    return {finding.name for finding in diagnose(logged(make(seed)))}


def findings_of(kinds, runs, first_seed):
    """Diagnoses `runs` runs of each kind. Returns name of the kind → for each run, the set of its findings' names."""
    jobs = [(make, first_seed + seed) for make in kinds.values() for seed in range(runs)]
    with ProcessPoolExecutor(2) as pool:
        said = list(track(pool.map(names, jobs, chunksize=5), "runs", total=len(jobs)))
    return {kind: said[index * runs : (index + 1) * runs] for index, kind in enumerate(kinds)}


def shares(said, runs):
    return ", ".join(f"{name} {number / runs:.0%}" for name, number in Counter(said).most_common())


def print_failures(title, found, wanted):
    """Prints the share of hits on each failure, and what else was found. `wanted` maps a failure to the findings that
    count as hits."""
    table = Table("failure", "hits", "also found", title=title)
    for kind, said in found.items():
        hits = sum(bool(names & wanted[kind]) for names in said) / len(said)
        others = shares((name for names in said for name in names - wanted[kind]), len(said))
        table.add_row(kind, f"{hits:.0%}", others)
    Console().print(table)


def print_alarms(title, found, true):
    """Prints the share of healthy runs with a false alarm. `true` maps a kind to the findings that are right for it."""
    table = Table("kind", "false alarms", "all that was said", title=title)
    for kind, said in found.items():
        wrong = sum(bool(names - true[kind]) for names in said) / len(said)
        table.add_row(kind, f"{wrong:.1%}", shares((name for names in said for name in names), len(said)))
    Console().print(table)


def main(num_healthy=300, num_failing=50):
    quiet = findings_of({"healthy": healthy, "still": still}, num_healthy, 0)
    print_alarms(f"{num_healthy} runs each", quiet, {"healthy": TRUE, "still": TRUE | {"nothing learned"}})
    found = findings_of({name: partial(failing, name) for name in FAILURES}, num_failing, 0)
    wanted = {name: set(name.strip().split("|")) for name in FAILURES}
    print_failures(f"Simulated failures, {num_failing} of each", found, wanted)


def in_practice(runs=100):
    wanted = {fail.__name__: names for fail, names in FAILING.items()}
    found = findings_of({fail.__name__: fail for fail in FAILING}, runs, 20_000)
    print_failures(f"Failures of practice, {runs} of each", found, wanted)
    found = findings_of({make.__name__: make for make in HEALTHY}, runs, 30_000)
    true = {make.__name__: TRUE | ALSO_TRUE.get(make, set()) for make in HEALTHY}
    print_alarms(f"Healthy runs of practice, {runs} of each", found, true)


def of_episodes(runs=100):
    """Counts the findings on runs with episodes, beside those on the same runs without."""
    names = {finding for _, finding in episode_logs.FAILING.values()}
    for title, kinds in (("healthy", episode_logs.HEALTHY), ("failing", episode_logs.FAILING)):
        table = Table("kind", "found", title=f"{runs} runs each, {title}")
        for kind, shares_of in kinds.items():
            shares_of = shares_of[0] if isinstance(shares_of, tuple) else shares_of
            logs = (episode_logs.log_of_episodes(shares_of, 40_000 + seed) for seed in range(runs))
            said = Counter(finding.name for log in logs for finding in diagnose(log) if finding.name in names)
            table.add_row(
                kind, ", ".join(f"{name} {count / runs:.0%}" for name, count in said.most_common()) or "nothing"
            )
        Console().print(table)


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["practice"]:
        in_practice(*map(int, words[1:]))
    elif words[:1] == ["episodes"]:
        of_episodes(*map(int, words[1:]))
    else:
        main(*map(int, words))
