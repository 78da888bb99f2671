"""This module checks data and rewards in a second or so, before torch and the engines are imported."""

from __future__ import annotations

from pathlib import Path

from grpo.config import TaskConfig
from grpo.tasks.remote import RemoteRewards
from grpo.tasks.rewards import build_parts
from grpo.tasks.sources import load_problems

MOST_BYTES = 32 * 2**20
"""A larger file of problems is read once only, when the run begins."""


def check_early(task: TaskConfig) -> None:
    """Raises `UserError` for a reward part that is unknown or cannot be built, and for a file without problems."""
    for of_set in task.all_sets.values():
        rewards = [of_set.reward, *map(of_set.reward.of, of_set.reward.by_source)]
        for reward in rewards:
            build_parts(reward, of_set.answer_name)
            RemoteRewards(reward.parts)
        if of_set.data.source == "file" and Path(of_set.data.path).stat().st_size <= MOST_BYTES:
            load_problems(of_set.data)
