"""This module makes the table of `grpo check-reward`: made-up completions with their rewards."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from grpo.insight.pages.conversation import as_text, ending, said_in
from grpo.types import ScoredGroup

EXCERPT, LONGEST_MESSAGE = 60, 4000


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


def trial_episodes(scored_groups: Sequence[ScoredGroup]) -> Iterator[Text]:
    """Yields the first conversation that was played, and one for each kind of failure."""
    ends: set[str] = set()
    for completion in (completion for scored in scored_groups for completion in scored.group.completions):
        if completion.episode and (not ends or completion.episode.error.partition(":")[0] not in ends | {""}):
            ends.add(completion.episode.error.partition(":")[0])
            heading = Text("\nAn episode in which the model's turns are made up:\n", style="bold")
            messages = [
                {**message, "content": _excerpt(str(message.get("content") or ""), LONGEST_MESSAGE)}
                for message in completion.episode.messages
            ]
            yield heading + as_text(said_in(messages), ending(asdict(completion.episode)))


def _excerpt(text: str, most: int = EXCERPT) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
