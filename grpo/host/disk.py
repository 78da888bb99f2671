"""This module writes files whole and never through links. It says how much space a folder takes, and how much is
left."""

import errno
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from grpo.config.errors import UserError, require

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""An OSError has one of these numbers when a disk has no space left, for anyone or for this user, when a file is larger
than it may be (`ulimit -f`), or when the disk is broken. Writing to an open file then names no file."""


def size_of(folder: Path) -> str:
    """Returns the size of all files in a folder in words, e.g. "1.2 GiB"."""
    return in_words(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))


def in_words(num_bytes: int) -> str:
    """Returns a number of bytes in the unit that suits it.

    >>> in_words(1_500), in_words(3 * 2**20), in_words(5 * 2**29)
    ('1 KiB', '3.0 MiB', '2.5 GiB')
    """
    if num_bytes < 2**20:
        return f"{num_bytes / 2**10:.0f} KiB"
    return f"{num_bytes / 2**20:.1f} MiB" if num_bytes < 2**30 else f"{num_bytes / 2**30:.1f} GiB"


def require_folder(folder: Path, key: str = "output_dir=") -> Path:
    """Returns the nearest folder above or at `folder`, which `key` names. Raises `UserError` where a file is in its
    place, and changes nothing."""
    existing = folder.absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    problem = f"{key}{folder} cannot be written to, since {existing} is"
    require(existing.is_dir(), f"{problem} no folder: choose another")
    return existing


def require_writable(folder: Path, key: str = "output_dir=") -> None:
    """Raises `UserError` when a folder, which `key` names, cannot be made or written. Makes a folder where it would be,
    and removes it: for the superuser permissions say nothing, and /proc takes no new folder from anyone."""
    existing = require_folder(folder, key)
    problem = f"{key}{folder} cannot be written to, since {existing} is"
    writable = os.access(existing, os.W_OK | os.X_OK) and not os.statvfs(existing).f_flag & os.ST_RDONLY
    require(writable, f"{problem} read-only here: choose another")
    try:
        Path(tempfile.mkdtemp(prefix=".writable-", dir=existing)).rmdir()
    except OSError as error:
        raise UserError(f"{problem} no place for a new folder ({error.strerror}): choose another") from error


def room(folder: Path) -> str:
    """Says how much space is free on the disk of a folder, which need not exist yet, and how large a file may be where
    this process has a limit."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    limit = f"a file may have at most {largest:,} bytes here (ulimit -f) and " if largest >= 0 else ""
    return f"{limit}{shutil.disk_usage(existing).free / 2**30:.1f} GiB are free"


def remove(path: Path) -> None:
    """Removes a file, a link, or as much of a folder as it can. The target of a link stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def open_own(path: Path, mode: str, **options: Any) -> IO[Any]:
    """Opens a file to write or append to it, as `open` does. Raises `UserError` for a link, which a stranger may have
    put into the folder of a run, and whose file would be overwritten."""
    try:
        return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666), **options)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        refuse_link(path)
        raise


def refuse_link(path: Path) -> None:
    """Raises `UserError` for a link, and for anything else that is no plain file."""
    is_usual = not path.is_symlink() and (path.is_file() or not path.exists())
    what = "a link, and nothing is written through links" if path.is_symlink() else "no plain file"
    require(is_usual, f"{path} is {what}: put the file itself there, or remove it")


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yields another path to write a file to, which takes the place of `path` once it is whole.

    If the body raises, as on a full disk, the file at `path` stays as it was. A kill leaves it too. Where `path` or the
    other path is a link, the link is replaced, and what it leads to stays as it was.
    """
    new = path.with_name(f".new-{path.name}")
    # A kill may have left a file of this name, or a stranger a link, through which the body would write.
    remove(new)
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield new
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str, errors: str = "strict") -> None:
    """Writes a text file anew in UTF-8, or leaves the old one (see `replaced`). `errors` are those of `open`."""
    with replaced(path) as new:
        new.write_text(text, encoding="utf-8", errors=errors)
