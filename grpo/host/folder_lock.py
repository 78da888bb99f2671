"""A lock on a run's folder: two runs in one would destroy each other's files.

It is a record lock of the operating system, which ends with the process that holds it, however that ends, and is not
inherited by the processes that this one starts. What only reads the folder takes no notice of it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from grpo.config.errors import UserError
from grpo.config.folder import LOCK_FILE
from grpo.interfaces import Collective


@contextmanager
def held(folder: Path, collective: Collective) -> Iterator[None]:
    """Holds the folder for the first rank's process. Raises UserError on every rank where another run holds it.
    Collective."""
    file, refusal = None, ""
    if collective.rank == 0:
        try:
            file = _taken(folder)
        except UserError as error:
            refusal = str(error)
    if refusal := collective.gather(refusal)[0]:
        raise UserError(refusal)
    try:
        yield
    finally:
        if file:
            file.close()


def refuse_held(folder: Path) -> None:
    """Raises UserError where a run holds the folder."""
    _taken(folder).close()


def _taken(folder: Path) -> TextIO:
    """The open lock file: whoever closes it, or opens and closes it once more in this process, gives the lock back."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK_FILE).open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"output_dir={folder} cannot be written to: {error}") from error
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise UserError(
            f"{folder} is the folder of a run that still goes on ({holder}): wait for its end, stop it, or choose "
            "another output_dir"
        ) from None
    except OSError as error:
        print(f"grpo: {folder} cannot be locked ({error}): nothing keeps a second run out of it", file=sys.stderr)
    with suppress(OSError):
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
    return file
