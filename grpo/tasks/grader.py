"""A pool of worker processes grades completions, so that a model's text can neither hang nor crash the trainer."""

from __future__ import annotations

import ctypes
import logging
import math
import multiprocessing
import os
import resource
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from grpo.config import RewardConfig, UserError
from grpo.tasks.rewards import RewardPart, build_parts
from grpo.tasks.verification import UnparsableAnswer

logger = logging.getLogger(__name__)

START_SECONDS = 300.0
"""A worker may take this long to start and to import what the reward parts need."""

MARGIN_SECONDS = 60.0
"""Replacing a killed worker takes less than this. When no answer is finished within its time limit plus this margin,
the workers have been suspended from outside (SIGSTOP)."""

FRUITLESS = 32
"""When this many answers in succession have failed or timed out, the reward itself is at fault."""

MAX_BREAKS = 3
"""A worker that dies before it reports which item it took breaks the pool. The unfinished items are then graded again,
at most this many times."""

MAX_MESSAGE, MAX_EXCERPT = 200, 60

Item = tuple[str, str, Mapping[str, Any]]
"""An item to grade is (completion's text, problem's answer, problem's metadata)."""


@dataclass(frozen=True, slots=True)
class RawGrade:
    """A raw grade holds the value of each reward part, before weights.

    All values are 0 unless `outcome` is ``"graded"``. The other outcomes are ``"timed_out"`` (worker killed),
    ``"failed"`` (exception, or not enough memory) and ``"unparsable"`` (the problem's own answer cannot be read).
    """

    parts: Mapping[str, float]
    outcome: str = "graded"


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failure describes, as text, why an answer has no grade. (A user's exception may not survive pickling.)

    `what` says what happened, in the same words for each failure of a kind, so that the kinds can be counted.
    `message` may quote a completion. `by_reward` is False when the worker died, lacked memory or stack, or took too
    long, since that is the answer's fault rather than the reward's.
    """

    what: str
    message: str = ""
    by_reward: bool = False
    outcome: str = "failed"


_BROKEN = _Failure("grading ended its process before it began")


class GraderPool:
    """This pool of worker processes grades answers one by one, each under a wall-clock limit and a memory cap.

    A worker that exceeds its time is killed and replaced, and no other grade is lost. Workers are spawned and
    never forked, since the parent has threads. They are killed with the process that made the pool, so make it in
    a thread that lives as long as the process. Each worker imports the program's main module, which must
    therefore be guarded by ``if __name__ == "__main__"``.

    Raises `UserError` for a reward that cannot be built.
    """

    def __init__(self, reward: RewardConfig) -> None:
        build_parts(reward)
        self._reward = reward
        self._warned: set[str] = set()
        self._fruitless = 0
        self._start()

    def grade(self, items: Sequence[Item]) -> list[RawGrade]:
        """Returns one grade per item, in order. An item that kills or blocks its worker loses only its own grade.

        Raises `UserError` when the reward is at fault: every item failed with an exception, or none of the last
        `FRUITLESS` answers got a grade.
        """
        if not self._pool.active:  # a worker was killed from outside while it was idle
            self._restart()
        results = self._results(items)
        failures = [(item, result) for item, result in zip(items, results, strict=True) if isinstance(result, _Failure)]
        if failures:
            self._judge(failures, len(items))
        if len(failures) < len(items):
            self._fruitless = 0
        nothing = dict.fromkeys(self._reward.weights, 0.0)
        return [RawGrade(nothing, result.outcome) if isinstance(result, _Failure) else result for result in results]

    def _results(self, items: Sequence[Item]) -> list[RawGrade | _Failure]:
        """Returns the grade or failure of each item. Workers that no longer report are killed and replaced once."""
        results: dict[int, RawGrade | _Failure] = {}
        stalls = breaks = 0
        while True:
            futures = {index: self._schedule(item) for index, item in enumerate(items) if index not in results}
            self._wait(list(futures.values()))
            done = {index: self._result(future) for index, future in futures.items() if future.done()}
            last_try = breaks == MAX_BREAKS
            results |= {index: result for index, result in done.items() if result is not _BROKEN or last_try}
            if len(results) == len(items):
                return [results[index] for index in range(len(items))]
            if len(done) == len(futures):
                breaks += 1
            else:
                stalls += 1
                self._tell_of_stall(stalls, len(items) - len(results), len(items))
            self._restart()

    def _schedule(self, item: Item) -> Future[RawGrade | _Failure]:
        try:
            return self._pool.schedule(_grade, args=item, timeout=self._reward.timeout_seconds)
        except RuntimeError as error:  # the pool is broken by an earlier item
            future: Future[RawGrade | _Failure] = Future()
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

    def _wait(self, futures: Sequence[Future[RawGrade | _Failure]]) -> None:
        """Returns when all futures are done, or when none was done for longer than one answer can take."""
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, timeout=self._reward.timeout_seconds + MARGIN_SECONDS)
            if not done:
                return

    def close(self) -> None:
        """Stops the workers and waits until they have ended."""
        self._pool.stop()
        self._pool.join()

    def _restart(self) -> None:
        self.close()
        self._start()

    def __enter__(self) -> GraderPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self) -> None:
        from pebble import ProcessPool

        self._pool = ProcessPool(
            max_workers=self._reward.workers,
            initializer=_start_worker,
            initargs=(self._reward, os.getpid()),
            context=multiprocessing.get_context("spawn"),
        )
        try:
            self._pool.schedule(os.getpid).result(timeout=START_SECONDS)
        except Exception as error:
            self.close()
            raise UserError(
                f"the grading workers do not start ({type(error).__name__}): see their output above; "
                "is task.reward.memory_gib too small?"
            ) from error

    def _result(self, future: Future[RawGrade | _Failure]) -> RawGrade | _Failure:
        from pebble import ProcessExpired

        try:
            return future.result()
        except TimeoutError:
            limit = f"grading took longer than task.reward.timeout_seconds={self._reward.timeout_seconds:g}"
            return _Failure(limit, outcome="timed_out")
        except ProcessExpired as error:
            return _Failure(f"grading ended its process ({_end(error.exitcode)})")
        except BrokenProcessPool:
            return _BROKEN
        except Exception as error:
            return _Failure(f"grading ended in {type(error).__name__}", str(error))

    def _judge(self, failures: Sequence[tuple[Item, _Failure]], num_items: int) -> None:
        """Warns once of each kind of failure, with an example. Raises `UserError` when the reward is at fault."""
        item, first = failures[0]
        if len(failures) == num_items and all(failure.by_reward for _, failure in failures):
            raise UserError(f"{first.what} for all {num_items} answers: {_example(item, first)}; correct task.reward.")
        self._fruitless += len(failures)
        if len(failures) == num_items and self._fruitless >= FRUITLESS:
            raise UserError(
                f"none of the last {self._fruitless} answers could be graded; {first.what}, for example "
                f"{_example(item, first)}; correct task.reward."
            )
        counts = Counter(failure.what for _, failure in failures)
        for item, failure in failures:
            if failure.what not in self._warned:
                self._warned.add(failure.what)
                logger.warning(
                    "%s for %d answers, for example %s; they get no reward",
                    failure.what, counts[failure.what], _example(item, failure),
                )  # fmt: skip


def _example(item: Item, failure: _Failure) -> str:
    completion = item[0] if len(item[0]) <= MAX_EXCERPT else f"{item[0][:MAX_EXCERPT]}…"
    return f"{completion!r}" + (f" ({failure.message})" if failure.message else "")


def _end(code: int) -> str:
    """Spells out how a process ended, given its exit code.

    >>> _end(3), _end(-11)
    ('exit code 3', 'SIGSEGV')
    """
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


_parts: dict[str, RewardPart] = {}
"""The reward's parts, in a worker process only. `_start_worker` sets them."""


def _start_worker(reward: RewardConfig, parent: int) -> None:
    """Runs first in each worker: limits its memory, ties its life to the trainer's and builds the reward's parts."""
    # pebble's own SIGTERM handler needs the interpreter, which a long computation in C may never give back.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _die_with(parent)
    # Thread pools reserve address space for every core, which on a large node exceeds the memory cap.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    limit = int(reward.memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _parts.update(build_parts(reward))


def _die_with(parent: int) -> None:
    """Asks the kernel to send SIGKILL when the parent dies (Linux's prctl, option 1: PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _grade(completion: str, answer: str, metadata: Mapping[str, Any]) -> RawGrade | _Failure:
    """Grades one answer in a worker process."""
    values = {}
    for name, part in _parts.items():
        try:
            value = float(part(completion, answer, metadata))
            if not math.isfinite(value):
                raise ValueError(f"the reward is {value}")
        except (MemoryError, RecursionError):
            raise
        except UnparsableAnswer:
            return RawGrade(dict.fromkeys(_parts, 0.0), "unparsable")
        # BaseException includes SystemExit, which would end the trainer if it were passed on.
        except BaseException as error:
            message = " ".join(str(error).split())[:MAX_MESSAGE]
            return _Failure(f"reward part {name!r} raised {type(error).__name__}", message, by_reward=True)
        values[name] = value
    return RawGrade(values)
