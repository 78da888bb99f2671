"""These tests bring messages of programs into one form."""

import pytest

from grpo.episodes.messages import Unreadable, calls_read, json_of, messages_of, tools_of

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_messages_of_openais_clients_become_those_of_chat_templates():
    said = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ]
    assert messages_of(said) == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{**CALL, "function": {"name": "add", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1", "name": "add"},
    ]


def test_an_answer_has_the_name_of_the_nearest_call_before_it():
    other = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "1"}
    turns = [said for made in (CALL, other, CALL) for said in ({"role": "assistant", "tool_calls": [made]}, answer)]
    assert [said["name"] for said in messages_of(turns)[1::2]] == ["add", "search", "add"]


def test_an_answer_to_a_call_without_an_id_keeps_the_name_that_it_has():
    without_id = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    answers = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "1", "name": "add"}]
    assert messages_of([{"role": "assistant", "tool_calls": [without_id]}, *answers])[1:] == answers


def test_a_mark_for_the_cache_of_a_server_is_no_part_of_a_message():
    marked = {"role": "user", "content": "Hi", "name": "Bo", "cache_control": {"type": "ephemeral"}}
    assert messages_of([marked]) == [{"role": "user", "content": "Hi", "name": "Bo"}]


@pytest.mark.parametrize(
    "said",
    [
        "Hi",
        [],
        ["Hi"],
        [{"content": "Hi"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "input_audio"}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "{"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}],
        [{"role": "assistant", "tool_calls": [{"id": [1], "function": {"name": "add", "arguments": "{}"}}]}],
        [{"role": "assistant", "tool_calls": [{"id": {}, "function": {"name": "add", "arguments": "{}"}}]}],
        [{"role": "user", "name": 5, "content": "Hi"}],
    ],
)
def test_messages_that_are_no_conversation_are_unreadable(said):
    with pytest.raises(Unreadable):
        messages_of(said)


ODD_TOOLS = [
    *(5, {"name": "add"}, ["add"], [{"function": {}}]),
    [{"function": {"name": "add", "parameters": "a"}}],
    [{"function": {"name": "add", "parameters": {"properties": ["a"]}}}],
]


@pytest.mark.parametrize("tools", ODD_TOOLS)
def test_tools_that_are_no_list_of_schemas_are_unreadable(tools):
    with pytest.raises(Unreadable):
        tools_of(tools)


def test_half_a_character_becomes_the_sign_of_an_unknown_one():
    assert json_of(rb'{"whole \ud83d\ude00": "half \uD83D.", "none": "\\ud83d"}') == {
        "whole \U0001f600": "half \ufffd.",
        "none": "\\ud83d",
    }


def test_half_a_character_in_the_arguments_of_a_call_or_in_raw_bytes_becomes_that_sign_too():
    call = {"function": {"name": "add", "arguments": r'{"a": "\ud83d"}'}}
    [said] = messages_of([{"role": "assistant", "tool_calls": [call]}])
    assert said["tool_calls"][0]["function"]["arguments"] == {"a": "\ufffd"}
    assert json_of(b'"a\xed\xa0\xbd"') == "a\ufffd"


def test_calls_keep_the_ids_that_the_model_wrote():
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": "\ud83d"}, "id": "Xa9Bc7De1"}}
    function = {"name": "add", "arguments": {"a": "\ufffd"}}
    for text, written in (
        (r'[{"name": "add", "id": "Xa9Bc7De1"}]', "Xa9Bc7De1"),
        ("add[CALL_ID]Xa9Bc7De1", "Xa9Bc7De1"),
        ("", ""),
    ):
        assert calls_read([call], text) == [{"type": "function", "function": function, "id": written}]
    with pytest.raises(Unreadable):
        calls_read([{"function": {"name": "add"}}], "")


@pytest.mark.parametrize("arguments", [{"a": float("nan")}, '{"a": [-Infinity]}', '{"a": 1e999}'])
def test_calls_with_numbers_that_json_lacks_are_not_read(arguments):
    with pytest.raises(ValueError, match="not JSON compliant"):
        calls_read([{"function": {"name": "add", "arguments": arguments}}], "")


def test_no_tools_are_none():
    assert tools_of([]) is None and tools_of(None) is None
