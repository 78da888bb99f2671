"""This module checks data and rewards in a second or so, before torch and the engines are imported."""

from __future__ import annotations

from pathlib import Path

from grpo.config import TaskConfig
from grpo.config.errors import require
from grpo.tasks.files import require_file, size_of
from grpo.tasks.own_rewards import NO_ROUND, BatchReward
from grpo.tasks.remote import RemoteRewards
from grpo.tasks.rewards import build_parts
from grpo.tasks.sources import load_problems

MOST_BYTES = 32 * 2**20
"""A file of problems larger than this is not read early, but only when the run begins."""


def check_files(task: TaskConfig) -> None:
    """Raises `UserError` for a file of problems that the configuration names and that does not exist."""
    for name, of_set in task.all_sets.items():
        key, data = f"task.sets.{name}.data" if name else "task.data", of_set.data
        if data.source == "file":
            require_file(data.path, f"{key}.path")
        for path in data.selection.evaluation_sets:
            require_file(path, f"{key}.selection.evaluation_sets")


def check_early(task: TaskConfig, pipeline: str = "off") -> None:
    """Raises `UserError` for a reward part that is unknown, cannot be built or does not suit the pipeline, and for a
    file whose problems cannot be loaded."""
    check_files(task)
    for of_set in task.all_sets.values():
        rewards = [of_set.reward, *map(of_set.reward.of, of_set.reward.by_source)]
        for reward in rewards:
            parts = build_parts(reward, of_set.answer_name).values()
            require(pipeline != "continuous" or not any(isinstance(part, BatchReward) for part in parts), NO_ROUND)
            RemoteRewards(reward.parts)
        if of_set.data.source == "file" and size_of(Path(of_set.data.path)) <= MOST_BYTES:
            load_problems(of_set.data)
