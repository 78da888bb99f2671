"""A pool of worker processes grades completions, so that a model's text can neither hang nor crash the trainer."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from grpo.config import RewardConfig, UserError
from grpo.tasks.grading_worker import (
    FULL_OF_OURS,
    FULL_OF_OWN,
    LEFT,
    RAISED,
    Failure,
    RawGrade,
    WorkerGroups,
    grade_batch,
    grade_group,
    grade_one,
    start_worker,
)
from grpo.tasks.own_rewards import START_SECONDS, TOGETHER, WANTED, BatchReward, Facts, GroupReward, carried
from grpo.tasks.rewards import REWARDS, build_parts
from grpo.types import Problem

logger = logging.getLogger(__name__)

MARGIN_SECONDS = 60.0
"""Replacing a killed worker takes less than this. When no answer is finished within its time limit plus this margin,
the workers have been suspended from outside (SIGSTOP)."""

FRUITLESS = 32
"""When this many answers in succession have failed or timed out, the reward itself is at fault."""

MAX_BREAKS = 3
"""A worker that dies before it reports which item it took breaks the pool. The unfinished items are then graded again,
at most this many times."""

MAX_EXCERPT = 60

Item = tuple[str, str, Mapping[str, Any]] | tuple[str, str, Mapping[str, Any], Facts]
"""An item to grade is (completion's text, problem's answer, problem's metadata), and the facts of `reward_facts` that
parts want, if any."""

GroupItem = tuple[Sequence[str], Problem, Facts]
"""A group to grade is (its completions' texts, its problem, the facts of `reward_facts` that parts want)."""


_BROKEN = Failure("grading ended its process before it began")


class GraderPool:
    """This pool of worker processes grades answers one by one, each under a wall-clock limit and a memory cap.

    A worker that exceeds its time is killed and replaced, and no other grade is lost. Workers are spawned and
    never forked, since the parent has threads. They are killed with the process that made the pool, so make the
    pool in a thread that lives as long as the process. Each worker imports the program's main module, which must
    therefore be guarded by ``if __name__ == "__main__"``.

    Raises `UserError` for a reward that cannot be built.
    """

    def __init__(self, reward: RewardConfig, answer_name: str = "answer", example: Problem | None = None) -> None:
        """Takes the reward, and the name under which group rewards get a problem's answer.

        `example` is a problem of the data, which must have all columns that group rewards need.
        """
        parts = build_parts(reward, answer_name)
        self._groups = [name for name, part in parts.items() if isinstance(part, TOGETHER)]
        self._batches = [name for name, part in parts.items() if isinstance(part, BatchReward)]
        self._alone = [name for name in parts if name not in (*self._groups, *self._batches)]
        for name, part in parts.items() if example else ():
            if isinstance(part, GroupReward):
                part.require_columns(name, example)
        self.wanted: frozenset[str] = frozenset().union(*(getattr(part, "wanted", ()) for part in parts.values()))
        self._reward, self._answer_name = reward, answer_name
        self._carried = carried(parts)
        self._own = [name for name in parts if name not in REWARDS]
        self._warned: set[str] = set()
        self._fruitless, self._ever_graded, self._has_worked = 0, False, set[Callable[..., Any]]()
        # With pipeline=continuous, one thread may grade what was sampled ahead and another one an evaluation. A thread
        # whose items waited behind the other's would take the workers for stopped.
        self._turn = threading.Lock()
        # The thread that grades may restart the workers while another one closes the pool.
        self._closed, self._changing = False, threading.Lock()
        self._start()

    @property
    def together(self) -> bool:
        """Returns whether a part of the reward takes all groups of a round in one call."""
        return bool(self._batches)

    def grade(self, items: Sequence[Item]) -> list[RawGrade]:
        """Returns one grade per item, in order, by the parts that see one completion at a time.

        An item that kills or blocks its worker loses only its own grade. Raises `UserError` when the reward is at
        fault: it never worked and raised for all of several items, or none of the last `FRUITLESS` got a grade.
        """
        if not self._alone:
            return [RawGrade({})] * len(items)
        zeros = dict.fromkeys(self._alone, 0.0)
        results = self._checked(grade_one, items, self._reward.timeout_seconds)
        return [RawGrade(zeros, result.outcome) if isinstance(result, Failure) else result for result in results]

    def grade_groups(self, groups: Sequence[GroupItem]) -> list[list[RawGrade]]:
        """Returns one grade per completion of each group, by the parts that see whole groups.

        The time limit of a group is `timeout_seconds` for each completion of the largest group. Raises `UserError` as
        `grade` does.
        """
        if not self._groups:
            return [[RawGrade({})] * len(texts) for texts, *_ in groups]
        zeros = dict.fromkeys(self._groups, 0.0)
        largest = max((len(texts) for texts, *_ in groups), default=1)
        results = self._checked(grade_group, groups, self._reward.timeout_seconds * largest)
        return [
            [RawGrade(zeros, result.outcome)] * len(texts) if isinstance(result, Failure) else result
            for (texts, *_), result in zip(groups, results, strict=True)
        ]

    def grade_batch(self, groups: Sequence[GroupItem]) -> list[list[RawGrade]]:
        """Returns one grade per completion of each group, by the parts that see all groups in one call.

        The time limit is `timeout_seconds` for each completion of all groups. Raises `UserError` as `grade` does.
        """
        if not self._batches or not groups:
            return [[RawGrade({})] * len(texts) for texts, *_ in groups]
        zeros = dict.fromkeys(self._batches, 0.0)
        seconds = self._reward.timeout_seconds * sum(len(texts) for texts, *_ in groups)
        [result] = self._checked(grade_batch, [tuple(groups)], seconds)
        if isinstance(result, Failure):
            return [[RawGrade(zeros, result.outcome)] * len(texts) for texts, *_ in groups]
        return result

    def _checked(self, function: Callable[..., Any], items: Sequence[tuple], seconds: float) -> list[Any]:
        """Returns the result or failure of each item. Warns of failures; raises `UserError` for a faulty reward."""
        with self._turn:
            return self._checked_alone(function, items, seconds)

    def _checked_alone(self, function: Callable[..., Any], items: Sequence[tuple], seconds: float) -> list[Any]:
        if not self._pool.active:  # a worker was killed from outside while it was idle
            self._restart()
        results = self._results(function, items, seconds)
        failures = [(item, result) for item, result in zip(items, results, strict=True) if isinstance(result, Failure)]
        if failures:
            self._groups_of_workers.end_left_behind()
            self._judge(failures, len(items), function in self._has_worked)
        if len(failures) < len(items):
            self._fruitless = 0
            self._has_worked |= {function} - {grade_batch}  # A round that is not graded teaches nothing.
        return results

    def _results(self, function: Callable[..., Any], items: Sequence[tuple], seconds: float) -> list[Any]:
        """Returns the result or failure of each item. Workers that no longer report are killed and replaced once.

        An item that found too little memory, or whose worker was killed, is graded once more, by a fresh worker.
        """
        results: dict[int, Any] = {}
        repeated: set[int] = set()
        stalls = breaks = 0
        while True:
            futures = {
                index: self._schedule(function, item, seconds)
                for index, item in enumerate(items)
                if index not in results
            }
            self._wait(futures, items, seconds + MARGIN_SECONDS)
            self._require_open()
            done = {index: self._result(future) for index, future in futures.items() if future.done()}
            last_try = breaks == MAX_BREAKS
            again = {index for index, result in done.items() if isinstance(result, Failure) and result.again} - repeated
            repeated |= again
            results |= {
                index: result
                for index, result in done.items()
                if index not in again and (result is not _BROKEN or last_try)
            }
            if len(results) == len(items):
                return [results[index] for index in range(len(items))]
            if stalled := len(done) < len(futures):
                stalls += 1
                self._tell_of_stall(stalls, len(items) - len(results), len(items))
            elif not again:
                breaks += 1
            if stalled or not again or not self._pool.active:
                self._restart()

    def _schedule(self, function: Callable[..., Any], item: tuple, seconds: float) -> Future[Any]:
        try:
            return self._pool.schedule(function, args=item, timeout=seconds)
        except RuntimeError as error:  # the pool is broken by an earlier item
            future: Future[Any] = Future()
            future.set_exception(BrokenProcessPool(str(error)))
            return future

    def _tell_of_stall(self, stalls: int, num_missing: int, num_items: int) -> None:
        if stalls > 1:
            raise UserError(
                f"grading has stalled twice, with {num_missing} of {num_items} answers not graded: find out what stops "
                "the worker processes, or change task.reward.workers"
            )
        logger.warning(
            "no grading worker has reported for %g s, so they may be suspended; killing and restarting them",
            self._reward.timeout_seconds + MARGIN_SECONDS,
        )

    def _wait(self, futures: Mapping[int, Future[Any]], items: Sequence[tuple], seconds: float) -> None:
        """Waits until all futures are done, or none ended for `seconds`, which is longer than one item can take.

        Raises `UserError` as soon as `FRUITLESS` answers have cost a worker and none was ever graded: a reward that
        hangs would otherwise hang for each answer of the first round.
        """
        waiting = set(futures.values())
        while waiting:
            done, waiting = wait(waiting, timeout=seconds, return_when=FIRST_EXCEPTION)
            if not done:
                return
            self._ever_graded |= any(future.exception() is None for future in done)
            if not self._ever_graded and len(futures) - len(waiting) >= FRUITLESS:
                tried = {index: self._result(future) for index, future in futures.items() if future.done()}
                costly = [(items[index], result) for index, result in tried.items() if result is not _BROKEN]
                if len(costly) >= FRUITLESS:
                    raise self._none_graded(len(costly), *costly[0])

    def close(self) -> None:
        """Stops the workers and waits until they have ended. A thread that still grades gets a `RuntimeError`, once its
        time limit is over."""
        self._closed = True
        with self._changing:
            self._stop()

    def _restart(self) -> None:
        with self._changing:
            self._require_open()
            self._stop()
            self._start()

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("the pool is closed, so it grades nothing more")

    def _stop(self) -> None:
        self._pool.stop()
        self._pool.join()
        self._groups_of_workers.end_left_behind()

    def __enter__(self) -> GraderPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self) -> None:
        from pebble import ProcessPool

        context = multiprocessing.get_context("spawn")
        self._groups_of_workers, obstacles = WorkerGroups(context), context.SimpleQueue()
        self._pool = ProcessPool(
            max_workers=self._reward.workers,
            initializer=start_worker,
            initargs=(
                *(self._reward, self._answer_name, os.getpid(), self._groups_of_workers.born),
                *(self._carried, obstacles),
            ),
            context=context,
        )
        try:
            self._pool.schedule(os.getpid).result(timeout=START_SECONDS)
        except Exception as error:
            self._stop()
            why = "" if obstacles.empty() else obstacles.get()
            fault = why.removeprefix(f"{UserError.__name__}: ")
            if fault != why and MemoryError.__name__ not in why:
                raise UserError(fault) from error
            # Too many open files, for example, are no want of memory.
            by_memory = not isinstance(error, OSError) or bool(why)
            hint = f": is task.reward.memory_gib={self._reward.memory_gib:g} too small for what they import?"
            reason = why or ": ".join(filter(None, (type(error).__name__, str(error))))
            raise UserError(f"the grading workers do not start ({reason}){hint if by_memory else ''}") from error

    def _result(self, future: Future[Any]) -> Any:
        from pebble import ProcessExpired

        try:
            return future.result()
        except TimeoutError:
            limit = f"grading took longer than task.reward.timeout_seconds={self._reward.timeout_seconds:g}"
            return Failure(limit, outcome="timed_out")
        except ProcessExpired as error:
            if error.exitcode in (FULL_OF_OURS, FULL_OF_OWN):
                limit = f"grading needs more memory than task.reward.memory_gib={self._reward.memory_gib:g}"
                return Failure(limit, outcome="failed" if error.exitcode == FULL_OF_OURS else RAISED, again=True)
            # A machine that is short of memory kills a worker, whatever it grades.
            killed = error.exitcode == -signal.SIGKILL
            return Failure(f"grading ended its process ({_end(error.exitcode)})", again=killed)
        except BrokenProcessPool:
            return _BROKEN
        except Exception as error:
            return Failure(f"grading ended in {type(error).__name__}", str(error))

    def _judge(self, failures: Sequence[tuple[tuple, Failure]], num_items: int, has_worked: bool) -> None:
        """Warns once of each kind of failure, with an example. Raises `UserError` when the reward is at fault."""
        item, first = failures[0]
        # Groups are graded as they come, so this may be a single odd problem (see `grpo.rollout.grading_thread`).
        may_be_faulty = not has_worked and (num_items > 1 or not isinstance(item[0], str))
        if may_be_faulty and len(failures) == num_items and all(failure.by_reward for _, failure in failures):
            form = "" if first.within else f" A reward is written as {WANTED}."
            raise UserError(
                f"{first.what} for {f'all {num_items} answers' if num_items > 1 else 'the only answer'}: "
                f"{_example(item, first)}; correct {' or '.join(self._own) or 'task.reward'}.{form}"
            )
        self._fruitless += len(failures)
        if len(failures) == num_items and self._fruitless >= FRUITLESS:
            raise self._none_graded(self._fruitless, item, first)
        self._warn(failures)

    def _none_graded(self, number: int, item: tuple, first: Failure) -> UserError:
        return UserError(
            f"none of the last {number} answers could be graded; {first.what}, for example {_example(item, first)}; "
            f"correct {' or '.join(self._own) or 'task.reward'}."
        )

    def _warn(self, failures: Sequence[tuple[tuple, Failure]]) -> None:
        counts = Counter(failure.what for _, failure in failures)
        for item, failure in failures:
            if failure.what not in self._warned:
                self._warned.add(failure.what)
                logger.warning(
                    "%s for %d answer%s, for example %s; %s", failure.what, counts[failure.what],
                    "s" * (counts[failure.what] > 1), _example(item, failure), failure.consequence,
                )  # fmt: skip


def _example(item: tuple, failure: Failure) -> str:
    text = item[0]
    while not isinstance(text, str):  # of a group or a batch, the first completion
        text = text[0]
    completion = text if len(text) <= MAX_EXCERPT else f"{text[:MAX_EXCERPT]}…"
    return f"{completion!r}" + (f" ({failure.message})" if failure.message else "")


def _end(code: int) -> str:
    """Spells out how a process ended, given its exit code.

    >>> _end(3), _end(-11), _end(LEFT)
    ('exit code 3', 'SIGSEGV', 'exit code 0')
    """
    code = 0 if code == LEFT else code
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
