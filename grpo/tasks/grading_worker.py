"""This module is what a grading worker runs: it limits the process, and turns a reward's values into grades.

Processes that a reward has started, such as a program to test, are ended once the worker has ended.
"""

import io
import math
import os
import pickle
import re
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

from grpo.config import RewardConfig
from grpo.config.credentials import TRACKERS
from grpo.config.errors import place_of
from grpo.config.task import LARGEST_REWARD
from grpo.sandbox.walls import end_with_parent, kill_marked
from grpo.tasks.own_rewards import NOTHING, TOGETHER, BatchReward, CompletionReward, Facts, Part
from grpo.tasks.rewards import REWARDS, build_parts
from grpo.tasks.verification import UnparsableAnswer
from grpo.types import Problem
from grpo.types.imported import given

UNPARSABLE = "unparsable"
"""This outcome says that the problem's own answer cannot be read."""
UNANSWERED = "unanswered"
"""This outcome says that a server did not answer, which is not the completion's fault."""
RAISED = "raised"
"""This outcome says that a user's own function raised an exception. It gave no reward then, and not a reward of 0."""
LATE = "late"
"""This outcome says that the group was given up while it was sampled."""
FULL_OF_OURS, FULL_OF_OWN, LEFT = 95, 96, 97
"""A worker ends with the first or the second exit code when a part of ours or a user's function lacks memory, since
what a function has leaked stays. It ends with the third one instead of 0, which pebble takes for no failure."""
_SECRET = re.compile(r"(?i)(key|token|secret|passw(or)?d|credentials?)$")
MAX_MESSAGE = 200
_parts: dict[str, Part] = {}
"""The reward's parts, in a worker process only. `start_worker` sets them."""
MARK = "GRPO_GRADING_WORKER"
"""This environment variable holds the process id of the worker that has started a program."""


@dataclass(frozen=True, slots=True)
class RawGrade:
    """A raw grade holds the value of each reward part, before weights, and the further numbers that parts returned.

    All values are 0 unless `outcome` is ``"graded"``. The other outcomes are ``"timed_out"`` (worker killed),
    ``"failed"`` (an exception of a part of ours, or the worker's end), ``"unparsable"`` (the problem's own answer
    cannot be read), ``"unanswered"`` (a server did not answer), ``"raised"`` (an exception of a user's function) and
    ``"late"`` (its group was given up).
    """

    parts: Mapping[str, float]
    outcome: str = "graded"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure describes, as text, why an answer has no grade. (A user's exception may not survive pickling.)

    `what` says what happened, in the same words for each failure of a kind, so that the kinds can be counted.
    `message` may quote a completion. `by_reward` is False when the worker died, lacked memory or stack, or took too
    long, since that is the answer's fault rather than the reward's. `again` says that the answer may get a grade in
    another process, and `within` that the user's own code raised it, and not its call.
    """

    what: str
    message: str = ""
    by_reward: bool = False
    outcome: str = "failed"
    again: bool = False
    within: bool = False

    @property
    def consequence(self) -> str:
        if self.outcome == RAISED:
            return "nothing is learned from their groups, so let the function return 0 where it means 0"
        return "they get no reward"


def start_worker(
    reward: RewardConfig,
    answer_name: str,
    parent: int,
    born: SimpleQueue[int],
    carried: Mapping[str, bytes],
    obstacles: SimpleQueue[str],
) -> None:
    """Runs first in each worker: limits its memory, ties its life to the trainer's and builds the reward's parts.

    Puts the number of its process group into `born`. `carried` are functions that the trainer's process has pickled.
    Puts into `obstacles` what keeps the worker from starting, and ends it.
    """
    born.put(lead_group())
    _protect(reward)
    # pebble's own SIGTERM handler needs the interpreter, which a long computation in C may never give back.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent)
    # Thread pools reserve address space for every core, which on a large node exceeds the memory cap.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    # A reward that starts Python itself finds modules as usual (see `grpo.host.imports.look_here_last`).
    os.environ.pop("PYTHONSAFEPATH", None)
    unlimited = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = int(reward.memory_gib * 2**30)
    if unlimited != resource.RLIM_INFINITY:
        # `ulimit -v` may be lower.
        limit = min(limit, unlimited)
    resource.setrlimit(resource.RLIMIT_AS, (limit, unlimited))
    try:
        given.update({name: pickle.loads(pickled) for name, pickled in carried.items()})
        _parts.update(build_parts(reward, answer_name, called=True))
    except BaseException as error:
        resource.setrlimit(resource.RLIMIT_AS, (unlimited, unlimited))
        obstacles.put(f"{type(error).__name__}: {error}")
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _protect(reward: RewardConfig) -> None:
    """Keeps secrets out of the worker's environment, control characters out of its prints, and its exit code above 0.

    A user's function may need a key of its own, such as that of a service that it asks. Parts of ours need none.
    """
    own = any(":" in name for name in reward.weights)
    for name in [*os.environ]:
        if name in TRACKERS or (not own and _SECRET.search(name)):
            del os.environ[name]
    sys.stdout, sys.stderr = (_Plain(stream.buffer, "utf-8", "backslashreplace") for stream in (sys.stdout, sys.stderr))
    worker, leave = os.getpid(), os._exit
    # A process that the reward forks may end with 0.
    os._exit = lambda code: leave(code or (LEFT if os.getpid() == worker else 0))


class _Plain(io.TextIOWrapper):
    """This stream writes lines of text with their control characters escaped, since a completion may be printed."""

    def write(self, text: str) -> int:
        plain = "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
        written = super().write(plain)
        self.flush()
        return written


def grade_one(completion: str, answer: str, metadata: Mapping[str, Any], facts: Facts = NOTHING) -> RawGrade | Failure:
    """Grades one completion, in a worker process, by the parts that see one completion at a time."""
    values: dict[str, float] = {}
    for name, part in _parts.items():
        if isinstance(part, (*TOGETHER, BatchReward)):
            continue
        more = (facts,) if isinstance(part, CompletionReward) else ()
        try:
            values |= numbers(name, part(completion, answer, metadata, *more))
        except MemoryError:
            os._exit(FULL_OF_OURS if name in REWARDS else FULL_OF_OWN)
        except RecursionError:
            raise
        except UnparsableAnswer:
            return RawGrade(dict.fromkeys(_parts, 0.0), UNPARSABLE)
        # BaseException includes SystemExit, which would end the trainer if it were passed on.
        except BaseException as error:
            return _raised(name, error)
    return RawGrade(values)


def grade_group(completions: Sequence[str], problem: Problem, facts: Facts = NOTHING) -> list[RawGrade] | Failure:
    """Grades one group, in a worker process, by the parts that see all completions of a group."""
    values: list[dict[str, float]] = [{} for _ in completions]
    for name, part in _parts.items():
        if isinstance(part, TOGETHER):
            try:
                for own, reward in zip(values, part(completions, problem, facts), strict=True):
                    own |= numbers(name, reward)
            except MemoryError:
                os._exit(FULL_OF_OWN)
            except RecursionError:
                raise
            except BaseException as error:
                return _raised(name, error)
    return [*map(RawGrade, values)]


def grade_batch(*groups: tuple[Sequence[str], Problem, Facts]) -> list[list[RawGrade]] | Failure:
    """Grades several groups, in a worker process, by the parts that see all groups at once."""
    values: list[list[dict[str, float]]] = [[{} for _ in texts] for texts, _, _ in groups]
    for name, part in _parts.items():
        if isinstance(part, BatchReward):
            try:
                for of_group, rewards in zip(values, part(groups), strict=True):
                    for own, reward in zip(of_group, rewards, strict=True):
                        own |= numbers(name, reward)
            except MemoryError:
                os._exit(FULL_OF_OWN)
            except RecursionError:
                raise
            except BaseException as error:
                return _raised(name, error)
    return [[*map(RawGrade, of_group)] for of_group in values]


def numbers(name: str, returned: Any) -> dict[str, float]:
    """Converts what a part returned to numbers: its reward under `name`, further numbers under ``"name/key"``.

    A part returns a number, or verl's mapping with the reward under "score". Raises TypeError for anything else, and
    ValueError for a reward that is not finite or lies beyond ±`LARGEST_REWARD`.
    """
    further = returned if isinstance(returned, Mapping) else {}
    if isinstance(returned, Mapping):
        if "score" not in returned:
            raise TypeError(f"it returned a mapping without 'score', but with {', '.join(map(str, returned))}")
        returned = returned["score"]
    if returned is None or isinstance(returned, str | bytes | list | tuple):
        raise TypeError(f"it returned {returned!r:.60}, which is no number")
    value = float(returned)
    if not math.isfinite(value):
        raise ValueError(f"the reward is {value}")
    if abs(value) > LARGEST_REWARD:
        raise ValueError(f"the reward is {value:.3g}, and none may be beyond {LARGEST_REWARD:.0e}")
    logged = {f"{name}/{key}": float(number) for key, number in further.items()
              if key != "score" and isinstance(number, int | float) and math.isfinite(number)}  # fmt: skip
    return {name: value, **logged}


def merged(grades: Sequence[RawGrade]) -> RawGrade:
    """Merges the grades that several parts gave one completion. If one part failed, all values are 0."""
    outcome = next((grade.outcome for grade in grades if grade.outcome != "graded"), "graded")
    parts = {name: value for grade in grades for name, value in grade.parts.items()}
    return RawGrade(parts if outcome == "graded" else dict.fromkeys(parts, 0.0), outcome)


def _raised(name: str, error: BaseException) -> Failure:
    place = place_of(error)
    message = " ".join(str(error).split())[:MAX_MESSAGE] + place
    # A part of ours raises for what the completion says, so that its completion is wrong.
    outcome = "failed" if name in REWARDS else RAISED
    what = f"reward part {name!r} raised {type(error).__name__}"
    return Failure(what, message, by_reward=True, outcome=outcome, within=bool(place))


def lead_group() -> int:
    """Makes this worker the leader of a process group, in which what it starts stays. Returns the group's number.

    A program that leaves the group, as by setsid, is known by an environment variable.
    """
    os.setpgid(0, 0)
    os.environ[MARK] = str(os.getpid())
    return os.getpid()


class WorkerGroups:
    """Remembers the process groups of a pool's workers. Each worker puts the number of its own into `born`."""

    def __init__(self, context: BaseContext):
        self.born = context.SimpleQueue()
        self._groups: set[int] = set()

    def end_left_behind(self) -> None:
        """Kills the processes that ended workers have left behind."""
        while not self.born.empty():
            self._groups.add(self.born.get())
        for group in [group for group in self._groups if _ended(group)]:
            self._groups.discard(group)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
            kill_marked(f"{MARK}={group}")


def _ended(worker: int) -> bool:
    """Tells whether a child process has ended. Returns False when its number has been given to another process."""
    try:
        return os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        # The pool has taken its exit code.
        return not Path(f"/proc/{worker}").exists()
