"""This script sends one signal to a real vLLM server of a run: is anything lost, and when is the server back?

    python benchmarks/server_faults.py OUTPUT.json [NAME …]      (a run of some minutes for each of FAULTS)

For each of FAULTS, a run of the tiny task starts its own servers, and one process of the first server gets one signal
at one moment. Once the server has been given up and is back, or has been waited for, three more steps are learned and
the run is asked to stop. A row has the seconds from the signal until the server was given up and until it was back with
the run, the run's exit code, the steps that it learned, and what is wrong with their prompts. Rows that OUTPUT.json
holds are not measured again.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.runs import SMALL, command, rows, stream
from grpo.config.folder import CODE_FILE, checkpoints_in

QUIET = ["evaluation.num_problems=0", "checkpoint.every_rounds=0", "num_steps=100000"]
STRUCK, PAUSE_SECONDS, STEPS_AFTER = "the signal was sent", 6.0, 3
# For the run to get to its third round, and for a server to be back.
PATIENCE_SECONDS = 400.0


@dataclass(frozen=True)
class Fault:
    """A fault is a signal, `number`, to the `part` of the first of `servers` servers, when `moment` happens for the
    third time."""

    servers: int
    moment: str
    part: str
    number: str
    returns: bool = True


FAULTS = {
    "SIGTERM, 1 of 2, while it is given weights": Fault(2, "weights", "server", "SIGTERM"),
    "SIGTERM, the engine of 1 of 2, while it is given weights": Fault(2, "weights", "engine", "SIGTERM"),
    "SIGKILL, 1 of 2, while it samples": Fault(2, "samples", "server", "SIGKILL"),
    "SIGSTOP for 6 s, the last one's engine, while it samples": Fault(1, "samples", "engine", "SIGSTOP", False),
    "SIGSTOP for 6 s, the last one's engine, while it is given weights": Fault(
        1, "weights", "engine", "SIGSTOP", False
    ),
}

# `grpo train` that sends the signal itself, since it knows the moment.
STRIKING = f"""
import signal, sys, threading, psutil
from grpo import cli
from grpo.host import environment
environment.prepare()
from grpo.rollout.server_sampler import ServerSampler
from grpo.weight_sync.server_link import ServerLink

moment, part, number = sys.argv[1:4]
del sys.argv[1:4]
times, target = 0, {{}}

def words(process):
    try:
        return process.cmdline()
    except psutil.Error:  # it has just ended
        return []

def find():
    below = [(process, words(process)) for process in psutil.Process().children(recursive=True)]
    servers = dict((line[line.index("--port") + 1], process) for process, line in below
                   if "--port" in line and "grpo.host.tether" not in line)
    target["server"] = servers[min(servers)]
    target["engine"] = next(process for process in target["server"].children(recursive=True)
                            if "EngineCore" in process.name() + " ".join(words(process)))

def strike():
    target[part].send_signal(getattr(signal, number))
    print("{STRUCK}", file=sys.stderr, flush=True)
    if number == "SIGSTOP":
        threading.Timer({PAUSE_SECONDS}, target[part].resume).start()

def third_time():
    global times
    times += 1
    if times == 1:
        find()
    if times == 3:
        strike()

send, ask, start = ServerLink.send, ServerSampler.ask, ServerLink.start
first = []

async def begun(self, post):
    first[:] = first or [self]
    await start(self, post)
    # Weights are on their way: the server waits for the first bucket.
    if moment == "weights" and self is first[0]:
        third_time()

def asked(self, *words, **named):
    if moment == "samples":
        threading.Timer(0.1, third_time).start()
    return ask(self, *words, **named)

ServerLink.start, ServerSampler.ask = begun, asked
if __name__ == "__main__":
    sys.exit(cli.main())
"""


class Watched:
    """A watched run keeps the lines of its standard error, each with the second at which it came."""

    def __init__(self, fault, folder):
        script = folder / "striking.py"
        script.write_text(STRIKING)
        self.output = folder / "run"
        servers = ["rollout=vllm_server", f"rollout.servers.replicas={fault.servers}"]
        words = command("train", *SMALL, *QUIET, *servers, f"output_dir={self.output}")[3:]
        self.process = subprocess.Popen(
            [sys.executable, script, fault.moment, fault.part, fault.number, *words],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.strip()))

    def second_of(self, text):
        """Returns the second at which a line with this text came, or None if none has come."""
        return next((second for second, line in self.lines if text in line), None)

    def wait_until(self, condition):
        """Waits for the condition while the run lives, at most `PATIENCE_SECONDS`. Returns whether it came true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                return condition()
            time.sleep(0.1)
        return True

    @property
    def step(self):
        return max((row["step"] for row in rows(self.output / "metrics.jsonl")), default=0)


def measure(fault, folder):
    run = Watched(fault, folder)
    try:
        if not run.wait_until(lambda: run.second_of(STRUCK)):
            raise RuntimeError("\n".join(line for _, line in run.lines[-20:]))
        struck = run.second_of(STRUCK)
        if fault.returns:
            run.wait_until(lambda: run.second_of("is back"))
        else:
            run.wait_until(lambda: time.monotonic() > struck + 2 * PAUSE_SECONDS)
        reached = run.step
        run.wait_until(lambda: run.step >= reached + STEPS_AFTER)
        run.process.terminate()
        run.process.wait(120)
    finally:
        run.process.kill()

    def seconds_until(text):
        second = run.second_of(text)
        return None if second is None else round(second - struck, 1)

    steps = [row["step"] for row in rows(run.output / "metrics.jsonl")]
    asked = [prompt_id for _, ids in stream(run.output) for prompt_id in ids]
    return {
        "given up after, s": seconds_until("was lost"),
        "back after, s": seconds_until("is back"),
        "exit code": run.process.returncode,
        "steps": len(steps),
        "steps when it was back (or 12 s later) and at the end": [reached, steps[-1] if steps else 0],
        "steps in a row": steps == list(range(1, len(steps) + 1)),
        "prompts asked twice": len(asked) - len(set(asked)),
        "saved": [checkpoint.name for checkpoint in checkpoints_in(run.output / "checkpoints")],
        "said": [line for _, line in run.lines if line.startswith("grpo: ")][-4:],
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "code": json.loads((run.output / CODE_FILE).read_text()),
    }


def main(output, *names):
    path = Path(output)
    done = json.loads(path.read_text()) if path.exists() else {}
    for name in names or FAULTS:
        if name not in done:
            with tempfile.TemporaryDirectory() as folder:
                done[name] = measure(FAULTS[name], Path(folder))
            path.write_text(json.dumps(done, indent=1))
    columns = ("given up after, s", "back after, s", "exit code", "steps", "steps in a row", "prompts asked twice")
    table = Table("signal", *columns)
    for name, row in done.items():
        table.add_row(name, *(str(row[column]) for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
