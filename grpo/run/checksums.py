"""This module writes and compares checksums of the files in a folder. All ranks share the work.

The checksums have the format that `sha256sum --check` reads. The last line seals them: it holds the number of files and
the checksum of the lines above it, so that a list that was cut or changed is noticed too.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grpo.config.errors import UserError, require
from grpo.config.folder import CHECKSUMS_FILE
from grpo.host.together import from_first
from grpo.interfaces import Collective
from grpo.models.cache import sha256

# A line that begins with # is a comment for `sha256sum --check`.
_SEAL = "# {count} files; SHA-256 of the lines above: {digest}"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


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
        lines = [f"{digest}  {name}" for share in shares for digest, name in share]
        with (folder / CHECKSUMS_FILE).open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in [*lines, _seal(lines)])
            file.flush()
            os.fsync(file.fileno())


def compare_checksums(folder: Path, needs_one: Callable[[str], bool], collective: Collective) -> None:
    """Compares the files of a folder with their checksums. Collective.

    Raises UserError when a file is missing or differs, when the list of checksums itself is missing or was changed, and
    when it lacks a file of which `needs_one(name)` holds.
    """
    # The first rank decides for all, since a network file system may show different contents to different ranks.
    listed = from_first(collective, lambda: _listed(folder, needs_one))
    own_names = _share(list(listed), collective)
    digests = zip(own_names, _digests(folder, own_names), strict=True)
    wrong = [name for name, digest in digests if digest != listed[name]]
    for name in (name for share in collective.gather(wrong) for name in share):
        raise UserError(f"{folder / name} is damaged: it differs from what was saved")


def _listed(folder: Path, needs_one: Callable[[str], bool]) -> Mapping[str, str]:
    """Returns the checksums that are listed, by name. Raises UserError where the list was changed or lacks a file."""
    require(
        os.path.lexists(folder / CHECKSUMS_FILE),
        f"{folder} has lost {CHECKSUMS_FILE}, so nothing proves that it is whole",
    )
    digests = _read(folder / CHECKSUMS_FILE)
    _require_listed(folder, digests, needs_one)
    return digests


def _read(file: Path) -> Mapping[str, str]:
    """Reads a list of checksums. Raises UserError when it is not as it was written."""
    damaged = f"{file} is damaged: it differs from what was saved"
    require(file.is_file(), damaged)
    try:
        *lines, last = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(damaged) from error
    matches = [_LINE.fullmatch(line) for line in lines]
    require(all(matches) and last == _seal(lines), damaged)
    return {match[2]: match[1] for match in matches if match}


def _require_listed(folder: Path, digests: Mapping[str, str], needs_one: Callable[[str], bool]) -> None:
    """Raises UserError for a file, or a link, of a folder that needs a checksum and has none."""
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        require(
            name in digests or not needs_one(name) or (path.is_dir() and not path.is_symlink()),
            f"{path} has no checksum in {CHECKSUMS_FILE}, so one of the two was changed after the checkpoint was saved",
        )


def _seal(lines: list[str]) -> str:
    digest = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    return _SEAL.format(count=len(lines), digest=digest)


def _share(names: list[str], collective: Collective) -> list[str]:
    return names[collective.rank :: collective.world_size]


def _digests(folder: Path, names: Iterable[str]) -> list[str]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda name: _digest(folder, name), names))


def _digest(folder: Path, name: str) -> str:
    """Returns the SHA-256 of a file in hexadecimal, or "" if it is no readable file below `folder`."""
    path = folder / name
    try:
        inside = path.resolve().is_relative_to(folder.resolve()) and path.is_file()
        return sha256(path) if inside else ""
    except (OSError, ValueError, RuntimeError):  # the last one is Python's for a link to itself
        return ""
