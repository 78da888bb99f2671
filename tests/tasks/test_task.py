import re
from dataclasses import replace

import pytest

from grpo.config import DataConfig, PromptConfig, RewardConfig, RewardPartConfig, SelectionConfig, TaskConfig, UserError
from grpo.tasks.curriculum import Grouping
from grpo.tasks.task import LoadedTask, build_task, loaded_task, loaded_tasks
from grpo.tasks.usable import usable_problems
from grpo.telemetry.completions import completion_row, score_of
from grpo.types import Completion, Problem, Prompt, RolloutGroup


def completion(text, num_tokens=3, truncated=False):
    return Completion((0,) * num_tokens, (-1.0,) * num_tokens, text, truncated)


def group(prompt, *completions):
    return RolloutGroup(prompt, completions, oldest_version=0, newest_version=0)


def config(**reward):
    settings = {"parts": [RewardPartConfig(name="number")], "extract": "last_number", **reward}
    return TaskConfig(data=DataConfig(source="arithmetic", held_out_fraction=0.2), reward=RewardConfig(**settings))


def exact(path, **prompt):
    """Returns the configuration of a task that trains on all rows of a file and compares answers as texts."""
    data, reward = DataConfig(path=path, held_out_fraction=0.0), RewardConfig(parts=[RewardPartConfig(name="exact")])
    return TaskConfig(data=data, reward=reward, prompt=PromptConfig(**prompt))


def build(tokenizer, task_config, **settings):
    fixed = {"seed": 0, "max_tokens": 16, "grouping": Grouping(8)}
    return build_task(loaded_task(task_config, tokenizer), tokenizer, **{**fixed, **settings})


def test_the_reward_is_the_weighted_sum_of_its_parts(tokenizer):
    reward = {
        "parts": [RewardPartConfig(name="number"), RewardPartConfig(name="format", weight=0.5)],
        "format_pattern": r"\.$",
    }
    with build(tokenizer, config(**reward)) as task:
        (prompt,) = task.next_prompts(1)
        right, wrong = prompt.problem.answer, str(int(prompt.problem.answer) + 1)
        texts = [right, f"{right}.", wrong, f"{wrong}."]
        (scored,) = task.grade([group(prompt, *map(completion, texts))])
    assert scored.rewards == (1.0, 1.5, 0.0, 0.5)
    assert [grade.correct for grade in scored.grades] == [True, True, False, False]
    assert scored.grades[3].parts == {"number": 0.0, "format": 1.0}
    assert scored.included == (True, True, True, True)


def test_a_completion_without_an_answer_is_distinguished_from_a_wrong_one(tokenizer, custom_rewards):
    def answered(**reward):
        with build(tokenizer, config(**reward)) as task:
            (prompt,) = task.next_prompts(1)
            (scored,) = task.grade([group(prompt, completion("it is 5"), completion("I do not know"))])
        return [grade.answered for grade in scored.grades]

    assert answered() == [True, False]
    assert answered(parts=[RewardPartConfig(name=f"{custom_rewards}:obey")]) == [None, None]


def test_parts_that_see_a_group_are_added_to_those_that_see_one_completion(tokenizer, tmp_path):
    (tmp_path / "own.py").write_text(
        "def rank(completions, answer):\n"
        "    return [{'score': place, 'right': float(answer[0] == text)} for place, text in enumerate(completions)]\n"
    )
    name = f"{tmp_path}/own.py:rank"
    with build(tokenizer, config(parts=[RewardPartConfig(name="number"), RewardPartConfig(name=name)])) as task:
        first, second = task.next_prompts(2)
        right = first.problem.answer
        groups = [group(first, completion(right), completion("no")), group(second, completion("no"))]
        scored = task.grade(groups)
    assert [scored_group.rewards for scored_group in scored] == [(1.0, 1.0), (0.0,)]
    assert scored[0].grades[0].parts == {"number": 1.0, name: 0.0, f"{name}/right": 1.0}
    assert [grade.correct for grade in scored[0].grades] == [True, False]


def test_parts_that_add_up_to_the_same_on_paper_make_a_silent_group(tokenizer, custom_rewards):
    weights = {"number": 0.1, f"{custom_rewards}:obey": 0.2, "format": 0.3}
    parts = [RewardPartConfig(name=name, weight=weight) for name, weight in weights.items()]
    with build(tokenizer, config(parts=parts, format_pattern="^wrong")) as task:
        (prompt,) = task.next_prompts(1)
        (scored,) = task.grade([group(prompt, completion(prompt.problem.answer), completion("wrong"))])
    assert scored.rewards == (0.30000000000000004, 0.3)
    assert scored.silent


def test_parts_of_a_reward_are_kept_where_they_cancel(tokenizer):
    parts = [RewardPartConfig(name="number", weight=1e6), RewardPartConfig(name="format", weight=-1e6)]
    with build(tokenizer, config(parts=parts, format_pattern=".", signed=True)) as task:
        (prompt,) = task.next_prompts(1)
        (scored,) = task.grade([group(prompt, completion(prompt.problem.answer))])
    assert (scored.rewards, scored.grades[0].magnitude) == ((-1.0,), 4e6 + 1)


def test_ragged_groups_keep_their_own_grades_and_masked_completions_keep_their_reward(tokenizer):
    with build(tokenizer, config(signed=True, overlong="mask")) as task:
        first, second = task.next_prompts(2)
        scored = task.grade([
            group(first, completion(first.problem.answer), completion("none", truncated=True)),
            group(second, completion(second.problem.answer, truncated=True)),
        ])  # fmt: skip
    assert [scored_group.rewards for scored_group in scored] == [(1.0, -1.0), (1.0,)]
    assert [scored_group.included for scored_group in scored] == [(True, False), (False,)]
    assert scored[1].grades[0].correct


def test_completions_cut_off_may_count_as_wrong(tokenizer):
    with build(tokenizer, config(overlong="zero")) as task:
        (prompt,) = task.next_prompts(1)
        right = prompt.problem.answer
        (scored,) = task.grade([group(prompt, completion(right), completion(right, truncated=True))])
    assert [(grade.reward, grade.correct) for grade in scored.grades] == [(1.0, True), (0.0, False)]
    assert scored.included == (True, True)


def test_the_soft_penalty_is_a_part_added_after_the_sign(tokenizer):
    with build(tokenizer, config(signed=True, overlong="soft", overlong_buffer=8)) as task:
        (prompt,) = task.next_prompts(1)
        answer = prompt.problem.answer
        lengths = [8, 10, 16]
        (scored,) = task.grade([group(prompt, *[completion(answer, length) for length in lengths])])
    assert scored.rewards == (1.0, 0.75, 0.0)
    assert scored.grades[1].parts == {"number": 1.0, "overlong": -0.25}
    assert all(grade.correct for grade in scored.grades)


def test_an_answer_that_was_not_graded_has_no_reward_and_is_not_correct(tokenizer, custom_rewards):
    reward = {"parts": [RewardPartConfig(name=f"{custom_rewards}:obey")], "timeout_seconds": 0.5, "correct_at": 0.0}
    with build(tokenizer, config(**reward)) as task:
        (prompt,) = task.next_prompts(1)
        (scored,) = task.grade([group(prompt, completion("sleep"), completion("die"), completion("other"))])
    assert scored.rewards == (0.0, 0.0, 0.0)
    assert [grade.outcome for grade in scored.grades] == ["timed_out", "failed", "graded"]
    assert [grade.correct for grade in scored.grades] == [False, False, True]


def test_nothing_is_learned_from_a_group_for_which_the_users_function_raised_an_exception(tokenizer, custom_rewards):
    parts = [RewardPartConfig(name=f"{custom_rewards}:obey"), RewardPartConfig(name="format", weight=0.5)]
    with build(tokenizer, config(parts=parts, format_pattern=".")) as task:
        first, second = task.next_prompts(2)
        spoilt, whole = task.grade([
            group(first, completion("raise"), completion(first.problem.answer)),
            group(second, completion("wrong"), completion(second.problem.answer)),
        ])  # fmt: skip
    assert [grade.outcome for grade in spoilt.grades] == ["raised", "raised"]
    assert (spoilt.rewards, spoilt.included, spoilt.outcome) == ((0.0, 0.0), (False, False), (0, 0))
    assert (whole.rewards, whole.included, whole.outcome) == ((0.5, 1.5), (True, True), (1, 2))


def test_nothing_is_learned_from_a_group_that_was_given_up_while_it_was_sampled(tokenizer):
    with build(tokenizer, config()) as task:
        [prompt] = task.next_prompts(1)
        [late] = task.grade([group(prompt, completion(prompt.problem.answer), Completion.given_up(3))])
    assert [grade.outcome for grade in late.grades] == ["late", "late"]
    assert (late.rewards, late.included, late.outcome) == ((0.0, 0.0), (False, False), (0, 0))


def rows_file(path, *answers):
    path.write_text(
        "".join(f'{{"problem": "q{index}", "answer": "{answer}"}}\n' for index, answer in enumerate(answers))
    )
    return DataConfig(path=str(path), held_out_fraction=0.0)


def test_answers_that_are_no_numbers_are_left_out_or_refused_at_once(tokenizer, tmp_path, caplog):
    task_config = config()
    task_config.data = rows_file(tmp_path / "rows.jsonl", "1", "five", "2", "x+1")
    with build(tokenizer, task_config) as task:
        assert task.num_problems == 2
    assert "2 answers cannot be parsed (rows-1: 'five', rows-3: 'x+1')" in caplog.text
    task_config.data.bad_rows = "refuse"
    with pytest.raises(UserError, match="2 answers cannot be parsed"):
        build(tokenizer, task_config)


def test_latex_that_only_the_grader_can_judge_is_reported_once_or_refused(tokenizer, tmp_path, caplog):
    task_config = config(parts=[RewardPartConfig(name="math")], extract="all")
    task_config.data = rows_file(tmp_path / "rows.jsonl", "{{{")
    with build(tokenizer, task_config) as task:
        (prompt,) = task.next_prompts(1)
        for _ in range(2):
            (scored,) = task.grade([group(prompt, completion("{{{"), completion("1"))])
        assert [grade.outcome for grade in scored.grades] == ["unparsable", "unparsable"]
        assert scored.rewards == (0.0, 0.0)
    assert caplog.text.count("1 answer cannot be parsed (rows-0: '{{{')") == 1
    task_config.data.bad_rows = "refuse"
    refusal = "correct them or set task.data.bad_rows"
    with build(tokenizer, task_config) as task, pytest.raises(UserError, match=refusal):
        task.grade([group(prompt, completion("1"))])


def test_a_problem_without_a_readable_answer_rewards_nobody_for_giving_none(tokenizer, tmp_path, caplog):
    parts = [RewardPartConfig(name="math"), RewardPartConfig(name="format", weight=0.1)]
    task_config = config(
        parts=parts, extract="boxed", format_pattern="think", signed=True, overlong="soft", overlong_buffer=8
    )
    task_config.data = rows_file(tmp_path / "rows.jsonl", "{{{")
    texts = [completion("I think 3", 9), completion("I think \\boxed{4}", 16), completion("no")]
    with build(tokenizer, task_config) as task:
        (prompt,) = task.next_prompts(1)
        # Only the second completion has an answer that is compared with the problem's own.
        (scored,) = task.grade([group(prompt, *texts)])
    assert scored.rewards == (-1.0, -1.0, -1.0) and scored.silent
    assert scored.included == (False, False, False)
    assert [grade.outcome for grade in scored.grades] == ["unparsable"] * 3
    assert "nothing is learned from them" in caplog.text
    task_config.data.bad_rows = "refuse"
    with build(tokenizer, task_config) as task, pytest.raises(UserError, match="1 answer cannot be parsed"):
        task.grade([group(prompt, *texts)])


def test_training_never_asks_what_is_held_out(tokenizer):
    with build(tokenizer, config(), seed=0) as task, build(tokenizer, config(), seed=1) as other:
        held_out = task.held_out_prompts(1000)
        assert task.num_problems + len(held_out) == 100
        trained = {prompt.problem.problem_id for prompt in task.next_prompts(task.num_problems)}
        assert trained.isdisjoint(prompt.problem.problem_id for prompt in held_out)
        assert task.held_out_prompts(3) == held_out[:3] == other.held_out_prompts(3)
        assert isinstance(held_out[0], Prompt)
        task.cursor = 5
        assert task.cursor == 5


@pytest.mark.slow
def test_a_generators_problems_are_graded_by_its_own_scorer(tokenizer):
    data = DataConfig(source="reasoning_gym", path="puzzle24", size=4, held_out_fraction=0.0)
    reward = RewardConfig(parts=[RewardPartConfig(name="reasoning_gym")], extract="tag")
    with build(tokenizer, TaskConfig(data=data, reward=reward)) as task:
        prompts = task.next_prompts(4)
        scored = task.grade([
            group(prompt, completion(f"<answer>{prompt.problem.answer}</answer>"), completion("<answer>(</answer>"))
            for prompt in prompts
        ])  # fmt: skip
    assert [scored_group.grades[0].correct for scored_group in scored] == [True] * 4
    assert [scored_group.grades[1].correct for scored_group in scored] == [False] * 4


@pytest.mark.slow
def test_a_generator_without_answers_judges_by_its_own_scorer(tokenizer):
    data = DataConfig(source="reasoning_gym", path="rush_hour", size=1, held_out_fraction=0.0)
    reward = RewardConfig(parts=[RewardPartConfig(name="reasoning_gym", weight=0.5)], extract="tag")
    with build(tokenizer, TaskConfig(data=data, reward=reward)) as task:
        [prompt] = task.next_prompts(1)
        [scored] = task.grade([group(prompt, completion("<answer>no move</answer>"), completion("nothing"))])
    assert prompt.problem.answer == ""
    scored = replace(scored, grades=(replace(scored.grades[0], reward=0.5), *scored.grades[1:]))
    assert scored.judged_without_answer and not scored.unjudged
    assert completion_row(scored, 0)["judged"] and score_of([completion_row(scored, 0)]) == "0 of 1 right"


def test_rows_and_prompts_left_out_are_counted_and_never_asked(tokenizer, write_rows, caplog):
    rows = [{"problem": str(index) * 4, "answer": "1"} for index in range(5)]
    rows += [{"problem": "long" * 50, "answer": "1"}, {"problem": "no answer"}]
    with build(tokenizer, exact(write_rows(rows), max_tokens=100)) as task:
        asked = {prompt.problem.problem_id for prompt in task.next_prompts(20)}
    assert asked == {f"sums-{index}" for index in range(5)}
    logged = [record.getMessage() for record in caplog.records]
    assert logged == [
        "task task: left out of 7 rows: 1 without a usable question or answer (sums-6); the first has problem and no "
        "column 'answer' (task.data.answer_column): name columns alike in all rows",
        "task task: left out 1 prompts of more than 100 tokens (sums-5)",
    ]


def test_questions_that_are_whole_prompts_already_are_refused_where_the_template_is_written_again(
    tokenizer, write_rows
):
    whole = [f"<|im_start|>user\n{n} + 1<|im_end|>\n<|im_start|>assistant\n" for n in range(5)]
    for questions, chat, refused in ((whole, True, True), (whole, False, False), ([*whole, "5 + 1"], True, False)):
        file = exact(write_rows([{"problem": text, "answer": "1"} for text in questions]), chat=chat)
        if refused:
            with pytest.raises(
                UserError, match=r"all 5 questions hold <\|im_start\|>, which the chat .*prompt.chat=false"
            ):
                build(tokenizer, file)
        else:
            build(tokenizer, file).close()


def test_problems_of_an_evaluation_are_never_asked_and_named_with_their_place(tokenizer, write_rows, caplog, tmp_path):
    evaluation = tmp_path / "test.jsonl"
    evaluation.write_text('{"problem": "two plus two"}')
    rows = [{"problem": text, "answer": "4"} for text in ("Two plus two?", "one plus three", "two times two")]
    task_config = TaskConfig(
        data=DataConfig(
            path=write_rows(rows), held_out_fraction=0.0, selection=SelectionConfig(evaluation_sets=[str(evaluation)])
        ),
        prompt=PromptConfig(max_tokens=100),
        reward=RewardConfig(parts=[RewardPartConfig(name="exact")]),
    )
    with build(tokenizer, task_config) as task:
        asked = {prompt.problem.problem_id for prompt in task.next_prompts(9)}
    assert asked == {"sums-1", "sums-2"}
    assert [record.getMessage() for record in caplog.records] == [
        "task task: 2 of 3 problems taken; left out: 1 with a question of an evaluation set",
        "task task: questions of evaluation sets: sums-0 is test.jsonl, row 0",
    ]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (r"{hint} {hnit} {question}", "has {hnit}, and no problem has a column 'hnit': name one of question, hint, or"),
        (r"{question} {0}", "has {0}, and no problem has a column '0': name one of question, hint, or write { 0 }"),
        (r"{question} {answer}", "task.prompt.template shows {answer}, the column of the answers: take it out."),
        (r"{hint} {question} \boxed{number} x^{2} { hnit }", ""),
    ],
)
def test_a_name_in_the_template_that_is_no_column_is_refused(template, message, write_rows):
    rows = [{"problem": str(index), "answer": "1", "hint": "?"} for index in range(5)]
    task_config = exact(write_rows(rows), template=template)
    if not message:
        assert len(usable_problems(task_config)) == 5
        return
    with pytest.raises(UserError, match=re.escape(message)):
        usable_problems(task_config)


def test_programs_are_not_judged_without_tests(write_rows):
    rows = [{"problem": str(index), "answer": "1"} for index in range(5)]
    parts = RewardConfig(parts=[RewardPartConfig(name="code")])
    with pytest.raises(UserError, match=r"has code, which runs a row.s unit tests, and the first 5 have none"):
        usable_problems(TaskConfig(data=DataConfig(path=write_rows(rows)), reward=parts))
    broken = [{"problem": str(index), "test_list": ["assert f( == 1"]} for index in range(5)]
    with pytest.raises(UserError, match=r"the first 5 have none that can be read \(invalid syntax"):
        usable_problems(TaskConfig(data=DataConfig(path=write_rows(broken), answer_column=None), reward=parts))
    tested = [*rows, {"problem": "5", "answer": "assert f(1) == 2"}]
    assert len(usable_problems(TaskConfig(data=DataConfig(path=write_rows(tested)), reward=parts))) == 6


def test_a_prompt_with_two_right_answers_is_reported(tokenizer, write_rows, caplog):
    rows = [{"problem": "1 + 1", "answer": answer} for answer in ("2", "3", "2")] + [{"problem": "1", "answer": "1"}]
    loaded_task(exact(write_rows(rows)), tokenizer)
    logged = [record.getMessage() for record in caplog.records]
    assert logged == ["task task: 1 prompts come again with another answer (sums-1)"]


def test_a_task_is_the_same_while_its_questions_answers_and_their_order_are():
    def identity(*problems):
        given = [Problem(str(index), question, answer, {}) for index, (question, answer) in enumerate(problems)]
        return LoadedTask(TaskConfig(), {"": given}, {}).identity

    assert identity(("1?", "1"), ("2?", "2")) == identity(("1?", "1"), ("2?", "2"))
    others = [(("1?", "1"),), (("2?", "2"), ("1?", "1")), (("1?", "1"), ("2?", "3")), (("1?1", ""), ("2?", "2"))]
    assert identity(("1?", "1"), ("2?", "2")) not in [identity(*other) for other in others]


def test_a_template_whose_columns_no_problem_has_together_is_refused(write_rows):
    rows = [{"problem": f"{index} + 1", "answer": "1", "ab"[index % 2]: "Sums."} for index in range(4)]
    config = TaskConfig(data=DataConfig(path=write_rows(rows)), prompt=PromptConfig(template="{a} {b} {question}"))
    with pytest.raises(UserError, match="no problem has an answer and all columns that task.prompt.template shows"):
        usable_problems(config)


def test_problems_without_a_column_that_the_template_shows_are_left_out(write_rows, caplog):
    rows = [{"problem": f"{index} + 1", "answer": str(index), "context": "Sums."} for index in range(4)]
    del rows[1]["context"]
    config = TaskConfig(data=DataConfig(path=write_rows(rows)), prompt=PromptConfig(template="{context} {question}"))
    assert [problem.answer for problem in usable_problems(config)] == ["0", "2", "3"]
    assert "left out 1 problems without a column that task.prompt.template shows (sums-1 has no context)" in caplog.text


@pytest.mark.parametrize(
    ("rows", "part", "line"),
    [
        (
            {"answer": "AB", "choices": ["1", "2"]},
            "exact",
            "the prompt does not show the column choices with the choices",
        ),
        (
            {"answer": [5.0, 6.0]},
            "exact",
            "most answers are whole numbers with a point, such as 5.0, and the part exact",
        ),
        ({"answer": [5.0, 6.0]}, "number", ""),
        ({"answer": "xy", "choices": ["1", "2"]}, "exact", ""),
    ],
)
def test_answers_that_no_completion_can_match_are_named(rows, part, line, write_rows, caplog):
    made = [{"problem": f"{index} + 1", **rows, "answer": rows["answer"][index % 2]} for index in range(12)]
    reward = RewardConfig(parts=[RewardPartConfig(name=part)])
    assert len(usable_problems(TaskConfig(data=DataConfig(path=write_rows(made)), reward=reward))) == 12
    assert line in caplog.text and bool(line) == bool(caplog.text)


def test_a_task_is_another_with_other_tests_or_other_earlier_messages():
    def identity(metadata, *messages):
        problem = Problem("one", "Add.", "", metadata, messages)
        return LoadedTask(TaskConfig(), {"": [problem]}, {}).identity

    own = identity({"tests": ["f(1) == 2"], "made": object()})
    assert own == identity({"tests": ["f(1) == 2"], "made": object()})
    message = {"role": "system", "content": "Be brief."}
    assert len({own, identity({"tests": ["f(1) == 3"]}), identity({}), identity({}, message)}) == 4


SENTENCES = (
    "most answers are whole sentences or JSON, which no completion repeats: task.data.answer_pattern finds the "
    "part that counts, or name the column of the answer alone in task.data.answer_column"
)


@pytest.mark.parametrize(
    ("asked", "answer", "line"),
    [
        ("{} + 1", "rule", "the answer of all 9 problems is rule: check task.data.answer_column"),
        ("{}", "{}", "every question is a number alone: check task.data.question_column"),
        ("{} \ufffd 1", "{}", "9 questions hold U+FFFD, as text does that was decoded wrongly: write the file as UTF-8 "
         "(sums-0, sums-1, sums-2, sums-3, sums-4, …)"),
        ("{} + 1", "{},5", "most answers are numbers in words or with a decimal comma, and a model's 7 or 2.5 does not "
         "count as them: write them in digits, with a point"),
        ("{} + 1", "We add one to it, and so the answer is {}.", SENTENCES),
        ("{} + 1", '{{"value": "{}"}}', SENTENCES),
        ("{} + 1", "{}", ""),
    ],
)  # fmt: skip
def test_rows_that_hardly_mean_well_are_reported(asked, answer, line, tokenizer, write_rows, caplog):
    rows = [{"problem": asked.format(index), "answer": answer.format(index)} for index in range(9)]
    loaded_task(exact(write_rows(rows)), tokenizer)
    logged = [record.getMessage() for record in caplog.records]
    assert logged == ([f"task task: {line}"] if line else [])


def test_a_column_of_pictures_that_no_model_sees_is_reported(tokenizer, write_rows, caplog):
    rows = [{"problem": f"{index} + 1", "answer": str(index), "image": "a.png"} for index in range(9)]
    loaded_task(TaskConfig(data=DataConfig(path=write_rows(rows), held_out_fraction=0.0)), tokenizer)
    assert any("no model sees the column image here, since all read text only" in line for line in caplog.messages)


def test_a_column_of_sources_without_any_is_reported(tokenizer, write_rows, caplog):
    rows = [{"problem": f"{index} + 1", "answer": str(index), "origin": None} for index in range(9)]
    config = exact(write_rows(rows))
    config.data.source_column = "origin"
    loaded_task(config, tokenizer)
    assert any(
        "no problem has a source in the column that task.data.source_column names" in one for one in caplog.messages
    )


def test_answers_that_are_texts_of_a_missing_value_are_reported(tokenizer, write_rows, caplog):
    rows = [{"problem": f"{index} + 1", "answer": "None" if index % 3 else str(index)} for index in range(9)]
    loaded_task(exact(write_rows(rows)), tokenizer)
    [logged] = [record.getMessage() for record in caplog.records]
    assert logged.startswith("task task: 6 answers are texts such as None, by which Python and pandas write that there")


def test_a_question_with_other_choices_or_earlier_messages_is_no_repeated_one(tokenizer, write_rows):
    choices = [["red", "blue"], ["red", "green"], ["red", "blue"]]
    rows = [{"problem": "Which?", "answer": 0, "choices": these} for these in choices]
    config = TaskConfig(
        data=DataConfig(path=write_rows(rows), held_out_fraction=0.0, choices_column="choices"),
        prompt=PromptConfig(template="{question} {choices}", chat=False),
        reward=RewardConfig(parts=[RewardPartConfig(name="exact")]),
    )
    config.data.selection.deduplicate = True
    assert len(loaded_task(config, tokenizer).problems[""]) == 2
    said = [{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}]
    rows = [{"problem": [one, {"role": "user", "content": "Go on."}], "answer": "2"} for one in (*said, *said)]
    config = replace(config, data=DataConfig(path=write_rows(rows), held_out_fraction=0.0), prompt=PromptConfig())
    config.data.selection.deduplicate = True
    assert len(usable_problems(config)) == 2


def test_questions_that_come_twice_and_sources_of_one_problem_are_reported(tokenizer, write_rows, caplog):
    rows = [{"problem": f"{index % 5} + 1", "answer": f"{index % 5 + 1}", "kind": str(index)} for index in range(10)]
    task_config = TaskConfig(
        data=DataConfig(path=write_rows(rows), held_out_fraction=0.0, source_column="kind"),
        reward=RewardConfig(parts=[RewardPartConfig(name="exact")]),
    )
    loaded_task(task_config, tokenizer)
    assert [record.getMessage() for record in caplog.records] == [
        "task task: there are 10 problems and 5 questions, and the others come again: set "
        "task.data.selection.deduplicate=true to keep one of each",
        "task task: task.data.source_column makes 10 sources of 10 problems, whose numbers tell little",
    ]


def test_a_file_of_the_suite_with_other_columns_is_refused_without_a_key_of_the_run(tokenizer, write_rows):
    path = write_rows([{"query": "1 + 1", "answer": "2"}])
    lacks = f"{path} has no column 'problem' (task.data.question_column); it has query, answer"
    task_config = TaskConfig(data=DataConfig(path=path))
    with pytest.raises(UserError) as refused:
        loaded_tasks([task_config], [path], tokenizer)
    assert str(refused.value) == (
        f"evaluation.suite: {lacks}; the file is read as the run's own data are: write it as these, or give it a task "
        "of its own, evaluation.suite=[DIR/task/NAME.yaml]"
    )
    with pytest.raises(UserError, match="perhaps task.data.question_column=query is meant"):
        loaded_tasks([task_config], [], tokenizer)
