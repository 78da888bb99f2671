"""Checkpoints of a run: atomic, with checksums, the last few and the best.

`checkpoints/step-00000120/` holds the learner's shards, one RNG state per rank, `state.json` and the checksums of all
of them. It is written under another name and renamed when complete. What is damaged later is told by the checksums
before anything of it is loaded.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from grpo.config.errors import UserError
from grpo.config.folder import CHECKSUMS_FILE, STATE_FILE, checkpoints_in, step_of
from grpo.interfaces import Collective
from grpo.learner.plain_data import only_plain_data
from grpo.learner.writing import telling
from grpo.run.checksums import damaged_file, write_checksums
from grpo.types import Progress, RoundPlan


class CheckpointStore:
    """The checkpoints below one directory. `save`, `whole` and `restore_rng` are collective."""

    def __init__(self, directory: str | Path, keep_last: int, collective: Collective):
        self._directory = Path(directory)
        self._keep_last = keep_last
        self._collective = collective

    def save(
        self,
        step: int,
        write: Callable[[str], None],
        state: Mapping[str, Any],
        score: float | None = None,
        good_step: int = -1,
    ) -> Path:
        """A checkpoint of `step`: whatever `write(folder)` puts there, and `state` as JSON.

        With a `score` (held-out pass rate) it also competes for being kept as the best one; the newest of a step up
        to `good_step` is kept too. Raises UserError when it cannot be written; earlier checkpoints stay.
        """
        final = self._directory / f"step-{step:08d}"
        writing = self._directory / f".writing-{step:08d}"
        first = self._collective.rank == 0

        def begin() -> None:
            if first:
                self._sweep(".writing-*")
                writing.mkdir(parents=True)

        def fill() -> None:
            write(str(writing))
            with telling():
                torch.save(torch.get_rng_state(), writing / f"rng-{self._collective.rank}.pt")
            if first:
                _write_json(writing / STATE_FILE, {**state, "score": score})

        def finish() -> None:
            if first:
                self._set_aside(final)
                os.rename(writing, final)
                self._prune(step, good_step)

        for part in (begin, fill, lambda: write_checksums(writing, self._collective), finish):
            if failure := self._failure_of(part, step):
                shutil.rmtree(writing, ignore_errors=True)
                raise UserError(
                    f"the checkpoint of step {step} could not be written ({failure}); {self._room()} under "
                    f"{self._directory}: make room, or make it writable, and continue with checkpoint.resume=true "
                    "from the last one"
                )
        return final

    def latest(self, up_to: float = float("inf")) -> Path | None:
        """The newest checkpoint, of step `up_to` at most, whether it is whole or not."""
        found = [path for path in checkpoints_in(self._directory) if step_of(path) <= up_to]
        return found[-1] if found else None

    def whole(self, up_to: float = float("inf")) -> Path | None:
        """The newest checkpoint, of step `up_to` at most, whose files are as they were written. Those that are damaged
        are told and passed over. Collective."""
        found = self._collective.gather([path.name for path in checkpoints_in(self._directory)])[0]
        for checkpoint in reversed([self._directory / name for name in found]):
            if step_of(checkpoint) > up_to:
                continue
            try:
                require_whole(checkpoint, self._collective)
            except UserError as error:
                if self._collective.rank == 0:
                    print(f"grpo: {error}; the one before it is looked for", file=sys.stderr)
            else:
                return checkpoint
        return None

    def restore_rng(self, checkpoint: Path) -> None:
        """Sets torch's generator as it was when this rank saved."""
        saved = checkpoint / f"rng-{self._collective.rank}.pt"
        if saved.exists():
            with only_plain_data():
                torch.set_rng_state(torch.load(saved))

    def _failure_of(self, part: Callable[[], None], step: int) -> str:
        """Does a part of saving; what kept any rank from writing, "" where nothing did."""
        failure, no_memory = "", False
        try:
            part()
        except torch.OutOfMemoryError:
            no_memory = True
        except (OSError, SafetensorError) as error:
            failure = str(error)
        found = self._collective.gather((failure, no_memory))
        if any(no_memory for _, no_memory in found):
            raise UserError(
                f"the device has no memory left to gather the checkpoint of step {step}: lower "
                "learner.micro_batch_tokens and continue with checkpoint.resume=true from the last one"
            )
        told = [f"rank {rank}: {failure}" for rank, (failure, _) in enumerate(found) if failure]
        return (told[0] if len(found) > 1 else failure) if told else ""

    def _room(self) -> str:
        there = next(path for path in (self._directory, *self._directory.absolute().parents) if path.is_dir())
        return f"{shutil.disk_usage(there).free / 2**30:.1f} GiB are free"

    def _prune(self, step: int, good_step: int) -> None:
        # What is newer than this one was damaged when the run was resumed: it is none of the last few.
        found = [path for path in checkpoints_in(self._directory) if step_of(path) <= step]
        scores = {path: _score(path) for path in found}
        scored = [path for path in found if scores[path] is not None]
        best = max(scored, key=lambda path: scores[path]) if scored else None
        for path in found[: -self._keep_last]:
            if path not in (best, self.latest(good_step)):
                self._set_aside(path)
        self._sweep(".removing-*")

    def _set_aside(self, checkpoint: Path) -> None:
        """Renames what is to be removed: when that is cut short, the rest is not taken for a checkpoint."""
        if checkpoint.exists():
            os.rename(checkpoint, checkpoint.with_name(f".removing-{checkpoint.name}"))

    def _sweep(self, names: str) -> None:
        for left in self._directory.glob(names):
            shutil.rmtree(left, ignore_errors=True)


def require_whole(checkpoint: Path, collective: Collective) -> None:
    """Raises UserError where a file of a checkpoint is not as it was written. One without checksums, of an older
    version, is taken as it is, which is told. Collective."""
    try:
        read_state(checkpoint)
        unreadable = ""
    except UserError as error:
        unreadable = str(error)
    # As the first rank sees it: all agree, whatever a file system shows to each.
    if unreadable := collective.gather(unreadable)[0]:
        raise UserError(unreadable)
    if not (checkpoint / CHECKSUMS_FILE).exists() and collective.rank == 0:
        print(f"grpo: {checkpoint} has no {CHECKSUMS_FILE}: its files are loaded as they are", file=sys.stderr)
    if damaged := damaged_file(checkpoint, collective):
        raise UserError(f"{checkpoint / damaged} is damaged: it is not as it was saved")


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The `state.json` of a checkpoint. Raises UserError where it cannot be read."""
    try:
        state = json.loads((checkpoint / STATE_FILE).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{checkpoint / STATE_FILE} is damaged ({str(error).splitlines()[0]})") from error
    if not isinstance(state, dict):
        raise UserError(f"{checkpoint / STATE_FILE} is damaged: it holds no object")
    return state


def read_progress(values: Mapping[str, Any]) -> Progress:
    """Returns where the run stood, from the `progress` of this version's `state.json` or an older one's. The
    scheduler's state is left as it was saved: `Scheduler.restore` reads it."""
    plan = {field.name: values["plan"][field.name] for field in fields(RoundPlan) if field.name in values["plan"]}
    return Progress(**{**values, "plan": RoundPlan(**plan)})


def _score(checkpoint: Path) -> float | None:
    with suppress(UserError):
        score = read_state(checkpoint).get("score")
        return score if isinstance(score, int | float) else None
    return None


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with path.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
