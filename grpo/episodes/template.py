"""This module is the border between messages and tokens: a chat template that never encodes what the model wrote.

A conversation grows by appending. The model's turn is kept as the ids that it sampled. The *bridge* follows: the ids
that the template writes after the end of an assistant's turn, such as a tool's answer and the beginning of the next
turn. `prove` shows before a run that both together are what the template writes for the whole conversation (`proof`).
"""

import json
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import count as count_up
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo.config.errors import UserError, require
from grpo.episodes.comparison import END, alike, bare, between, masked, unmasked
from grpo.episodes.made_up_calls import ASKED, MARK, WAY_OUT, Message, Tools, made_up_call, turn_ending
from grpo.episodes.messages import calls_read, system_of
from grpo.episodes.proof import prove
from grpo.rollout.tool_parsers import Read, read_by

HERMES = {
    "start_anchor": "\0",
    "defaults": {"role": "assistant", "content": ""},
    "fields": {
        "content": {"content": "text", "content_args": {"strip": False}, "repeats": True, "join": ""},
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
    },
}
"""This response template of transformers reads the calls of Qwen 2.5 and 3, SmolLM3, Hermes and others: a JSON object
in a `<tool_call>` tag."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """This is a conversation up to the model's turn `answer`, whose last token is `last_token` and which ends behind
    `length` ids. `before` is what stood before that turn, as `ChatTemplate.begun` gave it then."""

    length: int
    answer: Message
    last_token: int | None
    before: str


class ChatTemplate:
    """A chat template renders messages as token ids, and reads messages out of the ids that a model wrote.

    Raises UserError for a tokenizer that cannot say where in a text its tokens stand.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        render: Callable[..., str],
        ends: Sequence[int],
        parser: str = "",
        own_file: str = "",
    ):
        """`render(messages, tools, add_generation_prompt)` returns text, as `PromptEncoder.render` does. `ends` are the
        tokens that end a turn. `parser` names vLLM's parser of calls, or is "". `own_file` is the user's own file of
        the template, or ""."""
        require(
            tokenizer.is_fast,
            "task.episode needs a fast tokenizer, which says where in a text its tokens stand: save the model with its "
            "tokenizer.json",
        )
        self.tokenizer, self._render, self.ends = tokenizer, render, frozenset(ends)
        self.parser, self.way_out = parser, f"correct {own_file}" if own_file else WAY_OUT
        self._readers: dict[str, Read | None] = {}
        self._proven: set[str] = set()
        self._longest = max(map(len, tokenizer.get_vocab()))
        # A message without calls is decoded without them.
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._special = re.compile("|".join(map(re.escape, special)) or "(?!)")

    def may_fit(self, messages: Sequence[Message], most_tokens: int) -> bool:
        """Tells whether messages may have at most this many tokens, by their characters alone. A long text is not even
        encoded then, which would take seconds."""
        return sum(len(message["content"]) for message in messages) <= most_tokens * self._longest

    def require_proven(self, messages: Sequence[Message], tools: Tools | None) -> None:
        """Proves the template for an agent's tools, and for its system message, where that has not been done yet."""
        system = system_of(messages)
        if (key := json.dumps([tools, bool(system)], sort_keys=True)) not in self._proven:
            self.prove(tools, system)
            self._proven.add(key)

    def opening(self, messages: Sequence[Message], tools: Tools | None = None) -> tuple[int, ...]:
        """Returns the ids of a conversation up to where the model's turn begins."""
        return self.begun(messages, tools)[0]

    def begun(self, messages: Sequence[Message], tools: Tools | None = None) -> tuple[tuple[int, ...], str]:
        """Returns what `opening` does, and the conversation as the template writes it, with messages that are
        `masked`."""
        text = self.text(messages, tools)
        return self.ids(text), text if (alike := masked(messages)) is messages else self.text(alike, tools)

    def continued(
        self, earlier: Earlier, messages: Sequence[Message], count: int, tools: Tools | None
    ) -> tuple[tuple[int, ...], str] | None:
        """Returns the bridge behind the first `count` messages, which are those of `earlier`, and the conversation as
        `begun` does, or "" where the template writes no message with several calls, and there is one.

        Returns None where the template writes the conversation otherwise than what it wrote then, the turn as it writes
        that alone, and the bridge: what it writes may depend on any message.
        """
        answer, compared = earlier.answer, masked(messages)
        asked, new = [*system_of(compared), ASKED], compared[count:]
        try:
            ids, tail, same = self._cut(system_of(messages), answer, messages[count:], tools)
            if compared is not messages:
                _, tail, _ = self._cut(asked[:-1], answer, new, tools)
        except UserError:
            return None
        bridge = _behind(ids, earlier.last_token, same)
        try:
            whole, alone = (self.text([*before, *new], tools) for before in (compared[:count], [*asked, answer]))
            if compared is not messages and unmasked(whole) != self.text(messages, tools):
                return None
        except UserError:
            several = any(len(said.get("tool_calls") or ()) > 1 and not self.writes(said, tools) for said in messages)
            return (bridge, "") if several else None
        if not earlier.before:
            return (bridge, whole) if whole.endswith(tail) else None
        turn = between(*map(self.alike, (whole, earlier.before, tail)))
        if turn is None or turn != between(*map(self.alike, (alone, self.text(asked, tools), tail))):
            return None
        # A second end would be that of another message, which the bridge lacks.
        return (bridge, whole) if END not in turn.removesuffix(END) else None

    def bridge(
        self,
        system: Sequence[Message],
        answer: Message,
        new: Sequence[Message],
        tools: Tools | None,
        last_token: int | None,
    ) -> tuple[int, ...]:
        """Returns the ids between the model's turn `answer`, whose last token is `last_token`, and its next turn.

        They are cut out of a rendering of that turn alone, behind the conversation's `system` message if it has one. A
        mark stands at the turn's end. So nothing depends on what the template does to earlier turns. An end of turn
        that the model has not written is part of the bridge.
        """
        ids, _, same = self._cut(system, answer, new, tools)
        return _behind(ids, last_token, same)

    def _cut(
        self, system: Sequence[Message], answer: Message, new: Sequence[Message], tools: Tools | None
    ) -> tuple[tuple[int, ...], str, Set[int]]:
        """Returns the ids from the end of a turn on, as text what follows the end, and which tokens stand for that end:
        all ends, or the same token alone where the end is the beginning of the next message, which would lack it."""
        texts = json.dumps([*system, *new], default=str)
        mark = next(mark for number in count_up() if (mark := f"{MARK}{number or ''}") not in texts)
        calls = [dict(call) for call in answer.get("tool_calls") or ()]
        if calls:
            calls[-1] = {**calls[-1], "function": {**calls[-1]["function"], "arguments": {"mark": mark}}}
        try:
            text = self.text([*system, ASKED, turn_ending(calls, mark), *new], tools)
        except UserError:
            # Some templates write one call in a message. How it ends is all that counts here.
            text = self.text([*system, ASKED, turn_ending(calls[-1:], mark), *new], tools)
        behind = text.find(mark) + len(mark)
        what = "leaves out an assistant's calls of tools" if calls else "changes the text of an assistant's message"
        require(mark in text, f"the chat template {what}: {self.way_out}")
        ids, begins = self.placed(text)
        cut = next((at for at, token in enumerate(ids) if token in self.ends and begins[at] >= behind), None)
        require(
            cut is not None,
            "the chat template does not end an assistant's turn with a token that ends completions: correct "
            f"eos_token_id in the model's generation_config.json, or {self.way_out}",
        )
        alone = self.text([*system, ASKED, turn_ending(calls[-1:], mark)], tools, False).partition(mark)[2]
        ends_itself = bool(self.ends & {*self.ids(alone)})
        if not alone.strip().startswith(text[behind : begins[cut]].strip()):
            wrong = "writes other messages into an assistant's turn: "
            if not ends_itself:
                wrong = f"ends an assistant's turn with {alone.strip()!r:.40}, which ends no completion: correct "
                wrong += "eos_token_id in the model's generation_config.json, or "
            raise UserError(f"the chat template {wrong}{self.way_out}")
        tail = text[begins[cut + 1] :] if cut + 1 < len(ids) else ""
        return ids[cut:], tail, self.ends if ends_itself else {ids[cut]}

    def read(self, token_ids: Sequence[int], tools: Tools | None = None) -> tuple[dict[str, Any], bool]:
        """Returns the message that the model wrote, and whether it can be read. A message with calls that cannot be
        read is returned as plain text."""
        own = token_ids[:-1] if token_ids and token_ids[-1] in self.ends else token_ids
        plain = {"role": "assistant", "content": self.tokenizer.decode(own, skip_special_tokens=True)}
        if (reader := self.reader(tools)) is None:
            return plain, True
        try:
            text = self.tokenizer.decode(own, skip_special_tokens=False)
            message = reader(text)
            if calls := message.get("tool_calls"):
                message["tool_calls"] = calls_read(calls, text)
        except Exception:
            # Readers raise many errors for a call that is no JSON or lacks something, as models write at first.
            return plain, False
        return message | {"content": self._special.sub("", message.get("content") or "").strip()}, True

    def reader(self, tools: Tools | None) -> Read | None:
        """Returns how messages are read: by vLLM's parser if one is named, else by the tokenizer's response template,
        else by `HERMES` if the chat template writes calls in that form. It is None where a message is its text."""
        key = json.dumps(tools, sort_keys=True)
        if key not in self._readers:
            self._readers[key] = self._new_reader(tools)
        return self._readers[key]

    def _new_reader(self, tools: Tools | None) -> Read | None:
        if self.parser:
            return read_by(self.parser, self.tokenizer, tools) if tools else None
        response_template = getattr(self.tokenizer, "response_template", None)
        if response_template is None and tools:
            written = self.text([ASKED, made_up_call(tools[0])], tools, False)
            if re.search(r"<tool_call>\s*\{\"name\"", written):
                response_template = HERMES
        if response_template is None:
            return None
        begun, known = self._begun(tools), list(tools or ())
        return lambda text: self.tokenizer.parse_response(text, response_template, prefix=begun, tools=known)

    def prove(self, tools: Tools | None = None, system: Sequence[Message] = ()) -> str:
        """Returns what `proof.prove` does."""
        return prove(self, tools, system)

    def writes(self, turn: Message, tools: Tools) -> bool:
        try:
            return bool(self.text([ASKED, turn], tools, False))
        except UserError:
            return False

    def alike(self, text: str) -> str:
        ends = [self.tokenizer.decode([end], skip_special_tokens=False) for end in self.ends]
        return alike(text, ends, self._header)

    @cached_property
    def _header(self) -> str:
        """Returns what the template writes before every turn of the model, or "" if that cannot be seen."""
        before, begun = (self.text([ASKED], None, begins_turn) for begins_turn in (False, True))
        return bare(begun.removeprefix(before)).strip() if begun.startswith(before) else ""

    def _begun(self, tools: Tools | None) -> str:
        """Returns what the template writes for the model at the beginning of its turn, such as an opening `<think>`."""
        answered = self.text([ASKED, {"role": "assistant", "content": MARK}], tools, False)
        return self.text([ASKED], tools).removeprefix(bare(answered.partition(MARK)[0]))

    def text(self, messages: Sequence[Message], tools: Tools | None, begins_turn: bool = True) -> str:
        return self._render([*messages], tools=list(tools) if tools else None, add_generation_prompt=begins_turn)

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def placed(self, text: str) -> tuple[tuple[int, ...], list[int]]:
        """Returns the ids of a text, and at which character each begins."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return tuple(encoded["input_ids"]), [begin for begin, _ in encoded["offset_mapping"]]


def _behind(ids: tuple[int, ...], last_token: int | None, same: Set[int]) -> tuple[int, ...]:
    """Returns the ids of a bridge, without the end of the turn where the model has written one that is the `same`."""
    return ids[1:] if last_token in same else ids
