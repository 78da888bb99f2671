"""This module writes and compares checksums of the files in a folder. All ranks share the work.

The checksums have the format that `sha256sum --check` reads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grpo.config.folder import CHECKSUMS_FILE
from grpo.interfaces import Collective


def write_checksums(folder: Path, collective: Collective) -> None:
    """Writes the checksums of all files that are in the folder now. Collective.

    Raises OSError when a file cannot be read.
    """
    # The first rank lists the files, since on a network file system other ranks may see new files later.
    paths = sorted(folder.rglob("*")) if collective.rank == 0 else ()
    names = [str(path.relative_to(folder)) for path in paths if path.is_file()]
    own_names = _share(collective.gather(names)[0], collective)
    shares = collective.gather(list(zip(_digests(folder, own_names), own_names, strict=True)))
    if unreadable := [name for share in shares for digest, name in share if not digest]:
        raise OSError(f"{unreadable[0]} was written but cannot be read back")
    if collective.rank == 0:
        with (folder / CHECKSUMS_FILE).open("w", encoding="utf-8") as file:
            file.writelines(f"{digest}  {name}\n" for share in shares for digest, name in share)
            file.flush()
            os.fsync(file.fileno())


def damaged_file(folder: Path, collective: Collective) -> str | None:
    """Returns the name of a file that differs from its checksum or is missing. Collective.

    Returns None when all files are undamaged, or when the folder has no checksums.
    """
    digests = _read(folder / CHECKSUMS_FILE)
    own_names = _share(list(digests), collective)
    wrong = [
        name for digest, name in zip(_digests(folder, own_names), own_names, strict=True) if digest != digests[name]
    ]
    return next((name for share in collective.gather(wrong) for name in share), None)


def _read(file: Path) -> dict[str, str]:
    """Reads digests by file name. A checksum file that is empty or unreadable counts as damaged itself."""
    if not file.exists():
        return {}
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = (line.partition("  ") for line in lines)
    return {name: digest for digest, _, name in pairs} or {file.name: ""}


def _share(names: list[str], collective: Collective) -> list[str]:
    return names[collective.rank :: collective.world_size]


def _digests(folder: Path, names: Iterable[str]) -> list[str]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda name: _digest(folder, name), names))


def _digest(folder: Path, name: str) -> str:
    """Returns the SHA-256 of a file in hexadecimal, or "" if it is no readable file below `folder`."""
    path = folder / name
    try:
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            return ""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
