"""How the parts of a launched run end together, whatever ends one of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from grpo.host.stop import INTERRUPTED, StopRequest
from grpo.launch.seats import LEARNER
from grpo.launch.shells import Held
from grpo.telemetry.last_word import last_word

POLL_SECONDS = 0.2


def wait(held: Sequence[Held], stop: StopRequest) -> int:
    """Until all learners have ended. Where one fails, the others, which wait for it, are killed; where no server is
    left, all are asked to stop, for they would wait for one. What ended the run is told again at its end, and so is a
    learner that could not save when it was asked to stop."""
    learners = [each for each in held if each.seat.role == LEARNER]
    servers = [each for each in held if each.seat.role != LEARNER]
    asked, last_server = 0, None
    while True:
        codes = {each: each.process.poll() for each in held}
        if stop.count > asked:
            asked = stop.count
            for each in learners:
                each.ask_to_stop() if asked == 1 else each.kill()
        for each in [each for each in servers if codes[each] is not None]:
            servers.remove(each)
            _tell(each)
            if not servers and not asked:
                last_server = each
                for learner in learners:
                    learner.ask_to_stop()
        failed = [each for each in learners if codes[each]]
        if failed and not asked and not last_server:
            _tell(failed[0])
            for each in learners:
                each.kill()
            return codes[failed[0]]
        if all(codes[each] is not None for each in learners):
            if last_server:
                _tell(last_server)
                return codes[last_server] or 1
            unsaved = [each for each in learners if codes[each] not in (0, INTERRUPTED)]
            if asked == 1 and unsaved:
                _tell(unsaved[0])
                return codes[unsaved[0]]
            return INTERRUPTED if asked else 0
        time.sleep(POLL_SECONDS)


def _tell(ended: Held) -> None:
    code, why = ended.wait(), last_word(ended.log)
    print(f"grpo: {ended.seat.name} on {ended.seat.machine.name} ended with {code}: {why}", file=sys.stderr)
