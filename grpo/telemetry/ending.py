"""This module writes into a run's folder how the run ended, and reads it again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from grpo.config.errors import EndedElsewhere, UserError
from grpo.config.folder import END_FILE, LOCK_FILE, METRICS_FILE
from grpo.config.plain_json import read_object
from grpo.host import ranks
from grpo.host.disk import FULL, room, write_whole
from grpo.telemetry.json_lines import read_metrics
from grpo.types.plain import rebuilt

FINISHED, INTERRUPTED, FAILED = "finished", "interrupted", "failed"
# The errors of torch's connections between ranks on CPUs hold one of the first. Those that hold one of the second say
# that the other process has ended. The others come of a rank that hangs, or of a network that fails.
GLOO = ("gloo/transport", "Application timeout caused pair closure")
PEER_ENDED = ("closed by peer", "reset by peer", "Broken pipe")
# A reason is kept up to this many characters.
LONGEST = 500


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
    """Returns how the run ended, or None without a readable end.json: the run goes on, was killed, or is older."""
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
