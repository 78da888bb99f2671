"""This module records the exact tokens of an episode, whoever leads the conversation.

A conversation is a path of messages. A request whose messages continue a recorded path gets the ids of that path and
the bridge to its next turn. A request that continues none, as after an agent has shortened its history, begins a
further branch. The tokens of all branches belong to one completion, with one advantage.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from grpo.episodes.made_up_calls import Message, Tools
from grpo.episodes.template import ChatTemplate, Earlier
from grpo.types import Completion, EpisodeFacts, Observed

THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""A message has a model's thoughts under one of these names."""


@dataclass(slots=True)
class _Branch:
    """A branch is one path of messages. `ids` are all of its tokens, from the first message on.

    `turns` are (where the turn begins in `ids`, what was sampled). `ends` has the ends of paths of messages, by their
    digests.
    """

    ids: list[int]
    turns: list[tuple[int, Completion]] = field(default_factory=list)
    ends: dict[str, Earlier] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """A place is where the next turn begins: in a branch, after its first `length` ids and then `new_ids`. `text` is
    all that stands before it, as `ChatTemplate.begun` gives it, or "" where the template does not write it."""

    branch: _Branch | None
    length: int
    new_ids: tuple[int, ...]
    text: str

    @property
    def context(self) -> tuple[int, ...]:
        return (*(self.branch.ids[: self.length] if self.branch else ()), *self.new_ids)


class Recorder:
    """A recorder holds the tokens of one episode while it goes on."""

    def __init__(self, template: ChatTemplate):
        self._template = template
        self._branches: list[_Branch] = []
        self.num_turns = 0
        self.num_tokens = 0
        self.unreadable = 0
        self.last: Completion | None = None
        self.messages: tuple[Message, ...] = ()
        self.num_opening, self.num_calls = 0, 0
        self.written: tuple[int, ...] = ()
        self._newest, self.shown_tools = 0, False

    @property
    def opening(self) -> tuple[int, ...]:
        """Returns the ids before the first turn."""
        return tuple(self._branches[0].ids[: self._branches[0].turns[0][0]]) if self._branches else ()

    def place(self, messages: Sequence[Message], tools: Tools | None) -> Place:
        """Returns where the model's next turn begins, after `messages`."""
        keys = _keys(messages, tools)
        for count in range(len(messages), 0, -1):
            for branch in self._branches:
                if keys[count] in branch.ends:
                    earlier = branch.ends[keys[count]]
                    if bridge := self._template.continued(earlier, messages, count, tools):
                        return Place(branch, earlier.length, *bridge)
        return Place(None, 0, *self._template.begun(messages, tools))

    def record(
        self, place: Place, messages: Sequence[Message], tools: Tools | None, turn: Completion, number: int = 0
    ) -> Message:
        """Adds a turn that was sampled at `place`, and returns it as a message. The turn with the highest `number` is
        the episode's last one: turns that are asked at once end in any order."""
        branch = place.branch
        if branch is None or place.length < len(branch.ids):
            branch = _Branch([*place.context])
            self._branches.append(branch)
        else:
            branch.ids += place.new_ids
        branch.turns.append((len(branch.ids), turn))
        branch.ids += turn.token_ids
        message, readable = self._template.read(turn.token_ids, tools)
        for index, call in enumerate(message.get("tool_calls") or ()):
            # Some templates want an id of nine letters and digits.
            call["id"] = call.get("id") or f"c{self.num_turns % 10**5:05d}{index % 1000:03d}"
        self.num_opening = self.num_opening or len(messages)
        self.num_turns += 1
        self.shown_tools |= bool(tools)
        self.num_tokens += len(turn.token_ids)
        self.unreadable += not readable
        self.num_calls += len(message.get("tool_calls") or ())
        keys = _keys([*messages, message], tools)
        if number >= self._newest:
            ends = {key for branch in self._branches for key in branch.ends}
            own = (place for place in range(len(messages)) if keys[place + 1] in ends)
            self._newest, self.last, self.messages = number, turn, (*messages, message)
            self.written = (*own, len(messages))
        end = Earlier(len(branch.ids), message, branch.ids[-1], place.text)
        branch.ends[keys[-1]] = end
        if message.keys() & {*THOUGHTS}:
            # An agent may send a message back without the thoughts, which stay where the model wrote them.
            bare = {name: part for name, part in message.items() if name not in THOUGHTS}
            branch.ends[_keys([*messages, bare], tools)[-1]] = end
        return message

    def completion(self, prompt: tuple[int, ...], facts: EpisodeFacts) -> Completion:
        """Returns the episode as a completion of `prompt`."""
        tokens: list[int] = []
        logprobs: list[float] = []
        versions: list[tuple[int, int]] = []
        observed: list[Observed] = []
        context: list[int] = list(prompt)
        for branch in self._branches:
            for begin, turn in branch.turns:
                keep = _common(context, branch.ids[:begin])
                if len(context) < begin or keep < len(context):
                    kept = None if keep == len(context) else keep
                    observed.append(Observed(len(tokens), tuple(branch.ids[keep:begin]), kept))
                tokens += turn.token_ids
                logprobs += turn.sampler_logprobs
                versions += turn.versions
                context = branch.ids[: begin + len(turn.token_ids)]
        return Completion(
            tuple(tokens),
            tuple(logprobs),
            self.last.text if self.last else "",
            bool(facts.ended),
            _joined(versions),
            tuple(observed),
            facts,
        )

    @property
    def num_branches(self) -> int:
        return len(self._branches)


def common_opening(openings: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the ids with which all of several conversations open."""
    first, last = min(openings), max(openings)
    return first[: _common(first, last)]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns how many ids two sequences have in common at their beginning."""
    shorter = min(len(one), len(other))
    if tuple(one[:shorter]) == tuple(other[:shorter]):
        return shorter
    return next(place for place in range(shorter) if one[place] != other[place])


def _joined(versions: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Joins neighbours of the same policy version.

    >>> _joined([(3, 10), (3, 4), (5, 1)])
    ((3, 14), (5, 1))
    """
    joined: list[tuple[int, int]] = []
    for version, count in versions:
        if joined and joined[-1][0] == version:
            joined[-1] = (version, joined[-1][1] + count)
        else:
            joined.append((version, count))
    return tuple(joined)


def _keys(messages: Sequence[Message], tools: Tools | None) -> list[str]:
    """Returns a digest for each beginning of a conversation: entry n stands for its first n messages.

    An assistant's message is known by its text, its calls and its thoughts.
    """
    keys = [_digest("", tools or [])]
    for message in messages:
        said = {name: value for name, value in message.items() if value not in (None, "", [], ())}
        if message["role"] == "assistant":
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            thoughts = {name: said[name] for name in THOUGHTS if name in said}
            said = {"role": "assistant", "content": message.get("content") or "", "calls": calls, **thoughts}
        keys.append(_digest(keys[-1], said))
    return keys


def _digest(before: str, value: Any) -> str:
    return blake2b(f"{before}{json.dumps(value, sort_keys=True)}".encode("utf-8", "surrogatepass")).hexdigest()
