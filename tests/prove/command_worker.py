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


def run(command, **_):
    return warm.run(command[1:])


if __name__ == "__main__":
    named = {name: getattr(subprocess, name) for name in ("PIPE", "STDOUT", "TimeoutExpired")}
    with mock.patch.object(own_process, "subprocess", SimpleNamespace(run=run, **named)):
        sys.exit(prove.run(sys.argv[1:]))
