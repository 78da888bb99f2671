"""This module finds in a process's log why the process ended."""

from __future__ import annotations

import re
from pathlib import Path

from grpo.host.terminal import clean

LONGEST = 200


def last_word(log: Path) -> str:
    """Returns the last line of a log that begins with "grpo: ", or simply the last line if there is none."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    messages = [line for line in lines if line.startswith("grpo: ")]
    return clean(re.sub(r"^grpo: ", "", (messages or lines or ["it printed nothing"])[-1]))[:LONGEST]
