"""This module brings messages and tools, as programs write them for OpenAI's chat interface, into one form."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

POLICY = "policy"
"""Programs may give the model this name. Any other name works as well."""

# A model writes the id of a call as JSON or behind Mistral's token. An argument that is named id and has such a value
# reads the same, and the call then gets that id, which does no harm.
_ID = re.compile(r"(?:\"id\":\s*\"|\[CALL_ID\]\s*)([A-Za-z0-9]{9})(?![A-Za-z0-9])")

ROLES = {"developer": "system", "function": "tool"}
"""These roles have other names in a chat template."""

FOR_SERVERS = ("cache_control",)
"""These parts of a message are for servers, and no template writes them. Agents add them to the newest message only."""


class Unreadable(Exception):
    """This error says why messages or tools cannot be read."""


def json_of(line: bytes) -> Any:
    """Reads JSON. A lone surrogate, which JSON can hold and no tokenizer reads, becomes U+FFFD, the sign of an unknown
    character."""
    value = json.loads(line)
    if b"\\ud" not in line.lower() and b"\xed" not in line:
        return value
    return json.loads(re.sub("[\ud800-\udfff]", "\ufffd", json.dumps(value, ensure_ascii=False)))


def messages_of(value: Any) -> list[Message]:
    """Returns messages with their text as one string and the arguments of calls as mappings, as chat templates want
    them. Raises Unreadable for anything else than a list of messages, and for pictures and sounds."""
    if not _is_list(value) or not value:
        raise Unreadable("messages must be a list with at least one message")
    messages = [_message(place, message) for place, message in enumerate(value)]
    names: dict[str, str] = {}
    for message in messages:
        # A client may number the calls of every message anew.
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ()) if call.get("id")}
        # OpenAI's interface names a tool by its call alone, and some templates write its name.
        if message["role"] == "tool" and message.get("tool_call_id") in names:
            message.setdefault("name", names[message["tool_call_id"]])
    return messages


def _message(place: int, value: Any) -> Message:
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise Unreadable(f'message {place} must be a mapping with a role, such as {{"role": "user", "content": "Hi"}}')
    message = {name: part for name, part in value.items() if part is not None and name not in FOR_SERVERS}
    message["role"] = ROLES.get(value["role"], value["role"])
    message["content"] = _text(place, value.get("content"))
    for name in ("tool_call_id", "name"):
        if not isinstance(message.get(name, ""), str):
            raise Unreadable(f"message {place} has a {name} that is no text")
    if calls := value.get("tool_calls"):
        message["tool_calls"] = [_call(place, call) for call in (calls if _is_list(calls) else [calls])]
    else:
        message.pop("tool_calls", None)
    return message


def _text(place: int, content: Any) -> str:
    """Returns a message's content as text. Parts of text are joined."""
    if content is None or isinstance(content, str):
        return content or ""
    if not _is_list(content):
        raise Unreadable(f"the content of message {place} must be text, or a list of texts")
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type", "something else") if isinstance(part, Mapping) else type(part).__name__
            raise Unreadable(f"message {place} has {kind} in its content, and the policy reads text alone")
    return "".join(part["text"] for part in content)


def _call(place: int, call: Any) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Unreadable(f"message {place} has a call of a tool without a function and its name")
    if not isinstance(call.get("id", ""), str | None):
        raise Unreadable(f"message {place} has a call with an id that is no text")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json_of((arguments or "{}").encode("utf-8", "surrogatepass"))
        except ValueError:
            arguments = None
    if not isinstance(arguments, Mapping):
        raise Unreadable(f"message {place} calls {function['name']} with arguments that are no JSON object")
    return {**call, "type": "function", "function": {"name": function["name"], "arguments": dict(arguments)}}


def tools_of(value: Any) -> list[Message] | None:
    """Returns the schemas of tools, or None if there is none. Raises Unreadable for anything else."""
    if value is not None and not _is_list(value):
        raise Unreadable("tools must be a list")
    for tool in value or ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Unreadable('each tool must be {"type": "function", "function": {"name": …, "parameters": …}}')
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, Mapping) or not isinstance(parameters.get("properties") or {}, Mapping):
            raise Unreadable(f"the parameters of the tool {function['name']} must be a JSON schema of an object")
    return list(value) if value else None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def calls_read(calls: Sequence[Any], text: str) -> list[Message]:
    """Returns the calls that a model wrote in `text` in the form of `messages_of`. Their ids are those that the model
    wrote, which a tool's answer names, or "".

    Raises Unreadable for a call without a name or arguments, and ValueError for numbers that JSON lacks, such as NaN.
    """
    ids = _ID.findall(text)
    read = json_of(json.dumps([_call(0, call) for call in calls], allow_nan=False).encode())
    return [call | {"id": ids[place] if len(ids) == len(calls) else ""} for place, call in enumerate(read)]


def system_of(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Returns the system message with which a conversation begins, or nothing."""
    return messages[:1] if messages and messages[0]["role"] == "system" else ()
