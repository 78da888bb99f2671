"""Grading in worker processes: what a model wrote is never evaluated, nor waited for, in the trainer's process."""

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
from dataclasses import dataclass
from typing import Any

from grpo.config import RewardConfig, UserError
from grpo.tasks.rewards import RewardPart, build_parts
from grpo.tasks.verification import UnparsableAnswer

logger = logging.getLogger(__name__)

START_SECONDS = 300.0
"""A worker may take this long to start and to import what its parts need."""

MAX_MESSAGE = 200

Item = tuple[str, str, Mapping[str, Any]]
"""(completion's text, problem's answer, problem's metadata)."""


@dataclass(frozen=True, slots=True)
class RawGrade:
    """Value of each reward part, before weights. All are 0 unless `outcome` is ``"graded"``; the others are
    ``"timed_out"`` (worker killed), ``"failed"`` (exception, or not enough memory) and ``"unparsable"`` (the
    problem's own answer cannot be read)."""

    parts: Mapping[str, float]
    outcome: str = "graded"


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception as text (exceptions of foreign code need not survive pickling): what happened, in
    words that repeat, and its message, which may quote a completion. `by_reward` is False when the
    worker died or lacked memory or stack: that is the answer's fault rather than the reward's."""

    what: str
    message: str
    by_reward: bool = True


class GraderPool:
    """Worker processes that grade answers one by one, each under a wall-clock limit and a memory cap.

    A worker that exceeds its time is killed and replaced, with nothing else lost. Workers are spawned,
    never forked (the parent has threads), and are killed with the process that made the pool; make it in
    a thread that lives as long as the process. Each worker imports the program's main module, which must
    therefore be guarded by ``if __name__ == "__main__"``.

    Raises `UserError` for a reward that cannot be built.
    """

    def __init__(self, reward: RewardConfig) -> None:
        build_parts(reward)
        self._reward = reward
        self._failed = RawGrade(dict.fromkeys(reward.weights, 0.0), "failed")
        self._timed_out = RawGrade(dict.fromkeys(reward.weights, 0.0), "timed_out")
        self._warned: set[str] = set()
        self._start()

    def grade(self, items: Sequence[Item]) -> list[RawGrade]:
        """One grade per item, in order. Whatever an item holds, it costs at most its own grade.

        Raises `UserError` when every item failed with an exception: then the reward is at fault.
        """
        if not self._pool.active:  # a worker was killed from outside while it was idle
            self.close()
            self._start()
        seconds = self._reward.timeout_seconds
        futures = [self._pool.schedule(_grade, args=item, timeout=seconds) for item in items]
        waves = math.ceil(len(items) / self._reward.workers)
        if wait(futures, timeout=waves * seconds + START_SECONDS).not_done:
            raise RuntimeError(f"grading {len(items)} answers has stalled: the workers no longer report.")
        results = [self._result(future) for future in futures]
        self._tell_failures(results)
        return [self._failed if isinstance(result, _Raised) else result for result in results]

    def close(self) -> None:
        """Ends the workers."""
        self._pool.stop()
        self._pool.join()

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
                f"grading workers do not start ({type(error).__name__}): see their output above; "
                "is task.reward.memory_gib too small?"
            ) from error

    def _result(self, future: Future[RawGrade | _Raised]) -> RawGrade | _Raised:
        try:
            return future.result()
        except TimeoutError:
            return self._timed_out
        except Exception as error:
            return _Raised(f"grading ended in {type(error).__name__}", str(error), by_reward=False)

    def _tell_failures(self, results: Sequence[RawGrade | _Raised]) -> None:
        raised = [result for result in results if isinstance(result, _Raised)]
        if raised and len(raised) == len(results) and all(each.by_reward for each in raised):
            first = raised[0]
            raise UserError(f"{first.what} for all {len(results)} answers: {first.message}; mend task.reward.")
        counts = Counter(each.what for each in raised)
        messages = {each.what: each.message for each in raised}
        for what in counts.keys() - self._warned:
            self._warned.add(what)
            logger.warning("%s for %d answers, e.g. %s; they count as failed", what, counts[what], messages[what])


_parts: dict[str, RewardPart] = {}
"""Worker process only: the reward's parts, set when it starts."""


def _start_worker(reward: RewardConfig, parent: int) -> None:
    # pebble's own handler waits for the interpreter, which a long computation may not give back.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _die_with(parent)
    # Thread pools reserve address space per core: on a large node, more than the cap.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    limit = int(reward.memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _parts.update(build_parts(reward))


def _die_with(parent: int) -> None:
    """Asks the kernel for SIGKILL at the parent's death (Linux's prctl, option 1: PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _grade(completion: str, answer: str, metadata: Mapping[str, Any]) -> RawGrade | _Raised:
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
        except Exception as error:
            message = " ".join(str(error).split())[:MAX_MESSAGE]
            return _Raised(f"reward part {name!r} raised {type(error).__name__}", message)
        values[name] = value
    return RawGrade(values)
