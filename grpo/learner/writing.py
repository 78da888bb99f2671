"""This module writes shards so that a rank that cannot write still takes part in the collective save.

A rank that left DeepSpeed's save in the middle would keep the others waiting until their deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from deepspeed import DeepSpeedEngine

from grpo.config.errors import first_line

Attempt = Callable[..., None]
"""Calls a function with the given arguments, unless an earlier call has failed."""


@contextmanager
def raising_os_errors() -> Iterator[None]:
    """Turns the RuntimeErrors that `torch.save` raises, with various texts, when a disk is full into an OSError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise OSError(f"torch could not write a file to its end: {first_line(error)}") from error


@contextmanager
def to_the_end(engine: DeepSpeedEngine) -> Iterator[Attempt]:
    """Delays this rank's write errors: `engine`, and callers of the yielded `Attempt`, go on as though the files were
    written. The first error is raised at the end of the context, when no other rank waits for this one any more."""
    failures: list[Exception] = []

    def attempt(write: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        if failures:
            return
        try:
            with raising_os_errors():
                write(*arguments, **named)
        except Exception as error:
            failures.append(error)

    def attempting(write: Callable[..., Any]) -> Attempt:
        return lambda *arguments, **named: attempt(write, *arguments, **named)

    files = engine.checkpoint_engine
    # Only the instances are patched, so that deleting the attributes restores the methods of their classes.
    put_off = [(files, "save"), (files, "makedirs"), (engine, "_copy_recovery_script")]
    for owner, name in put_off:
        setattr(owner, name, attempting(getattr(owner, name)))
    try:
        yield attempt
    finally:
        for owner, name in put_off:
            delattr(owner, name)
    if failures:
        raise failures[0]
