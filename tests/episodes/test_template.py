"""These tests prove chat templates, and read messages out of the tokens that a model wrote."""

import pytest

from grpo.config import PromptConfig
from grpo.config.directory import config_directory
from grpo.config.errors import UserError
from grpo.episodes.forms import form_of
from grpo.episodes.made_up_calls import MARK, calling
from grpo.episodes.recorder import Recorder
from grpo.episodes.template import ChatTemplate
from grpo.models.tiny import character_tokenizer
from grpo.tasks.prompt_encoding import PromptEncoder
from grpo.types import Completion

TOOLS = form_of("tests.episodes.acts:add").schemas
TURN = "{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %}<|eos|>{% endif %}"
END = "{% endfor %}{% if add_generation_prompt %}<|user|>assistant: {% endif %}"


def template(text=None, name=""):
    tokenizer = character_tokenizer()
    if text:
        tokenizer.chat_template = text
    encode = PromptEncoder(tokenizer, PromptConfig(chat_template=name))
    ends = [tokenizer.convert_tokens_to_ids("<|im_end|>") if name else tokenizer.eos_token_id]
    return ChatTemplate(tokenizer, encode.render, ends), tokenizer


def chatml(name="chatml_tools", parser=""):
    """Returns a template for tools that comes with grpo, with a tokenizer that has its end of a turn."""
    tokenizer = character_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    encode = PromptEncoder(tokenizer, PromptConfig(chat_template=name))
    return ChatTemplate(tokenizer, encode.render, [tokenizer.convert_tokens_to_ids("<|im_end|>")], parser), tokenizer


def test_the_template_of_the_tiny_model_grows_by_appending():
    assert template()[0].prove() == ""


def test_the_template_that_comes_with_grpo_has_tools():
    assert chatml()[0].prove(TOOLS) == ""


def test_a_template_without_tools_is_refused_with_the_way_out():
    way_out = r"task\.prompt\.chat_template=FILE; .*task\.prompt\.chat_template=chatml_tools comes with grpo"
    with pytest.raises(UserError, match=rf"shows no tools to the model: .*{way_out}"):
        template()[0].prove(TOOLS)


def test_a_template_that_drops_earlier_thoughts_is_a_difference_that_a_run_keeps():
    text = TURN.replace("{{ m.content }}", "{{ m.content if loop.last else m.content.split('</think>')[-1] }}") + END
    assert template(text)[0].prove() == "thoughts"


@pytest.mark.parametrize(
    "rewriting", ["replace('\\r\\n', '\\n')", "escape", "replace('**', '')", "replace('\\t', ' ')"]
)
def test_a_template_that_rewrites_an_earlier_turn_is_a_difference_that_a_run_keeps(rewriting):
    text = TURN.replace("{{ m.content }}", "{{ m.content if loop.last else m.content | " + rewriting + " }}") + END
    assert template(text)[0].prove() == "exact words"


def test_words_of_a_turn_that_its_generation_prompt_lacks_are_refused():
    answered = TURN.replace("{{ m.content }}", "{{ 'Answer: ' if m.role == 'assistant' }}{{ m.content }}") + END
    with pytest.raises(UserError, match=r"writes words into the model's turn .*\('Answer: It is 5\.'\)"):
        template(answered)[0].prove()
    called = (config_directory() / "chat_templates/chatml_tools.jinja").read_text()
    _, tokenizer = chatml()
    tokenizer.chat_template = called.replace("'<tool_call>", "'#1 <tool_call>")
    encode = PromptEncoder(tokenizer, PromptConfig())
    with pytest.raises(UserError, match="writes words into the model's turn"):
        ChatTemplate(tokenizer, encode.render, [tokenizer.convert_tokens_to_ids("<|im_end|>")]).prove(TOOLS)


def test_a_template_that_drops_or_moves_words_before_a_call_is_a_difference_that_a_run_keeps():
    tokenizer = character_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    whole = (config_directory() / "chat_templates/chatml_tools.jinja").read_text()
    words, thoughts = "{{- message.content or '' }}", "{%- if message.reasoning_content %}"
    dropped = whole.replace(words, "{{- '' if message.tool_calls else message.content }}")
    calls = whole[whole.index("{%- for call") :].partition("{%- endfor %}")
    behind = whole.replace(words, "").replace(calls[0] + calls[1], calls[0] + calls[1] + words)
    silent = whole.replace(thoughts, "{%- if false %}")
    of_words = {whole: "", dropped: "words before calls", behind: "words before calls", silent: "thoughts"}
    for text, kept in of_words.items():
        tokenizer.chat_template = text
        encode = PromptEncoder(tokenizer, PromptConfig())
        ends = [tokenizer.convert_tokens_to_ids("<|im_end|>")]
        assert ChatTemplate(tokenizer, encode.render, ends).prove(TOOLS) == kept


SYSTEM = [{"role": "system", "content": "Be good."}]
# Mistral's manner: the last user's turn has the system text.
IN_LAST = (
    "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content + ' ' %}"
    "{% else %}<|user|>{{ m.role }}: {{ ns.s if loop.last }}{{ m.content }}"
    "{% if m.role == 'assistant' %}<|eos|>{% endif %}{% endif %}"
)
IN_EACH = IN_LAST.replace("ns.s if loop.last", "ns.s if m.role == 'user'")


def test_a_template_is_proven_with_the_system_message_of_the_conversation():
    assert template(IN_LAST + END)[0].prove() == ""
    with pytest.raises(UserError, match="the chat template writes earlier messages otherwise"):
        template(IN_LAST + END)[0].prove(None, SYSTEM)
    chat, tokenizer = template(IN_EACH + END)
    assert chat.prove(None, SYSTEM) == ""
    answer, new = {"role": "assistant", "content": "5"}, [{"role": "user", "content": "And?"}]
    bridge = tokenizer.decode(chat.bridge(SYSTEM, answer, new, None, tokenizer.eos_token_id))
    assert bridge == "<|user|>user: Be good. And?<|user|>assistant: "


def test_an_agents_system_message_is_proven_when_it_comes():
    chat, _ = template(IN_LAST + END)
    question = {"role": "user", "content": "2 + 3?"}
    chat.require_proven([question], None)
    with pytest.raises(UserError, match="the chat template writes earlier messages otherwise"):
        chat.require_proven([*SYSTEM, question], None)


@pytest.mark.parametrize(
    "text",
    [
        # The mode of the first question holds for later turns too.
        TURN + END.replace("assistant: ", "assistant: {{ '<|eos|>' if 'quick' in messages[0].content }}"),
        # System messages are gathered in front.
        "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
        + TURN.replace("in messages", "in messages if m.role != 'system'")
        + END,
        # Earlier long messages are cut.
        TURN.replace("{{ m.content }}", "{{ m.content if loop.last or m.role != 'user' else m.content[:60] }}") + END,
    ],
)
def test_a_template_that_writes_the_real_conversation_otherwise_begins_another_branch(text):
    chat, tokenizer = template(text)
    recorder, asked = (
        Recorder(chat),
        [{"role": "user", "content": "Be quick about what 2 and 3 make, please, and say how you came to it."}],
    )
    assert chat.prove() == ""
    first = Completion(tuple(tokenizer.encode("5<|eos|>")), (0.0, 0.0), "5", False, ((0, 2),))
    said = recorder.record(recorder.place(asked, None), asked, None, first)
    place = recorder.place([*asked, said, {"role": "system", "content": "Now slowly."}], None)
    whole = chat.opening([*asked, said, {"role": "system", "content": "Now slowly."}])
    assert place.branch is None and place.context == whole


def played(chat, tokenizer, *turns):
    """Returns where the turn behind `turns` begins, each an answer and what its agent made of the history."""
    recorder, history = Recorder(chat), [{"role": "user", "content": "2 + 3?"}]
    for answer, goes_on in turns:
        ids = tokenizer.encode(answer + "<|eos|>")
        turn = Completion(tuple(ids), (0.0,) * len(ids), answer, False, ((0, len(ids)),))
        history = goes_on([*history, recorder.record(recorder.place(history, None), history, None, turn)])
    return recorder.place(history, None), history


def test_the_last_turn_counts_as_such_though_it_calls_a_tool():
    chat, tokenizer = template()
    recorder, history = Recorder(chat), [{"role": "user", "content": "2 + 3?"}]
    words = iter([[], [], [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}]])
    chat.read = lambda ids, tools: ({"role": "assistant", "content": "5", "tool_calls": next(words)}, True)
    for number, answer in enumerate("567"):
        ids = tuple(tokenizer.encode(answer + "<|eos|>"))
        turn = Completion(ids, (0.0,) * len(ids), answer, False, ((0, len(ids)),))
        said = recorder.record(recorder.place(history, None), history, None, turn, number)
        history = asks([*history, said])
    assert recorder.last.text == "7" and recorder.messages == (*history[:-1],)


def asks(history):
    return [*history, {"role": "user", "content": "And?"}]


REMINDED = "{% if loop.index == 5 %}<|user|>system: Be brief.<|eos|>{% endif %}"
NOTED = "{% if m.role == 'assistant' and m.content | length > 30 %}<|user|>system: Long.<|eos|>{% endif %}"
NAMED = TURN.replace("{{ m.role }}", "{{ m.role }}{{ m.name }}") + END


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        # A message of the template's own stands before the fifth message, or behind a long one.
        (TURN.replace("<|user|>{{", REMINDED + "<|user|>{{") + END, [("5", asks), ("6", asks)]),
        (TURN.replace("{% endif %}", "{% endif %}" + NOTED) + END, [("5 is the answer, as anybody sees", asks)]),
        # The agent speaks for the model, and the template writes both into one turn.
        (
            "{% for m in messages %}{% set alone = loop.first or m.role != loop.previtem.role %}"
            "{% set ends = loop.last or m.role != loop.nextitem.role %}"
            "{% if alone %}<|user|>{{ m.role }}: {% endif %}{{ m.content }}"
            "{% if m.role == 'assistant' and ends %}<|eos|>{% endif %}" + END,
            [("5", lambda history: asks([*history, {"role": "assistant", "content": "No, 6."}]))],
        ),
        # The agent gives the model's message a name, which the template writes.
        (NAMED, [("5", lambda history: asks([*history[:-1], history[-1] | {"name": "Bo"}]))]),
        # The template drops what stands between marks of thoughts in the words of others.
        (
            TURN.replace("m.content }}", "m.content.split('<think>')[0] if not loop.last else m.content }}") + END,
            [("5", lambda history: [*history, {"role": "user", "content": "a <think>b</think>"}]), ("6", asks)],
        ),
        # The template numbers the messages of others, between marks of thoughts.
        (TURN.replace("{{ m.role", "<think>{{ loop.index }}</think>{{ m.role") + END, [("5", asks), ("6", asks)]),
        # The template keeps the last four messages.
        ("{% for m in messages[-4:] %}" + TURN.partition("%}")[2] + END, [("5", asks), ("6", asks), ("7", asks)]),
    ],
)
def test_a_branch_begins_where_the_bridge_would_lose_words(text, turns):
    chat, tokenizer = template(text)
    place, history = played(chat, tokenizer, *turns)
    assert place.context == chat.opening(history)
    assert place.branch is None or place.length < len(place.branch.ids)


DROPS = TURN.replace("m.content }}", "m.content if m.role != 'assistant' else m.content.split('</think>')[-1] }}")


@pytest.mark.parametrize(
    ("text", "system", "turns"),
    [
        (
            DROPS + END.replace("assistant: ", "assistant: <think>\n"),
            "Reason within <think> </think>.",
            [("2, 3\n</think>\n\n5", asks), ("5\n</think>\n\n6", asks)],
        ),
        # The first turn is cut off within its thought.
        (TURN + END, "Reason.", [("<think>\n2, 3", asks), ("five.\n</think>\n\nIt is 5.", asks)]),
    ],
)
def test_thoughts_and_marks_of_them_in_the_words_of_others_begin_no_branch(text, system, turns):
    chat, tokenizer = template(text)
    recorder, history = Recorder(chat), [{"role": "system", "content": system}, {"role": "user", "content": "2 + 3?"}]
    for answer, goes_on in turns:
        ids = tokenizer.encode(answer + "<|eos|>")
        turn = Completion(tuple(ids), (0.0,) * len(ids), answer, False, ((0, len(ids)),))
        history = goes_on([*history, recorder.record(recorder.place(history, None), history, None, turn)])
    place = recorder.place(history, None)
    assert recorder.num_branches == 1 and place.branch is not None and place.length == len(place.branch.ids)


def test_a_conversation_that_the_template_refuses_does_not_go_on():
    text = "{% if messages | length > 4 %}{{ raise_exception('at most 4 messages') }}{% endif %}"
    with pytest.raises(UserError, match="at most 4 messages"):
        played(*template(text + TURN + END), ("5", asks), ("6", asks))


def test_thoughts_that_an_agent_leaves_out_stay_and_those_that_it_edits_do_not():
    chat, tokenizer = template(TURN + END)
    recorder, asked = Recorder(chat), [{"role": "user", "content": "2 + 3?"}]
    place = recorder.place(asked, None)
    ids = tuple(tokenizer.encode("5<|eos|>"))
    chat.read = lambda ids, tools: ({"role": "assistant", "content": "5", "reasoning_content": "2, 3"}, True)
    said = recorder.record(place, asked, None, Completion(ids, (0.0,) * len(ids), "5", False, ((0, len(ids)),)))
    for thoughts, stays in (({"reasoning_content": "2, 3"}, True), ({}, True), ({"reasoning_content": "4"}, False)):
        sent = {"role": "assistant", "content": said["content"], **thoughts}
        assert (recorder.place(asks([*asked, sent]), None).branch is not None) == stays


def test_a_conversation_that_the_template_only_continues_stays_one_branch():
    chat, tokenizer = template()
    recorder, asked = Recorder(chat), [{"role": "user", "content": "2 + 3?"}]
    first = Completion(tuple(tokenizer.encode("5<|eos|>")), (0.0, 0.0), "5", False, ((0, 2),))
    said = recorder.record(recorder.place(asked, None), asked, None, first)
    history = [*asked, said, {"role": "user", "content": f"{MARK}?"}]
    place = recorder.place(history, None)
    assert place.branch is not None and place.context == chat.opening(history)


def test_a_new_message_may_have_any_text():
    chat, tokenizer = chatml()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    new = [{"role": "tool", "content": f"a {MARK} b"}, {"role": "user", "content": "And?"}]
    bridge = tokenizer.decode(chat.bridge((), {"role": "assistant", "content": "5"}, new, TOOLS, end))
    assert bridge.strip().startswith(f"<|im_start|>tool\na {MARK} b<|im_end|>\n<|im_start|>user\nAnd?")


def test_the_template_that_comes_with_grpo_shows_a_later_system_message():
    chat, tokenizer = chatml()
    end, new = tokenizer.convert_tokens_to_ids("<|im_end|>"), [{"role": "system", "content": "New rule."}]
    bridge = tokenizer.decode(chat.bridge((), {"role": "assistant", "content": "5"}, new, TOOLS, end))
    assert "<|im_start|>system\nNew rule.<|im_end|>" in bridge


def test_a_template_that_writes_one_call_goes_on_after_two():
    chat, tokenizer = chatml()
    end, begins = tokenizer.convert_tokens_to_ids("<|im_end|>"), "{%- if message.role == 'assistant' %}"
    single = "{%- if message.tool_calls and message.tool_calls[1] %}{{ raise_exception('one call') }}{% endif %}"
    text = (config_directory() / "chat_templates/chatml_tools.jinja").read_text()
    tokenizer.chat_template = text.replace(begins, single + begins, 1)
    one = ChatTemplate(tokenizer, PromptEncoder(tokenizer, PromptConfig()).render, [end])
    assert one.prove(TOOLS) == ""
    turn, answers = calling(TOOLS, 2)
    assert one.bridge((), turn, answers, TOOLS, end) == chat.bridge((), turn, answers, TOOLS, end)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{% set messages = messages[-4:] %}" + TURN + END, "writes earlier messages otherwise"),
        (TURN.replace("{{ m.role }}", "{{ m.role }} {{ loop.revindex }}") + END, "writes earlier messages otherwise"),
        (
            TURN.replace("{{ m.content }}", "{{ m.content if loop.last else 'earlier' }}") + END,
            "writes earlier messages",
        ),
        (TURN.replace("<|eos|>", ".") + END, "does not end an assistant's turn with a token that ends completions"),
        ("{{ messages | length }}" + TURN + END, "writes earlier messages otherwise"),
    ],
)
def test_a_template_that_changes_earlier_messages_is_refused(text, complaint):
    with pytest.raises(UserError, match=complaint):
        template(text)[0].prove()


def test_a_template_that_ends_turns_by_a_token_that_ends_no_completion_is_named():
    tokenizer = character_tokenizer()
    ends = [tokenizer.convert_tokens_to_ids("<|system|>")]
    tokenizer.chat_template = TURN.replace("<|eos|>", "<|eos|>{% else %}<|system|>") + END
    chat = ChatTemplate(tokenizer, PromptEncoder(tokenizer, PromptConfig()).render, ends, own_file="my.jinja")
    with pytest.raises(
        UserError, match=r"ends an assistant's turn with '<\|eos\|>', which ends no completion: .*correct my.jinja$"
    ):
        chat.prove()


def test_a_template_with_channels_is_refused_plainly():
    text = TURN.replace("{{ m.content }}", "<|channel|>final<|message|>{{ m.content }}") + END
    with pytest.raises(UserError, match="as that of gpt-oss does, and episodes support none: choose another model"):
        template(text)[0].prove()


@pytest.mark.parametrize(
    ("text", "is_refused"), [("%H:%M", True), ("%-I o'clock", True), ("%c", True), ("%d %B %Y", False)]
)
def test_a_template_that_writes_the_time_of_day_is_refused(text, is_refused):
    timed = template('{{ strftime_now("' + text + '") }}' + TURN + END)[0]
    if not is_refused:
        assert timed.prove() == ""
        return
    with pytest.raises(UserError, match="writes the time of day .*: write the date alone, or nothing"):
        timed.prove()


def test_a_call_behind_a_thought_that_the_template_begins_is_read():
    _, tokenizer = chatml()
    text = (config_directory() / "chat_templates/chatml_tools.jinja").read_text()
    turns, begun, end = text.rpartition("<|im_start|>assistant\\n")
    tokenizer.chat_template = turns + begun + "<think>\\n" + end
    encode, ends = PromptEncoder(tokenizer, PromptConfig()), [tokenizer.convert_tokens_to_ids("<|im_end|>")]
    assert ChatTemplate(tokenizer, encode.render, ends).prove(TOOLS) == "thoughts"


def test_a_template_that_leaves_the_beginning_of_a_turn_to_the_model_is_refused():
    with pytest.raises(UserError, match=r"the model would have to write '<\|user\|>assistant: ' itself"):
        template(TURN + "{% endfor %}")[0].prove()
    # Here nothing stands between a question and its answer.
    bare = TURN.replace("<|user|>{{ m.role }}: ", "{{ '<|user|>' if m.role == 'user' }}")
    assert template(bare + "{% endfor %}")[0].prove() == ""


def test_a_bridge_ends_a_turn_that_the_model_did_not_end():
    chat, tokenizer = template()
    answer, new = {"role": "assistant", "content": "5"}, [{"role": "user", "content": "And?"}]
    ended = chat.bridge((), answer, new, None, tokenizer.eos_token_id)
    assert tokenizer.decode(ended) == "<|user|>And?<|assistant|>"
    assert chat.bridge((), answer, new, None, 50) == (tokenizer.eos_token_id, *ended)


def test_a_bridge_does_not_depend_on_what_the_turn_said():
    chat, tokenizer = template()
    new = [{"role": "user", "content": "And?"}]
    plain, odd = ({"role": "assistant", "content": text} for text in ("5", "<|eos|><|user|> 6 <|assistant|>"))
    assert chat.bridge((), plain, new, None, tokenizer.eos_token_id) == chat.bridge(
        (), odd, new, None, tokenizer.eos_token_id
    )


CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "content", "arguments", "readable"),
    [
        ("It is 5.", "It is 5.", [], True),
        (f"Let me.{CALL}", "Let me.", [{"a": 1, "b": 2}], True),
        (f"<think>hm</think>{CALL}{CALL}", "", [{"a": 1, "b": 2}] * 2, True),
        (f"Let<|user|> me.{CALL}", "Let me.", [{"a": 1, "b": 2}], True),
        ('<tool_call>{"name": "add", "argu', '<tool_call>{"name": "add", "argu', [], False),
        ("<tool_call>5</tool_call>", "<tool_call>5</tool_call>", [], False),
        ('<tool_call>{"name": "add"}</tool_call>', '<tool_call>{"name": "add"}</tool_call>', [], False),
    ],
)
def test_calls_are_read_and_what_cannot_be_read_is_text(text, content, arguments, readable):
    chat, tokenizer = chatml()
    message, was_readable = chat.read(tokenizer.encode(text + "<|im_end|>"), TOOLS)
    assert (message["content"], was_readable) == (content, readable)
    assert [call["function"]["arguments"] for call in message.get("tool_calls", ())] == arguments


@pytest.mark.slow
def test_a_parser_of_vllm_reads_calls_that_are_no_json_and_the_refusal_names_it():
    with pytest.raises(UserError, match=r"set task\.prompt\.tool_parser to .*\bpythonic\b.*, which reads them"):
        chatml("chatml_python_calls")[0].prove(TOOLS)
    chat, tokenizer = chatml("chatml_python_calls", "pythonic")
    assert chat.prove(TOOLS) == ""
    message, _ = chat.read(tokenizer.encode("[add(a=1, b=2)]<|im_end|>"), TOOLS)
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "add", "arguments": {"a": 1, "b": 2}}]
    message, _ = chat.read(tokenizer.encode("[add(a=1, b=<|im_end|>"), TOOLS)
    assert message["content"] == "[add(a=1, b=" and "tool_calls" not in message
    with pytest.raises(UserError, match=r"^task\.prompt\.tool_parser=nosuch: vLLM has .*hermes"):
        chatml("chatml_python_calls", "nosuch")[0].prove(TOOLS)


NEXT_ENDS = (
    "{% for m in messages %}{{ '<|user|>' if m.role == 'user' else '<|assistant|>' }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_a_turn_may_be_ended_by_the_beginning_of_the_next_message():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = NEXT_ENDS
    user = tokenizer.convert_tokens_to_ids("<|user|>")
    chat = ChatTemplate(tokenizer, PromptEncoder(tokenizer, PromptConfig()).render, [user])
    assert chat.prove() == ""
    new = [{"role": "user", "content": "And?"}]
    assert (
        tokenizer.decode(chat.bridge((), {"role": "assistant", "content": "5"}, new, None, user)) == "And?<|assistant|>"
    )


def test_the_next_message_keeps_its_beginning_where_the_model_ended_its_turn_otherwise():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = NEXT_ENDS
    ends = [tokenizer.convert_tokens_to_ids("<|user|>"), tokenizer.eos_token_id]
    chat = ChatTemplate(tokenizer, PromptEncoder(tokenizer, PromptConfig()).render, ends)
    recorder, said = Recorder(chat), [{"role": "user", "content": "What?"}]
    turn = tuple(tokenizer.encode("5<|eos|>"))
    said.append(recorder.record(recorder.place(said, None), said, None, Completion(turn, (0.0,) * 2, "5", False)))
    place = recorder.place([*said, {"role": "user", "content": "And?"}], None)
    assert tokenizer.decode(place.context) == "<|user|>What?<|assistant|>5<|eos|><|user|>And?<|assistant|>"


def test_a_tokenizer_that_does_not_know_where_tokens_stand_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(UserError, match=r"needs a fast tokenizer"):
        ChatTemplate(Slow(), str, [2])


def test_a_template_that_ends_the_last_turn_by_another_token_is_a_difference_that_a_run_keeps():
    text = TURN.replace("<|eos|>", "{{ '<|eos|>' if loop.last else '<|system|>' }}") + END
    tokenizer = character_tokenizer()
    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|system|>")]
    tokenizer.chat_template = text
    encode = PromptEncoder(tokenizer, PromptConfig())
    assert ChatTemplate(tokenizer, encode.render, ends).prove() == "ends of turns"


def test_a_turn_that_the_template_begins_with_a_thought_grows_too():
    body = TURN.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
    text = body + END.replace("assistant: ", "assistant: <think>\n")
    assert template(text)[0].prove() == "thoughts"
