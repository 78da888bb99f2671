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
    """Exit code after the signal `number`: the first one of a rank that did not end by it, having saved."""
    ended = {_positive(rank.returncode) for rank in STARTED}
    return min(ended - {0, 128 + number, 128 + signal.SIGTERM}, default=128 + number)


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
