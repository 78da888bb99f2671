"""This module starts a run's vLLM servers with their imports behind them. `served` of test_servers.py starts one cold.

Usage: python -m tests.forked_servers PYTHON WORDS, which is `grpo WORDS` with servers that PYTHON runs.
"""

import sys
from pathlib import Path

from grpo.host import environment
from tests import warm


def fork_servers(python: str) -> None:
    """Has `python`, which `warm.interpreter` makes, run the program of every server that this process starts."""
    from grpo.rollout.replica import ServerProcess

    init = ServerProcess.__init__

    def made(self, *arguments):
        init(self, *arguments)
        self._command[self._command.index("-W") - 1] = python

    ServerProcess.__init__ = made


def launcher(folder: Path) -> Path:
    """Makes a script that is `grpo`, and whose `grpo serve` forks its servers."""
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
