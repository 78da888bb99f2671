"""This module has DeepSpeed itself check the settings that `learner.deepspeed` passes on to it."""

from __future__ import annotations

from typing import Any

from deepspeed.runtime.config import DeepSpeedConfig

from grpo.config import LearnerConfig
from grpo.config.errors import require
from grpo.config.pass_through import passing_on
from grpo.learner.engine import deepspeed_config, quiet


def check_passed_on(learner: LearnerConfig) -> None:
    """Raises UserError for a setting with a value that DeepSpeed refuses, or that DeepSpeed does not know.

    DeepSpeed ignores settings that it does not know, and has no list of the others. So it is watched while it reads.
    """
    watched_config = _Watched(deepspeed_config(learner))
    with passing_on("learner.deepspeed", learner.deepspeed), quiet():
        DeepSpeedConfig(watched_config)
    for name in learner.deepspeed:
        require(
            name in watched_config.read or name == "optimizer",
            f"learner.deepspeed.{name} is no setting of DeepSpeed: leave it out, or correct its name",
        )


class _Watched(dict):
    """This dictionary records the keys that are asked for. Copies of it record theirs in the same set."""

    def __init__(self, *values: Any):
        super().__init__(*values)
        self.read: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def keys(self) -> Any:
        return self
