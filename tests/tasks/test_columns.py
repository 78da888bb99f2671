import json
import re

import pyarrow
import pyarrow.parquet
import pytest

from grpo.config import DataConfig, UserError
from grpo.config.hydra import compose_config
from grpo.tasks.columns import cell, columns_of, conversation, letter_of
from grpo.tasks.early_checks import oddities
from grpo.tasks.sources import load_problems
from grpo.types import Problem


def asked(text):
    return [{"role": "user", "content": text}]


VERL = {
    "data_source": "openai/gsm8k",
    "prompt": asked("7 + 5?"),
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "12"},
    "extra_info": {"split": "train", "index": 0, "answer": "7 + 5 = 12 #### 12", "question": "What is 7 + 5?"},
}


def test_a_verl_parquet_file_is_read_as_it_is(tmp_path):
    path = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([VERL, VERL]), path)
    data = compose_config(["task=verl", f"task.data.path={path}"]).task.data
    problems, report = load_problems(data)
    rest = {name: value for name, value in VERL.items() if name != "prompt"}
    assert problems[0] == Problem("train-0", "7 + 5?", "12", rest, tuple(VERL["prompt"]))
    assert report.num_rows == 2 and not report.unusable
    data.question_column, data.answer_column, data.answer_pattern = (
        "extra_info.question",
        "extra_info.answer",
        "#### (.*)",
    )
    assert load_problems(data)[0][0].question == "What is 7 + 5?"
    assert load_problems(data)[0][0].answer == "12"


@pytest.mark.parametrize("prompt", ["7 + 5?", asked("7 + 5?")])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_trl_file_is_read_as_it_is(prompt, suffix, tmp_path):
    row = {"prompt": prompt, "solution": "12", "level": 3}
    path = tmp_path / f"sums.{suffix}"
    if suffix == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps(row) + "\n")
    data = compose_config(["task=trl", f"task.data.path={path}"]).task.data
    assert load_problems(data)[0] == [
        Problem("sums-0", "7 + 5?", "12", {"level": 3}, () if isinstance(prompt, str) else tuple(prompt))
    ]


def test_messages_that_a_table_of_text_holds_as_json_are_messages(tmp_path):
    path = tmp_path / "sums.csv"
    prompt = json.dumps([{"role": "system", "content": "Be brief."}, *asked("7 + 5?")]).replace('"', '""')
    path.write_text(f'prompt,solution\n"{prompt}",12\n')
    data = compose_config(["task=trl", f"task.data.path={path}"]).task.data
    messages = ({"role": "system", "content": "Be brief."}, *asked("7 + 5?"))
    assert load_problems(data)[0] == [Problem("sums-0", "7 + 5?", "12", {}, messages)]
    assert conversation("[{x: 1}] is a set?") == ((), "[{x: 1}] is a set?")


def test_a_nested_column_that_a_table_of_text_cannot_hold_is_reported(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text('prompt,reward_model\n7 + 5?,{"ground_truth": "12"}\n')
    with pytest.raises(
        UserError,
        match=r"it has prompt, reward_model, and nothing within reward_model is ground_truth: its cells have no",
    ):
        load_problems(compose_config(["task=verl", f"task.data.path={path}"]).task.data)


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        (
            [{"problem": "1?", "answer": "1"}, {"question": "2?", "answer": "2"}],
            ["task.data.bad_rows=refuse"],
            "the first has question, answer and no column 'problem' (task.data.question_column): name columns alike in",
        ),
        (
            [{"problem": [{"from": "human", "value": "1?"}], "answer": "1"}],
            [],
            "The first has a message with from and value: messages have role and content",
        ),
        (
            [{"problem": [{"role": "human", "content": "1?"}], "answer": "1"}],
            [],
            "ends with a message of the role human: its last one is the user's",
        ),
        ([{"problem": [5], "answer": None}], [], "The first has the question [5] and the answer None"),
        (
            [{"problem": "1?", "gold": {"value": "1", "kind": "n"}}],
            ["task.data.answer_column=gold.vale"],
            "nothing within gold is vale: it has gold.value, gold.kind",
        ),
    ],
)
def test_rows_of_other_columns_or_messages_are_named(rows, words, message, write_rows):
    config = compose_config(["task=file", f"task.data.path={write_rows(rows)}", *words])
    with pytest.raises(UserError, match=re.escape(message)):
        load_problems(config.task.data, config.task.reward)


def test_messages_as_python_prints_them_are_no_question(tmp_path):
    path = tmp_path / "sums.csv"
    path.write_text(f'prompt,solution\n"{asked("7 + 5?")}",12\n')
    with pytest.raises(
        UserError, match=r"no usable problem in .*that is no JSON, such as Python's own notation: write"
    ):
        load_problems(compose_config(["task=trl", f"task.data.path={path}"]).task.data)


def test_verls_columns_are_known_to_a_task_that_reads_trls(write_rows):
    data = DataConfig(path=write_rows([VERL]), question_column="prompt", answer_column="solution")
    with pytest.raises(UserError, match="no column 'solution'.* these look like verl's columns, which task=verl reads"):
        load_problems(data)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"conversations": []}, "it has conversations; ShareGPT's conversations are not read: write the question as"),
        (VERL, "reward_model.ground_truth, .* these look like verl's columns, which task=verl reads"),
        ({"prompt": "7?", "solution": "7"}, "it has prompt, solution; these look like TRL's columns, which task=trl"),
        ({"q": "7?", "a": "7"}, "has no column 'problem' .task.data.question_column.; it has q, a[.]$"),
    ],
)
def test_a_foreign_format_is_reported_with_the_task_that_reads_it(row, message, write_rows):
    with pytest.raises(UserError, match=message):
        load_problems(DataConfig(path=write_rows([row])))


def test_a_conversation_keeps_its_earlier_messages_and_ends_with_the_user():
    system = {"role": "system", "content": "Be brief."}
    assert conversation([system, *asked(" 7? ")]) == ((system, *asked(" 7? ")), "7?")
    assert conversation("7?") == ((), "7?")
    for unusable in ([system], [*asked("7?"), "text"], [{"role": "user"}], [], None):
        assert conversation(unusable) == ((), "")


def test_parts_of_text_are_one_text_and_images_are_refused_by_name(write_rows):
    text, image = {"type": "text", "text": "What is "}, {"type": "image", "image": None}
    parts = [{"role": "system", "content": [text]}, {"role": "user", "content": [text, {"type": "text", "text": "7?"}]}]
    assert conversation(parts) == (
        ({"role": "system", "content": "What is "}, {"role": "user", "content": "What is 7?"}),
        "What is 7?",
    )
    seen = [{"role": "user", "content": [image, text]}]
    assert conversation(seen) == ((), "")
    with pytest.raises(UserError, match=r"1 rows: 1 without .* prompt with parts of the type image; models read text"):
        load_problems(DataConfig(path=write_rows([{"problem": seen, "answer": "7"}])))


def test_an_answer_of_true_or_false_is_that_word(write_rows):
    rows = [{"problem": "Is water wet?", "answer": True}, {"problem": "Is ice hot?", "answer": False}]
    problems, _ = load_problems(DataConfig(path=write_rows(rows)))
    assert [problem.answer for problem in problems] == ["true", "false"]


def test_nested_columns_are_named_with_dots():
    row = {"a": {"b": {"c": 1}, "d": 2}, "a.d": 3}
    assert columns_of([row, {"e": 4}]) == ["a", "a.b", "a.b.c", "a.d", "e"]
    assert [cell(row, name) for name in ("a.b.c", "a.d", "a.x", "e", "e.f")] == [1, 3, None, None, None]


def test_the_answer_of_a_multiple_choice_question_is_its_letter(write_rows):
    rows = [
        {"problem": "sky?", "choices": ["red", "blue"], "answer": 1},
        {"problem": "sky?", "choices": {"text": ["red", "blue"], "label": ["A", "B"]}, "answer": "A"},
        {"problem": "sky?", "choices": ["red", "blue"], "answer": "green"},
    ]
    problems, report = load_problems(DataConfig(path=write_rows(rows), choices_column="choices"))
    assert [problem.answer for problem in problems] == ["B", "A"]
    assert report.unusable == ("sums-2",)
    with pytest.raises(UserError, match=r"and task.data.choices_column\. The first has the answer 'green'"):
        load_problems(DataConfig(path=write_rows(rows[2:]), choices_column="choices"))
    assert letter_of("2", ["1", "2", "3"]) == "B"  # the text of a choice comes before its index
    assert letter_of("AB", ["red", "blue"]) == letter_of("C", ["red", "blue"]) == letter_of("", ["", "blue"]) == ""
    assert letter_of("27", [str(number) for number in range(30)]) == ""  # there is no letter for it


def test_a_question_that_shows_a_picture_is_no_question_of_text(write_rows):
    rows = [{"problem": "<image>Find x.", "answer": "1", "images": ["a"]}, {"problem": "Write <image>.", "answer": "2"}]
    problems, report = load_problems(DataConfig(path=write_rows(rows)))
    assert [problem.question for problem in problems] == ["Write <image>."] and len(report.unusable) == 1
    with pytest.raises(UserError, match="The first has <image> in its prompt, and a column that holds it; models read"):
        load_problems(DataConfig(path=write_rows(rows[:1])))


def test_an_answer_is_looked_for_among_the_labels_of_choices_first(write_rows):
    # Some of ARC's questions number their choices from 1.
    numbered = {"text": ["red", "green", "blue", "4"], "label": ["1", "2", "3", "4"]}
    rows = [{"problem": "sky?", "choices": numbered, "answer": answer} for answer in ("1", "3", "4", "green", "5")]
    problems, report = load_problems(DataConfig(path=write_rows(rows), choices_column="choices"))
    assert [problem.answer for problem in problems] == ["A", "C", "D", "B"]
    assert report.unusable == ("sums-4",)
    # Labels that say which choice is right are none.
    assert letter_of("1", {"text": ["red", "green", "blue"], "label": [0, 0, 1]}) == "B"


@pytest.mark.parametrize(
    ("rows", "letters"),
    [
        # MMLU's answers are indices, and its choices may be such texts.
        ([(["0", "3", "1", "2"], 1), (["a", "b"], 0), (["a", "b"], None)], "BA"),
        # Not all of these are indices, or the choices are numbers too.
        ([(["0", "3", "1", "2"], 1), (["5", "7"], 7)], "CB"),
        ([([0, 3, 1, 2], 1)], "C"),
        # MMLU-Pro's answers are letters, and its choices may be such texts.
        ([(["O", "A", "B", "AB"], "B"), (["red", "blue"], "a")], "BA"),
        ([(["O", "A", "B", "AB"], "B"), (["O", "A", "B", "AB"], "AB")], "CD"),
    ],
)
def test_answers_that_are_all_letters_or_indices_of_texts_are_no_texts(write_rows, rows, letters):
    rows = [{"problem": "which?", "choices": choices, "answer": answer} for choices, answer in rows]
    problems, _ = load_problems(DataConfig(path=write_rows(rows), choices_column="choices"))
    assert [problem.answer for problem in problems] == [*letters]


def test_choices_that_the_prompt_does_not_show_are_named():
    words = ["experiment=tiny", "task=file", "task.data.path=a.jsonl"]
    [line] = oddities(compose_config([*words, "task.data.choices_column=opts"]).task)
    assert line.startswith("the prompt does not show task.data.choices_column=opts: put {opts} into task.prompt")
    shown = [*words, "task.data.choices_column=opts", "task.prompt.template='{question} {opts}'"]
    assert oddities(compose_config(shown).task) == oddities(compose_config(words).task) == []
