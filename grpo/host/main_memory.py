"""This module reads how much main memory this process may use: that of its machine, or less in a container.

A container, and a job of a batch system such as Slurm, is a control group (cgroup) of processes, often within others.
The kernel ends processes when a group exceeds its limit. psutil knows the machine's memory only.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

CGROUPS = Path("/sys/fs/cgroup")
# Each line of this file has a number, controllers, and the path of this process's group among theirs.
OWN_GROUPS = Path("/proc/self/cgroup")
GIB = 2**30


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of cgroups keeps limit and use in files of these names, in bytes. The pages of files that the kernel
    can drop at need count as used; `droppable` names their sums in the file memory.stat."""

    limit: str
    used: str
    droppable: tuple[str, str]


# https://docs.kernel.org/admin-guide/cgroup-v1/memory.html and https://docs.kernel.org/admin-guide/cgroup-v2.html
FIRST = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
SECOND = _Version("memory.max", "memory.current", ("inactive_file", "active_file"))


def total_gib() -> float:
    """Returns the machine's main memory in GiB, or the smallest limit of this process's groups if that is less."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits())]) / GIB


def free_gib() -> float:
    """Returns how many GiB of main memory this process can still take: those that are free on the machine, or that one
    of its groups leaves if that is less."""
    return min([psutil.virtual_memory().available, *(max(0, limit - used) for limit, used in _limits())]) / GIB


def _limits() -> Iterator[tuple[int, int]]:
    """Yields limit and use, in bytes, of each group of this process that has a limit, the innermost first."""
    version, root, path = _own_group()
    # A container sees its own group as the root, but often by the path that the group has outside.
    for folder in (path, *path.parents):
        with suppress(OSError, ValueError, KeyError):
            limit = (root / folder / version.limit).read_text().strip()
            if limit != "max":
                yield int(limit), _used(root / folder, version)


def _own_group() -> tuple[_Version, Path, PurePosixPath]:
    """Returns the version of cgroups that limits memory, the folder of its groups, and this process's group there."""
    with suppress(OSError):
        groups = {controllers: path for _, controllers, path in
                  (line.split(":", 2) for line in OWN_GROUPS.read_text().splitlines())}  # fmt: skip
        for controllers, path in groups.items():
            if "memory" in controllers.split(","):
                return FIRST, CGROUPS / "memory", PurePosixPath(path.strip("/"))
        return SECOND, CGROUPS, PurePosixPath(groups.get("", "").strip("/"))
    return SECOND, CGROUPS, PurePosixPath()


def _used(group: Path, version: _Version) -> int:
    """Returns the bytes that a group uses and the kernel cannot take back by dropping pages of files."""
    pages = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int((group / version.used).read_text()) - sum(int(pages[name]) for name in version.droppable)
