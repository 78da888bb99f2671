"""This module makes up the messages with which a chat template is proven and cut."""

from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]

MARK = "THE-TURN-ENDS-BEHIND-THIS"
ASKED = {"role": "user", "content": "."}
WAY_OUT = "use a model whose template has tools, or give a template in task.prompt.chat_template=FILE"


def calling(tools: Tools, count: int) -> tuple[Message, list[Message]]:
    """Returns a message that calls the first tool so often, and the answers."""
    message, name = made_up_call(tools[0]), tools[0]["function"]["name"]
    [call] = message["tool_calls"]
    calls = [call | {"id": f"call{number:05d}"} for number in range(count)]
    answers = [
        {"role": "tool", "name": name, "content": f"result {number}", "tool_call_id": call["id"]}
        for number, call in enumerate(calls)
    ]
    return message | {"tool_calls": calls}, answers


def made_up_call(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message that calls a tool with made-up arguments of the right types."""
    properties = (tool["function"].get("parameters") or {}).get("properties") or {}
    arguments = {name: _made_up(schema) for name, schema in properties.items()}
    function = {"name": tool["function"]["name"], "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00000", "type": "function", "function": function}],
    }


def _made_up(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return "2 + 3"  # a schema may be true, which allows anything
    if isinstance(schema.get("enum"), Sequence) and schema["enum"]:
        return schema["enum"][0]
    # The types of a union are a list.
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    return {"integer": 3, "number": 2.5, "boolean": True, "array": [], "object": {}}.get(str(kind), "2 + 3")


def turn_ending(calls: Sequence[Message], mark: str) -> dict[str, Any]:
    """Returns an assistant's message that makes calls, or else is the mark."""
    return {"role": "assistant", "content": "" if calls else mark, **({"tool_calls": [*calls]} if calls else {})}
