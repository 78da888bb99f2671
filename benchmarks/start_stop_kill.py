"""This script ends whole runs with a vLLM server at random moments in random ways, and counts processes left over.

    python benchmarks/start_stop_kill.py [TRIES] [SEED]            (20 tries of a minute or two each)

A try is `grpo launch` of the tiny task with continuous sampling, learner and server apart. At a random moment of the
first LONGEST_SECONDS the launcher or the learner gets SIGINT, SIGTERM or SIGKILL. Every started process carries a
variable of the try in its environment; a try is good when no such process lives LEFT_SECONDS later.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.runs import QUIET, SMALL, command, free_ports, rows
from grpo.launch.seats import SERVER_PORTS

LONGEST_SECONDS, LEFT_SECONDS = 60.0, 90.0
VARIABLE = "GRPO_TRY"
MACHINES = [
    *("hardware=two_nodes", "hardware.shell=here", "hardware.ranks_per_node=1", "rollout.servers.replicas=1"),
    *("pipeline=continuous", "num_steps=100000"),
]


def started(mark):
    """Returns the processes of one try that are still alive."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(VARIABLE) == mark and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def once(chance, folder):
    mark, output = uuid.uuid4().hex, Path(folder) / "run"
    environment = os.environ | {VARIABLE: mark, "OMP_NUM_THREADS": "1"}
    port = f"hardware.first_port={free_ports(SERVER_PORTS + 1)}"
    words = command("launch", *SMALL, *QUIET, *MACHINES, port, f"output_dir={output}")
    launcher = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds, number = chance.uniform(1, LONGEST_SECONDS), chance.choice(["SIGINT", "SIGTERM", "SIGKILL"])
    who = chance.choice(["launcher", "learner"])
    time.sleep(seconds)
    assert launcher.poll() is None, f"{' '.join(words)} ended by itself with {launcher.returncode}"
    # Not its tether, which leaves Ctrl-C to the launcher.
    words = [(process, {*process.cmdline()}) for process in started(mark)]
    learners = [
        process for process, its in words if {"train", f"output_dir={output}"} <= its and "grpo.host.tether" not in its
    ]
    victim = learners[0].pid if who == "learner" and learners else launcher.pid
    reached = rows(output / "metrics.jsonl")[-1]["step"] if rows(output / "metrics.jsonl") else 0
    os.kill(victim, getattr(signal, number))
    asked = time.monotonic()
    while (left := started(mark)) and time.monotonic() < asked + LEFT_SECONDS:
        launcher.poll()
        time.sleep(0.5)
    gone = time.monotonic() - asked
    for process in left:
        process.kill()
    return (
        "launcher" if victim == launcher.pid else "learner",
        number,
        seconds,
        reached,
        launcher.poll(),
        gone,
        len(left),
    )


def main(tries="20", seed="0"):
    chance = random.Random(int(seed))
    table = Table("who", "signal", "after, s", "steps taken", "exit code", "all gone after, s", "left over")
    for index in range(int(tries)):
        with tempfile.TemporaryDirectory() as folder:
            who, number, seconds, reached, code, gone, left = once(chance, folder)
        table.add_row(who, number, f"{seconds:.0f}", str(reached), str(code), f"{gone:.0f}", str(left))
        print(
            f"{index + 1}: {who} {number} after {seconds:.0f} s, step {reached}, exit {code}, {left} left", flush=True
        )
    Console().print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
