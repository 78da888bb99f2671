"""This program runs `torchrun` without its own tracebacks and logs, since a rank that fails prints its own message.

python -m grpo.launch.torchrun ARGUMENTS OF torchrun

Without --master-addr all ranks are on this machine. They meet at a free port of its loopback interface, where torchrun
itself would listen on every interface, at a port that another program may take before it does.
"""

import logging
import os
import re
import signal
import subprocess
import sys

from torch.distributed import DistNetworkError, TCPStore
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.run import main

from grpo.config.errors import WRONG_USE
from grpo.host.network import LOOPBACK, listen
from grpo.host.signals import EXIT_STOPPED, as_shown

HERE = "loopback"
MEETING_SECONDS = 600
"""Ranks wait this long for each other when they meet."""
STARTED: list[subprocess.Popen] = []
"""These are the ranks that torchrun has started."""


class Rank(subprocess.Popen):
    """A rank is a process that `STARTED` remembers, because a stopped torchrun does not tell its ranks' exit codes."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        STARTED.append(self)


class MeetingHere(StaticTCPRendezvous):
    """The ranks of this machine meet at a port that is open from now on, and on the loopback interface only."""

    def __init__(self, parameters: RendezvousParameters):
        listener = listen(LOOPBACK)
        port = listener.getsockname()[1]
        super().__init__(LOOPBACK, port, 0, 1, parameters.run_id, MEETING_SECONDS)
        self._store = TCPStore(LOOPBACK, port, 1, True, self.timeout, master_listen_fd=listener.detach())

    def get_backend(self) -> str:
        return HERE


def stopped_with(number: int) -> int:
    """Returns the exit code after the signal `number`: that of a rank that could not save, or else that of the ranks
    that saved, or else the signal's own."""
    codes = {rank.poll() or 0 for rank in STARTED}
    # A rank that was ended by the signal itself was still starting. It took the others with it, and there was nothing
    # to save.
    if -number in codes:
        return 128 + number
    otherwise = EXIT_STOPPED if EXIT_STOPPED in codes else 128 + number
    return min({as_shown(code) for code in codes} - {0, EXIT_STOPPED}, default=otherwise)


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


if __name__ == "__main__":
    subprocess_handler.Popen = Rank
    rendezvous_handler_registry.register(HERE, MeetingHere)
    several_machines = any(word.startswith("--master-addr") for word in sys.argv)
    # torchrun warns where the second word is missing.
    meeting = [] if several_machines else [f"--rdzv-backend={HERE}", f"--rdzv-endpoint={LOOPBACK}"]
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(os.environ.get("LOGLEVEL", "CRITICAL"))
    if "--nproc-per-node=1" not in sys.argv:
        # torchrun would set this too, and say so in four lines.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        main([*meeting, *sys.argv[1:]])
    except SignalException as stopped:
        sys.exit(stopped_with(stopped.sigval))
    except ChildFailedError as failed:
        rank, first = failed.get_first_failure()
        if why := why_failed(rank, first.exitcode):
            print(f"grpo: {why}", file=sys.stderr)
        sys.exit(as_shown(first.exitcode))
    except DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        port = re.search(r"port: (\d+)", str(error))[1]
        print(f"grpo: port {port} is taken, perhaps by another run: change hardware.first_port", file=sys.stderr)
        sys.exit(WRONG_USE)
