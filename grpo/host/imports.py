"""This module lets heavy packages be imported without looking for garbage meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
