import json
from dataclasses import replace

import pytest

from grpo.cli import main
from grpo.config.errors import UserError
from grpo.config.hydra import compose_config
from grpo.sandbox.sandbox import unavailable
from grpo.tasks.extraction import EXTRACTORS
from grpo.tasks.trial import FORMS, tells_apart, trial


@pytest.fixture
def words(tmp_path):
    rows = [{"problem": f"{number} + 1?", "answer": str(number + 1)} for number in range(6)]
    (tmp_path / "sums.json").write_text(json.dumps(rows))
    return ["task=file", f"task.data.path={tmp_path}/sums.json"]


def test_the_table_shows_what_right_wrong_and_missing_answers_get(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["check-reward", *words]) == 0
    lines = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines() if "+ 1?" in line]
    assert lines[0] == [*["0", "+", "1?", "The", "answer", "is"], r"\boxed{1}.", "1", "math", "1", "right"]
    assert len(lines) == 4


def test_a_trial_grades_with_one_process_however_many_the_run_has(words, monkeypatch):
    started = []

    def start(config, *rest):
        started.append([of_set.reward.workers for of_set in config.all_sets.values()])
        raise UserError("enough")

    monkeypatch.setattr("grpo.tasks.trial.build_gradings", start)
    config = compose_config([*words, "task.reward.workers=8"])
    mixed = replace(config.task, sets={"a": config.task, "b": config.task})
    for task in (config.task, mixed):
        with pytest.raises(UserError, match="enough"):
            trial(task, 16, 1)
    assert started == [[1], [1, 1]]


def test_a_reward_that_does_not_tell_right_from_wrong_is_said_so(words, capsys):
    reward = ["task.reward.parts=[{name: format}]", "task.reward.format_pattern=answer"]
    assert main(["check-reward", *words, *reward]) == 1
    assert "right answers are not rewarded more than wrong ones" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (
            "0.5 * (answer in completion)",
            "right answers are graded as wrong; if the model's are too, pass rates are false",
        ),
        (
            "100.0 if answer in completion else 10.0",
            "wrong answers are graded as right; if the model's are too, pass rates are false",
        ),
    ],
)
def test_a_reward_whose_pass_rates_would_be_false_is_said_so(reward, said, words, tmp_path, capsys):
    (tmp_path / "own.py").write_text(f"def f(completion, answer, metadata): return {reward}\n")
    assert main(["check-reward", *words, f"task.reward.parts=[{{name: {tmp_path}/own.py:f}}]"]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


def test_answers_that_cannot_be_parsed_are_said_so(tmp_path, capsys):
    rows = [{"problem": f"{number} + 1?", "answer": f"One more. #### {number + 1}"} for number in range(6)]
    (tmp_path / "sums.json").write_text(json.dumps(rows))
    assert main(["check-reward", "task=file", f"task.data.path={tmp_path}/sums.json"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert 'task.data.answer_pattern finds the part of an answer that counts, such as "#### (.*)"' in said
    assert "compare the completions above" not in said


def test_an_extraction_that_the_prompt_does_not_ask_for_is_said(words, capsys):
    asked = ["task.prompt.template='{question} Write <answer> </answer>.'", "task.reward.extract=boxed"]
    assert main(["check-reward", *words, *asked]) == 0
    assert "asks for <answer>…</answer>: set task.reward.extract=tag" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("template", "expected"),
    [("{question}", True), ("{question} Write \\\\boxed{}.", False), ("{hint} {question}", False)],
)
def test_a_box_that_no_prompt_asks_for_is_said(template, expected, tmp_path, capsys):
    rows = [{"problem": f"{number} + 1?", "answer": str(number + 1), "hint": "Box it."} for number in range(6)]
    (tmp_path / "sums.json").write_text(json.dumps(rows))
    asked = [f"task.data.path={tmp_path}/sums.json", f"task.prompt.template='{template}'", "task.reward.extract=boxed"]
    assert main(["check-reward", "task=file", *asked]) == 0
    said = "task.reward.extract=boxed looks for \\boxed{…}, for which these prompts do not ask"
    assert (said in " ".join(capsys.readouterr().out.split())) == expected


@pytest.mark.parametrize(
    ("order", "expected"),
    [(("shape", "right"), True), (("right", "shape"), False), (("shape",), False), (("shape", "math"), True)],
)
def test_a_first_part_that_needs_no_answer_before_one_that_does_is_reported(order, expected, words, tmp_path, capsys):
    (tmp_path / "own.py").write_text(
        "def shape(completions, **columns): return [1.0] * len(completions)\n"
        "def right(completions, answer, **columns): return [float(a in c) for a, c in zip(answer, completions)]\n"
    )
    parts = ", ".join(f"{{name: {name if name == 'math' else f'{tmp_path}/own.py:{name}'}}}" for name in order)
    main(["check-reward", *words, f"task.reward.parts=[{parts}]"])
    said = (
        "the first part says which completions are right, and shape needs no answer, while "
        f"{order[-1]} does: put {order[-1]} first, unless shape is to judge them"
    )
    assert (said in " ".join(capsys.readouterr().out.split())) == expected


@pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox here: {unavailable()}")
def test_programs_are_tried_with_the_solutions_of_the_rows(tmp_path):
    programs = {"add": "def add(a, b): return a + b", "one": "def one(): return 1"}
    tests = {"add": ["assert add(1, 2) == 3"], "one": ["assert one() == 1"]}
    rows = [{"text": f"Write {name}.", "code": programs[name], "test_list": tests[name]} for name in programs]
    (tmp_path / "mbpp.json").write_text(json.dumps([{"task_id": n, **row} for n, row in enumerate(rows)]))
    words = ["task=mbpp", "task.data.source=file", f"task.data.path={tmp_path}/mbpp.json", "task.reward.workers=1"]
    scored = trial(compose_config([*words, "task.reward.timeout_seconds=60"]).task, 512, 2)
    assert [list(group.rewards) for group in scored] == [[1.0, 0.0, 0.0]] * 2


@pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox here: {unavailable()}")
def test_a_program_of_which_a_row_has_the_tests_alone_has_no_right_completion(tmp_path):
    rows = [{"problem": f"Echo {n}.", "answer": json.dumps({"inputs": ["1"], "outputs": ["1"]})} for n in range(2)]
    (tmp_path / "tests.json").write_text(json.dumps(rows))
    words = ["task=file", f"task.data.path={tmp_path}/tests.json", "task.reward.parts=[{name: code}]"]
    scored = trial(compose_config([*words, "task.reward.timeout_seconds=60"]).task, 512, 2)
    assert [len(group.rewards) for group in scored] == [2, 2] and tells_apart(scored)


def test_an_episode_is_played_with_made_up_turns(words, capsys):
    episode = ["task.episode=tests.episodes.acts:Counter", "task.reward.parts=[{name: episode}]"]
    assert main(["check-reward", *words, *episode]) == 0
    printed = capsys.readouterr().out
    assert printed.count(" episode 3 ") == 12
    assert printed.splitlines()[-4:] == [
        r"Think step by step, then give the final answer within \boxed{}. It stands at 0.",
        *("assistant: → count(step=3)", "count: It stands at 3."),
        r"assistant: The answer is \boxed{1}.",
    ]


def test_a_trial_whose_episodes_all_fail_ends_with_one(words, capsys):
    episode = ["task.episode=tests.episodes.acts:NeedsMore", "task.reward.parts=[{name: episode}]"]
    assert main(["check-reward", *words, *episode]) == 1
    assert "every episode failed: correct task.episode" in capsys.readouterr().out


def test_a_reward_that_fails_is_one_line(words, tmp_path, capsys):
    (tmp_path / "own.py").write_text("def f(completion, answer, metadata): return 1 / 0")
    reward = [f"task.reward.parts=[{{name: '{tmp_path}/own.py:f'}}]"]
    assert main(["check-reward", *words, *reward]) == 2
    assert "raised ZeroDivisionError for all 12 answers" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["#### ", "<answer>"])
def test_a_function_that_wants_another_form_is_tried_with_it(form, words, tmp_path, capsys):
    (tmp_path / "own.py").write_text(
        f"def score(data_source, solution_str, ground_truth): return float({form!r} + ground_truth in solution_str)\n"
    )
    assert main(["check-reward", *words, f"task.reward.parts=[{{name: '{tmp_path}/own.py:score'}}]"]) == 0
    printed = capsys.readouterr().out
    assert f"{form}1" in printed and "boxed" not in printed


@pytest.mark.parametrize("extract", EXTRACTORS)
def test_every_extraction_finds_the_answers_of_a_trial(extract, words):
    config = compose_config([*words, f"task.reward.extract={extract}", "task.reward.parts=[{name: number}]"])
    scored = trial(config.task, 512, 2)
    assert [grade.correct for group in scored for grade in group.grades] == [True, False, False] * 2
    assert tells_apart(scored)
    assert set(FORMS) == set(EXTRACTORS)


def test_a_problem_without_an_answer_gets_some_answer_and_none_graded(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Write about rain."}\n')
    (tmp_path / "own.py").write_text("def f(completions, **columns): return [len(text) for text in completions]\n")
    words = ["task=trl", f"task.data.path={tmp_path}/prompts.jsonl"]
    assert main(["check-reward", *words, f"task.reward.parts=[{{name: '{tmp_path}/own.py:f'}}]"]) == 0
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines() if line[:1] == "│"]
    assert rows[0] == [*("Write", "about", "rain.", "The", "answer", "is"), r"\boxed{42}.", "25", "f", "25", "right"]
    assert rows[1] == ["I", "am", "not", "sure.", "14", "f", "14", "right"]
    assert len(rows) == 2


def test_a_reward_that_is_never_graded_in_time_is_not_tried_in_every_form(words, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\ndef f(completion, answer, metadata):\n"
        f"    open('{tmp_path}/calls', 'a').write('.')\n    time.sleep(60)\n"
    )
    part = f'task.reward.parts=[{{name: "{tmp_path}/slow.py:f"}}]'
    [group] = trial(compose_config([*words, part, "task.reward.timeout_seconds=0.3"]).task, 64, 1)
    assert [grade.outcome for grade in group.grades] == ["timed_out"] * 3
    assert (tmp_path / "calls").read_text() == "..."


@pytest.mark.parametrize("act", ["add", "returns_nothing"])
def test_a_reward_that_no_episode_returns_ends_with_one(act, words, capsys):
    templates = ["task.prompt.chat_template=chatml_tools"]
    episode = [f"task.episode=tests.episodes.acts:{act}", "task.reward.parts=[{name: episode}]", *templates]
    assert main(["check-reward", *words, *episode]) == 1
    assert "no episode returned the part episode of task.reward.parts" in capsys.readouterr().out


def test_a_reward_of_episodes_that_no_part_takes_is_said_and_may_stand(words, capsys):
    episode = ["task.episode=tests.episodes.acts:Counter", "task.prompt.chat_template=chatml_tools"]
    said = "episodes return reward, and nothing is learned from it: the part {name: episode} of task.reward.parts"
    assert main(["check-reward", *words, *episode, "task.reward.parts=[{name: number}]"]) == 0
    assert said in capsys.readouterr().out
    assert main(["check-reward", *words, *episode, "task.reward.parts=[{name: number},{name: episode}]"]) == 0
    assert said not in capsys.readouterr().out


def test_an_episode_that_never_asks_the_model_has_failed(words, capsys):
    episode = ["task.episode=tests.episodes.acts:asks_nothing", "task.reward.parts=[{name: episode}]"]
    assert main(["check-reward", *words, *episode]) == 1
    assert "it ended without a turn of the model" in capsys.readouterr().out
