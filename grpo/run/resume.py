"""This module finds the checkpoint from which a run is resumed, and tells what has changed in the config since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.config import TrainConfig, UserError
from grpo.config.folder import CHECKPOINTS
from grpo.config.resume import check_resumed, differences
from grpo.config.saved import from_dict
from grpo.interfaces import Collective, Task
from grpo.measure import by_problem
from grpo.run.checkpoints import CheckpointStore, read_progress, read_state
from grpo.types import Progress


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved run is an undamaged checkpoint, with the run's config and progress at that time."""

    checkpoint: Path
    config: TrainConfig
    progress: Progress


def checkpoint_store(config: TrainConfig, collective: Collective) -> CheckpointStore:
    """Opens the store of the run's checkpoints."""
    return CheckpointStore(Path(config.output_dir) / CHECKPOINTS, config.checkpoint.keep_last, collective)


def saved_run(config: TrainConfig, collective: Collective) -> Saved:
    """Finds the newest undamaged checkpoint of the run in `output_dir`. Collective.

    Prints which one it is, and which config keys have changed since. Raises UserError when there is none, or when the
    run cannot continue with the present config.
    """
    checkpoint = checkpoint_store(config, collective).whole()
    if checkpoint is None:
        raise UserError(
            f"there is no undamaged checkpoint in {Path(config.output_dir) / CHECKPOINTS}: restore one from a copy, or "
            "start anew in another output_dir without checkpoint.resume"
        )
    state = read_state(checkpoint)
    old = from_dict(state["config"])
    if collective.rank == 0:
        print(f"resuming from {checkpoint.name}")
        for name, before, after in differences(old, config):
            if name != "checkpoint.resume":
                print(f"  changed since: {name}: {before!r} → {after!r}")
    check_resumed(old, config)
    return Saved(checkpoint, old, read_progress(state["progress"]))


def relearn(task: Task, rows: Iterable[Mapping[str, Any]]) -> None:
    """Passes the outcomes of all earlier rounds, read from `prompts.jsonl`, to the task.

    An online curriculum is then in the state in which the run was saved.
    """
    for row in rows:
        task.learn(by_problem(zip(row["prompt_ids"], row["correct"], strict=True)), row["cursor"])
