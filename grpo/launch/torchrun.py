"""This program runs `torchrun` without torchrun's own tracebacks, since a rank that fails prints its own message.

python -m grpo.launch.torchrun ARGUMENTS OF torchrun
"""

import signal
import subprocess
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from torch.distributed.run import main

from grpo.host.signals import EXIT_STOPPED

STARTED: list[subprocess.Popen] = []
"""These are the ranks that torchrun has started."""


class Rank(subprocess.Popen):
    """A rank is a process that `STARTED` remembers, because a stopped torchrun does not tell its ranks' exit codes."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        STARTED.append(self)


def stopped_with(number: int) -> int:
    """Returns the exit code after the signal `number`: that of a rank that could not save, or else that of the ranks
    that saved, or else the signal's own."""
    codes = {rank.poll() or 0 for rank in STARTED}
    # A rank that was ended by the signal itself was still starting. It took the others with it, and there was nothing
    # to save.
    if -number in codes:
        return 128 + number
    otherwise = EXIT_STOPPED if EXIT_STOPPED in codes else 128 + number
    return min({_positive(code) for code in codes} - {0, EXIT_STOPPED}, default=otherwise)


def why_failed(rank: int, code: int) -> str:
    """Returns why the first rank that failed has done so, or "" for a rank that has printed its own message.

    >>> why_failed(0, 2), why_failed(3, -11)
    ('', 'rank 3 was ended by SIGSEGV; continue with checkpoint.resume=true')
    """
    if code >= 0:
        return f"rank {rank} has failed, and its traceback in this log says where" if code == 1 else ""
    signal_name = signal.Signals(-code).name
    perhaps = ", perhaps since the machine had no memory left" if -code == signal.SIGKILL else ""
    return f"rank {rank} was ended by {signal_name}{perhaps}; continue with checkpoint.resume=true"


def _positive(code: int) -> int:
    """Returns a process's exit code as a shell shows it: 128 + n for a process that was ended by signal n."""
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    subprocess_handler.Popen = Rank
    try:
        main(sys.argv[1:])
    except SignalException as stopped:
        sys.exit(stopped_with(stopped.sigval))
    except ChildFailedError as failed:
        rank, first = failed.get_first_failure()
        if why := why_failed(rank, first.exitcode):
            print(f"grpo: {why}", file=sys.stderr)
        sys.exit(_positive(first.exitcode))
