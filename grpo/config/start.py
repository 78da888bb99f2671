"""`${start:}` in a configuration stands for the start of a command, such as 2026-11-23_19-02-11-4711.

These are the day, the time and the number of the process. Two runs therefore never share a folder by accident, even if
they begin in the same second. Each `Trainer` of a process has a start of its own, see `begin_anew`. Every rank of a run
has to name the same folder, so `grpo launch` gives all its processes one name in the environment variable `GRPO_START`.
launch/slurm.sh sets it to the number of the job, which stays the same when Slurm starts the job again. Hydra's
`${now:%H}` is another moment in each process, whatever that variable says.
"""

import os
import re
from datetime import datetime
from pathlib import Path

from grpo.config.errors import require

START_VARIABLE = "GRPO_START"
_NAME = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d+(-\d+)?|job-\d+")
_PLAIN = re.compile(r"\w[\w.-]{0,99}")
# The names of this process's starts. The last one is that of what it composes next.
_own_starts: list[str] = []
# This process has put these moments into its configurations.
_own_moments: set[str] = set()


def start() -> str:
    """Returns the name of this command's start, which is that of `GRPO_START` where it is set.

    Raises UserError for a `GRPO_START` that is no plain name of a folder.
    """
    start_name = os.environ.get(START_VARIABLE, "")
    require(
        not start_name or bool(_PLAIN.fullmatch(start_name)),
        f"the environment variable {START_VARIABLE}={start_name[:60]!r} is no plain name: unset it, or give up to 100 "
        "letters, digits, dots, hyphens and underscores, such as job-17",
    )
    if not start_name and not _own_starts:
        begin_anew()
    return start_name or _own_starts[-1]


def begin_anew() -> None:
    """Makes `start` return another name from here on, for the next run of this process."""
    name = f"{datetime.now():%Y-%m-%d_%H-%M-%S}-{os.getpid()}"
    _own_starts.append(f"{name}-{len(_own_starts) + 1}" if name in _own_starts else name)


def moment(form: str) -> str:
    """Returns the present time in this form of strftime, which `${now:form}` stands for."""
    text = datetime.now().strftime(form)
    _own_moments.add(text)
    return text


def of_a_moment(output_dir: str) -> bool:
    """Says whether another process would name this folder differently, since its name holds a moment of this one."""
    return any(text in output_dir for text in _own_moments if text)


def only_here(output_dir: str) -> bool:
    """Says whether another process would name this folder differently, since its name holds this process's start, or a
    moment of it."""
    of_this_start = not os.environ.get(START_VARIABLE) and any(name in output_dir for name in _own_starts)
    return of_this_start or of_a_moment(output_dir)


def named_by_start(folder: Path) -> bool:
    """Says whether a folder's own name is that of a start, as launch/slurm.sh or `${start:}` makes it.

    >>> named_by_start(Path("runs/tiny/2026-11-23_19-02-11-4711")), named_by_start(Path("runs/tiny"))
    (True, False)
    """
    return bool(_NAME.fullmatch(folder.name))


def run_name(folder: Path) -> str:
    """Returns a run's name for people: that of its folder, with its parent's before the name of a start.

    >>> run_name(Path("/data/runs/tiny/2026-11-23_19-02-11-4711"))
    'tiny/2026-11-23_19-02-11-4711'
    >>> run_name(Path("/data/runs/mine"))
    'mine'
    """
    folder = folder.resolve()
    return f"{folder.parent.name}/{folder.name}" if named_by_start(folder) else folder.name
