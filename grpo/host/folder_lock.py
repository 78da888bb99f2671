"""This module locks a run's folder, because two runs in one folder would destroy each other's files.

It uses a record lock of the operating system. The lock ends with the process that holds it, even if that is killed,
and child processes do not inherit it. Programs that only read the folder ignore the lock.
"""

import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from grpo.config.errors import UserError, require
from grpo.config.folder import CONTINUED, FOLDERS, LAUNCHER_FILE, LOCK_FILE
from grpo.host.disk import open_own, refuse_link
from grpo.host.together import on_first
from grpo.interfaces import Collective


@contextmanager
def locked(folder: Path, collective: Collective) -> Iterator[None]:
    """Locks the folder for the duration of the context; the first rank's process holds the lock.

    Called by all ranks together. Raises `UserError` when another run holds the lock.
    """
    file = on_first(collective, lambda: _taken(folder))
    try:
        yield
    finally:
        if file:
            file.close()


def is_locked(folder: Path) -> bool:
    """Says whether a run of another process holds the folder's lock. Needs no right to write there."""
    with suppress(OSError), (folder / LOCK_FILE).open("rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return True
    return False


def refuse_locked(folder: Path) -> None:
    """Raises `UserError` when a run holds the folder's lock."""
    _taken(folder).close()


def _taken(folder: Path) -> TextIO:
    """Takes the lock and returns the open lock file. Raises `UserError` when another process holds it, and when a file
    in which a run goes on, or a folder into which it writes, is a link: the folder may come from a stranger.

    Closing the file releases the lock. So does opening and closing the same file once more in this process.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (LOCK_FILE, *CONTINUED):
            refuse_link(folder / name)
        for inner in (folder / name for name in FOLDERS):
            require(
                not inner.is_symlink(),
                f"{inner} is a link, and nothing is written through links: put the folder itself there, or remove it; "
                f"to write to another disk, name a folder there as output_dir, or make {folder} as a whole a link",
            )
            require(
                inner.is_dir() or not inner.exists(),
                f"{inner} is a file, where a run has a folder: move it away, or choose another output_dir",
            )
        file = open_own(folder / LOCK_FILE, "a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"output_dir={folder} cannot be written to: {error}") from error
    return _with_holder(file, folder, f"process {os.getpid()} on {socket.gethostname()}\n")


@contextmanager
def launching(folder: Path) -> Iterator[None]:
    """Names in a run's folder, for the duration of the context, this process as the one that has launched the run, by
    which `launch/stop.sh` finds it. Raises `UserError` where another one that still lives has done so."""
    path = folder / LAUNCHER_FILE
    with _with_holder(open_own(path, "a+", encoding="utf-8"), folder, f"{os.getpid()} {socket.gethostname()}\n"):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _with_holder(file: TextIO, folder: Path, holder: str) -> TextIO:
    """Locks an open file of a run's folder and writes this process as its `holder` into it. Raises `UserError` when
    another process holds it."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.seek(0)
        other = file.read().strip() or "another process"
        file.close()
        raise UserError(
            f"{folder} is in use by a run that still goes on ({other}): wait until it ends, stop it, or choose "
            "another output_dir"
        ) from None
    except OSError as error:
        print(f"grpo: cannot lock {folder} ({error}), so do not start a second run in it", file=sys.stderr)
    with suppress(OSError):
        file.truncate(0)
        file.write(holder)
        file.flush()
    return file
