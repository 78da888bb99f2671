"""This module reads how much main memory and how many processor cores this process may use: those of its machine, or
less in a container.

A container, and a job of a batch system such as Slurm, is a control group (cgroup) of processes, often within others.
The kernel ends processes when a group exceeds its limit of memory, and halts them for a while when it has used up its
quota of time. psutil knows the machine's memory only.
"""

import math
import os
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


def cores() -> int:
    """Returns how many processor cores this process may use: those that it may run on, or fewer where one of its groups
    has a quota of their time."""
    counts = [len(os.sched_getaffinity(0))]
    is_first, folders = _own_groups("cpu")
    files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first else ("cpu.max",)
    for folder in folders:
        # A group without a quota has -1 or max in its place.
        with suppress(OSError, ValueError):
            quota, period = map(int, " ".join((folder / name).read_text() for name in files).split())
            counts += [math.ceil(quota / period)] if quota > 0 else []
    return min(counts)


def _limits() -> Iterator[tuple[int, int]]:
    """Yields limit and use, in bytes, of each group of this process that has a limit, the innermost first."""
    is_first, folders = _own_groups("memory")
    version = FIRST if is_first else SECOND
    for folder in folders:
        with suppress(OSError, ValueError, KeyError):
            limit = (folder / version.limit).read_text().strip()
            if limit != "max":
                yield int(limit), _used(folder, version)


def _own_groups(controller: str) -> tuple[bool, list[Path]]:
    """Tells whether the first version of cgroups has this controller, and returns the folders of this process's group
    and of those around it, the innermost first."""
    root, own, is_first = CGROUPS, "", False
    with suppress(OSError):
        groups = {controllers: path for _, controllers, path in
                  (line.split(":", 2) for line in OWN_GROUPS.read_text().splitlines())}  # fmt: skip
        own = groups.get("", "")
        for controllers, path in groups.items():
            if controller in controllers.split(","):
                root, own, is_first = CGROUPS / controller, path, True
    # A container sees its own group as the root, but often by the path that the group has outside.
    folder = PurePosixPath(own.strip("/"))
    return is_first, [root / outer for outer in (folder, *folder.parents)]


def _used(group: Path, version: _Version) -> int:
    """Returns the bytes that a group uses and the kernel cannot take back by dropping pages of files."""
    pages = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int((group / version.used).read_text()) - sum(int(pages[name]) for name in version.droppable)
