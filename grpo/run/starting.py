"""This module prepares a run's start. It keeps what an earlier run left in the folder, checks that all ranks have the
same problems, and checks a checkpoint to start from: its files, and the base of its adapters."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from grpo.config import TrainConfig
from grpo.config.earlier_run import is_checkpoint
from grpo.config.errors import UserError, require
from grpo.config.folder import EARLIER, LEFT_BEHIND, METRICS_FILE, STATE_FILE
from grpo.config.saved import read_state
from grpo.interfaces import Collective
from grpo.models.identity import WeightsIdentity, check_base, weights_identity
from grpo.run.checkpoints import require_whole
from grpo.run.first_rank import on_first
from grpo.tasks.task import LoadedTask
from grpo.telemetry.json_lines import read_metrics
from grpo.types.plain import rebuilt


def set_aside(output: Path) -> Path | None:
    """Moves what a run without a checkpoint left in `output` into a folder of its own there, so that nothing is lost.

    Returns that folder, or None if no earlier run has finished a round. Called with the folder's lock.
    """
    if not ((output / METRICS_FILE).exists() and read_metrics(output / METRICS_FILE)):
        return None
    folder_of_earlier_run = next(
        folder for number in count(1) if not os.path.lexists(folder := output / f"{EARLIER}{number}")
    )
    folder_of_earlier_run.mkdir()
    for name in LEFT_BEHIND:
        if (output / name).exists():
            (output / name).rename(folder_of_earlier_run / name)
    return folder_of_earlier_run


def require_same_problems(task: LoadedTask, collective: Collective) -> None:
    """Raises UserError when ranks have read different problems, or in another order. Collective.

    Each rank takes its positions of one stream of prompts. Of different streams, some prompts would come twice and
    others never.
    """
    identities = collective.gather(task.identity)
    differing = [str(rank) for rank, identity in enumerate(identities) if identity != identities[0]]

    def compare() -> None:
        require(
            not differing,
            f"the problems of rank {', '.join(differing)} differ from those of rank 0, or come in another order: give "
            "every machine the same data, in the same order",
        )

    on_first(collective, compare)


def check_start(config: TrainConfig, path: Path, collective: Collective) -> None:
    """Raises UserError when `model.start` is a damaged checkpoint, or has adapters that were trained on another model
    than the one in the folder `path`. Collective."""
    if is_checkpoint(config.model.start):
        checkpoint = Path(config.model.start)
        require_whole(checkpoint, collective)
        require_base(config, path, checkpoint, collective)


def require_base(config: TrainConfig, path: Path, checkpoint: Path, collective: Collective) -> None:
    """Raises UserError when the model in the folder `path` is not the one that a checkpoint's adapters were trained on.
    Collective."""

    def compare() -> None:
        if base := base_of(config, path):
            check_base(saved_base(checkpoint), base, checkpoint)

    on_first(collective, compare)


def saved_base(checkpoint: Path) -> WeightsIdentity | None:
    """Returns the identity of the weights that a checkpoint's adapters were trained on, or None if it names none.
    Raises UserError where it names something else."""
    try:
        return rebuilt(WeightsIdentity | None, read_state(checkpoint).get("base"), "base")
    except ValueError as error:
        raise UserError(f"{checkpoint / STATE_FILE} is damaged: {error}") from error


def base_of(config: TrainConfig, path: Path) -> WeightsIdentity | None:
    """Returns the identity of the weights that adapters are trained on, or None for a run without adapters."""
    return weights_identity(config.model, path) if config.model.lora.rank else None
