"""Groups are graded in a thread of their own, while others are still sampled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

from grpo.interfaces import Sampler, Task
from grpo.types import Prompt, RolloutGroup, ScoredGroup


@dataclass(frozen=True, slots=True)
class Graded:
    """This type holds a graded group, and its share of the seconds, by phase, that grading took."""

    scored: ScoredGroup
    seconds: Mapping[str, float]


class GradingThread:
    """This thread grades groups as they come. Those that came while it was busy are graded together."""

    def __init__(self, task: Task, thread_seconds: Callable[[], Mapping[str, float]] = dict):
        """`thread_seconds` gives the calling thread's seconds by phase since the last call."""
        self._task, self._thread_seconds = task, thread_seconds
        self._groups: SimpleQueue[tuple[RolloutGroup, Future[Graded]]] = SimpleQueue()
        # A daemon: a run that ends does not wait for what nobody will learn from.
        threading.Thread(target=self._run, name="grading", daemon=True).start()

    def grade(self, group: RolloutGroup) -> Future[Graded]:
        """Begins to grade a group, and returns a future of it with its grades."""
        graded: Future[Graded] = Future()
        self._groups.put((group, graded))
        return graded

    def results(self, graded: Sequence[Future[Graded]]) -> list[ScoredGroup]:
        """Waits for groups that are being graded. Raises what grading raised."""
        return [group.result().scored for group in graded]

    def _run(self) -> None:
        while True:
            waiting = [self._groups.get()]
            while not self._groups.empty():
                waiting.append(self._groups.get())
            try:
                scored = self._task.grade([group for group, _ in waiting])
            except BaseException as error:
                for _, graded in waiting:
                    graded.set_exception(error)
                continue
            share = {phase: seconds / len(waiting) for phase, seconds in self._thread_seconds().items()}
            for (_, graded), group in zip(waiting, scored, strict=True):
                graded.set_result(Graded(group, share))


def sampled_and_graded(
    sampler: Sampler,
    grading: GradingThread,
    prompts: Sequence[Prompt],
    group_size: int | Sequence[int],
    first_sample: int = 0,
) -> list[ScoredGroup]:
    """Samples as `Sampler.generate` does, and grades each group as soon as it is whole."""
    begun: dict[int, Future[Graded]] = {}

    def begin(place: int, group: RolloutGroup) -> None:
        begun[place] = grading.grade(group)

    groups = sampler.generate(prompts, group_size, first_sample=first_sample, on_group=begin)
    return grading.results([begun[place] for place in range(len(groups))])
