"""This module implements `grpo train`, which runs one training run, or this rank's part of it."""

import signal

from grpo.config import TrainConfig
from grpo.host import ranks
from grpo.host.tether import end_with_parent
from grpo.prove.record import read_constants
from grpo.run.session import train


def run(config: TrainConfig) -> int:
    """Runs one training job. Every rank calls it with the same config. Returns the exit code."""
    if ranks.launched():
        # A rank whose launcher is killed gets this signal, so that it saves and ends. Nothing else would end it.
        end_with_parent(signal.SIGTERM)
    constants_file = config.hardware.measured
    return train(config, machine=read_constants(constants_file) if constants_file else None)
