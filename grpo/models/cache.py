"""This cache holds directories that are built once per machine and checked each time they are used."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from grpo.config import UserError

MANIFEST = "manifest.json"
DEADLINE_SECONDS = 900.0

_log = logging.getLogger(__name__)
_hashed: set[Path] = set()
"""These are the cache entries whose hashes this process has already compared or written."""


def cache_root() -> Path:
    """Returns the cache's folder: ``$GRPO_CACHE``, else ``$XDG_CACHE_HOME/grpo``, else ``~/.cache/grpo``."""
    if configured := os.environ.get("GRPO_CACHE"):
        return Path(configured).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return (Path(base) / "grpo").expanduser().absolute()
    except RuntimeError:
        raise UserError("this user has no home folder: set HOME, or GRPO_CACHE to a folder for built models") from None


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """Returns the directory `name` under the cache root; `build(directory)` fills it when it is missing or damaged.

    The directory appears complete or not at all. One process builds it while others wait. A manifest holds
    the size and SHA-256 of every file. Sizes are compared at each call, hashes at a process's first call.
    A damaged entry is built again, with one line in the log.

    Raises `UserError` when the cache cannot be written, or another process does not finish building in time.
    """
    from filelock import FileLock, Timeout

    entry = cache_root() / name
    # A whole entry needs no lock, which belongs to whoever built it: several people may share a cache.
    if _damage(entry) is None:
        return entry
    lock_path = entry.with_name(f"{name}.lock")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock_path, timeout=DEADLINE_SECONDS):
            # Another process may have built it meanwhile.
            if (damage := _damage(entry)) is not None:
                if entry.exists():
                    _log.warning("the cache entry %s is damaged (%s): building it again", entry, damage)
                _build(entry, build)
    except Timeout:
        raise UserError(
            f"another process has held the lock {lock_path} for {DEADLINE_SECONDS:.0f} s: end that process, or set "
            "GRPO_CACHE to another directory"
        ) from None
    except OSError as error:
        raise UserError(
            f"cannot write to the cache {entry.parent} ({error.strerror or error}): "
            "set GRPO_CACHE to a writable directory"
        ) from error
    _hashed.add(entry)
    return entry


def _damage(entry: Path) -> str | None:
    """Says in words how an entry differs from its manifest, or returns None. Compares hashes once in a process."""
    damage = find_damage(entry, hashes=entry not in _hashed)
    if damage is None:
        _hashed.add(entry)
    return damage


def _build(entry: Path, build: Callable[[Path], None]) -> None:
    """Builds an entry beside its final place and renames it. Called while the entry's lock is held."""
    # No other process uses this name while we hold the lock, so anything in it is left over from a killed build.
    workplace = entry.with_name(f"{entry.name}.building")
    shutil.rmtree(workplace, ignore_errors=True)
    workplace.mkdir()
    try:
        build(workplace)
        _write_manifest(workplace)
        if entry.exists():
            shutil.rmtree(entry)
        workplace.rename(entry)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def find_damage(entry: Path, hashes: bool) -> str | None:
    """Says in words how a cache entry differs from its manifest, or returns None when it does not.

    Sizes are always compared, contents only with `hashes`.
    """
    try:
        manifest = json.loads((entry / MANIFEST).read_text())
        expected_files = [(name, file["bytes"], file["sha256"]) for name, file in manifest.items()]
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return f"no readable {MANIFEST}"
    for name, num_bytes, digest in expected_files:
        path = entry / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != num_bytes:
            return f"{name} has {path.stat().st_size} bytes instead of {num_bytes}"
        if hashes and sha256(path) != digest:
            return f"{name} has another SHA-256"
    return None


def _write_manifest(directory: Path) -> None:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    manifest = {
        path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files
    }
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    # safetensors gives its files to the owner alone. All get the rights of a usual file, which others may read.
    for path in files:
        shutil.copymode(directory / MANIFEST, path)


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
