"""This module writes and finds a run's checkpoints. It keeps the last few and the best one.

`checkpoints/step-00000120/` holds the learner's shards, one RNG state per rank, `state.json` and the checksums of all
of them. A checkpoint is written under another name and renamed once it is complete, so that an interrupted write is
never taken for a checkpoint. Damage that happens later is found by the checksums before anything is loaded.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from grpo.config.errors import UserError, first_line, require
from grpo.config.folder import (
    LAYOUT_FILE,
    REFERENCE_FILE,
    STATE_FILE,
    checkpoints_in,
    is_random_state,
    random_state_name,
    step_name,
    step_of,
)
from grpo.config.saved import read_score, read_state
from grpo.host.disk import remove, room
from grpo.host.together import fail_together, on_all
from grpo.interfaces import Collective
from grpo.learner.collective import TorchCollective
from grpo.learner.resharding import SHARDS, only_plain_data, raising_os_errors
from grpo.run.checksums import compare_checksums, write_checksums
from grpo.types import Progress
from grpo.types.plain import rebuilt

Check = Callable[[Path], object]
"""This function raises UserError for a checkpoint that it finds at fault."""


class CheckpointStore:
    """The store manages the checkpoints below one directory. `save`, `whole` and `restore_rng` are collective."""

    def __init__(self, directory: str | Path, keep_last: int, collective: Collective, keep_every: int = 0):
        """Keeps the newest `keep_last` checkpoints, and those of every `keep_every`-th round unless that is 0."""
        self._directory = Path(directory)
        self._keep_last, self._keep_every = keep_last, keep_every
        self._collective = collective

    def save(
        self,
        step: int,
        write: Callable[[str], None],
        state: Mapping[str, Any],
        score: float | None = None,
        good_step: int = -1,
        scores: Mapping[int, float] | None = None,
    ) -> Path:
        """Saves a checkpoint of `step`: whatever `write(folder)` writes, and `state` as JSON. Returns its folder.

        With a `score` (held-out pass rate) the checkpoint may be kept as the best one. Where `scores` has some, by
        steps, they count in place of those that checkpoints were saved with. The newest checkpoint that is not later
        than `good_step` is kept too; −1 keeps none. Raises UserError when the checkpoint cannot be written; earlier
        checkpoints stay.
        """
        final = self._directory / step_name(step)
        writing = self._directory / f".writing-{step:08d}"
        first = self._collective.rank == 0

        def begin() -> None:
            if first:
                self._sweep(".writing-*")
                writing.mkdir(parents=True)

        def fill() -> None:
            write(str(writing))
            with raising_os_errors():
                torch.save(torch.get_rng_state(), writing / random_state_name(self._collective.rank))
            if first:
                _write_json(writing / STATE_FILE, {**state, "score": score})

        def finish() -> None:
            if first:
                self._set_aside(final)
                os.rename(writing, final)
                self._prune(step, good_step, scores or {})

        try:
            for part in (begin, fill, lambda: write_checksums(writing, self._collective), finish):
                fail_together(self._collective, self._failure_of(part, step))
        except UserError:
            shutil.rmtree(writing, ignore_errors=True)
            raise
        return final

    def latest(self, up_to: float = float("inf")) -> Path | None:
        """Returns the newest checkpoint of a step up to `up_to`, damaged or not, or None if there is none."""
        checkpoints = [path for path in checkpoints_in(self._directory) if step_of(path) <= up_to]
        return checkpoints[-1] if checkpoints else None

    def whole(self, up_to: float = float("inf"), check: Check = read_state) -> Path | None:
        """Returns the newest undamaged checkpoint of a step up to `up_to`, or None if there is none. Collective.

        Skips damaged checkpoints, and those of which `check` raises UserError, with a message for each.
        """
        names = self._collective.gather([path.name for path in checkpoints_in(self._directory)])[0]
        for checkpoint in reversed([self._directory / name for name in names]):
            if step_of(checkpoint) > up_to:
                continue
            try:
                require_whole(checkpoint, self._collective, check)
            except UserError as error:
                self._say(f"{error}; trying the checkpoint before it")
                continue
            return checkpoint
        return None

    def _say(self, line: str) -> None:
        if self._collective.rank == 0:
            print(f"grpo: {line}", file=sys.stderr)

    def restore_rng(self, checkpoint: Path) -> None:
        """Restores the state of torch's random generator that this rank saved, if it saved one."""
        state = saved_random_state(checkpoint, self._collective.rank)
        if state is not None:
            torch.set_rng_state(state)

    def _failure_of(self, part: Callable[[], None], step: int) -> UserError | None:
        """Runs one part of saving. Returns why this rank could not write, if it could not."""
        again = "then continue from the previous checkpoint with checkpoint.resume=true"
        if not checkpoints_in(self._directory):
            again = "then start again, since there is no earlier checkpoint"
        try:
            part()
        except torch.OutOfMemoryError:
            return UserError(
                f"the device has no memory left to gather the checkpoint of step {step}: lower "
                f"learner.micro_batch_tokens, {again}"
            )
        except (OSError, SafetensorError) as error:
            which = f"rank {self._collective.rank}: " if self._collective.world_size > 1 else ""
            return UserError(
                f"the checkpoint of step {step} could not be written ({which}{first_line(error)}); "
                f"{room(self._directory)} under {self._directory}: free some space or make it writable, {again}"
            )
        return None

    def _prune(self, step: int, good_step: int, known_scores: Mapping[int, float]) -> None:
        """Removes old checkpoints. Keeps the newest `keep_last`, the best, the good step's, those of `keep_every`."""
        # A checkpoint newer than this one was damaged when the run was resumed, so it is not one of the last few.
        checkpoints = [path for path in checkpoints_in(self._directory) if step_of(path) <= step]
        scores = {path: known_scores.get(step_of(path)) if known_scores else _score(path) for path in checkpoints}
        scored = [path for path in checkpoints if scores[path] is not None]
        best = max(scored, key=lambda path: scores[path]) if scored else None
        for path in checkpoints[: -self._keep_last]:
            if path not in (best, self.latest(good_step)) and not self._one_in_many(path):
                self._set_aside(path)
        self._sweep(".removing-*")

    def _one_in_many(self, checkpoint: Path) -> bool:
        """Tells whether a checkpoint is kept because its number of rounds is a multiple of `keep_every`."""
        with suppress(UserError, KeyError, TypeError):
            rounds = read_state(checkpoint)["progress"]["round_index"]
            return bool(self._keep_every) and rounds > 0 and rounds % self._keep_every == 0
        return False

    def _set_aside(self, checkpoint: Path) -> None:
        """Renames a checkpoint that is to be removed, so that an interrupted removal leaves nothing that looks like a
        checkpoint."""
        if os.path.lexists(checkpoint):
            os.rename(checkpoint, checkpoint.with_name(f".removing-{checkpoint.name}"))

    def _sweep(self, names: str) -> None:
        """Removes everything in the store whose name matches the glob pattern `names`."""
        for path in self._directory.glob(names):
            with suppress(OSError):
                remove(path)


def alone() -> Collective:
    """Returns the collective of a process that looks at checkpoints without a run."""
    return TorchCollective(torch.device("cpu"))


def require_whole(checkpoint: Path, collective: Collective, check: Check = read_state) -> None:
    """Raises UserError, on all ranks, when a file of a checkpoint is missing or differs from what was written, or when
    `check` raises it on one of them. Collective."""
    compare_checksums(checkpoint, _is_read, collective)
    on_all(collective, lambda: check(checkpoint))


def _is_read(name: str) -> bool:
    """Tells whether a run reads the file of this name in a checkpoint. Others, such as notes, need no checksum."""
    return name in (STATE_FILE, LAYOUT_FILE, REFERENCE_FILE) or name.startswith(f"{SHARDS}/") or is_random_state(name)


def read_progress(values: Any) -> Progress[Mapping[str, Any]]:
    """Rebuilds a run's progress from the `progress` in `state.json`.

    The scheduler's state is left as it was saved; `Scheduler.restore` reads it. Raises ValueError for any other value.
    """
    return rebuilt(Progress[Mapping[str, Any]], values, "progress")


def saved_random_state(checkpoint: Path, rank: int) -> torch.Tensor | None:
    """Returns the state of torch's random generator that a rank saved, or None if it saved none.

    Raises UserError for a file that holds no such state."""
    file, own_state = checkpoint / random_state_name(rank), torch.get_rng_state()
    if not file.exists():
        return None
    with only_plain_data():
        state = torch.load(file)
    fits = isinstance(state, torch.Tensor) and (state.dtype, state.shape) == (own_state.dtype, own_state.shape)
    require(fits, f"{file} is damaged: it holds no state of torch's random generator")
    return state


def _score(checkpoint: Path) -> float | None:
    """Returns the score of a checkpoint, or None if there is none or it cannot be read."""
    with suppress(UserError):
        return read_score(checkpoint)
    return None


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON file, and returns once it is on disk."""
    with path.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
