"""This module says where modules are found, and imports heavy packages without looking for garbage meanwhile."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def safe_path() -> dict[str, str]:
    """Returns the environment variable with which Python does not look into the working folder first.

    It returns nothing in grpo's own checkout, where grpo may be found only by looking there.
    """
    return {} if Path.cwd() == ROOT else {"PYTHONSAFEPATH": "1"}


def look_here_last() -> None:
    """Lets modules of the working folder be imported, such as the user's rewards.py, after all others.

    A json.py or random.py there must not take the place of Python's own, neither here nor in processes started later.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    for name, value in safe_path().items():
        os.environ.setdefault(name, value)


@contextmanager
def importing() -> Iterator[None]:
    """Holds back Python's search for garbage, which takes a quarter of the time that torch and transformers take.

    What a module makes stays for good. So what is there afterwards is never looked through again, neither by Python nor
    by DeepSpeed and vLLM, which have all of it looked through several times as they start.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
