"""Checkpoints of a run: atomic, the last few and the best.

`checkpoints/step-00000120/` holds the learner's shards, one RNG state per rank and `state.json`. It is
written under another name and renamed when complete, so a folder of this name is always whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from grpo.config.errors import UserError
from grpo.learner.collective import TorchCollective

STATE_FILE = "state.json"


class CheckpointStore:
    """The checkpoints below one directory. `save` and `restore_rng` are collective."""

    def __init__(self, directory: str | Path, keep_last: int, collective: TorchCollective):
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
        if self._collective.rank == 0:
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir(parents=True)
        self._collective.barrier()
        try:
            write(str(writing))
            torch.save(torch.get_rng_state(), writing / f"rng-{self._collective.rank}.pt")
            self._collective.barrier()
            if self._collective.rank == 0:
                _write_json(writing / STATE_FILE, {**state, "score": score})
                shutil.rmtree(final, ignore_errors=True)
                os.rename(writing, final)
                self._prune(good_step)
        except (OSError, RuntimeError) as error:
            shutil.rmtree(writing, ignore_errors=True)
            free = shutil.disk_usage(self._directory).free / 2**30
            raise UserError(
                f"the checkpoint of step {step} could not be written ({error}); {free:.1f} GiB are free under "
                f"{self._directory}: make room and continue with checkpoint.resume=true from the last one"
            ) from error
        self._collective.barrier()
        return final

    def latest(self, up_to: float = float("inf")) -> Path | None:
        """The newest whole checkpoint, of step `up_to` at most."""
        found = [path for path in self._all() if int(path.name.removeprefix("step-")) <= up_to]
        return found[-1] if found else None

    def restore_rng(self, checkpoint: Path) -> None:
        """Sets torch's generator as it was when this rank saved."""
        saved = checkpoint / f"rng-{self._collective.rank}.pt"
        if saved.exists():
            torch.set_rng_state(torch.load(saved, weights_only=True))

    def _all(self) -> list[Path]:
        return sorted(self._directory.glob("step-*"))

    def _prune(self, good_step: int) -> None:
        found = self._all()
        scores = {path: read_state(path).get("score") for path in found}
        scored = [path for path in found if scores[path] is not None]
        best = max(scored, key=lambda path: scores[path]) if scored else None
        for path in found[: -self._keep_last]:
            if path not in (best, self.latest(good_step)):
                shutil.rmtree(path)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The `state.json` of a checkpoint."""
    return json.loads((checkpoint / STATE_FILE).read_text())


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with path.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
