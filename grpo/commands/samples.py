"""This module implements `grpo samples`, which shows completions of a run in the terminal, group by group."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

from rich.text import Text

from grpo.commands.words import count, paths_and_settings, span, truth, typed
from grpo.config import UserError
from grpo.config.errors import require
from grpo.host.terminal import Terminal
from grpo.insight.pages.conversation import as_text, conversation, ending, opening, unseen
from grpo.telemetry.completions import is_graded, is_unjudged, kind_of, score_of, whole_completions
from grpo.telemetry.json_lines import Row

USAGE = """usage: grpo samples RUN [step=N|A-B] [source=NAME] [prompt=TEXT] [problem=ID]
                    [group=mixed|right|wrong|ungraded] [correct=true|false] [truncated=true|false]
                    [outcome=NAME] [contains=TEXT] [limit=5]

Shows completions that a run has sampled, those of the last round first. The completions of one prompt stand together.

These words choose groups:
  step       the optimizer step after the round, or a range such as 10-20
  source     the problem's source, where the data name one
  prompt     a text within the question
  problem    the beginning of a prompt's id
  group      mixed has right and wrong completions; right and wrong have only such;
             ungraded could not be graded, so it is neither right nor wrong
These choose completions within the groups, and leave out groups without any:
  correct    whether the completion is right
  truncated  whether it was cut off at the token limit
  outcome    graded, timed_out, failed, unparsable, unanswered (by a server) or raised (an exception of your function)
  contains   a text within the completion

limit is the number of groups shown; 0 shows all. The output can be piped: grpo samples runs/x limit=0 | less

A run keeps whole groups of each round with tracking.samples_per_round completions or a few more. With
tracking.completions=all it keeps every one."""

KINDS = ("mixed", "right", "wrong", "ungraded")
OUTCOMES = ("graded", "timed_out", "failed", "unparsable", "unanswered", "raised", "late")


def run(words: Sequence[str]) -> int:
    """Prints the chosen groups. Returns the exit code."""
    folders, words = paths_and_settings(words)
    if len(folders) != 1:
        raise UserError("grpo samples needs the folder of one run (grpo samples help)")
    settings = typed(
        words,
        **{"step": span, "source": str, "prompt": str, "problem": str, "group": str, "contains": str, "limit": count},
        **{"correct": truth, "truncated": truth, "outcome": str},
    )
    limit, kind = settings.pop("limit", 5), settings.get("group")
    require(kind in (None, *KINDS), f"group={kind!r} is none of {' | '.join(KINDS)}")
    outcome = settings.get("outcome")
    require(outcome in (None, *OUTCOMES), f"outcome={outcome!r} is none of {' | '.join(OUTCOMES)}")
    console, num_shown, steps, sources = Terminal(), 0, set[int](), set[str]()

    def seen(rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            steps.add(row["step"])
            sources.add(row.get("source") or "")
            yield row

    rows = seen(whole_completions(folders[0]))
    for group, matching_rows in islice(chosen_groups(rows, settings), limit or None):
        _show(console, group, matching_rows)
        num_shown += 1
    require(bool(steps), f"{folders[0]} holds no completions: its run has finished no round, or kept none")
    if not num_shown:
        named = ", ".join(sorted(sources - {""}))
        console.print(
            f"no completion fits {' '.join(words)}: the run kept completions of the steps {min(steps)} to {max(steps)}"
            + (f" and of the sources {named}" if named else ", whose problems have no sources")
        )
    return 0


def chosen_groups(rows: Iterable[Row], words: Mapping[str, Any]) -> Iterator[tuple[list[Row], list[Row]]]:
    """Yields (all rows, matching rows) of each group that fits `words` and has completions that match them."""
    exact = {name: words[name] for name in ("correct", "truncated", "outcome") if name in words}
    for _, members in groupby(rows, key=lambda row: (row["step"], row["prompt_id"])):
        group = list(members)
        if not _fits(group, words):
            continue
        matching_rows = [
            row
            for row in group
            if words.get("contains", "") in row["completion"]
            and all(row.get(name) == value for name, value in exact.items())
        ]
        if matching_rows:
            yield group, matching_rows


def _fits(group: Sequence[Row], words: Mapping[str, Any]) -> bool:
    """Tells whether a group fits the words that choose groups."""
    first, kind = group[0], kind_of(group)
    low, high = words.get("step", (0, float("inf")))
    return (
        low <= first["step"] <= high
        and words.get("source", first.get("source")) == first.get("source")
        and words.get("prompt", "") in first["question"]
        and first["prompt_id"].startswith(words.get("problem", ""))
        and words.get("group", kind) == kind
    )


def _show(console: Terminal, group: Sequence[Row], matching: Sequence[Row]) -> None:
    """Prints a headline, the problem and the chosen completions of a group."""
    first = group[0]
    facts = [f"step {first['step']}", first["prompt_id"], score_of(group)]
    facts += [first["source"]] if first.get("source") else []
    console.rule(Text(" · ".join(facts), style="bold"), align="left")
    expected = f"\nexpected answer: {first['answer']}" if first["answer"] else ""
    console.print(Text(f"{first['question']}{expected}", style="dim"), soft_wrap=True)
    spoken = [conversation(row) for row in matching]
    shared = opening(spoken)
    if shared:
        console.print(Text("\neach conversation begins so:"), as_text(spoken[0][:shared], ""), sep="\n", soft_wrap=True)
    for row, messages in zip(matching, spoken, strict=True):
        if not is_graded(row):
            style, facts = "yellow", ["– not graded", f"{row['tokens']} tokens"]
        elif is_unjudged(group):
            style, facts = "cyan", [f"reward {row['reward']:g}", f"{row['tokens']} tokens"]
        else:
            verdict, style = ("✓ right", "green") if row["correct"] else ("✗ wrong", "red")
            facts = [verdict, f"reward {row['reward']:g}", f"{row['tokens']} tokens"]
        facts += [row["outcome"]] if row["outcome"] != "graded" else []
        facts += ["cut off"] if row.get("truncated") else []
        facts += [unseen(row)] if unseen(row) else []
        console.print(Text(f"\n{' · '.join(facts)}", style=style), soft_wrap=True)
        if messages:
            console.print(as_text(messages[shared:], ending(row)), soft_wrap=True)
        else:
            console.print(Text(row["completion"] or "(empty)"), soft_wrap=True)
    console.print()
