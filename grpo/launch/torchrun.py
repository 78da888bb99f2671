"""This program runs `torchrun` without torchrun's own tracebacks, since a rank that fails prints its own message.

python -m grpo.launch.torchrun ARGUMENTS OF torchrun
"""

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
    """Returns the exit code after the signal `number`: that of a rank that could not save, or else the signal's own."""
    codes = {rank.poll() or 0 for rank in STARTED}
    # A rank that was ended by the signal itself was still starting. It took the others with it, and there was nothing
    # to save.
    if -number in codes:
        return 128 + number
    return min({_positive(code) for code in codes} - {0, EXIT_STOPPED}, default=128 + number)


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
        _, first = failed.get_first_failure()
        sys.exit(_positive(first.exitcode))
