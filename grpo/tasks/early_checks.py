# Light: imported before torch, or without it.
"""This module checks data and rewards in a second or so, before torch and the engines are imported."""

import os
from dataclasses import replace
from pathlib import Path

from grpo.config import TaskConfig
from grpo.config.directory import chat_template_in
from grpo.config.errors import require
from grpo.tasks.arithmetic import checked
from grpo.tasks.files import require_file, size_of
from grpo.tasks.own_rewards import IN_TWO_TURNS, NO_ROUND, BatchReward, carried
from grpo.tasks.remote import RemoteRewards
from grpo.tasks.rewards import build_parts, odd_judge
from grpo.tasks.sources import load_problems

WORKERS_PER_CORE = 64
"""More grading processes than this for each core of the machine would not help, but take its memory."""
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


def oddities(of_set: TaskConfig) -> list[str]:
    """Returns lines about settings of a set of problems that may stand, and are seldom meant."""
    choices = of_set.data.choices_column
    unseen = (
        f"the prompt does not show task.data.choices_column={choices}: put {{{choices}}} into task.prompt.template, "
        "unless the questions hold the choices"
        if choices and f"{{{choices}}}" not in of_set.prompt.template
        else ""
    )
    return [line for line in (odd_judge(of_set.reward, of_set.answer_name), unseen) if line]


def check_early(task: TaskConfig, pipeline: str = "off", budgeted: bool = False) -> None:
    """Raises `UserError` for a reward part that is unknown, cannot be built or does not suit the pipeline or a rollout
    budget, and for a file whose problems cannot be loaded."""
    check_files(task)
    cores = os.cpu_count() or 1
    for of_set in task.all_sets.values():
        if of_set.prompt.chat_template:
            chat_template_in(of_set.prompt.chat_template)
        workers = of_set.reward.workers
        require(
            workers <= WORKERS_PER_CORE * cores,
            f"task.reward.workers={workers} asks for as many processes, and this machine has {cores} processor cores: "
            f"use at most {WORKERS_PER_CORE * cores}",
        )
        rewards = [of_set.reward, *map(of_set.reward.of, of_set.reward.by_source)]
        for reward in rewards:
            parts = build_parts(reward, of_set.answer_name).values()
            together = any(isinstance(part, BatchReward) for part in parts)
            require(pipeline != "continuous" or not together, NO_ROUND)
            require(not (budgeted and together), IN_TWO_TURNS)
            RemoteRewards(reward.parts)
            carried(reward.weights)
        data = of_set.data
        if data.source == "file" and size_of(Path(data.path)) <= MOST_BYTES:
            load_problems(data, of_set.reward)
        elif data.source == "arithmetic":
            checked(data.options, data.size)
        elif data.source == "reasoning_gym":
            load_problems(replace(data, size=min(data.size, 1)))
