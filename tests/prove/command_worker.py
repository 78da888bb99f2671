"""This program runs `grpo prove`, and forks the processes that it needs from one with finished imports (see warm.py).

Usage: python -m tests.prove.command_worker WORDS
"""

import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

from grpo.host import environment

environment.prepare()

from grpo.commands import prove
from grpo.prove import own_process
from tests import warm


class Forked:
    """A process that has ended by the time it is made, with its output in the file `stdout`."""

    def __init__(self, command, stdout, **_):
        ended = warm.run(command[1:])
        self.poll = self.wait = self.kill = lambda: ended.returncode
        stdout.write(f"{ended.stdout}{ended.stderr}".encode())


if __name__ == "__main__":
    with mock.patch.object(own_process, "subprocess", SimpleNamespace(Popen=Forked, STDOUT=subprocess.STDOUT)):
        sys.exit(prove.run(sys.argv[1:]))
