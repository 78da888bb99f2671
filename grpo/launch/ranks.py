"""`torchrun` without tracebacks of its own: its ranks have said what there is to say.

python -m grpo.launch.ranks ARGUMENTS OF torchrun
"""

import signal
import subprocess
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from torch.distributed.run import main

STARTED: list[subprocess.Popen] = []


class Rank(subprocess.Popen):
    """A process that is remembered: torchrun that was asked to stop keeps its ranks' exit codes to itself."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        STARTED.append(self)


def stopped_with(number: int) -> int:
    """Exit code after the signal `number`: that of a rank which could not save, or the signal's own."""
    codes = {rank.poll() or 0 for rank in STARTED}
    # A rank that the signal itself has ended was still starting, and took the others with it: nothing was to be saved.
    if -number in codes:
        return 128 + number
    return min({_positive(code) for code in codes} - {0, 128 + signal.SIGTERM}, default=128 + number)


def _positive(code: int) -> int:
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
