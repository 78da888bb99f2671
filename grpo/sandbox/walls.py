"""This module builds the walls of a sandbox: Linux namespaces around it, and limits on each process inside.

`enclose` leaves the machine's files, network, processes and users outside. `confine` forbids one process what it does
not need to compute. Both call the kernel by ctypes, since Python 3.11 has no functions for it.
"""

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

NOBODY = 65534
CLOSED = 0x10000000 | 0x20000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
"""These are the flags of `unshare` for users, mounts, processes, network, shared memory and the host's name."""
MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV, MNT_DETACH = 4096, 16384, 1 << 18, 2, 4, 2
AT_RECURSIVE, ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 0x8000, 1, 2, 4
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache")
"""Shared libraries stand in these folders, and Python opens nothing else of the system."""
DEVICES = ("null", "zero", "random", "urandom")
MOST_THREADS, MOST_FILES = 64, 64
SCRATCH_BYTES = 64 * 2**20

# Name → its numbers on x86_64 and on aarch64, which lacks some.
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
PIVOT_ROOT, CLONE, PRLIMIT = (155, 41), (56, 220), (302, 261)
CLONE3, MOUNT_SETATTR = 435, 442
FORBIDDEN = {
    # They start a process, or a namespace in which a process has rights.
    **{"fork": (57, -1), "vfork": (58, -1), "unshare": (272, 97), "setns": (308, 268)},
    **{"mount": (165, 40), "umount2": (166, 39), "pivot_root": PIVOT_ROOT, "chroot": (161, 51)},
    **{"open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431)},
    **{"fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (MOUNT_SETATTR, MOUNT_SETATTR)},
    # They reach other processes, keys of the session, or other machines.
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271)},
    **{"pidfd_getfd": (438, 438), "kcmp": (312, 272), "process_madvise": (440, 440)},
    **{"keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "socket": (41, 198)},
    # They take memory that no limit counts.
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196)},
    **{"msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180)},
    # They are large parts of the kernel that nothing here needs.
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282)},
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
}
CLONE_THREAD = 0x10000
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    """Calls a function of the C library. Raises OSError with the function's name if it fails."""
    if getattr(_libc, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _system_call(name: str, number: int, *arguments: object) -> None:
    if _libc.syscall(ctypes.c_long(number), *arguments) == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def end_with_parent(parent: int | None = None) -> None:
    """Makes the kernel kill this process when its parent ends. Ends it at once if that is `parent` no more."""
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent not in (None, os.getppid()):
        os._exit(1)


def go_on_with_parents_end() -> None:
    """Makes the kernel continue this process, should it be stopped, when the thread that started it ends."""
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGCONT)


def limit(name: int, most: int) -> None:
    """Limits a resource of this process for good, to less than `most` where such a limit holds already."""
    before = resource.getrlimit(name)[1]
    most = most if before == resource.RLIM_INFINITY else min(most, before)
    resource.setrlimit(name, (most, most))


def end_first() -> None:
    """Makes the kernel end this process, and those that it forks, before others where memory is short."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def adopt_orphans() -> None:
    """Makes this process the parent of all processes below it whose own parent has ended."""
    _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_marked(variable: str) -> None:
    """Kills all processes whose environment holds `variable`, as ``"NAME=VALUE"``. Daemons inherit it too."""
    for environment in Path("/proc").glob("[0-9]*/environ"):
        # Processes end meanwhile, and those of other users cannot be read.
        with suppress(OSError):
            if variable.encode() in environment.read_bytes().split(b"\0"):
                os.kill(int(environment.parent.name), signal.SIGKILL)


# --- around a sandbox ------------------------------------------------------------------------------


def enclose(folders: Sequence[str]) -> None:
    """Goes on in a process that sees of the machine only these folders, and them only to read.

    The process that has called this waits outside until the other has ended. Raises OSError where the kernel refuses.
    """
    architecture = ARCHITECTURES.get(os.uname().machine)
    if architecture is None:
        raise OSError(f"it knows processors of the kinds {' and '.join(ARCHITECTURES)}, and not {os.uname().machine}")
    # The kernel counts no processes of the machine's root, so that somebody else has to run them.
    is_root = os.geteuid() == 0 and _read("/proc/self/uid_map").split()[:2] == ["0", "0"]
    if is_root:
        os.setgroups([])
    _map_users(is_root)
    _mount(folders, PIVOT_ROOT[architecture[0]])
    _call("sethostname", b"sandbox", 7)
    if child := os.fork():
        # The other process alone now has the pipes, so that they end with it.
        os.closerange(0, 3)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
    if is_root:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _call("capset", struct.pack("II", 0x20080522, 0), bytes(24))
    end_with_parent()


def _map_users(is_root: bool) -> None:
    """Makes the namespaces. A process outside says which users they have, and only root may name two."""
    files = {"setgroups": "deny"}
    for name, own_id in (("uid_map", os.geteuid()), ("gid_map", os.getegid())):
        files[name] = "\n".join(f"{number} {number} 1" for number in ((0, NOBODY) if is_root else (own_id,)))
    own, (wait, go) = os.getpid(), os.pipe()
    helper = os.fork()
    if not helper:
        os.close(go)
        code = 1
        if os.read(wait, 1):
            try:
                for name, text in files.items():
                    with open(f"/proc/{own}/{name}", "w") as file:
                        file.write(text)
                code = 0
            except OSError as error:
                code = error.errno or 1
        os._exit(code)
    os.close(wait)
    try:
        _call("unshare", CLOSED)
        os.write(go, b"!")
    finally:
        os.close(go)
        code = os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1])
    if code:
        raise OSError(code, f"uid_map: {os.strerror(code)}")


def _mount(folders: Sequence[str], pivot_root: int) -> None:
    """Puts a new root in place of the machine's: folders that can be read, a few devices, and a scratch folder."""
    # Another user has to pass through the folders that are made here.
    os.umask(0o022)
    _call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    _call("mount", b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, b"size=1m,mode=755")
    os.mkdir("/tmp/old")
    _system_call("pivot_root", pivot_root, b"/tmp", b"/tmp/old")
    os.chdir("/")
    # The scratch folder is first, since Python itself may be installed below /tmp.
    os.mkdir("/tmp")
    options = f"size={SCRATCH_BYTES},nr_inodes=4096,mode=1777".encode()
    _call("mount", b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, options)
    # A folder comes before those inside it, which are there then.
    for name in sorted({*SYSTEM, *folders}):
        if _show(name):
            _protect(name, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, AT_RECURSIVE)
    for name in DEVICES:
        _show(f"/dev/{name}")
    os.symlink("/tmp", "/dev/shm")
    _call("umount2", b"/old", MNT_DETACH)
    os.rmdir("/old")
    _protect("/", ATTR_RDONLY, 0)
    os.chdir("/tmp")


def _show(name: str) -> bool:
    """Shows a file or a folder of the machine under its own name, and tells whether that is a mount of its own now. A
    link, as /lib often is, stays a link."""
    old = f"/old{name}"
    if os.path.lexists(name) or not os.path.lexists(old):
        return False
    os.makedirs(os.path.dirname(name), exist_ok=True)
    if os.path.islink(old):
        os.symlink(os.readlink(old), name)
        return False
    if os.path.isdir(old):
        os.mkdir(name)
    else:
        os.close(os.open(name, os.O_CREAT))
    _call("mount", os.fsencode(old), os.fsencode(name), None, MS_BIND | MS_REC, None)
    return True


def _protect(name: str, attributes: int, flags: int) -> None:
    wanted = struct.pack("QQQQ", attributes, 0, 0, 0)
    _system_call("mount_setattr", MOUNT_SETATTR, -100, os.fsencode(name), flags, wanted, len(wanted))


# --- on each process inside ------------------------------------------------------------------------


def confine(seconds: float, memory: int) -> None:
    """Limits this process for good: processor time, memory, files and threads; it starts no process and has no network.

    Processors whose system calls are unknown have the limits alone.
    """
    end_with_parent()
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: int(seconds) + 1,
        resource.RLIMIT_FSIZE: SCRATCH_BYTES,
        resource.RLIMIT_NOFILE: MOST_FILES,
        resource.RLIMIT_NPROC: MOST_THREADS,
        resource.RLIMIT_CORE: 0,
    }
    for name, most in limits.items():
        limit(name, most)
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.uname().machine in ARCHITECTURES:
        program = ctypes.create_string_buffer(_filter(*ARCHITECTURES[os.uname().machine]))
        pointer = struct.pack("HxxxxxxP", len(program.raw) // 8, ctypes.addressof(program))
        _call("prctl", PR_SET_SECCOMP, 2, pointer, 0, 0)


def _filter(column: int, architecture: int) -> bytes:
    """Returns a program of the kernel's packet filter, which refuses system calls by their numbers."""
    load, equal, at_least, has, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    kill, refuse, unknown, allow = 0x80000000, 0x00050001, 0x00050026, 0x7FFF0000
    lines = [(load, 0, 0, 4), (equal, 1, 0, architecture), (answer, 0, 0, kill), (load, 0, 0, 0)]
    # Numbers from here on are those of another form of the same calls.
    lines += [(at_least, 0, 1, 0x40000000), (answer, 0, 0, kill)]
    for numbers in FORBIDDEN.values():
        if numbers[column] >= 0:
            lines += [(equal, 0, 1, numbers[column]), (answer, 0, 0, refuse)]
    # Libraries try `clone` next, whose flags say whether it makes a thread.
    lines += [(equal, 0, 1, CLONE3), (answer, 0, 0, unknown)]
    lines += [(equal, 0, 3, CLONE[column]), (load, 0, 0, 16), (has, 1, 0, CLONE_THREAD), (answer, 0, 0, refuse)]
    # A program may limit itself alone, whose number is 0, and not the process that tests it.
    lines += [(equal, 0, 3, PRLIMIT[column]), (load, 0, 0, 16), (equal, 1, 0, 0), (answer, 0, 0, refuse)]
    lines += [(answer, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)
