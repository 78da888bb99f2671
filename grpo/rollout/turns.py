"""This module queues the turns that episodes want from an engine in this process, while the engine samples others."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from grpo.config import SamplingConfig
from grpo.host.signals import LOOK_SECONDS, leave_if_urgent
from grpo.types import Completion, Prompt


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn is one completion of a conversation so far, which is the prompt. `sample` is the episode's number in its
    group."""

    prompt: Prompt
    sample: int
    sampling: SamplingConfig
    completion: Future[Completion] = field(default_factory=Future)


class Turns:
    """This queue passes turns to the thread that runs the engine. That thread also makes the calls that are put in.

    An engine waits in `take` until a turn or a call comes, and a turn's future waits until the engine has sampled it.
    `close` ends the engine's loop.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Turn | Callable[[], None] | None] = SimpleQueue()
        self._closed = False

    def put(self, item: Turn | Callable[[], None]) -> None:
        self._queue.put(item)

    def close(self) -> None:
        self._queue.put(None)

    def take(self, wait: bool) -> list[Turn] | None:
        """Returns the turns that have come and that somebody still waits for, or None once the queue is closed and
        empty. With `wait` it waits until there is something, or raises `Interrupted` where the run has to save at once.
        """
        turns: list[Turn] = []
        while not self._closed and (not self._queue.empty() or (wait and not turns)):
            try:
                item = self._queue.get(timeout=LOOK_SECONDS)
            except Empty:
                leave_if_urgent()
                continue
            if item is None:
                self._closed = True
            elif isinstance(item, Turn):
                # An episode may have ended meanwhile. From here on its turn cannot be cancelled.
                turns += [item] if item.completion.set_running_or_notify_cancel() else []
            else:
                item()
        return None if self._closed and not turns else turns
