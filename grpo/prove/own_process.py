"""This module runs measurements in separate processes, whose memory and process groups are gone when they end.

DeepSpeed keeps process groups for good, and PyTorch keeps a GPU's memory, so every kind of learner has its own process.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from grpo.prove.bench import Bench
from grpo.prove.facts import Fact, Report

LAST_CHARACTERS = 3000
# A process may take this many seconds. A part that hangs is then reported before the eight minutes of a part are over.
LONGEST_SECONDS = 450.0
LOOK_SECONDS = 0.1


def exit_code(command: Sequence[str], enough: Callable[[], bool] = lambda: False) -> int:
    """Runs a command for `LONGEST_SECONDS` at most, and returns its exit code, or 124 if it took longer. If the code is
    not 0, the end of the command's output goes to standard error.

    Once `enough` returns True, the command is killed, and the code is 0.
    """
    deadline = time.monotonic() + LONGEST_SECONDS
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while (code := process.poll()) is None:
                late = time.monotonic() > deadline
                if late or enough():
                    # 124 is the exit code of coreutils' `timeout`.
                    code = 124 if late else 0
                    break
                time.sleep(LOOK_SECONDS)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        printed = output.read().decode(errors="replace")
    if code:
        print(printed[-LAST_CHARACTERS:], file=sys.stderr)
    return code


def measured_apart(
    bench: Bench, measures: str, part: str, name: str, words: Sequence[str] = (), num_ranks: int = 1
) -> Report:
    """Runs `measures`, names from `grpo.prove.worker`, in separate processes, one per rank. Returns their report.

    `words` are further overrides of the configuration, and each fact's name gets `name` in front. If the command
    fails, its exit code is a fact of `part` too.
    """
    bench.build()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        module = ["grpo.prove.worker", measures, bench.size_name, str(bench.folder), str(file)]
        # Ranks meet at a port. A single process needs none.
        torchrun = ["grpo.launch.torchrun", f"--nproc-per-node={num_ranks}"]
        launch_words = [*torchrun, "-m", *module] if num_ranks > 1 else module
        command = [sys.executable, "-m", *launch_words, *bench.overrides, *words]
        code = exit_code(command)
        report = Report.of(json.loads(file.read_text())) if file.exists() else Report([])
    if code:
        report = Report([*report.facts, Fact(part, "exit code of its process", code, low=0.0, high=0.0)])
    prefix = f"{name}: " if name else ""
    return replace(report, facts=[replace(fact, what=prefix + fact.what) for fact in report.facts])
