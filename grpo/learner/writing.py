"""Shards are written so that a rank that cannot write still meets the others.

DeepSpeed's save is collective: a rank that leaves it in the middle has the others wait there for their deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from deepspeed import DeepSpeedEngine

Attempt = Callable[..., None]
"""Calls what it is given with the arguments that it is given, unless something before has failed."""


@contextmanager
def telling() -> Iterator[None]:
    """Makes an OSError of the RuntimeError by which `torch.save` tells, in many ways, of a full disk."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise OSError(f"torch could not write a file to its end: {str(error).splitlines()[0]}") from error


@contextmanager
def to_the_end(engine: DeepSpeedEngine) -> Iterator[Attempt]:
    """Puts off what this rank cannot write: `engine` and those who write by the yielded `Attempt` go on as
    though it were written. What was put off is raised at the end, when nobody waits for this rank any more."""
    failures: list[Exception] = []

    def attempt(write: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        if failures:
            return
        try:
            with telling():
                write(*arguments, **named)
        except Exception as error:
            failures.append(error)

    def attempting(write: Callable[..., Any]) -> Attempt:
        return lambda *arguments, **named: attempt(write, *arguments, **named)

    files = engine.checkpoint_engine
    # Of the instances: what their classes define is found again once these are gone.
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
