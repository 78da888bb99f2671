"""This module finds out how long prompts and whole sequences are, where the configuration does not say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from grpo.config import TaskConfig, TrainConfig
from grpo.config.errors import require
from grpo.learner.loading import longest_length
from grpo.tasks import longest_prompt

BLOCK = 32
"""A fitted `model.max_length` is a multiple of this, the smallest block of vLLM's cache, where the model allows it."""


def fit_lengths(
    config: TrainConfig, tasks: Sequence[TaskConfig], path: Path, tokenizer: PreTrainedTokenizerBase
) -> tuple[TrainConfig, list[TaskConfig]]:
    """Replaces a `model.max_length` of 0, and a `prompt.max_tokens` of 0 in each of `tasks`, by what the data need.

    A prompt gets as many tokens as the longest of its task has, as far as a completion still fits into the model. The
    model's length is then that of the longest prompt with a completion. `config.task` is not changed. Raises
    `UserError` for data that cannot be loaded, and where prompts and completions cannot fit.
    """
    answer, given = max(config.rollout.sampling.max_tokens, config.evaluation.max_tokens or 0), config.model.max_length
    longer = "rollout.sampling" if answer == config.rollout.sampling.max_tokens else "evaluation"
    most = given or longest_length(path, config.model)
    room = most - answer

    def fitted(task: TaskConfig) -> TaskConfig:
        longest = task.prompt.max_tokens or min(max(1, longest_prompt(task, tokenizer)), room)
        return replace(task, prompt=replace(task.prompt, max_tokens=int(longest)))

    fitting = [fitted(task) for task in tasks]
    require(
        room > 0,
        f"{longer}.max_tokens={answer} leaves no room for a prompt, since the model has {most} positions: lower it",
    )
    longest = max(task.prompt.max_tokens for task in fitting)
    require(
        longest <= room,
        f"task.prompt.max_tokens={longest} plus {longer}.max_tokens={answer} is more than the {most} positions "
        "of the model: lower one of the two",
    )
    needed = min(most, -(-(longest + answer) // BLOCK) * BLOCK)
    return replace(config, model=replace(config.model, max_length=int(given or needed))), fitting
