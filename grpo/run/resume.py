"""Where a run that is resumed goes on: the checkpoint that it takes, and what is another than it was."""

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
    """A whole checkpoint: how the run was configured, and where it stood."""

    checkpoint: Path
    config: TrainConfig
    progress: Progress


def checkpoint_store(config: TrainConfig, collective: Collective) -> CheckpointStore:
    """The run's checkpoints."""
    return CheckpointStore(Path(config.output_dir) / CHECKPOINTS, config.checkpoint.keep_last, collective)


def saved_run(config: TrainConfig, collective: Collective) -> Saved:
    """The newest whole checkpoint of the run in `output_dir`. Prints which it is and what has changed since. Raises
    UserError where there is none, or where the run cannot go on as it is configured now. Collective."""
    checkpoint = checkpoint_store(config, collective).whole()
    if checkpoint is None:
        raise UserError(
            f"no checkpoint in {Path(config.output_dir) / CHECKPOINTS} is whole: bring back a copy, or begin anew in "
            "another output_dir without checkpoint.resume"
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
    """Tells the task the outcomes of the rounds before, from the rows of `prompts.jsonl`: an online curriculum goes on
    as it stood."""
    for row in rows:
        task.learn(by_problem(zip(row["prompt_ids"], row["correct"], strict=True)), row["cursor"])
