"""This module waits for the parts of a launched run and ends them together, whatever ends one of them."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from grpo.config.errors import WRONG_USE
from grpo.host.alive import last_word
from grpo.host.output import unread
from grpo.host.signals import EXIT_STOPPED, StopRequest
from grpo.launch.seats import LEARNER, Seat

POLL_SECONDS = 0.2
LOST = 255
"""This is the exit code of a part whose machine is lost, as it is ssh's."""


class Part(Protocol):
    """A part of a run is a seat that runs, here or on another machine: a `RunningSeat` or a `FarSeat`."""

    seat: Seat
    log: Path
    begin: int
    num_asked: int
    """The machine of the part has been asked so often to stop."""

    def poll(self) -> int | None: ...

    def ask_to_stop(self) -> None: ...

    def hurry(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...

    def wait(self) -> int: ...


def wait(running: Sequence[Part], stop: StopRequest) -> int:
    """Waits until all learners have ended. Returns the exit code of the run.

    When a learner fails, the others are killed, since they would wait for it. When the last server ends, all learners
    are asked to stop, since they would wait for a server. So are the others when one learner has stopped and saved,
    because someone asked one of its processes. A first request to `stop` is passed on to the learners, a second one
    hurries them, and a third one kills them. At the end a message repeats what ended the run, or which learner could
    not save.
    """
    learners = [part for part in running if part.seat.role == LEARNER]
    servers = [part for part in running if part.seat.role != LEARNER]
    num_requests, last_server = 0, None
    while True:
        codes = {part: part.poll() for part in running}
        # A launcher whose output nobody reads any more stops as `grpo train` does.
        if (requests := max(stop.count, int(unread()), *(part.num_asked for part in running))) > num_requests:
            num_requests = requests
            for learner in learners:
                ask(learner, num_requests)
        for server in [server for server in servers if codes[server] is not None]:
            servers.remove(server)
            _tell(server)
            if not servers and not num_requests and None in [codes[learner] for learner in learners]:
                last_server = server
                for learner in learners:
                    learner.ask_to_stop()
        if not num_requests and EXIT_STOPPED in [codes[learner] for learner in learners]:
            num_requests = 1
            for learner in learners:
                learner.ask_to_stop()
        failed_learners = [learner for learner in learners if codes[learner]]
        if failed_learners and not num_requests and not last_server:
            _tell(failed_learners[0])
            for learner in learners:
                learner.kill()
            return codes[failed_learners[0]]
        if all(codes[learner] is not None for learner in learners):
            if last_server:
                _tell(last_server)
                return codes[last_server] or 1
            unsaved_learners = [learner for learner in learners if codes[learner] not in (0, EXIT_STOPPED)]
            if num_requests in (1, 2) and unsaved_learners:
                _tell(unsaved_learners[0])
                return codes[unsaved_learners[0]]
            return EXIT_STOPPED if num_requests else 0
        time.sleep(POLL_SECONDS)


def ask(part: Part, number: int) -> None:
    """Passes on a request to stop by its number, from 1 on: to save, to save before the round's end, to end at once."""
    (part.ask_to_stop, part.hurry, part.kill)[min(number, 3) - 1]()


def _tell(ended: Part) -> None:
    """Prints how a seat ended, with the last line of its log. A line that says what to correct comes first."""
    code, why = ended.wait(), last_word(ended.log, ended.begin)
    if code == LOST:
        why = "its machine, or the connection to it, is gone"
    elif ended.seat.role != LEARNER and not code:
        why = "it was ended there"
    where = f"{ended.seat.name} on {ended.seat.machine.name} ended with {code}"
    print(f"grpo: {why} ({where})" if code == WRONG_USE else f"grpo: {where}: {why}", file=sys.stderr)
