"""This module proves a chat template on a made-up conversation, before a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from grpo.config.errors import UserError, require
from grpo.episodes.comparison import bare, first_difference
from grpo.episodes.made_up_calls import ASKED, MARK, Message, Tools, calling, made_up_call
from grpo.rollout.tool_parsers import parser_names, read_by

if TYPE_CHECKING:
    from grpo.episodes.template import ChatTemplate


# A template that replaces, escapes or wraps parts of a message writes this otherwise.
_INNER = f"{MARK}\t\"a\" & 'b' <c>\r\n\n\n  **d**  \\( e \\) {{f}} {MARK}"

# The directives of strftime that change within a day.
TIME_OF_DAY = r"%[-_0^#]?[HIMSfpTXcrRs]"


def prove(chat: ChatTemplate, tools: Tools | None = None, system: Sequence[Message] = ()) -> str:
    """Compares a made-up conversation, which grows turn by turn, with the template's own rendering of all of it.

    It begins with the message `system`, if there is one. Returns "" if both are equal, or what the growing conversation
    keeps of earlier turns where the template would not: thoughts, words before calls, exact words, or the token
    with which the model ended a turn. Raises UserError for every other difference, for a template that shows no tools,
    and for calls that are read otherwise than they were written.
    """
    _prove_clock(chat)
    require(
        "<|channel|>" not in chat.text([ASKED, {"role": "assistant", "content": MARK}], tools, False),
        "the chat template puts a turn of the model into channels, as that of gpt-oss does, and episodes support none: "
        "choose another model",
    )
    _prove_tools(chat, tools)
    _prove_beginning(chat, tools)
    dropped = {
        "thoughts": not _keeps_thoughts(chat, tools),
        "words before calls": tools and not _keeps_words(chat, tools),
        "exact words": _INNER not in chat.text([ASKED, {"role": "assistant", "content": _INNER}, ASKED], tools),
    }
    kept = " and ".join(name for name, is_dropped in dropped.items() if is_dropped)
    messages: list[Message] = [*system, {"role": "user", "content": "What is 2 + 3?"}]
    grown = chat.text(messages, tools)
    for turn, new in _made_up_turns(chat, tools):
        grown, body, end = _grown(chat, grown, [*messages, turn], tools)
        grown += chat.tokenizer.decode(chat.bridge(system, turn, new, tools, end), skip_special_tokens=False)
        _prove_reading(chat, body, turn, tools)
        messages += [turn, *new]
        whole = chat.text(messages, tools)
        kept = kept or ("ends of turns" if bare(whole) != bare(grown) else "thoughts" if whole != grown else "")
        whole, grown_alike = chat.alike(whole), chat.alike(grown)
        require(
            whole == grown_alike,
            "the chat template writes earlier messages otherwise once a conversation goes on, so that tokens "
            f"would have to be encoded again: {first_difference(whole, grown_alike)}; {chat.way_out}",
        )
    return kept


def _made_up_turns(chat: ChatTemplate, tools: Tools | None) -> Iterator[tuple[Message, list[Message]]]:
    """Yields turns of a model, each with the messages that follow. It calls tools, one and then two at once if the
    template writes two, and answers, three times."""
    for number, said in enumerate(("It is 5.", "It is 15.", "It is 20.")):
        if tools and number < 2:
            yield calling(tools, 1)
        if tools and not number and chat.writes(calling(tools, 2)[0], tools):
            yield calling(tools, 2)
        yield {"role": "assistant", "content": said}, [{"role": "user", "content": f"And {said} + 7?"}]


def _keeps_thoughts(chat: ChatTemplate, tools: Tools | None) -> bool:
    """Tells whether the template shows what a model thought in an earlier turn."""
    thought, _ = chat.read(chat.ids(f"<think>\n{MARK}\n</think>\n\n5"), tools)
    return MARK in chat.text([ASKED, thought, ASKED], tools)


def _keeps_words(chat: ChatTemplate, tools: Tools) -> bool:
    """Tells whether the template shows what a model wrote before a call, and not only behind the call's answer."""
    call, answer = made_up_call(tools[0]) | {"content": MARK}, {"role": "tool", "content": "five"}
    answer |= {"name": tools[0]["function"]["name"], "tool_call_id": call["tool_calls"][0]["id"]}
    before, behind, _ = chat.text([ASKED, call, answer], tools).partition(MARK)
    called = chat.text([ASKED, call], tools, False)
    return bool(behind) and "five" not in before and called.rfind(answer["name"]) > called.find(MARK)


def _prove_clock(chat: ChatTemplate) -> None:
    formats = re.findall(r"strftime_now\(\s*['\"]([^'\"]*)", str(chat.tokenizer.chat_template))
    timed = [text for text in formats if re.search(TIME_OF_DAY, text)]
    require(
        not timed,
        f"the chat template writes the time of day ({''.join(timed[:1])}), so that a conversation would not go on as "
        f"it began: write the date alone, or nothing; {chat.way_out}",
    )


def _prove_tools(chat: ChatTemplate, tools: Tools | None) -> None:
    if not tools:
        return
    asked = [ASKED]
    require(
        chat.text(asked, tools) != chat.text(asked, None),
        f"the chat template of {chat.tokenizer.name_or_path} shows no tools to the model: {chat.way_out}; for models "
        "that read <|im_start|>, task.prompt.chat_template=chatml_tools comes with grpo",
    )
    if chat.reader(tools) is None:
        named = _parsers_that_read(chat, tools)
        way_out = f"set task.prompt.tool_parser to {' or '.join(named)}, which reads them" if named else chat.way_out
        raise UserError(
            f"the tokenizer of {chat.tokenizer.name_or_path} has no response_template, which says how calls of "
            f"tools are read, and its calls are no JSON in a <tool_call> tag: {way_out}"
        )


def _prove_beginning(chat: ChatTemplate, tools: Tools | None) -> None:
    asked = [ASKED]
    before, answered = chat.text(asked, tools, False), [*asked, {"role": "assistant", "content": MARK}]
    header = chat.text(answered, tools, False).removeprefix(before).partition(MARK)[0]
    require(
        chat.text(asked, tools) != before or not header.strip(),
        f"the chat template does not begin the model's turn, so that the model would have to write {header!r} "
        "itself: let the template write that where add_generation_prompt is true, in "
        "task.prompt.chat_template=FILE",
    )


def _parsers_that_read(chat: ChatTemplate, tools: Tools) -> list[str]:
    """Returns those of vLLM's parsers that read a call as the chat template writes it."""
    call = made_up_call(tools[0])
    _, body, _ = _grown(chat, chat.text([ASKED], tools), [ASKED, call], tools)
    named = []
    for name in parser_names():
        # A parser may lack a token or a package that it needs.
        with suppress(Exception):
            read = read_by(name, chat.tokenizer, tools)(body)
            if _calls(read) == _calls(call):
                named.append(name)
    return named


def _prove_reading(chat: ChatTemplate, body: str, turn: Message, tools: Tools | None) -> None:
    message, readable = chat.read(chat.ids(body), tools)
    if readable and _calls(message) == _calls(turn):
        require(
            bare(message["content"]).strip() == turn["content"],
            f"the chat template writes words into the model's turn which it does not write where that begins, so "
            f"they would be read as the model's ({body!r:.60}): let it write them where add_generation_prompt is "
            "true, in task.prompt.chat_template=FILE, or use a tokenizer whose response_template reads them",
        )
        return
    way_out = chat.way_out
    if chat.parser and tools:
        others = [*_parsers_that_read(chat, tools)]
        way_out = f"set it to {' or '.join(others)}, which reads them" if others else "leave it empty"
        way_out = f"task.prompt.tool_parser={chat.parser} is for calls in another form, so {way_out}"
    raise UserError(f"a call of a tool is read otherwise than the chat template writes it ({body!r:.80}): {way_out}")


def _grown(
    chat: ChatTemplate, grown: str, messages: Sequence[Message], tools: Tools | None
) -> tuple[str, str, int | None]:
    """Returns the text of a conversation that grew by the last of `messages`, an assistant's turn, and the turn's
    own text, up to the token that ends it, and that token. It is None where the next message ends the turn."""
    whole = chat.text(messages, tools, False)
    before, text = bare(chat.text(messages[:-1], tools)), bare(whole)
    require(
        text.startswith(before),
        "the chat template writes earlier messages otherwise once they are answered: "
        f"{first_difference(text, before)}; {chat.way_out}",
    )
    body = text[len(before) :]
    ids, begins = chat.placed(body)
    # A model whose turn begins with a thought ends that first.
    thought = "</think>\n\n" if grown.rstrip().endswith("<think>") else ""
    # A response template reads a turn behind what begins it.
    read_first = thought if chat.reader(tools) and not chat.parser else ""
    cut = next((at for at, token in enumerate(ids) if token in chat.ends), None)
    if cut is None:
        return grown + thought + body, read_first + body, None
    end = chat.tokenizer.decode(ids[cut : cut + 1], skip_special_tokens=False)
    return grown + thought + body[: begins[cut]] + end, read_first + body[: begins[cut]], ids[cut]


def _calls(message: Message) -> list[Any]:
    return [call["function"] for call in message.get("tool_calls") or ()]
