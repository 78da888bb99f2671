"""These tests check what an evaluation reports, and which sets a suite has."""

import json
import re
from dataclasses import replace

import pytest

from grpo.commands.eval import result_table
from grpo.config import EvaluationConfig, SamplingConfig, UserError
from grpo.config.hydra import compose_config, compose_suite
from grpo.evaluation.held_out import drawn_as, evaluate, is_graded, majority, result_lines, score, summarize, with_suite
from grpo.telemetry.metrics import evaluation_numbers
from grpo.types import Problem, Prompt
from tests.fakes import ScriptedSampler, ScriptedTask, SingleRank, answering, ungraded

SETS = ["gsm8k_test", "math500", "aime24", "aime25", "amc23", "minerva", "olympiadbench", "svamp"]


@pytest.mark.parametrize(
    ("answers", "correct", "right"),
    [
        (["4", "5", "4"], [True, False, True], True),
        (["5", "4", "5", "4"], [False, True, False, True], False),  # as frequent: the first
        ([None, None, "4"], [False, False, True], True),  # no answer, no vote
        ([None, None], [False, False], False),
        (["4"], [True], True),
    ],
)
def test_the_majority_is_right_when_the_most_frequent_answer_is(answers, correct, right):
    assert majority(answers, correct) is right


def test_pass_and_majority_are_counted_over_problems():
    def row(correct, voted):
        return {"correct": correct, "total": 4, "reward": 0.5, "majority": voted, "tokens": 40, "truncated": 1}

    summary = summarize([row(3, True), row(1, False), row(0, False), row(4, True)], [1, 4])
    assert summary["pass@1"]["value"] == 0.5
    assert summary["pass@k"]["4"]["value"] == 0.75
    assert summary["maj@k"]["value"] == 0.5
    assert (summary["mean_length"], summary["truncated_fraction"]) == (10.0, 0.25)
    assert summary["mean_reward"] == 0.5


def test_an_evaluation_without_answers_is_scored_and_described_by_its_mean_reward():
    def result(answer, rewards, correct):
        facts = {"answer": answer, "total": 4, "majority": False, "tokens": 40, "truncated": 1}
        rows = [facts | {"correct": correct, "reward": reward} for reward in rewards]
        return summarize(rows, [1])

    lengths = result("", [3.5, 4.0], 4)
    assert score(lengths) == 3.75
    assert result_lines(lengths) == ["the completions of 2 held-out problems earn a mean reward of 3.75"]
    assert evaluation_numbers(lengths)["evaluation/reward_mean"] == 3.75
    # A pass rate is measured with an answer, with a grader that needs none, and by rewards of 1 and 0, or 1 and −1.
    graded = [row | {"judged": True} for row in lengths["per_problem"]]
    for judged in (result("7", [3.5, 4.0], 4), result("", [1.0, 1.0], 4), summarize(graded, [1])):
        assert score(judged) == 1.0 and result_lines(judged)[0].startswith("of 2 held-out problems 100.0% are solved")
    signed = result("", [-0.5, -0.5], 1)
    assert score(signed) == 0.25 and result_lines(signed)[0].startswith("of 2 held-out problems 25.0% are solved")


def test_the_usual_sets_are_known_by_name_and_asked_whole():
    config = compose_config([f"evaluation.suite=[{','.join(SETS)}]"])
    tasks = {task.name: task for task in compose_suite(config)}
    assert [*tasks] == SETS
    assert all(task.data.source == "hub" and task.data.held_out_fraction == 0 for task in tasks.values())
    assert all(task.reward.extract == "boxed" and task.reward.parts[0].name == "math" for task in tasks.values())
    assert tasks["gsm8k_test"].data.answer_pattern == "#### (.*)"


def test_a_local_copy_of_a_set_is_read_instead_of_the_hub(tmp_path):
    (tmp_path / "aime24.jsonl").write_text(json.dumps({"problem": "q", "answer": "7"}))
    config = compose_config(["evaluation.suite=[aime24,aime25]", f"evaluation.suite_folder={tmp_path}"])
    first, second = compose_suite(config)
    assert (first.data.source, first.data.path) == ("file", str(tmp_path / "aime24.jsonl"))
    assert (second.data.source, second.data.path) == ("hub", "math-ai/aime25")


def test_a_folder_without_local_copies_is_refused(tmp_path):
    with pytest.raises(UserError, match="evaluation.suite_folder=nowhere: there is no such folder"):
        compose_suite(compose_config(["evaluation.suite=[aime24]", "evaluation.suite_folder=nowhere"]))
    with pytest.raises(UserError, match="has no file of evaluation.suite, such as .*/aime24.jsonl: put it there"):
        compose_suite(compose_config(["evaluation.suite=[aime24]", f"evaluation.suite_folder={tmp_path}"]))


def test_a_file_in_the_suite_is_read_and_asked_as_the_runs_own_problems_are(tmp_path):
    file = tmp_path / "test.jsonl"
    file.write_text(json.dumps({"prompt": "q", "solution": "7"}))
    own = ["task=trl", "task.data.path=train.jsonl", "task.data.limit=9", "task.data.selection.deduplicate=true"]
    reward = ["task.reward.parts=[{name: number}]", "task.reward.extract=tag", "task.prompt.system=Be brief."]
    config = compose_config([*own, *reward, "task.curriculum.name=online", f"evaluation.suite=[{file},math500]"])
    asked, known = compose_suite(config)
    assert (asked.name, asked.data.path, asked.data.source, known.name) == ("test", str(file), "file", "math500")
    assert (asked.data.question_column, asked.data.answer_column) == ("prompt", "solution")
    assert (asked.data.limit, asked.data.held_out_fraction, asked.data.selection.deduplicate) == (0, 0.0, False)
    assert (asked.reward, asked.prompt, asked.curriculum.name) == (config.task.reward, config.task.prompt, "uniform")
    assert (config.task.data.path, config.task.data.limit) == ("train.jsonl", 9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluation.suite=[nowhere.jsonl]"], "evaluation.suite: there is no file nowhere.jsonl"),
        (["evaluation.suite=[{}/a.jsonl,{}/b/a.csv]"], "two sets of one name (a, a): rename a file"),
        (
            ["task=gsm8k_and_math", "evaluation.suite=[{}/a.jsonl]"],
            "several sets: give the file a task of its own, and write evaluation.suite=[DIR/task/NAME.yaml]",
        ),
    ],
)
def test_a_file_in_the_suite_that_cannot_be_a_set_is_one_line(words, message, tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("a.jsonl", "b/a.csv"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=re.escape(message)):
        compose_suite(compose_config([word.format(tmp_path, tmp_path) for word in words]))


def test_a_suite_has_a_task_of_ones_own_beside_several_sets(tmp_path):
    (tmp_path / "task").mkdir()
    file = tmp_path / "task/mine.yaml"
    text = "defaults: [file, _self_]\nname: mine\ndata: {path: mine.jsonl, held_out_fraction: 0.5}\n"
    file.write_text(text + "reward: {parts: [{name: number}]}\n")
    [asked] = compose_suite(compose_config(["task=gsm8k_and_math", f"evaluation.suite=[{file}]"]))
    assert (asked.name, asked.data.path, asked.data.held_out_fraction) == ("mine", "mine.jsonl", 0.0)
    assert [part.name for part in asked.reward.parts] == ["number"]
    file.rename(tmp_path / "mine.yaml")
    with pytest.raises(
        UserError, match=r"evaluation.suite: there is no file .*mine.yaml in a folder that is named task"
    ):
        compose_suite(compose_config([f"evaluation.suite=[{tmp_path}/mine.yaml]"]))


def test_a_suite_is_put_to_the_model_as_the_runs_own_prompts_are():
    spoken = ["task.prompt.chat=false", "+task.prompt.chat_template_kwargs.enable_thinking=false"]
    words = ["evaluation.suite=[math500]", *spoken, "task.prompt.system=null"]
    [asked] = compose_suite(compose_config(words))
    assert (asked.prompt.chat, asked.prompt.chat_template_kwargs) == (False, {"enable_thinking": False})
    assert "boxed" in asked.prompt.template
    # It takes from several sets what is the same in all of them.
    sets = ["task=mixed", "+task@task.sets.a=arithmetic", "+task@task.sets.b=arithmetic"]
    both = [word.replace("task.", f"task.sets.{name}.", 1) for name in "ab" for word in spoken]
    [asked] = compose_suite(compose_config([words[0], *sets, *both, "task.sets.b.prompt.chat=true"]))
    assert (asked.prompt.chat, asked.prompt.chat_template_kwargs) == (True, {"enable_thinking": False})


class NineProblems:
    """This task has nine problems for evaluations, which are all solved."""

    grades_together = False

    def __init__(self):
        self.held_out = [Prompt(Problem(f"p{index}", "q", "a"), (1,)) for index in range(9)]
        self.grade = ScriptedTask([[1]] * 9).grade

    def held_out_prompts(self, count):
        return self.held_out[:count]

    def answer_of(self, problem, text):
        return text


def asked(rank, world_size):
    task, collective = NineProblems(), SingleRank()
    collective.rank, collective.world_size = rank, world_size
    result = evaluate(task, answering(task), EvaluationConfig(num_problems=5), SamplingConfig(), collective)
    return [row["problem_id"] for row in result["per_problem"]]


def test_ranks_share_the_problems_of_an_evaluation():
    assert asked(0, 1) == ["p0", "p1", "p2", "p3", "p4"]
    assert [asked(rank, 2) for rank in range(2)] == [["p0", "p2", "p4"], ["p1", "p3"]]


class Noting(ScriptedSampler):
    """This sampler records the sampling settings of each call."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def generate(self, draw, on_group=None):
        self.drawn.append((draw.sampling.temperature, draw.sampling.top_p, draw.sampling.top_k, draw.group_size))
        return super().generate(draw, on_group)


def test_problems_of_several_sources_have_numbers_by_source():
    class Sourced(NineProblems):
        def __init__(self):
            names = ["sums"] * 6 + ["words"] * 3
            problems = [Problem(f"p{index}", "q", "a", source=name) for index, name in enumerate(names)]
            self.held_out = [Prompt(problem, (1,)) for problem in problems]
            self.grade = ScriptedTask([[1]] * 6 + [[0]] * 3).grade

    task = Sourced()
    evaluated = evaluate(task, answering(task), EvaluationConfig(num_problems=9), SamplingConfig(), SingleRank())
    rates = {name: (result["problems"], result["pass@1"]["value"]) for name, result in evaluated["sources"].items()}
    assert rates == {"sums": (6, 1.0), "words": (3, 0.0)}
    numbers = evaluation_numbers(evaluated)
    assert (numbers["evaluation/source/sums/pass@1"], numbers["evaluation/source/words/pass@1"]) == (1.0, 0.0)
    assert result_lines(evaluated)[1].startswith("pass@1 of sums 1.000 [")
    assert result_lines(evaluated | {"greedy": {"value": 0.75}})[1] == "with greedy decoding 75.0% of them are solved"
    plain = NineProblems()
    of_one = evaluate(plain, answering(plain), EvaluationConfig(num_problems=6), SamplingConfig(), SingleRank())
    assert "sources" not in of_one


def test_the_messages_before_a_question_are_kept_with_its_row():
    asked, system = {"role": "user", "content": "q"}, {"role": "system", "content": "Be brief"}
    task = NineProblems()
    problems = [Problem("p0", "q", "a", messages=(system, asked)), Problem("p1", "q", "a", messages=(asked,))]
    task.held_out = [Prompt(problem, (1,)) for problem in problems]
    result = evaluate(task, answering(task), EvaluationConfig(num_problems=2), SamplingConfig(), SingleRank())
    assert [row.get("opening") for row in result["per_problem"]] == [[system], None]


class Outage(NineProblems):
    """This task's reward server does not answer for some problems."""

    def __init__(self, lost):
        super().__init__()
        graded = self.grade

        def grade(groups):
            return [ungraded(one) if one.group.prompt.problem.problem_id in lost else one for one in graded(groups)]

        self.grade = grade


def evaluated_in_an_outage(lost, **settings):
    task = Outage(lost)
    return evaluate(task, answering(task), EvaluationConfig(num_problems=9, **settings), SamplingConfig(), SingleRank())


def test_problems_that_could_not_be_graded_are_left_out_and_counted():
    result = evaluated_in_an_outage(["p1", "p4"], greedy=True)
    assert (result["problems"], result["ungraded"]) == (9, 2)
    assert result["pass@1"]["value"] == result["greedy"]["value"] == score(result) == 1.0
    assert score(result | {"ungraded": 5}) is None
    assert len(result["per_problem"]) == 7
    assert [(row["problem_id"], row["outcome"]) for row in result["ungraded_problems"]] == [
        ("p1", "unanswered"),
        ("p4", "unanswered"),
    ]
    line = result_lines(result)[0]
    assert line.startswith("of 7 held-out problems 100.0% are solved") and "; 2 of 9 could not be graded" in line
    assert evaluation_numbers(result)["evaluation/ungraded"] == 2
    assert [*result_table("sums", result).columns[0].cells][-1] == "not graded, left out"
    whole = evaluated_in_an_outage([])
    assert (whole["ungraded"], whole["ungraded_problems"]) == (0, []) and "graded" not in result_lines(whole)[0]


def test_a_problem_whose_greedy_answer_alone_could_not_be_graded_counts_in_all_other_numbers():
    class Later(NineProblems):
        def __init__(self):
            super().__init__()
            graded = ScriptedTask([[1, 0]] * 9).grade
            self.grade = lambda groups: [ungraded(one) if lost(one) else one for one in graded(groups)]

    def lost(one):
        return len(one.grades) == 1 and one.group.prompt.problem.problem_id in ("p1", "p4")

    task, settings = Later(), EvaluationConfig(num_problems=9, samples_per_problem=2, greedy=True)
    result = evaluate(task, answering(task), settings, SamplingConfig(), SingleRank())
    assert (result["ungraded"], result["pass@1"]["value"], result["greedy"]["value"]) == (0, 0.5, 1.0)
    assert [row["problem_id"] for row in result["per_problem"] if "greedy" not in row] == ["p1", "p4"]


def test_a_problem_with_one_completion_that_could_not_be_graded_says_why():
    class Halfway(NineProblems):
        def __init__(self):
            super().__init__()
            self.grade = lambda groups: [half_lost(one) for one in ScriptedTask([[1, 1]] * 9).grade(groups)]

    def half_lost(one):
        lost = ungraded(one).grades
        return replace(one, grades=(one.grades[0], *lost[1:])) if one.group.prompt.problem.problem_id == "p2" else one

    task, settings = Halfway(), EvaluationConfig(num_problems=9, samples_per_problem=2)
    result = evaluate(task, answering(task), settings, SamplingConfig(), SingleRank())
    [row] = result["ungraded_problems"]
    assert (row["problem_id"], row["outcome"], result["ungraded"]) == ("p2", "unanswered", 1)


def test_a_source_of_which_no_problem_could_be_graded_has_no_numbers():
    task = Outage(["p0", "p6", "p7", "p8"])
    names = ["sums"] * 6 + ["words"] * 3
    task.held_out = [Prompt(Problem(f"p{index}", "q", "a", source=name), (1,)) for index, name in enumerate(names)]
    result = evaluate(task, answering(task), EvaluationConfig(num_problems=9), SamplingConfig(), SingleRank())
    assert {name: (of["problems"], of["ungraded"]) for name, of in result["sources"].items()} == {"sums": (6, 1)}
    assert result["ungraded"] == 4 and not {"per_problem", "ungraded_problems"} & result["sources"]["sums"].keys()
    assert [row["source"] for row in result["ungraded_problems"]] == ["sums", "words", "words", "words"]


def test_an_evaluation_of_which_nothing_could_be_graded_has_no_pass_rate():
    result = evaluated_in_an_outage([f"p{index}" for index in range(9)], greedy=True)
    assert not is_graded(result) and (result["problems"], result["ungraded"]) == (9, 9)
    assert result_lines(result)[0].startswith(
        "none of 9 held-out problems could be graded (a reward server did not answer"
    )
    whole = evaluated_in_an_outage([])
    assert with_suite(whole, {}) == whole
    beside = with_suite(whole, {"a": whole, "b": result})
    assert ([*beside["suite"]], beside["ungraded_sets"], score(beside)) == (["a"], ["b"], None)
    assert "no problem of b could be graded" in result_lines(beside)[1]


@pytest.mark.parametrize("greedy", [True, False])
def test_greedy_is_one_more_completion_at_temperature_0(greedy):
    sampler = Noting()
    asked = EvaluationConfig(num_problems=4, samples_per_problem=1, temperature=0.7, greedy=greedy)
    task = NineProblems()
    result = evaluate(task, answering(task, sampler), asked, SamplingConfig(), SingleRank())
    assert sampler.drawn == [(0.7, 1.0, 0, 1), (0.0, 1.0, 0, 1)][: 1 + greedy]
    assert result.get("greedy", {"value": None})["value"] == (1.0 if greedy else None)


def test_completions_are_drawn_as_configured_at_the_evaluations_temperature_and_the_report_says_how():
    sampler, sampling = Noting(), SamplingConfig(temperature=1.0, top_p=0.8, top_k=20)
    asked = EvaluationConfig(num_problems=4, samples_per_problem=1, temperature=0.7)
    task = NineProblems()
    result = evaluate(task, answering(task, sampler), asked, sampling, SingleRank())
    assert sampler.drawn == [(0.7, 0.8, 20, 1)]
    assert [result[name] for name in ("temperature", "top_p", "top_k")] == [0.7, 0.8, 20]
    assert result_table("sums", result).title == "sums: 4 problems × 1, T = 0.7, top_p = 0.8, top_k = 20"
    plain = evaluate(task, answering(task, sampler), asked, SamplingConfig(), SingleRank())
    assert result_table("sums", plain).title == "sums: 4 problems × 1, T = 0.7"


def test_an_evaluation_has_its_own_way_of_drawing_where_it_says_so():
    training = SamplingConfig(temperature=1.0, top_k=20, max_tokens=64, stop=["Question:"])
    own = drawn_as(EvaluationConfig(temperature=0.6, top_p=0.95, top_k=0, max_tokens=256), training)
    assert own == SamplingConfig(temperature=0.6, top_p=0.95, top_k=0, max_tokens=256, stop=["Question:"])
    assert drawn_as(EvaluationConfig(), training) == training
    task = NineProblems()
    result = evaluate(task, answering(task), EvaluationConfig(num_problems=4, max_tokens=9), training, SingleRank())
    assert result["max_tokens"] == 9


def test_a_checkpoint_is_kept_for_the_mean_of_the_suite_or_for_the_held_out_problems():
    half, all_right = {"pass@1": {"value": 0.5}}, {"pass@1": {"value": 1.0}}
    assert score(half) == 0.5
    assert score(half | {"suite": {"a": all_right, "b": half}}) == 0.75
    # Of other sets the mean cannot be compared.
    assert score(half | {"suite": {"a": all_right}, "ungraded_sets": ["b"]}) is None
