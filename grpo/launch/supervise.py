"""This module waits for the parts of a launched run and ends them together, whatever ends one of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from grpo.host.output import unread
from grpo.host.signals import EXIT_STOPPED, StopRequest
from grpo.host.why_ended import last_word
from grpo.launch.seats import LEARNER
from grpo.launch.shells import Held

POLL_SECONDS = 0.2


def wait(held: Sequence[Held], stop: StopRequest) -> int:
    """Waits until all learners have ended. Returns the exit code of the run.

    When a learner fails, the others are killed, since they would wait for it. When the last server ends, all learners
    are asked to stop, since they would wait for a server. So are the others when one learner has stopped and saved,
    because someone asked one of its processes. A first request to `stop` is passed on to the learners; a
    second one kills them. At the end a message repeats what ended the run, or which learner could not save.
    """
    learners = [part for part in held if part.seat.role == LEARNER]
    servers = [part for part in held if part.seat.role != LEARNER]
    asked, last_server = 0, None
    while True:
        codes = {part: part.process.poll() for part in held}
        # A launcher whose output nobody reads any more stops as `grpo train` does.
        if (requests := max(stop.count, int(unread()))) > asked:
            asked = requests
            for learner in learners:
                learner.ask_to_stop() if asked == 1 else learner.kill()
        for server in [server for server in servers if codes[server] is not None]:
            servers.remove(server)
            _tell(server)
            if not servers and not asked:
                last_server = server
                for learner in learners:
                    learner.ask_to_stop()
        if not asked and EXIT_STOPPED in [codes[learner] for learner in learners]:
            asked = 1
            for learner in learners:
                learner.ask_to_stop()
        failed = [learner for learner in learners if codes[learner]]
        if failed and not asked and not last_server:
            _tell(failed[0])
            for learner in learners:
                learner.kill()
            return codes[failed[0]]
        if all(codes[learner] is not None for learner in learners):
            if last_server:
                _tell(last_server)
                return codes[last_server] or 1
            unsaved = [learner for learner in learners if codes[learner] not in (0, EXIT_STOPPED)]
            if asked == 1 and unsaved:
                _tell(unsaved[0])
                return codes[unsaved[0]]
            return EXIT_STOPPED if asked else 0
        time.sleep(POLL_SECONDS)


def _tell(ended: Held) -> None:
    """Prints how a seat ended, with the last line of its log."""
    code, why = ended.wait(), last_word(ended.log)
    print(f"grpo: {ended.seat.name} on {ended.seat.machine.name} ended with {code}: {why}", file=sys.stderr)
