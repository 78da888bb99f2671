"""This module starts a run's vLLM servers by a fork of a process that has imported vLLM, which saves time.

`served` of test_servers.py starts a server without a fork, as a user does.

Usage: python -m tests.forked_servers PYTHON WORDS. This is `grpo WORDS`, with PYTHON as the servers' interpreter.
"""

import subprocess
import sys
from pathlib import Path

from grpo.host import environment
from tests import warm


def fork_servers(python: str) -> None:
    """Makes every server that this process starts run under `python`, an interpreter made by `warm.interpreter`."""
    from grpo.rollout.replica import ServerProcess

    init = ServerProcess.__init__

    def made(self, *arguments):
        init(self, *arguments)
        self._command[self._command.index("-W") - 1] = python

    ServerProcess.__init__ = made


def grpo(folder: Path, *words: str, timeout: float = 500) -> subprocess.CompletedProcess:
    """Runs `grpo WORDS`, which forks its servers. `folder` takes their interpreter."""
    return warm.run(["-m", "tests.forked_servers", warm.interpreter(folder, warm.SERVE), *words], timeout=timeout)


def launcher(folder: Path) -> Path:
    """Writes a script that behaves as `grpo`, except that its `grpo serve` forks its servers. Returns its path."""
    python = folder / "starts-servers"
    forked = f"exec {sys.executable} -m tests.forked_servers {warm.interpreter(folder, warm.SERVE)}"
    serving = f'[ "$1 $2 $3" != "-m grpo.cli serve" ] || {{ shift 2; {forked} "$@"; }}'
    python.write_text(f'#!/bin/sh\n{serving}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    script = folder / "launch.py"
    script.write_text(f"import sys\nfrom grpo import cli\nsys.executable = {str(python)!r}\nsys.exit(cli.main())\n")
    return script


if __name__ == "__main__":
    environment.prepare()
    from grpo import cli

    _, python, *sys.argv[1:] = sys.argv
    fork_servers(python)
    sys.exit(cli.main())
