"""This module reads calls of tools by vLLM's parsers: one for each way in which families of models write them."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from grpo.config.errors import UserError, require

Read = Callable[[str], dict[str, Any]]
"""This function reads an assistant's message out of the text that the model wrote. It may raise anything."""


@cache
def _parsers() -> Any:
    try:
        from vllm.tool_parsers import ToolParserManager
    except ImportError as error:
        raise UserError(f"task.prompt.tool_parser needs vLLM ({error}): install it, or leave the key out") from error
    return ToolParserManager


def parser_names() -> list[str]:
    """Returns the names that `task.prompt.tool_parser` may have, or none where vLLM is not installed."""
    try:
        return sorted(_parsers().list_registered())
    except UserError:
        return []


def read_by(name: str, tokenizer: Any, tools: Sequence[Mapping[str, Any]]) -> Read:
    """Returns how vLLM's parser `name` reads messages. Raises UserError if there is none of that name."""
    require(
        name in _parsers().list_registered(), f"task.prompt.tool_parser={name}: vLLM has {', '.join(parser_names())}"
    )
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionToolsParam

    kind = _parsers().get_tool_parser(name)
    known = [ChatCompletionToolsParam(**tool) for tool in tools]
    request = ChatCompletionRequest(model="policy", messages=[{"role": "user", "content": "."}], tools=list(tools))

    def read(text: str) -> dict[str, Any]:
        # Parsers log a traceback for each call that they cannot read, as models write at first. An engine that starts
        # sets the level back.
        logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
        found = kind(tokenizer, known).extract_tool_calls(text, request)
        calls = [
            {
                "type": "function",
                "function": {"name": call.function.name, "arguments": json.loads(call.function.arguments)},
            }
            for call in found.tool_calls
        ]
        return {"role": "assistant", "content": found.content or "", **({"tool_calls": calls} if calls else {})}

    return read
