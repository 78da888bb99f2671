"""Why a process ended, in its own words."""

from __future__ import annotations

import re
from pathlib import Path

from grpo.host.terminal import clean

LONGEST = 200


def last_word(log: Path) -> str:
    """Of a log: what it says of itself (its last line that begins with "grpo: "), or its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("grpo: ")]
    return clean(re.sub(r"^grpo: ", "", (own or lines or ["it printed nothing"])[-1]))[:LONGEST]
