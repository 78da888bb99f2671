from dataclasses import replace

import pytest
from tokenizers import Regex, normalizers
from tokenizers.processors import TemplateProcessing

from grpo.config import PromptConfig, UserError
from grpo.tasks.curriculum import uniform
from grpo.tasks.prompt_encoding import PromptEncoder, unfilled
from grpo.tasks.prompt_stream import PromptStream
from grpo.types import Problem
from tests.tasks.conftest import CHATML, byte_tokenizer

PROBLEM = Problem("sum-0", "7 + 5 =", "12")
USER = "<|im_start|>user\n7 + 5 =<|im_end|>\n<|im_start|>assistant\n"
DEFAULT = "<|im_start|>system\nBe kind.<|im_end|>\n"

# Llama's manner: one first token for the whole prompt, and a system part that is always there.
LLAMA = (
    "{% if messages[0]['role'] == 'system' %}{% set text = messages[0]['content'] %}{% set messages = messages[1:] %}"
    "{% else %}{% set text = default_system %}{% endif %}{{ '<s>[system] ' + text + '\n' }}"
    "{% for message in messages %}{{ '[' + message['role'] + '] ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
)

# Mistral's manner: the system text stands inside the user's turn, so that it cannot be cut out.
INSIDE = (
    "{% if messages[0]['role'] == 'system' %}{% set text = messages[0]['content'] %}{% set messages = messages[1:] %}"
    "{% else %}{% set text = default_system %}{% endif %}"
    "{{ '[user] ' + text + ' | ' + messages[0]['content'] + '[assistant] ' }}"
)

# Gemma's manner: no system message at all.
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML


def decoded(tokenizer, **settings):
    return tokenizer.decode(PromptEncoder(tokenizer, PromptConfig(**settings))(PROBLEM))


def test_a_tokenizer_that_ends_every_text_is_refused_where_it_would_end_the_prompt(tokenizer):
    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"$A {end[0]}", special_tokens=[end])
    with pytest.raises(UserError, match=r"ends every text with <\|im_end\|>, so a prompt would end before its answer"):
        decoded(tokenizer, chat=False)
    # A chat template writes all special tokens itself.
    assert decoded(tokenizer) == USER


def test_the_chat_template_ends_where_the_answer_begins(tokenizer):
    assert decoded(tokenizer) == USER
    assert decoded(tokenizer, template="Solve: {question}").startswith("<|im_start|>user\nSolve: 7 + 5 =<|im_end|>")


def test_braces_in_a_question_are_left_alone(tokenizer):
    encode = PromptEncoder(tokenizer, PromptConfig(template="{question} {x}"))
    assert encode.text(Problem("p", r"\frac{1}{2}", "")).startswith("<|im_start|>user\n\\frac{1}{2} {x}<|im_end|>")


def test_special_tokens_are_single_tokens_and_bos_is_not_doubled(tokenizer):
    ids = PromptEncoder(tokenizer, PromptConfig())(PROBLEM)
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert ids[0] == start
    assert ids.count(start) == 2


def test_system_null_keeps_the_templates_default_and_a_text_replaces_it():
    tokenizer = byte_tokenizer(default_system="Be kind.")
    assert decoded(tokenizer) == DEFAULT + USER
    assert decoded(tokenizer, system="Be brief.") == "<|im_start|>system\nBe brief.<|im_end|>\n" + USER


def test_an_empty_system_removes_the_default_and_nothing_else():
    assert decoded(byte_tokenizer(default_system="Be kind."), system="") == USER
    assert decoded(byte_tokenizer(), system="") == USER
    assert decoded(byte_tokenizer(template=NO_SYSTEM), system="") == USER


def test_an_empty_system_keeps_the_first_token_of_the_whole_prompt():
    tokenizer = byte_tokenizer(template=LLAMA, default_system="Be kind.", bos="<s>")
    assert decoded(tokenizer) == "<s>[system] Be kind.\n[user] 7 + 5 =\n[assistant] "
    assert decoded(tokenizer, system="") == "<s>[user] 7 + 5 =\n[assistant] "


def test_an_empty_system_is_refused_where_the_template_cannot_do_without():
    with pytest.raises(UserError, match="always writes a system text"):
        decoded(byte_tokenizer(template=INSIDE, default_system="Be kind."), system="")


def test_examples_are_earlier_turns():
    tokenizer = byte_tokenizer(default_system="Be kind.")
    shown = decoded(tokenizer, system="", template="Q: {question}", examples=[["1 + 1 =", "2"]])
    assert shown == (
        "<|im_start|>user\nQ: 1 + 1 =<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>user\nQ: 7 + 5 =<|im_end|>\n<|im_start|>assistant\n"
    )


def test_without_chat_the_template_is_the_prompt(tokenizer):
    assert decoded(tokenizer, chat=False) == "7 + 5 ="
    shown = decoded(tokenizer, chat=False, examples=[["1 + 1 =", " 2"]])
    assert shown == "1 + 1 = 2\n\n7 + 5 ="


@pytest.mark.parametrize(
    ("template", "settings", "message"),
    [
        (None, {}, "no chat template; set task.prompt.chat=false"),
        (CHATML, {"template": "Solve this."}, "lacks {question}"),
        (CHATML, {"examples": [["1 + 1"]]}, "must be a .question, answer. pair"),
        (CHATML, {"examples": [["1 + 1", " "]]}, "must be a .question, answer. pair"),
        (CHATML, {"chat": False, "system": "Be kind."}, "task.prompt.system needs a chat template"),
        (NO_SYSTEM, {"system": "Be kind."}, "refuses the prompt: no system role"),
        (
            CHATML + "\n\n{% if %}",
            {},
            "the chat template of models/mine is broken in line 8 .TemplateSyntaxError: .*: correct chat_template",
        ),
        (
            "{{ 'What?' }}",
            {},
            "the chat template of models/mine leaves out the user's message: correct chat_template.jin",
        ),
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
            {"system": "Be kind."},
            "leaves out task.prompt.system: write its text into task.prompt.template",
        ),
        (CHATML + "{{ messages.first.role.x }}", {}, r"models/mine is broken .UndefinedError: .*: correct chat_templ"),
    ],
)
def test_prompt_settings_that_cannot_work_are_one_line(template, settings, message):
    tokenizer = byte_tokenizer(template=template)
    tokenizer.name_or_path = "models/mine"
    with pytest.raises(UserError, match=message):
        decoded(tokenizer, **settings)


@pytest.mark.parametrize(
    "texts",
    [
        {"template": "<|im_start|>user\n{question}<|im_end|>\n"},
        {"system": "<|im_start|>Be kind."},
        {"examples": [["1 + 1 =", "2<|im_end|>"]]},
    ],
)
def test_a_token_that_the_chat_template_writes_too_is_refused(texts):
    tokenizer = byte_tokenizer(template=CHATML)
    with pytest.raises(UserError, match=rf"^task.prompt.{next(iter(texts))} holds <\|im_\w+\|>, which the chat temp"):
        decoded(tokenizer, **texts)


def test_a_base_models_first_token_is_refused_where_its_tokenizer_writes_it_too():
    tokenizer = byte_tokenizer(bos="<s>")
    assert decoded(tokenizer, chat=False, template="<s>{question}") == "<s>7 + 5 ="
    first = [("<s>", tokenizer.bos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=first)
    assert decoded(tokenizer, chat=False) == "<s>7 + 5 ="
    with pytest.raises(UserError, match="^task.prompt.template holds <s>, which the tokenizer writes too: leave it ou"):
        decoded(tokenizer, chat=False, template="<s>{question}")


def test_a_template_of_ones_own_is_named_where_it_is_wrong(tmp_path):
    for text, wrong in (("{% if %}", r"is broken in line 1 \(.*\)"), ("What?", "leaves out the user's message")):
        (file := tmp_path / "own.jinja").write_text(text)
        with pytest.raises(UserError, match=f"^task.prompt.chat_template={file} {wrong}: correct that file$"):
            decoded(byte_tokenizer(template=CHATML), chat_template=str(file))


def test_half_a_character_in_a_column_of_the_template_names_its_row(tokenizer):
    encode = PromptEncoder(tokenizer, PromptConfig(template="{hint} {question}"))
    with pytest.raises(UserError, match="p-7: its prompt holds half a character, which no tokenizer reads: correct"):
        encode.longest([Problem("p-7", "1 + 1", "2", {"hint": "\ud800"})])


def test_prompts_that_are_too_long_are_dropped_or_refused(tokenizer):
    problems = [Problem("short", "1", ""), Problem("long", "1" * 50, ""), Problem("wide", "é" * 30, "")]

    def fitting(**settings):
        return PromptEncoder(tokenizer, PromptConfig(chat=False, **settings)).fitting(problems)

    assert fitting(max_tokens=60) == (problems, ())
    assert fitting(max_tokens=50) == (problems[:2], ("wide",))
    assert fitting(max_tokens=49) == (problems[:1], ("long", "wide"))
    with pytest.raises(UserError, match="2 of 3 prompts are longer than 49 tokens, the first long"):
        fitting(max_tokens=49, too_long="refuse")
    problems[0] = Problem("short", "123", "")
    with pytest.raises(
        UserError, match="3 of 3 prompts are longer .* raise task.prompt.max_tokens and model.max_length.$"
    ):
        fitting(max_tokens=2)


def test_without_a_limit_every_prompt_fits_and_the_longest_is_found(tokenizer):
    problems = [Problem("wide", "é" * 30, ""), Problem("long", "1" * 50, ""), Problem("short", "1", "")]
    encode = PromptEncoder(tokenizer, PromptConfig())
    assert encode.fitting(problems) == (problems, ())
    assert encode.longest(problems) == max(len(encode(problem)) for problem in problems)
    assert encode.longest(problems[1:]) == len(encode(problems[1]))
    assert encode.longest([]) == 0


def test_earlier_messages_of_the_data_come_before_the_question():
    earlier = tuple({"role": role, "content": role[0]} for role in ("system", "user", "assistant"))
    problem = Problem("p", "7 + 5 =", "12", {}, (*earlier, {"role": "user", "content": "7 + 5 ="}))
    tokenizer = byte_tokenizer(default_system="Be kind.")

    def turns(**settings):
        text = PromptEncoder(tokenizer, PromptConfig(**settings)).text(problem)
        return [turn.partition("<|im_end|>")[0] for turn in text.split("<|im_start|>")[1:]]

    assert turns() == ["system\ns", "user\nu", "assistant\na", "user\n7 + 5 =", "assistant\n"]
    assert turns(system="x", template="Q {question}", examples=[["1?", "2"]]) == [
        *("system\nx", "user\nQ 1?", "assistant\n2"),
        *("user\nu", "assistant\na", "user\nQ 7 + 5 =", "assistant\n"),
    ]
    assert turns(system="") == ["user\nu", "assistant\na", "user\n7 + 5 =", "assistant\n"]
    with pytest.raises(UserError, match="p is a conversation of several messages, which task.prompt.chat=false"):
        turns(chat=False)


def test_a_template_shows_the_tests_of_a_program_as_lines(tokenizer):
    problem = Problem("p", "Add.", "", {"test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]})
    encode = PromptEncoder(tokenizer, PromptConfig(template="{question}\n{test_list}", chat=False))
    assert encode.text(problem) == "Add.\nassert add(1, 2) == 3\nassert add(0, 0) == 0"


def test_a_template_holds_any_column_and_letters_choices(tokenizer):
    metadata = {"context": "A sum.", "choices": ["11", "12"], "extra": {"level": 3}}
    problem = Problem("p", "7 + 5 = {context}", "B", metadata)
    template = r"{context} {question} ({extra.level})\n{choices}\n\boxed{} {answer} {x}"
    encode = PromptEncoder(tokenizer, PromptConfig(template=template, chat=False))
    filled = "A sum. 7 + 5 = {context} (3)\\nA. 11\nB. 12\\n\\boxed{} {answer} {x}"
    assert encode.text(problem) == filled
    assert unfilled(template, [problem]) == ["answer", "x"]
    assert encode.longest([problem]) == len(filled)


def test_the_chat_template_gets_its_options_and_unknown_ones_are_refused():
    thinking = "{% if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}"
    tokenizer = byte_tokenizer(template=CHATML + thinking)
    assert decoded(tokenizer, chat_template_kwargs={"enable_thinking": False}) == USER + "<think></think>"
    assert decoded(tokenizer, chat_template_kwargs={"enable_thinking": True}) == USER
    with pytest.raises(UserError, match="has 'enable_thinkin', which this model's chat template does not read"):
        decoded(byte_tokenizer(), chat_template_kwargs={"enable_thinkin": False})
    with pytest.raises(UserError, match="has enable_thinking as the text 'false', which every template takes for true"):
        decoded(tokenizer, chat_template_kwargs={"enable_thinking": "false"})


def stream(rank=0, world_size=1, seed=0, count=7):
    problems = [Problem(f"p-{index}", str(index), "") for index in range(count)]
    order = uniform(count, seed)
    return PromptStream(problems, lambda problem: (int(problem.question),), order, rank=rank, world_size=world_size)


def ids(prompts):
    return [prompt.prompt_id for prompt in prompts]


def test_every_epoch_asks_every_problem_once_in_another_order():
    prompts = stream().next_prompts(21)
    epochs = [prompts[:7], prompts[7:14], prompts[14:]]
    orders = [tuple(prompt.problem.problem_id for prompt in epoch) for epoch in epochs]
    assert [sorted(order) for order in orders] == [[f"p-{index}" for index in range(7)]] * 3
    assert len(set(orders)) == 3
    assert [prompt.visit for prompt in prompts] == [0] * 7 + [1] * 7 + [2] * 7
    assert all(prompt.token_ids == (int(prompt.problem.question),) for prompt in prompts)
    assert len(set(ids(prompts))) == 21


def test_a_stream_set_to_a_cursor_goes_on_as_one_that_never_stopped():
    whole = stream()
    expected = ids(whole.next_prompts(30))
    for stop in range(30):
        resumed = stream()
        resumed.cursor = stop
        assert ids(resumed.next_prompts(30 - stop)) == expected[stop:]
        assert resumed.cursor == 30


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_together_give_out_the_stream_of_one(world_size):
    expected = ids(stream().next_prompts(24))
    ranks = [stream(rank, world_size) for rank in range(world_size)]
    merged = []
    for _ in range(2):
        shares = [ids(stream.next_prompts(12)) for stream in ranks]
        merged += [shares[position % world_size][position // world_size] for position in range(12)]
    assert merged == expected
    assert [stream.cursor for stream in ranks] == [24] * world_size


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_together_give_out_the_stream_of_one_however_many_are_taken(world_size):
    ranks, one = [stream(rank, world_size) for rank in range(world_size)], stream()
    for count in (5, 1, 3, 8, 2):
        shares = [ids(stream.next_prompts(count)) for stream in ranks]
        assert sorted(name for share in shares for name in share) == sorted(ids(one.next_prompts(count)))
    # All ranks have had the same number, to within one.
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_another_seed_is_another_order():
    assert ids(stream(seed=0, count=50).next_prompts(50)) != ids(stream(seed=1, count=50).next_prompts(50))


def test_a_stream_of_nothing_is_refused():
    with pytest.raises(UserError, match="no problems to train on"):
        stream(count=0)


def test_a_huge_question_is_known_to_be_too_long_by_its_beginning(tokenizer, monkeypatch):
    problems = [Problem("short", "1 + 1", ""), Problem("huge", "1 ä" * 30_000, "")]
    encode = PromptEncoder(tokenizer, PromptConfig(chat=False, max_tokens=100))
    assert encode.longest(problems) == 120_000
    asked = []
    monkeypatch.setattr(encode, "_lengths", lambda batch: asked.extend(batch) or [(each, 5) for each in batch])
    assert encode.fitting(problems) == (problems[:1], ("huge",))
    assert encode.longest(problems, 4_000) == 4_001 and encode.longest(problems[:1], 4_000) == 5
    # So many tokens might be more than the beginning has.
    encode.longest(problems, 60_000)
    assert [problem.problem_id for problem in asked] == ["short", "huge", "short"]


def test_a_huge_question_of_which_the_tokenizer_keeps_little_is_tokenized_whole():
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(Regex("#+"), "#")
    encode = PromptEncoder(tokenizer, PromptConfig(chat=False, max_tokens=100))
    assert encode.longest([Problem("huge", "#" * 100_000, "")], 100) == 1


def test_blanks_around_a_question_which_templates_strip_do_not_make_it_huge(tokenizer):
    encode = PromptEncoder(tokenizer, PromptConfig(max_tokens=100))
    problem = Problem("wide", " " * 100_000 + "1 + 1", "")
    assert not encode._is_beyond(problem, 100) and encode._is_beyond(replace(problem, question="1" * 100_000), 100)


def test_questions_that_hold_a_special_token_are_found(tokenizer):
    problems = [
        Problem("plain", "1 < 2, and <|im_end is no token", "1"),
        Problem("token", "1 + 1<|im_end|>", "2"),
        Problem("earlier", "and then?", "2", messages=({"role": "user", "content": "a<|im_start|>b"},)),
    ]
    found = PromptEncoder(tokenizer, PromptConfig()).holding_special_tokens(problems)
    assert found == {"token": "<|im_end|>", "earlier": "<|im_start|>"}
