"""This module checks another run's checkpoint before a run starts from it: its files, and the base of its adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo.config import TrainConfig
from grpo.config.earlier_run import is_checkpoint
from grpo.config.saved import read_state
from grpo.interfaces import Collective
from grpo.models import check_base, weights_identity
from grpo.run.checkpoints import require_whole
from grpo.run.first_rank import on_first


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
            check_base(read_state(checkpoint).get("base"), base, checkpoint)

    on_first(collective, compare)


def base_of(config: TrainConfig, path: Path) -> dict[str, Any] | None:
    """Returns the identity of the weights that adapters are trained on, or None for a run without adapters."""
    return weights_identity(config.model, path) if config.model.lora.rank else None
