"""This module shows an episode as a conversation."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from rich.text import Text

from grpo.config.plain_json import parse_json
from grpo.telemetry.json_lines import Row

ROOM = "the conversation filled model.max_length"


class Said(NamedTuple):
    """This is one message of a conversation. `read` says that the model read it, rather than wrote it."""

    name: str
    text: str
    read: bool


def conversation(row: Row) -> list[Said]:
    """Returns the messages of a completion's row. Returns [] for a single turn, and for messages that are damaged.

    The model read all that it has not written, such as the prompt's examples, or an agent's summary of earlier turns.
    """
    try:
        said = said_in(parse_json(row.get("messages") or "[]"))
    except (ValueError, TypeError, AttributeError, KeyError):
        return []
    of_assistant = [index for index, one in enumerate(said) if not one.read]
    # A row of an earlier version says only how many turns the model took.
    written = row.get("written", of_assistant[max(0, len(of_assistant) - int(row.get("turns") or len(said))) :])
    return [one if one.read or index in written else one._replace(read=True) for index, one in enumerate(said)]


def unseen(row: Row) -> str:
    """Says how many turns a conversation lacks, since its agent has rewritten the history, or returns ""."""
    lacking = int(row.get("turns") or 0) - len(row.get("written") or ())
    others = row.get("branches", 1) - 1
    where = "another branch" if others == 1 else f"{others} other branches"
    return f"{lacking} more turn{'s' * (lacking != 1)} in {where}" if others > 0 else ""


def opening(conversations: Sequence[Sequence[Said]]) -> int:
    """Returns the number of messages with which all conversations of a group begin, and which the model has read.

    >>> asked, answered = Said("user", "2 + 3 =", True), Said("assistant", "5", False)
    >>> opening([[asked, answered], [asked, answered]]), opening([[asked, answered], []]), opening([[asked, answered]])
    (1, 0, 0)
    """
    if len(conversations) < 2:
        return 0
    alike = takewhile(lambda said: said[0].read and len({*said}) == 1, zip(*conversations, strict=False))
    return sum(1 for _ in alike)


def said_in(messages: Sequence[Mapping[str, Any]]) -> list[Said]:
    return [_said(message) for message in messages]


def ending(row: Row) -> str:
    """Says how an episode ended before its time, or returns ""."""
    ended = row.get("ended")
    limit = ROOM if ended == "room" else f"at the limit of {ended}"
    return str(row.get("error") or (limit if ended else ""))


def as_text(messages: Sequence[Said], ended: str) -> Text:
    """Returns a conversation for the terminal. Messages that the model read are dim."""
    lines = [Text(f"{name}: ", style="dim" if read else "bold").append(Text(text)) for name, text, read in messages]
    lines += [Text(f"ended: {ended}", style="yellow")] if ended else []
    return Text("\n").join(lines)


def _said(message: Mapping[str, Any]) -> Said:
    """Makes a call of a tool a line as in a program.

    >>> call = {"function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
    >>> _said({"role": "assistant", "content": "", "tool_calls": [call]})
    Said(name='assistant', text='→ add(a=2, b=3)', read=False)
    """
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    lines = [str(message.get("content") or ""), *(f"→ {call['name']}({_arguments(call)})" for call in calls)]
    text = "\n".join(filter(None, lines)) or "(empty)"
    return Said(str(message.get("name") or message["role"]), text, message["role"] != "assistant")


def _arguments(call: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in dict(call["arguments"]).items())
