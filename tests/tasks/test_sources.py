import csv
import json
import re
from dataclasses import replace

import pyarrow
import pyarrow.parquet
import pytest

from grpo.config import DataConfig, RewardConfig, RewardPartConfig, UserError
from grpo.config.hydra import compose_config
from grpo.tasks.grader_pool import GraderPool
from grpo.tasks.grading import Grading
from grpo.tasks.procedural import score
from grpo.tasks.sources import load_problems
from grpo.types import Completion, Prompt, RolloutGroup

ROWS = [
    {"problem": "1 + 1?", "answer": "2", "source": "a"},
    {"problem": "2 + 2?", "answer": 4, "source": "b"},
]


def test_every_file_format_gives_the_same_problems(tmp_path):
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "sums.json").write_text(json.dumps(ROWS))
    with (tmp_path / "sums.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["problem", "answer", "source"])
        writer.writeheader()
        writer.writerows(ROWS)
    table = pyarrow.Table.from_pylist([{**row, "answer": int(row["answer"])} for row in ROWS])
    pyarrow.parquet.write_table(table, tmp_path / "sums.parquet")
    for suffix in ("jsonl", "json", "csv", "parquet"):
        problems, report = load_problems(DataConfig(path=str(tmp_path / f"sums.{suffix}")))
        assert [problem.problem_id for problem in problems] == ["sums-0", "sums-1"]
        assert [problem.answer for problem in problems] == ["2", "4"]
        assert problems[1].question == "2 + 2?"
        assert problems[1].metadata == {"source": "b"}
        assert str(report) == "2 rows"


def test_a_data_set_directory_loads_as_from_the_hub(tmp_path, write_rows, monkeypatch):
    write_rows(ROWS, "train.jsonl")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    problems, _ = load_problems(DataConfig(source="hub", path=str(tmp_path)))
    assert [problem.problem_id for problem in problems] == [f"{tmp_path.name}-0", f"{tmp_path.name}-1"]
    assert [problem.question for problem in problems] == ["1 + 1?", "2 + 2?"]
    with pytest.raises(UserError, match="task.data.split"):
        load_problems(DataConfig(source="hub", path=str(tmp_path), split="validation"))


def test_a_hub_failure_becomes_one_line_that_says_what_to_do():
    from datasets.exceptions import DatasetNotFoundError

    from grpo.tasks.sources import _hub_failure

    assert "accept its terms" in _hub_failure(DatasetNotFoundError("Dataset 'a/b' is a gated dataset on the Hub."))
    assert "check task.data.path" in _hub_failure(DatasetNotFoundError("Dataset 'a/b' doesn't exist on the Hub"))
    assert "no network" in _hub_failure(ConnectionError("Couldn't reach 'a/b' on the Hub"))


def test_the_answer_pattern_takes_the_part_that_counts(write_rows):
    path = write_rows([{"problem": "q", "answer": "4 + 5 = 9\n#### 9 "}])
    problems, _ = load_problems(DataConfig(path=path, answer_pattern="#### (.*)"))
    assert problems[0].answer == "9"


def test_rows_without_question_or_answer_are_listed_and_do_not_shift_ids(write_rows):
    rows = [
        {"problem": "", "answer": "1"},
        {"problem": "q1", "answer": None},
        {"problem": "q2"},
        {"problem": "q3", "answer": ["3"]},
        {"problem": "q4", "answer": "#### 4"},
        {"problem": "q5", "answer": "five"},
        {"problem": "q6", "answer": "#### "},
    ]
    data = DataConfig(path=write_rows(rows), answer_pattern="#### (.*)")
    problems, report = load_problems(data)
    assert [(problem.problem_id, problem.answer) for problem in problems] == [("sums-4", "4")]
    assert report.unusable == ("sums-0", "sums-1", "sums-2", "sums-3", "sums-5", "sums-6")
    assert str(report) == (
        "7 rows: 6 without a usable question or answer (sums-0, sums-1, sums-2, sums-3, sums-5, …); the first has "
        "problem and no column 'answer' (task.data.answer_column): name columns alike in all rows"
    )
    data.bad_rows = "refuse"
    with pytest.raises(UserError, match="6 without a usable question or answer .* set task.data.bad_rows=skip"):
        load_problems(data)


def test_an_id_column_names_the_problems_and_must_be_unique(write_rows):
    rows = [{"problem": "q", "answer": "1", "key": "x"}, {"problem": "r", "answer": "1", "key": 7}]
    problems, _ = load_problems(DataConfig(path=write_rows(rows), id_column="key"))
    assert [problem.problem_id for problem in problems] == ["x", "7"]
    rows[1]["key"] = "x"
    with pytest.raises(UserError, match="the id 'x' occurs twice"):
        load_problems(DataConfig(path=write_rows(rows), id_column="key"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "missing.jsonl"}, "there is no file 'missing.jsonl'"),
        ({"path": "rows.txt"}, "must end in one of .jsonl, .json, .csv, .tsv, .parquet"),
        ({"question_column": "prompt"}, r"no column 'prompt' \(task.data.question_column\); it has problem, answer"),
        ({"id_column": "key"}, r"no column 'key' \(task.data.id_column\)"),
        ({"answer_pattern": "(a)(b)"}, "has 2 groups; it needs exactly one"),
        ({"answer_pattern": "("}, "is not a valid regular expression"),
        ({"answer_pattern": "#(.*)"}, "no usable problem"),
        ({"source": "database"}, "choose one of file, hub, reasoning_gym, arithmetic"),
    ],
)
def test_a_source_that_cannot_be_read_is_one_line(write_rows, changes, message):
    with pytest.raises(UserError, match=message) as caught:
        load_problems(DataConfig(**{"path": write_rows(ROWS), **changes}))
    assert "\n" not in str(caught.value)


def test_a_link_that_leads_nowhere_is_named_with_its_target(tmp_path):
    for name, target in (("gone.jsonl", "moved/away.jsonl"), ("circle.jsonl", "circle.jsonl")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(UserError, match=f"{name}' is a link to '{target}', where no file is: correct the link"):
            load_problems(DataConfig(path=str(tmp_path / name)))


def test_questions_are_not_their_own_answers(write_rows):
    with pytest.raises(UserError, match="question_column and answer_column both name 'problem': name two columns"):
        load_problems(DataConfig(path=write_rows(ROWS), answer_column="problem"))


def test_broken_and_empty_files_are_one_line(tmp_path):
    broken, empty, scalar = tmp_path / "broken.jsonl", tmp_path / "empty.jsonl", tmp_path / "scalar.json"
    broken.write_text('{"problem": "q", "answer": "1"}\n{"problem": \n')
    empty.write_text("\n")
    scalar.write_text("3")
    commas = tmp_path / "commas.jsonl"
    commas.write_text('{"problem": "q", "answer": "1"},\n{"problem": "r", "answer": "2"}\n')
    bare = tmp_path / "bare.jsonl"
    bare.write_text("{}\n{}\n")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"problem,answer\n\xff\xfe,1\n")
    excel = tmp_path / "excel.csv"
    excel.write_bytes(b"PK\x03\x04 and so on")
    fake = tmp_path / "fake.parquet"
    fake.write_text("no parquet")
    for path, message in (
        (broken, r"line 2 is not JSON \(Expecting value in its column 12\)"),
        (commas, r"line 1 is not JSON \(Extra data in its column 32\): end it without a comma"),
        (empty, "has no rows"),
        (bare, "the rows of .*bare.jsonl are empty: each needs columns for its question and answer"),
        (scalar, "must hold a row for each problem: a list of JSON objects"),
        (binary, "is not UTF-8 text .*: save it as UTF-8"),
        (fake, "cannot read"),
        (excel, "is a table of Excel or another zipped file by its content: export it as CSV"),
    ):
        with pytest.raises(UserError, match=message):
            load_problems(DataConfig(path=str(path)))


def test_tables_of_other_separators_packed_files_and_folders_give_the_same_problems(tmp_path):
    import gzip

    import datasets

    text = "problem,answer\n1 + 1?,2\n2 + 2?,4\n"
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "sums.csv").write_text(text.replace(",", ";"))
    (tmp_path / "bars.csv").write_text(text.replace(",", "|"))
    (tmp_path / "sums.TSV").write_text(text.replace(",", "\t"))
    (tmp_path / "spaced.csv").write_text(text.replace("problem,", "problem, "), newline="\r\n")
    (tmp_path / "lines.json").write_text(lines)
    (tmp_path / "sums.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "parts").mkdir()
    for number, line in enumerate(lines.splitlines()):
        (tmp_path / "parts" / f"{number}.jsonl").write_text(line)
    saved = datasets.Dataset.from_list([{**row, "answer": str(row["answer"])} for row in ROWS])
    saved.save_to_disk(tmp_path / "saved")
    for name in ("sums.csv", "sums.TSV", "spaced.csv", "lines.json", "sums.jsonl.gz", "parts", "saved"):
        problems, _ = load_problems(DataConfig(path=str(tmp_path / name)))
        assert [(problem.question, problem.answer) for problem in problems] == [("1 + 1?", "2"), ("2 + 2?", "4")], name
    datasets.DatasetDict(train=saved, test=saved).save_to_disk(tmp_path / "splits")
    with pytest.raises(UserError, match=r"holds the splits test, train: name one of them, .*splits/test"):
        load_problems(DataConfig(path=str(tmp_path / "splits")))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "problem,answer,answer\n1,2,3\n", "the column 'answer' comes twice"),
        ("a.csv", "problem,answer\nSay a, b,2\n", "line 2 has 3 cells and the header 2: put a text with ',' in quotes"),
        ("a.csv", 'problem,answer\n"open,2\n1,2\n', "unexpected end of data"),
        ("a.csv", "Question,label\n1,2\n", "perhaps task.data.question_column=Question is meant"),
        ("a.csv", "problem,label\n1,2\n", "perhaps task.data.answer_column=label is meant"),
        (
            "a.jsonl",
            '{"problem": "q", "answer": ["1", "2"]}',
            "answers are lists or mappings, which parts of the reward that come with grpo cannot compare: use",
        ),
        ("a.txt", "", "must end in one of .jsonl, .json, .csv, .tsv, .parquet, or be a folder"),
        ("a.parquet.gz", "", "must end in one of"),
    ],
)
def test_a_file_that_would_be_misread_is_refused_and_says_what_was_meant(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_problems(DataConfig(path=str(tmp_path / name)))
    assert "\n" not in str(caught.value)


def test_answers_that_are_lists_or_empty_serve_functions_that_know_what_to_do_with_them(tmp_path):
    rewards = tmp_path / "rewards.py"
    rewards.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return float(solution_str in ground_truth)\n"
        "def judged(completion, metadata):\n    return 1.0\n"
    )
    given = [["0", "0.0"], {"target": ["x"]}]
    rows = [{"prompt": [{"role": "user", "content": "?"}], "reward_model": {"ground_truth": one}} for one in given]
    (tmp_path / "verl.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = DataConfig(
        path=str(tmp_path / "verl.jsonl"), question_column="prompt", answer_column="reward_model.ground_truth"
    )
    score = RewardConfig(parts=[RewardPartConfig(name=f"{rewards}:compute_score")])
    problems, _ = load_problems(data, score)
    assert [problem.own_answer for problem in problems] == given
    assert [problem.answer for problem in problems] == ['["0", "0.0"]', '{"target": ["x"]}']
    completions = tuple(Completion((7,), (-1.0,), text, False) for text in ("0.0", "1"))
    grading = Grading(GraderPool(score, "ground_truth", problems[0]), score, 16)
    [graded] = grading.grade([RolloutGroup(Prompt(problems[0], (1,)), completions, 0, 0)])
    grading.close()
    assert [grade.reward for grade in graded.grades] == [1.0, 0.0]
    empty = [{"prompt": rows[0]["prompt"], "reward_model": {"ground_truth": ""}}] * 2
    (tmp_path / "verl.jsonl").write_text("\n".join(map(json.dumps, empty)))
    problems, _ = load_problems(data, RewardConfig(parts=[RewardPartConfig(name=f"{rewards}:judged")]))
    assert [problem.answer for problem in problems] == ["", ""]
    with pytest.raises(UserError, match="without a usable question or answer"):
        load_problems(data, score)


def test_numbers_of_the_data_reach_functions_of_trl_as_numbers_and_others_as_texts(tmp_path):
    rows = [{"problem": "a", "answer": 7}, {"problem": "b", "answer": 2.5}, {"problem": "c", "answer": "7"}]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    problems, _ = load_problems(DataConfig(path=str(tmp_path / "data.jsonl")))
    assert [problem.answer for problem in problems] == [problem.own_answer for problem in problems] == ["7", "2.5", "7"]
    assert [problem.typed_answer for problem in problems] == [7, 2.5, "7"]
    (tmp_path / "rewards.py").write_text(
        "def trl(completions, answer, **columns):\n    return [float(a == 7) for a in answer]\n"
        "def ours(completion, answer):\n    return float(answer == '7')\n"
    )
    for name, right in {"trl": [1.0, 0.0, 0.0], "ours": [1.0, 0.0, 1.0]}.items():
        config = RewardConfig(parts=[RewardPartConfig(name=f"{tmp_path / 'rewards.py'}:{name}")])
        grading = Grading(GraderPool(config, "answer", problems[0]), config, 16)
        group = [Completion((7,), (-1.0,), "7", False)]
        scored = grading.grade([RolloutGroup(Prompt(problem, (1,)), tuple(group), 0, 0) for problem in problems])
        grading.close()
        assert [group.grades[0].reward for group in scored] == right
    pattern = DataConfig(path=str(tmp_path / "data.jsonl"), answer_pattern="(\\d)")
    assert [problem.typed_answer for problem in load_problems(pattern)[0]] == ["7", "2", "7"]


def test_a_generator_gives_distinct_questions_that_its_own_scorer_grades():
    data = DataConfig(
        source="reasoning_gym", path="chain_sum", size=60, seed=3,
        options={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "allow_negation": False},
    )  # fmt: skip
    problems, report = load_problems(data)
    questions = {problem.question for problem in problems}
    assert len(questions) == len(problems) < 60
    assert len(problems) + len(report.repeated) == report.num_rows == 60
    assert problems[0].problem_id == "chain_sum-0"
    assert problems == load_problems(data)[0]
    assert score(problems[0].answer, problems[0].metadata) == 1.0
    assert score("no number", problems[0].metadata) < 0.1


def test_a_scorer_that_depends_on_options_sees_them_and_junk_scores_zero():
    data = DataConfig(source="reasoning_gym", path="puzzle24", size=3, options={"min_value": 2, "max_value": 6})
    problems, _ = load_problems(data)
    assert [score(problem.answer, problem.metadata) for problem in problems] == [1.0, 1.0, 1.0]
    factors, _ = load_problems(DataConfig(source="reasoning_gym", path="prime_factorization", size=1))
    assert score("((( junk", factors[0].metadata) == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "sums.jsonl"}, "no generator 'sums.jsonl'; task=file reads a file or a folder of files"),
        ({"path": "chain_sums"}, "no generator 'chain_sums'; did you mean chain_sum"),
        ({"options": {"colour": 1}}, "unexpected keyword argument 'colour'"),
        ({"options": {"min_terms": 9, "max_terms": 2}}, "task.data.options of generator 'chain_sum'"),
        ({"size": 0}, "needs the number of problems to draw"),
        (
            {"options": {"size": 3, "seed": 1}},
            "seed and size would have no effect there; set task.data.seed and task.d",
        ),
        ({"options": {"min_terms": 1.5}}, "generator 'chain_sum': .*; correct the option"),
    ],
)
def test_a_generator_that_cannot_be_built_is_one_line(changes, message):
    data = {"source": "reasoning_gym", "path": "chain_sum", "size": 3, **changes}
    with pytest.raises(UserError, match=message):
        load_problems(DataConfig(**data))


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (["task=bigmath"], "problem"),
        (["task=bigmath_processed"], "prompt"),
        (["experiment=bigmath_small"], "problem"),
        (["experiment=bigmath_qwen2_5_1_5b"], "problem"),
    ],
)
def test_the_sources_of_big_math_have_numbers_of_their_own(words, question, write_rows):
    answer = {"problem": "answer", "prompt": "solution"}[question]
    rows = [{question: "1 + 1?", answer: "2", "source": name, "domain": ["Algebra"]} for name in ("gsm8k", "olympiads")]
    task = compose_config([*words, "task.data.source=file", f"task.data.path={write_rows(rows)}"]).task
    assert [problem.source for problem in load_problems(task.data)[0]] == ["gsm8k", "olympiads"]


PROMPTS = [{"prompt": f"Write about {subject}.", "topic": subject} for subject in ("rain", "snow")]


@pytest.fixture
def own_parts(tmp_path):
    """Returns the words that choose a function of the given text as the only part of the reward."""

    def words(text):
        (tmp_path / "own.py").write_text(f"{text}: return 1.0\n")
        return f"task.reward.parts=[{{name: '{tmp_path}/own.py:f'}}]"

    return words


@pytest.mark.parametrize(
    "function",
    [
        "def f(completions, **columns)",
        "def f(completions, topic)",
        "def f(completion, metadata)",
        "def f(completion, answer='')",
        "async def f(completion)",
        "def f(groups)",
    ],
)
def test_data_without_answers_are_read_where_no_part_of_the_reward_needs_one(function, write_rows, own_parts):
    words = ["task=trl", f"task.data.path={write_rows(PROMPTS)}", own_parts(function)]
    for more in ([], ["task.data.answer_column="], ["task.data.answer_column=null"]):
        task = compose_config([*words, *more]).task
        problems, report = load_problems(task.data, task.reward)
        assert [(problem.question, problem.answer) for problem in problems] == [
            ("Write about rain.", ""),
            ("Write about snow.", ""),
        ]
        assert problems[0].metadata == {"topic": "rain"} and report.unusable == ()


ASKED = "server: {url: 'http://127.0.0.1:9/v1'}"
OWN_PROMPT = "server: {url: 'http://127.0.0.1:9/v1', prompt: 'Is {completion} {answer}?'}"


@pytest.mark.parametrize(
    ("parts", "needed_by"),
    [
        ("[{name: format}]", ""),
        (f"[{{name: http, {ASKED}}}, {{name: judge, {ASKED}}}]", ""),
        ("[{name: format}, {name: math, weight: 0.1}]", "math"),
        (f"[{{name: judge, {OWN_PROMPT}}}]", "judge"),
    ],
)
def test_a_part_that_needs_the_missing_answers_is_named(parts, needed_by, write_rows):
    words = ["task=trl", f"task.data.path={write_rows(PROMPTS)}", f"task.reward.parts={parts}"]
    task = compose_config(words).task
    if not needed_by:
        assert len(load_problems(task.data, task.reward)[0]) == 2
        return
    with pytest.raises(UserError) as caught:
        load_problems(task.data, task.reward)
    assert str(caught.value).endswith(
        f"has no column 'solution' (task.data.answer_column); it has prompt, topic, and the reward part {needed_by!r} "
        "needs an answer: name the answers' column, or choose task.reward.parts that need none, such as a function "
        "f(completions, **columns)."
    )


@pytest.mark.parametrize("signature", ["completions, solution, **columns", "completion, answer", "text, gold, row"])
def test_a_function_that_takes_the_missing_answers_is_named(signature, write_rows, own_parts):
    words = ["task=trl", f"task.data.path={write_rows(PROMPTS)}", own_parts(f"def f({signature})")]
    task = compose_config(words).task
    with pytest.raises(UserError, match="own.py:f' needs an answer: name the answers' column"):
        load_problems(task.data, task.reward)


def test_a_source_whose_reward_needs_answers_keeps_data_without_answers_out(write_rows, own_parts):
    by_source = "+task.reward.by_source={rain: {parts: [{name: math}]}}"
    words = ["task=trl", f"task.data.path={write_rows(PROMPTS)}", "task.data.source_column=topic", by_source]
    task = compose_config([*words, own_parts("def f(completion)")]).task
    with pytest.raises(UserError, match="the reward part 'math' needs an answer"):
        load_problems(task.data, task.reward)


def test_the_choices_of_questions_without_answers_stay_in_the_prompt(write_rows, own_parts):
    rows = [{"prompt": "Which?", "choices": ["red", "blue"]}]
    words = ["task=trl", f"task.data.path={write_rows(rows)}", "task.data.choices_column=choices"]
    task = compose_config([*words, own_parts("def f(completion)")]).task
    problems, _ = load_problems(task.data, task.reward)
    assert problems[0].metadata == {"choices": ["red", "blue"]}


def test_whole_solutions_are_no_answers_to_compare_with(write_rows):
    rows = [{"problem": f"{n} + 1?", "answer": f"We add.\n#### {n + 1}"} for n in range(4)]
    task = compose_config(["task=file", f"task.data.path={write_rows(rows)}"]).task
    with pytest.raises(UserError, match="as GSM8K's do: set task.data.answer_pattern='#### "):
        load_problems(task.data, task.reward)
    problems, _ = load_problems(replace(task.data, answer_pattern="#### (.*)"), task.reward)
    assert [problem.answer for problem in problems] == ["1", "2", "3", "4"]


def test_choices_that_an_answer_does_not_name_are_shown(write_rows):
    for choices, answer in ((["red", "blue"], "green"), ("red", "A"), ([], 1)):
        rows = [{"problem": "Which?", "choices": choices, "answer": answer}]
        data = DataConfig(path=write_rows(rows), choices_column="choices")
        with pytest.raises(UserError, match=f"the answer {answer!r} and the choices {re.escape(repr(choices))}; choi"):
            load_problems(data)


def test_rows_with_half_a_character_are_left_out_or_refused(write_rows):
    chat = [{"role": "system", "content": "\udfff"}, {"role": "user", "content": "1 + 1?"}]
    bad = [{"problem": "\ud800 broken", "answer": "1"}, {"problem": "1 + 1?", "answer": "\ud800"}]
    data = DataConfig(path=write_rows([*ROWS, *bad, {"problem": chat, "answer": "2"}]))
    problems, report = load_problems(data)
    assert [problem.question for problem in problems] == ["1 + 1?", "2 + 2?"]
    assert report.unusable == ("sums-2", "sums-3", "sums-4")
    data.bad_rows = "refuse"
    with pytest.raises(UserError, match="sums.jsonl: 5 rows: 3 without a usable question or answer .sums-2, sums-3"):
        load_problems(data)
    with pytest.raises(UserError, match=r"'.ud800 broken' and the answer '1'; .* without halves of characters"):
        load_problems(DataConfig(path=write_rows(bad)))


def test_a_split_of_a_file_is_reported_as_without_effect(write_rows, caplog):
    load_problems(DataConfig(path=write_rows(ROWS), split="test"))
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "task.data.split=test is not read: splits are those of the hub"
    ]


def test_a_mistyped_column_of_answers_is_refused_where_nothing_needs_answers_too(write_rows):
    own = RewardConfig(parts=[RewardPartConfig(name="own:f")])
    data = DataConfig(path=write_rows(ROWS), answer_column="answr")
    with pytest.raises(
        UserError, match=r"no column 'answr'.*; perhaps task.data.answer_column=answer is meant"
    ) as error:
        load_problems(data, own)
    assert str(error.value).count("perhaps") == 1
