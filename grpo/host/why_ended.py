"""This module finds in a process's log why the process ended."""

from __future__ import annotations

import re
from pathlib import Path

from grpo.host.terminal import clean

# Room for a message that says how to mend something.
LONGEST = 600
# Lines of `grpo.host.alive` say what a process was doing, and not why it ended.
SIGN_OF_LIFE = re.compile(r"grpo: .* …( \d+ s)?")


def last_word(log: Path, begin: int = 0) -> str:
    """Returns the last line of a log that begins with "grpo: ", or simply the last line if there is none. Signs of life
    do not count, nor what earlier processes wrote before byte `begin`."""
    try:
        with log.open("rb") as file:
            file.seek(begin)
            text = file.read().decode(errors="replace")
    except OSError:
        return f"its log {log} is gone"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    messages = [line for line in lines if line.startswith("grpo: ") and not SIGN_OF_LIFE.fullmatch(line)]
    return clean(re.sub(r"^grpo: ", "", (messages or lines or ["it printed nothing"])[-1]))[:LONGEST]
