"""This module fits the lengths that the configuration leaves open, of prompts and of whole sequences, to the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from grpo.config import TaskConfig, TrainConfig
from grpo.config.errors import require
from grpo.learner.loading import longest_length
from grpo.tasks.task import LoadedTask

BLOCK = 32
"""A fitted `model.max_length` is a multiple of this, the smallest block of vLLM's cache, where the model allows it."""


def room_for_prompts(config: TrainConfig, path: Path) -> int:
    """Returns how many tokens a prompt may have so that a completion fits into the model behind it."""
    return (config.model.max_length or longest_length(path, config.model)) - _longest_answer(config)


def _longest_answer(config: TrainConfig) -> int:
    return max(config.rollout.sampling.max_tokens, config.evaluation.max_tokens or 0)


def fit_lengths(config: TrainConfig, tasks: Sequence[LoadedTask], path: Path) -> tuple[TrainConfig, list[LoadedTask]]:
    """Replaces a `model.max_length` of 0, and a `prompt.max_tokens` of 0 in each of `tasks`, by what the data need.

    A set's prompt limit becomes the length of its longest prompt, or less if a completion would not fit into the model
    then. The model's length becomes that of the longest prompt plus a completion, rounded up to a multiple of `BLOCK`
    where the model allows it. `config.task` is not changed. Raises `UserError` when prompts and completions cannot fit.
    """
    answer, configured, room = _longest_answer(config), config.model.max_length, room_for_prompts(config, path)
    longer = "rollout.sampling" if answer == config.rollout.sampling.max_tokens else "evaluation"
    most = room + answer

    def fitted(of_set: TaskConfig, measured: int) -> TaskConfig:
        longest = of_set.prompt.max_tokens or min(max(1, measured), room)
        return replace(of_set, prompt=replace(of_set.prompt, max_tokens=int(longest)))

    def fitted_task(task: LoadedTask) -> LoadedTask:
        if not task.config.sets:
            return replace(task, config=fitted(task.config, task.longest.get("", 0)))
        sets = {name: fitted(of_set, task.longest.get(name, 0)) for name, of_set in task.config.sets.items()}
        longest = max(of_set.prompt.max_tokens for of_set in sets.values())
        prompt = replace(task.config.prompt, max_tokens=longest)
        return replace(task, config=replace(task.config, sets=sets, prompt=prompt))

    fitting = [*map(fitted_task, tasks)]
    require(
        room > 0,
        f"{longer}.max_tokens={answer} leaves no room for a prompt, since the model has {most} positions: lower it",
    )
    longest = max(task.config.prompt.max_tokens for task in fitting)
    require(
        longest <= room,
        f"task.prompt.max_tokens={longest} plus {longer}.max_tokens={answer} is more than the {most} positions "
        "of the model: lower one of the two",
    )
    needed = min(most, -(-(longest + answer) // BLOCK) * BLOCK)
    return replace(config, model=replace(config.model, max_length=int(configured or needed))), fitting
