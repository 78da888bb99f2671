"""This script counts the diagnosis's false alarms on healthy and still simulated runs, and its hits on each failure.

python benchmarks/diagnosis.py [HEALTHY] [EACH_FAILURE]      (300 and 50 by default; some minutes)
"""

import sys
from collections import Counter

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.synthetic_logs import FAILURES, healthy, logged, still
from grpo.dynamics.diagnostics import diagnose


def names(curves):
    return {finding.name for finding in diagnose(logged(curves))}


def main(num_healthy=300, num_failing=50):
    alarms = {make.__name__: [names(make(seed)) for seed in track(range(num_healthy), f"{make.__name__} runs")]
              for make in (healthy, still)}  # fmt: skip
    table = Table("failure", "hits", "also found", title=f"Diagnosis of simulated runs, {num_failing} of each failure")
    for name, fail in track(FAILURES.items(), "failing runs"):
        hits, others = 0, Counter()
        for seed in range(num_failing):
            curves = healthy(10_000 + seed)
            fail(curves)
            findings, wanted = names(curves), set(name.strip().split("|"))
            hits += bool(findings & wanted)
            others.update(findings - wanted)
        also = ", ".join(f"{other} {number / num_failing:.0%}" for other, number in others.most_common())
        table.add_row(name, f"{hits / num_failing:.0%}", also)
    console = Console()
    for kind, by_run in alarms.items():
        # What is said of a run that is solved, on its plateau, without progress lately or ever is right here.
        true = {"problems solved", "on the plateau", "no gain lately"} | (
            {"nothing learned"} if kind == "still" else set()
        )
        wrong = [findings - true for findings in by_run]
        console.print(f"{kind} runs with a false alarm: {sum(map(bool, wrong))} of {num_healthy}")
        console.print(Counter(name for findings in by_run for name in findings) or "no alarm")
    console.print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
