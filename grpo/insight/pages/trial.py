"""This module makes the table of `grpo check-reward`: made-up completions with their rewards."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from grpo.types import ScoredGroup

SAME = (
    "right answers are not rewarded more than wrong ones: check task.reward.parts and task.reward.extract, and compare "
    "the completions above with what the reward looks for"
)
EXCERPT = 60


def trial_table(scored_groups: Sequence[ScoredGroup]) -> Table:
    """Returns a table with a row for each completion: question, completion, reward, its parts, and its grade."""
    table = Table("question", "completion", "reward", "parts", "graded as", title="Reward of made-up completions")
    for scored_group in scored_groups:
        question = _excerpt(scored_group.group.prompt.problem.question)
        for completion, grade in zip(scored_group.group.completions, scored_group.grades, strict=True):
            # A function is shown by its name, without its path.
            parts = ", ".join(f"{name.rpartition(':')[2]} {value:g}" for name, value in grade.parts.items())
            judgement = ("right" if grade.correct else "wrong") if grade.outcome == "graded" else grade.outcome
            no_answer_note = "" if grade.answered is not False else ", no answer found"
            table.add_row(question, _excerpt(completion.text), f"{grade.reward:g}", parts, judgement + no_answer_note)
            question = ""
        table.add_section()
    return table


def _excerpt(text: str) -> str:
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}…"
