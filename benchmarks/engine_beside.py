"""This script measures what a process of its own costs vLLM's engine on a CPU: a run in one process, then one in two.

    python -m benchmarks.engine_beside FOLDER

Both are the quickstart's first eight steps. The script prints seconds, processor seconds, the peak memory of all
processes (their proportional shares, once a second) and medians of the rounds.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil

from benchmarks.runs import command, rows

WORDS = ["experiment=quickstart", "num_steps=8", "evaluation.num_problems=40", "checkpoint.export=false"]
TIMES = ("round", "sample", "learn", "sync")


def measured(output: Path, word: str) -> str:
    """Runs with a further word and returns a line of what they took."""
    begin, peak, processor = time.time(), 0, {}
    process = subprocess.Popen(command("train", *WORDS, word, f"output_dir={output}"), stdout=subprocess.DEVNULL)
    while process.poll() is None:
        in_all = 0
        with suppress(psutil.Error):
            for one in (own := psutil.Process(process.pid), *own.children(recursive=True)):
                with suppress(psutil.Error):
                    in_all += one.memory_full_info().pss
                    processor[one.pid] = sum(one.cpu_times()[:2])
        peak = max(peak, in_all)
        time.sleep(1)
    seconds = time.time() - begin
    if process.returncode:
        sys.exit(process.returncode)
    rounds = rows(output / "metrics.jsonl")
    times = ", ".join(f"{name} {median(row[f'time/{name}_seconds'] for row in rounds):.2f} s" for name in TIMES)
    return f"{seconds:.0f} s, {sum(processor.values()):.0f} s of processors, {peak / 2**30:.2f} GiB; {times}"


def main(folder: str) -> None:
    for name, own in (("in the process", "false"), ("beside it", "true")):
        output = Path(folder) / name.replace(" ", "-")
        print(f"{name}: {measured(output, f'rollout.own_process={own}')}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
