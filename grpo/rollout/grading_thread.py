"""This module grades groups in a thread of its own, while other groups are still sampled.

The thread waits for a queued group; `GradingThread.grade` and `grade_all` unblock it. A caller waits for the future
that it got there, which the thread completes with the graded group or with the error of grading. With a collective, the
caller then waits for the grades of all other ranks, too.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Self, TypeVar

from grpo.config.errors import GradingFailed, GradingFailedElsewhere, Interrupted, UserError
from grpo.host.signals import LOOK_SECONDS, interruptible, leave_if_urgent
from grpo.host.together import fail_together
from grpo.interfaces import Collective, Draw, Sampler, Task
from grpo.types import RolloutGroup, ScoredGroup

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Graded:
    """This type holds a graded group, and its share of the seconds, by phase, that grading took."""

    scored: ScoredGroup
    seconds: Mapping[str, float]


Queued = SimpleQueue[list[tuple[RolloutGroup, Future[Graded]]] | None]
"""Groups wait here to be graded, each with the future of its graded group. None ends the thread that grades them."""

Waiting = deque[list[tuple[RolloutGroup, Future[Graded]]] | None]
"""These are the same groups once the thread has received them."""

GROUPS_PER_CALL = 64
"""One call grades at most this many groups that were queued one by one. The thread's caller then sees that grading goes
on, and a deadline does not end it."""


class GradingThread:
    """This thread grades groups as they come. Groups that come while it is busy are then graded `GROUPS_PER_CALL` at a
    time.

    `together` tells whether a reward needs all groups that are sampled together, so that no group may be graded before.

    As a context manager, it ends the thread on exit. Otherwise the thread ends when nobody refers to this object.
    """

    def __init__(
        self, task: Task, thread_seconds: Callable[[], Mapping[str, float]] = dict, collective: Collective | None = None
    ):
        """`thread_seconds` gives the calling thread's seconds by phase since the last call. With a `collective`, all
        its ranks fail together, see `sampled_and_graded`."""
        self._task, self.collective = task, collective
        self._groups: Queued = SimpleQueue()
        # The thread is a daemon, so that a run that ends does not wait for grades that nobody will learn from. It must
        # not refer to this object, whose last reference ends it.
        arguments = (task, self._groups, thread_seconds)
        threading.Thread(target=_grade_queued, args=arguments, name="grading", daemon=True).start()
        self._end = weakref.finalize(self, self._groups.put, None)
        # A thread that wakes while Python ends may end the process by SIGABRT (see `group_source.AheadSource`).
        self._end.atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def together(self) -> bool:
        return self._task.grades_together

    def grade(self, group: RolloutGroup) -> Future[Graded]:
        """Queues a group to be graded, and returns a future of the graded group."""
        [graded] = self.grade_all([group])
        return graded

    def grade_all(self, groups: Sequence[RolloutGroup]) -> list[Future[Graded]]:
        """Queues groups to be graded in one call of the task, and returns a future of each graded group."""
        futures: list[Future[Graded]] = [Future() for _ in groups]
        self._groups.put([*zip(groups, futures, strict=True)])
        return futures

    def results(self, graded: Sequence[Future[Graded]]) -> list[ScoredGroup]:
        """Waits for the graded groups and returns them. Raises what grading raised, and `Interrupted`."""
        return [result_in_time(group).scored for group in graded]


def result_in_time(future: Future[Result]) -> Result:
    """Waits for a future's result. Raises `Interrupted` where the run has to save at once."""
    while wait([future], LOOK_SECONDS).not_done:
        leave_if_urgent()
    return future.result()


def _grade_queued(task: Task, groups: Queued, thread_seconds: Callable[[], Mapping[str, float]]) -> None:
    """Grades groups as they are queued, until None is queued."""
    waiting: Waiting = deque()
    while None not in _received(groups, waiting):
        pairs = _for_one_call(waiting)
        try:
            scored_groups = task.grade([group for group, _ in pairs])
        except BaseException as error:
            for _, future in pairs:
                future.set_exception(error)
            continue
        share = {phase: seconds / len(pairs) for phase, seconds in thread_seconds().items()}
        for (_, future), group in zip(pairs, scored_groups, strict=True):
            future.set_result(Graded(group, share))


def _received(groups: Queued, waiting: Waiting) -> Waiting:
    """Adds all that is queued to `waiting`, and returns it. Waits first if there is nothing."""
    while not waiting or not groups.empty():
        waiting.append(groups.get())
    return waiting


def _for_one_call(waiting: Waiting) -> list[tuple[RolloutGroup, Future[Graded]]]:
    """Takes `GROUPS_PER_CALL` groups from `waiting`, or all if there are fewer. Groups that were queued together stay
    together."""
    pairs = waiting.popleft()
    while waiting and len(pairs) + len(waiting[0]) <= GROUPS_PER_CALL:
        pairs = pairs + waiting.popleft()
    return pairs


def sampled_and_graded(
    sampler: Sampler,
    grading: GradingThread,
    draw: Draw,
    whole: Callable[[int, RolloutGroup], RolloutGroup] = lambda place, group: group,
) -> list[ScoredGroup]:
    """Samples as `Sampler.generate` does, and grades each group as soon as it is complete.

    When a reward takes all groups at once, all are graded in one call after the last group is complete. `whole` takes
    the place of a prompt and its sampled group, and returns the group to grade: one that was sampled in two turns has
    the completions of the first turn too, since a reward may compare the completions of a group.

    If the thread has a collective, all its ranks call this together. All then raise `GradingFailed` if grading has
    raised `UserError` on any of them, and `Interrupted` if any of them has to save at once.
    """
    return _results_of_all_ranks(grading, lambda: _begun(sampler, grading, draw, whole))


def _begun(
    sampler: Sampler, grading: GradingThread, draw: Draw, whole: Callable[[int, RolloutGroup], RolloutGroup]
) -> list[Future[Graded]]:
    """Samples, and returns the futures of the graded groups in the order of their prompts."""
    if grading.together:
        sampled = sampler.generate(draw)
        groups = [whole(place, group) for place, group in enumerate(sampled)]
        return grading.grade_all(groups) if groups else []
    futures: dict[int, Future[Graded]] = {}

    def begin(place: int, group: RolloutGroup) -> None:
        futures[place] = grading.grade(whole(place, group))

    groups = sampler.generate(draw, begin)
    return [futures[place] for place in range(len(groups))]


def _results_of_all_ranks(grading: GradingThread, begun: Callable[[], Sequence[Future[Graded]]]) -> list[ScoredGroup]:
    """Returns this rank's graded groups, once all ranks have theirs. Waiting for other ranks does not count as
    grading."""
    if grading.collective is None:
        return grading.results(begun())
    interrupted, failure, scored_groups = False, None, []
    try:
        with interruptible():
            graded = begun()
            try:
                scored_groups = grading.results(graded)
            except UserError as error:
                failure = GradingFailed(str(error))
                failure.__cause__ = error
    except Interrupted:
        interrupted = True
    if grading.collective.maximum(interrupted):
        raise Interrupted
    fail_together(grading.collective, failure, GradingFailedElsewhere)
    return scored_groups
