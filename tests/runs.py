"""This module starts whole runs of `grpo` in a forked process whose imports are done already (see warm.py)."""

import subprocess

from tests import warm


def grpo(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess:
    return warm.run(["-m", "grpo.cli", *arguments], timeout=timeout)


def start(*arguments: str) -> warm.Process:
    return warm.Process(["-m", "grpo.cli", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
