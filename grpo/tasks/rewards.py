"""This module builds the parts of a reward, once per worker.

Each built-in part is a pure function of (completion, answer, metadata).
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from grpo.config import RewardConfig, RewardPartConfig, RewardServerConfig, UserError
from grpo.config.errors import require
from grpo.config.task import EPISODE, REMOTE, remote_kind
from grpo.tasks.extraction import EXTRACTORS, extract
from grpo.tasks.judge import Judge
from grpo.tasks.own_rewards import Part, own_reward
from grpo.tasks.unit_tests import code
from grpo.tasks.verification import exact, mathematics, number, value

RewardPart = Callable[[str, str, Mapping[str, Any]], Any]
"""A reward part maps (completion, answer, metadata) to a number, or to a mapping with the number under "score" and
further numbers that are logged. The completion is the model's whole text; the answer is the problem's own."""


def readable(answer: str, config: RewardConfig) -> bool:
    """Tells whether the reward can read a problem's answer, as far as a quick check shows.

    Parsing LaTeX is slow and is left to the grading workers.
    """
    return "number" not in config.weights or value(answer) is not None


def _math(config: RewardConfig) -> RewardPart:
    """Builds the part that compares answers as mathematics. When `extract` takes a whole line or text, the part
    searches for the answer in it."""
    return _of_extracted(mathematics(prose=config.extract in ("last_line", "all")), config)


def _reasoning_gym(config: RewardConfig) -> RewardPart:
    """Builds the part that calls the generator's own scoring function."""
    # This import takes seconds; done here, it does not count against an answer's time limit.
    import reasoning_gym  # noqa: F401

    from grpo.tasks.procedural import score

    def part(completion: str, answer: str, metadata: Mapping[str, Any]) -> float:
        extracted = extract(completion, config.extract)
        return 0.0 if extracted is None else score(extracted, metadata)

    return part


def _format(config: RewardConfig) -> RewardPart:
    """Builds the part that is 1 when `format_pattern` occurs in the completion, else 0."""
    if not config.format_pattern:
        raise UserError("the reward part 'format' needs task.reward.format_pattern.")
    try:
        pattern = re.compile(config.format_pattern)
    except re.error as error:
        raise UserError(
            f"task.reward.format_pattern {config.format_pattern!r} is not a valid regular expression: {error}."
        ) from error
    require(
        not pattern.search(""),
        f"task.reward.format_pattern {config.format_pattern!r} occurs in every completion, even in an empty one, so it "
        "rewards nothing in particular: leave out what makes all of it optional",
    )
    return lambda completion, answer, metadata: float(pattern.search(completion) is not None)


def _of_extracted(compare: Callable[[str, str], float], config: RewardConfig) -> RewardPart:
    """Builds a part that extracts a completion's answer and compares it with the problem's own.

    The part is 0 where nothing can be extracted.
    """

    def part(completion: str, answer: str, metadata: Mapping[str, Any]) -> float:
        extracted = extract(completion, config.extract)
        return 0.0 if extracted is None else compare(extracted, answer)

    return part


EXTRACTING = {"math", "exact", "number", "reasoning_gym"}
"""These parts look for an answer in the completion, as `extract` says."""

REWARDS: dict[str, Callable[[RewardConfig], RewardPart]] = {
    "math": _math,
    "exact": partial(_of_extracted, exact),
    "number": partial(_of_extracted, number),
    "reasoning_gym": _reasoning_gym,
    "format": _format,
    "code": code,
}


def build_parts(config: RewardConfig, answer_name: str = "answer", called: bool = False) -> dict[str, Part]:
    """Builds the parts that `config.weights` names, in its order, and imports what they need. Parts on servers are left
    out, see `grpo.tasks.remote`.

    `answer_name` is the name of the data's column of answers, under which a group reward gets them. `called` says
    whether the parts are to compute rewards here, and not only to be known. Raises `UserError`
    for an unknown name, an import path that leads to no function of a known signature, an unknown `extract`, and a
    missing or invalid `format_pattern`.
    """
    if not config.weights:
        raise UserError("task.reward.parts is empty; name at least one part, e.g. [{name: math}].")
    if config.extract not in EXTRACTORS:
        raise UserError(f"task.reward.extract is {config.extract!r}; choose one of {', '.join(EXTRACTORS)}.")
    here = [name for name in config.weights if not remote_kind(name) and not of_episode(name)]
    return {name: _part(name, config, answer_name, called) for name in here}


def of_episode(name: str) -> bool:
    """Tells whether a reward part is a number that the episode itself returned."""
    return name.partition("/")[0] == EPISODE and ":" not in name


def needing_answers(config: RewardConfig, answer_name: str) -> str:
    """Returns the name of the reward's first part that needs the answer of each problem, or "" when none does.

    A function of the user's own needs it when it takes the answer as an argument without a default.
    """
    return next((part.name for part in config.parts if _needs_answers(part, config, answer_name)), "")


def odd_judge(config: RewardConfig, answer_name: str) -> str:
    """Returns a line where the first part, which says what is correct, needs no answer, but a later one does, or ""."""
    first, judge = config.parts[0].name, needing_answers(config, answer_name)
    if judge in ("", first):
        return ""
    first, judge = (name.rpartition(":")[2] for name in (first, judge))
    return (
        f"task.reward.parts: the first part says which completions are right, and {first} needs no answer, while "
        f"{judge} does: put {judge} first, unless {first} is to judge them"
    )


def _needs_answers(part: RewardPartConfig, config: RewardConfig, answer_name: str) -> bool:
    if kind := remote_kind(part.name):
        return kind == "judge" and Judge(part.name, part.server or RewardServerConfig()).needs_answers
    if part.name in REWARDS or of_episode(part.name):
        return part.name in EXTRACTING
    return getattr(_part(part.name, config, answer_name), "needs_answers", True)


def _part(name: str, config: RewardConfig, answer_name: str, called: bool = False) -> Part:
    if name in REWARDS:
        return REWARDS[name](config)
    module, colon, function = name.rpartition(":")
    if not (module and colon and function):
        raise UserError(
            f"task.reward.parts: unknown part {name!r}; choose from {', '.join((*REWARDS, *REMOTE))}, "
            'or give an import path "package.module:function" or "file.py:function".'
        )
    return own_reward(name, answer_name, called)
