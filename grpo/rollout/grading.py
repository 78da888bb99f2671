"""Groups are graded in a thread of their own, while others are still sampled."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue

from grpo.interfaces import Sampler, Task
from grpo.types import Prompt, RolloutGroup, ScoredGroup

Scored = Future[ScoredGroup]


class GradingThread:
    """This thread grades groups as they come. Those that came while it was busy are graded together."""

    def __init__(self, task: Task, thread_seconds: Callable[[], Mapping[str, float]] = dict):
        """`thread_seconds` gives the calling thread's seconds by phase since the last call."""
        self._task, self._thread_seconds = task, thread_seconds
        self._groups: SimpleQueue[tuple[RolloutGroup, Scored]] = SimpleQueue()
        self._seconds: Counter[str] = Counter()
        self._lock = threading.Lock()
        # A daemon: a run that ends does not wait for what nobody will learn from.
        threading.Thread(target=self._run, name="grading", daemon=True).start()

    def grade(self, group: RolloutGroup) -> Scored:
        """Begins to grade a group, and returns a future of it with its grades."""
        scored: Scored = Future()
        self._groups.put((group, scored))
        return scored

    def results(self, scored: Sequence[Scored]) -> list[ScoredGroup]:
        """Waits for groups that are being graded. Raises what grading raised."""
        return [group.result() for group in scored]

    def take_seconds(self) -> dict[str, float]:
        """Returns the thread's seconds by phase since the last call."""
        with self._lock:
            seconds, self._seconds = dict(self._seconds), Counter()
        return seconds

    def _run(self) -> None:
        while True:
            waiting = [self._groups.get()]
            while not self._groups.empty():
                waiting.append(self._groups.get())
            try:
                graded = self._task.grade([group for group, _ in waiting])
            except BaseException as error:
                for _, scored in waiting:
                    scored.set_exception(error)
            else:
                for (_, scored), group in zip(waiting, graded, strict=True):
                    scored.set_result(group)
            with self._lock:
                self._seconds.update(self._thread_seconds())


def sampled_and_graded(
    sampler: Sampler,
    grading: GradingThread,
    prompts: Sequence[Prompt],
    group_size: int | Sequence[int],
    first_sample: int = 0,
) -> list[ScoredGroup]:
    """Samples as `Sampler.generate` does, and grades each group as soon as it is whole."""
    begun: dict[int, Scored] = {}

    def begin(place: int, group: RolloutGroup) -> None:
        begun[place] = grading.grade(group)

    groups = sampler.generate(prompts, group_size, first_sample=first_sample, on_group=begin)
    return grading.results([begun[place] for place in range(len(groups))])
