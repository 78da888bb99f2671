# Light: imported before torch, or without it.
"""This module holds what a proof can measure: sizes of model and round, the learner's ways, and the runs' overrides."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.config import UserError
from grpo.config.rewording import path_word

Shape = tuple[int, int, int, int, int, int]
"""A model's shape is (width, layers, query heads, key heads, inner width, vocabulary)."""


@dataclass(frozen=True, slots=True)
class Size:
    """A size is a model's shape and a round's: prompts, completions per prompt, tokens of a prompt and a completion."""

    shape: Shape
    prompts: int
    group_size: int
    prompt_tokens: int
    completion_tokens: int


SIZES = {
    "tiny": Size((128, 2, 4, 2, 256, 512), 4, 4, 24, 24),
    "1.5b": Size((1536, 28, 12, 2, 8960, 151_936), 32, 8, 200, 800),
    "7b": Size((3584, 28, 28, 4, 18_944, 152_064), 32, 8, 200, 800),
}


WAYS = {
    "ZeRO-1": (),
    "ZeRO-2": ("learner.zero_stage=2",),
    "ZeRO-3": ("learner.zero_stage=3",),
    "checkpointing": ("learner.gradient_checkpointing=true",),
    "offload": ("learner.offload_optimizer=true",),
}
"""These are the ways of a learner to save memory, each with its overrides."""


def check_size(name: str) -> None:
    """Raises UserError for an unknown size."""
    if name not in SIZES:
        raise UserError(f"size={name} is unknown: choose one of {', '.join(SIZES)}")


def words_of(size: Size, model: Path, overrides: Sequence[str]) -> list[str]:
    """Returns the overrides of a run of this size with the model in the folder `model`; `overrides` come last."""
    longest = size.prompt_tokens + size.completion_tokens
    return [
        *("model=huggingface", path_word("model.path", model), "task=tiny_arithmetic", "normalization=dr_grpo"),
        *(f"dynamics.prompts_per_step={size.prompts}", f"dynamics.group_size={size.group_size}"),
        *(f"task.prompt.max_tokens={size.prompt_tokens}", f"model.max_length={longest}"),
        f"rollout.sampling.max_tokens={size.completion_tokens}",
        *("evaluation.num_problems=0", "checkpoint.every_rounds=0", "checkpoint.export=false"),
        *("learner.skip_silent_groups=false", *overrides),
    ]
