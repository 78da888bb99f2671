"""`grpo train`: one training run, or this rank's part of it."""

from __future__ import annotations

import signal

from grpo.config import TrainConfig
from grpo.host import ranks
from grpo.host.tether import end_with_parent
from grpo.run.session import train


def run(config: TrainConfig) -> int:
    """Trains; every rank calls it with the same config."""
    if ranks.launched():
        # A rank whose launcher is killed saves and ends; nothing else would end it.
        end_with_parent(signal.SIGTERM)
    return train(config)
