"""These tests use a user's own rewards, with the signatures of grpo, TRL and verl."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from grpo.config import RewardConfig, RewardPartConfig, UserError
from grpo.config.hydra import compose_config
from grpo.config.validate import validate
from grpo.tasks import own_rewards
from grpo.tasks.grader_pool import GraderPool
from grpo.tasks.grading import Grading
from grpo.tasks.grading_worker import RawGrade
from grpo.tasks.rewards import build_parts
from grpo.types import Completion, EpisodeFacts, Problem, Prompt, RolloutGroup
from grpo.types.imported import imported

SOURCE = """
import asyncio, numpy, sys
def ours(completion, answer, metadata): return float(completion == answer) + metadata["bonus"]
async def waiting(completion, answer, metadata):
    await asyncio.sleep(0)
    return 0.5
def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "length": len(solution_str), "pred": "x", **extra_info}
def trl(completions, solution, **kwargs): return [float(text == right) for text, right in zip(completions, solution)]
def trl_chat(prompts, completions, **kwargs):
    return [float(p[-1]["content"] == "1 + 1?" and c[0]["content"] == "2") for p, c in zip(prompts, completions)]
def rank(completions): return [None if text == "pass" else completions.index(text) for text in completions]
def too_few(completions): return [1.0]
def words(completion, answer, metadata): return "good"
def nothing(completion, answer, metadata): pass
def text(completion, answer, metadata): return {"score": "1.0"}
def unscored(completion, answer, metadata): return {"reward": 1}
def nan_of_group(completions): return [float("nan")] * len(completions)
def huge(completion, answer, metadata): return -1e30
def two(completion, label): return 1.0
def swapped(gold, text, row): return 1.0
def first_number(completion, answer, metadata): return float([][0])
def foreign(prompt, response, label): return 1.0
class Method:
    def f(self, completion, answer): return 1.0
unbound = Method.f
def openrlhf(queries, prompts, labels): return 1.0
def array(completions, solution): return numpy.array([float(a == c) for c, a in zip(completions, solution)])
def needy(completions, trainer_state, level): return [0.0] * len(completions)
def named(completion, source, step, truncated, tokens, prompt, messages):
    return {"score": float(truncated), "step": step, "tokens": len(tokens), "asked": len(messages) + len(prompt),
            "source": float(source == "sums")}
async def together(completion, step):
    running.append(step); await asyncio.sleep(0.05)
    return float(len(running))
running = []
def trl_ids(prompts, completions, completion_ids, **kwargs): return [float(sum(ids)) for ids in completion_ids]
def batch(groups):
    return [[len(groups) * 10.0 + len(group["completions"]) + group["step"]] * len(group["completions"])
            for group in groups]
def short_batch(groups): return [[1.0]]
class Class:
    def __call__(self, completion, answer, metadata): return 0.75
class Async:
    async def __call__(self, completion): return 0.125
made = Class()
class Uncallable: pass
class Needy:
    def __init__(self, scale): self.scale = scale
    def __call__(self, completion): return self.scale
def of_environments(environments, **kwargs): return [env.reward + len(env.guesses) for env in environments]
def of_words(completions, **kwargs):
    return [len(words) + float(words[-1]["content"] == "2") + len(kwargs["environments"]) for words in completions]
def of_conversation(completion, conversation): return float(len(conversation))
def of_nothing(environments, completions): return [env.score for env in environments]
def without(completions, **kwargs):
    return [float({"environments", "conversation"}.isdisjoint(kwargs))] * len(completions)
def hangs(completions):
    while True: pass
"""
PROBLEM = Problem("p", "1 + 1?", "2", {"bonus": 0.25, "extra_info": {"depth": 3}, "data_source": "sums"}, source="sums")


@pytest.fixture(scope="module")
def rewards(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "rewards.py"
    path.write_text(SOURCE)
    return lambda *names: RewardConfig(parts=[RewardPartConfig(name=f"{path}:{name}") for name in names])


def values(rewards, *names, problem=PROBLEM):
    """Returns, for each completion, the values of the reward parts by the name of the part's function."""
    texts = ("2", "31", "pass")
    with GraderPool(rewards(*names), "solution", problem) as pool:
        alone = pool.grade([(text, problem.answer, problem.metadata) for text in texts])
        together = pool.grade_groups([(texts, problem, {})])[0]
    joined = [{**one.parts, **other.parts} for one, other in zip(alone, together, strict=True)]
    return [{name.rpartition(":")[2]: value for name, value in grade.items()} for grade in joined]


def test_a_function_of_a_file_may_have_any_of_the_signatures(rewards):
    first, second, third = values(rewards, "ours", "waiting", "verl", "trl", "rank")
    assert first == {
        **{"ours": 1.25, "waiting": 0.5, "verl": 1.0, "verl/length": 1.0, "verl/depth": 3.0, "trl": 1.0, "rank": 0.0}
    }
    assert (second["ours"], second["verl"], second["trl"], second["rank"]) == (0.25, 0.0, 0.0, 1.0)
    assert third["rank"] == 0.0  # None counts as 0


def test_a_class_or_an_object_stands_for_its_method(rewards):
    graded = values(rewards, "Class", "made")
    assert graded == [{"Class": 0.75, "made": 0.75}] * 3
    [group] = scored(rewards("Async"), (written("a"),))
    assert group == [{"Async": 0.125}]


def test_objects_of_a_class_are_made_in_workers_alone(tmp_path):
    """Each worker's object may hold a model. The trainer, which computes no rewards, needs none."""
    (tmp_path / "large.py").write_text(
        "import os\n"
        "class Large:\n"
        f"    def __init__(self): open({str(tmp_path)!r} + f'/made-{{os.getpid()}}', 'w').close()\n"
        "    async def __call__(self, completions, solution, **columns): return [0.5] * len(completions)\n"
    )
    config = RewardConfig(parts=[RewardPartConfig(name=f"{tmp_path}/large.py:Large")], workers=1)
    part = build_parts(config, "solution")[config.parts[0].name]
    assert part.needs_answers
    assert [*tmp_path.glob("made-*")] == []
    assert scored(config, (written("a"), written("b"))) == [[{"Large": 0.5}] * 2]
    [made] = tmp_path.glob("made-*")
    assert made.name != f"made-{os.getpid()}"


def test_a_class_whose_objects_cannot_be_made_in_a_worker_is_one_line(tmp_path):
    (tmp_path / "lost.py").write_text(
        "class Lost:\n"
        "    def __init__(self): open('/nowhere/weights')\n"
        "    def __call__(self, completion): return 0.0\n"
    )
    config = RewardConfig(parts=[RewardPartConfig(name=f"{tmp_path}/lost.py:Lost")], workers=1)
    with pytest.raises(
        UserError, match=r"^task.reward.parts: .*Lost' is a class, and none .* can be made .*/nowhere/w"
    ):
        GraderPool(config)


def written(text, tokens=(7, 8), truncated=False):
    return Completion(tokens, (-1.0,) * len(tokens), text, truncated)


def scored(config, *groups):
    """Returns, for each completion of each group, the values of the reward parts by the function's name."""
    grading = Grading(GraderPool(config, "solution", PROBLEM), config, 16)
    graded = grading.grade([RolloutGroup(Prompt(PROBLEM, (1,)), completions, 4, 6) for completions in groups])
    grading.close()
    return [
        [{name.rpartition(":")[2]: value for name, value in grade.parts.items()} for grade in group.grades]
        for group in graded
    ]


def test_a_function_gets_what_its_parameters_name(rewards):
    completions = (written("2"), written("3", (1, 2, 3), truncated=True))
    [[first, second]] = scored(rewards("named", "trl_ids"), completions)
    facts = {"named/step": 6.0, "named/asked": 7.0, "named/source": 1.0}
    assert first == {"named": 0.0, "named/tokens": 2.0, "trl_ids": 15.0, **facts}
    assert second == {"named": 1.0, "named/tokens": 3.0, "trl_ids": 6.0, **facts}


def test_a_function_of_trl_sees_environments_and_whole_conversations(rewards):
    asked = {"role": "user", "content": "1 + 1?"}
    said = [{"role": "assistant", "content": "", "tool_calls": []}, {"role": "tool", "content": "two"}]
    state = {"reward": 0.5, "guesses": ["a", "b"]}
    facts = EpisodeFacts((asked, *said, {"role": "assistant", "content": "2"}), opening=1, state=state)
    names = ("of_environments", "of_words", "of_conversation", "without")
    [[grade]] = scored(rewards(*names), (replace(written("2"), episode=facts),))
    assert grade == {"of_environments": 2.5, "of_words": 5.0, "of_conversation": 3.0, "without": 0.0}
    assert scored(rewards("without"), (written("2"),)) == [[{"without": 1.0}]]


@pytest.mark.parametrize(("state", "had"), [({"reward": 0.5}, "reward"), ({}, "none, as where task.episode names no")])
def test_an_attribute_that_did_not_outlive_its_environment_is_named(rewards, state, had):
    facts = EpisodeFacts(opening=1, state=state)
    with pytest.raises(UserError, match=f"no public attribute score at its end that JSON can hold; it had {had}"):
        scored(rewards("of_nothing"), (replace(written("2"), episode=facts),))


def played(*facts):
    return tuple(replace(written("2"), episode=EpisodeFacts(**each)) for each in facts)


@pytest.mark.parametrize(
    ("facts", "fault"),
    [({"error": "KeyError: 'seed'"}, "KeyError: 'seed'"), ({"rewards": {"x": 1.0}}, "no reward episode was returned")],
)
def test_a_run_ends_where_none_of_its_first_episodes_can_be_graded(facts, fault):
    config = RewardConfig(parts=[RewardPartConfig(name="episode")])
    over, whole = {"ended": "turns"}, {"rewards": {"reward": 1.0}}
    with pytest.raises(UserError, match=f"none of the first 32 episodes could be graded, for example: {fault}; corr"):
        scored(config, played(over), *[played(*[facts] * 8)] * 4)
    graded = scored(config, played(whole), *[played(*[facts] * 8)] * 5)
    assert [grade["episode"] for group in graded for grade in group] == [1.0] + [0.0] * 40


def test_an_async_function_of_one_completion_is_asked_about_a_whole_group_at_once(rewards):
    [group] = scored(rewards("together"), (written("a"), written("b"), written("c")))
    # Each saw that all three had begun before the first went on.
    assert [grade["together"] for grade in group] == [3.0, 3.0, 3.0]


def test_a_group_reward_may_return_an_array(rewards):
    assert [parts["array"] for parts in values(rewards, "array")] == [1.0, 0.0, 0.0]


def test_a_batch_reward_sees_all_groups_in_one_call(rewards):
    first, second = scored(rewards("batch"), (written("a"), written("b")), (written("c"),))
    assert [grade["batch"] for grade in first] == [28.0, 28.0]
    assert [grade["batch"] for grade in second] == [27.0]
    with pytest.raises(UserError, match=r"it returned \[\[1.0\]\] for 2 groups, not a list with one for each"):
        scored(rewards("short_batch"), (written("a"),), (written("b"),))


def test_a_function_of_whole_rounds_ends_the_run_when_it_raises_also_after_it_has_worked(rewards):
    with GraderPool(rewards("batch"), "solution", PROBLEM) as pool:
        pool.grade_batch([(("2",), PROBLEM, {"step": 6})])
        with pytest.raises(UserError, match="raised KeyError for the only answer: '2' .'step'."):
            pool.grade_batch([(("2",), PROBLEM, {})])


def test_a_group_reward_sees_messages_where_the_data_has_them(rewards):
    problem = Problem("p", "1 + 1?", "2", {}, ({"role": "user", "content": "1 + 1?"},))
    assert [parts["trl_chat"] for parts in values(rewards, "trl_chat", problem=problem)] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "too_few",
            r"raised ValueError for the only answer: '2' .it returned \[1.0\] for 3 completions, not a list with",
        ),
        ("huge", "raised ValueError for all 3 answers: '2' .the reward is -1e.30, and none may be beyond 1e.06"),
        ("nan_of_group", "raised ValueError for the only answer: '2' .the reward is nan"),
        ("words", "raised TypeError for all 3 answers: '2' .it returned 'good', which is no number"),
        ("nothing", "raised TypeError for all 3 answers: '2' .it returned None, which is no number"),
        ("text", "raised TypeError for all 3 answers: '2' .it returned '1.0', which is no number"),
        ("unscored", "raised TypeError for all 3 answers: '2' .it returned a mapping without 'score', but with reward"),
    ],
)
def test_a_reward_that_returns_nonsense_is_one_line_with_its_name_and_what_is_wanted(rewards, name, message):
    with pytest.raises(UserError, match=message) as error:
        values(rewards, name)
    assert f":{name}' raised" in str(error.value)
    assert "A reward is written as f(completion, answer, metadata) for one completion, TRL's" in str(error.value)


def test_an_error_within_a_reward_says_where_and_explains_no_form(rewards):
    with pytest.raises(
        UserError, match=r"raised IndexError for all 3 .* \(list index out of range \(line \d+ of "
    ) as error:
        values(rewards, "first_number")
    assert "A reward is written as" not in str(error.value)


def test_a_file_of_a_reward_that_fails_says_in_which_line(tmp_path):
    (tmp_path / "own.py").write_text("x = 1\nassert x == 2\n")
    with pytest.raises(UserError, match=r"AssertionError: AssertionError \(line 2 of own.py\)\.$"):
        build_parts(RewardConfig(parts=[RewardPartConfig(name=f"{tmp_path}/own.py:f")]))
    with pytest.raises(UserError, match="one colon leads from a file to its function: .*own.py:f"):
        build_parts(RewardConfig(parts=[RewardPartConfig(name=f"{tmp_path}/own.py::f")]))


def test_a_file_beside_that_of_a_reward_is_not_searched_and_the_way_out_is_named(tmp_path):
    (tmp_path / "helpers_of_mine.py").write_text("g = 1")
    (tmp_path / "own.py").write_text("from helpers_of_mine import g")
    with pytest.raises(ModuleNotFoundError, match=f"not searched: set PYTHONPATH={tmp_path}"):
        imported(f"{tmp_path}/own.py:f")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two", r"takes \(completion, label\); write it as f\(completion, answer, metadata\) for one completion"),
        ("openrlhf", r"takes \(queries, prompts, labels\); write it as"),
        ("foreign", r"takes \(prompt, response, label\); write it as"),
        ("unbound", r"takes \(self, completion, answer\); write it as"),
        ("needy", "takes level, trainer_state, which the data have no column for; they have bonus, data_source, extra"),
        ("Uncallable", "Uncallable' is a class without a method __call__: give it one, or name a function"),
        ("Needy", r"Needy' is a class, .* without arguments .*: make one in the file, as in reward = Needy\(…\), and"),
        ("nowhere", "AttributeError: module 'rewards' has no attribute 'nowhere'"),
        ("Needy.method", "has no attribute 'Needy.method'; a method has no name here: write a function"),
        ("swapped", r"takes \(gold, text, row\); write it as f\(completion, answer, metadata\)"),
    ],
)
def test_a_reward_that_cannot_be_called_is_refused_before_any_worker_starts(rewards, name, message):
    with pytest.raises(UserError, match=message):
        GraderPool(rewards(name), "solution", PROBLEM)


def test_a_reward_in_a_file_that_is_no_python_file_is_one_line(tmp_path):
    (tmp_path / "reward.txt").write_text("def f(completion): return 1.0")
    for path in (tmp_path / "reward.txt", tmp_path / "reward"):
        with pytest.raises(
            UserError, match=f"{path} is no Python file: give a file that ends in .py, or a module's name"
        ):
            build_parts(RewardConfig(parts=[RewardPartConfig(name=f"{path}:f")]))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit(3)", "leaves.py:f': SystemExit: 3"),
        ("import os; os._exit(0)", "leaves.py:f': ImportError: it ends the process by os._exit\\(0\\)"),
        (
            "from grpo import Trainer; Trainer('experiment=tiny').train()",
            'leaves.py:f\': SystemExit: grpo: a script has to call train.. below `if __name__ == "__main__":`',
        ),
        ("raise BaseException('skipped')", "leaves.py:f': ImportError: it raised BaseException: skipped"),
        ("import os; os.chdir('/')", "leaves.py:f': ImportError: it changes the working folder, from which this run's"),
    ],
)
def test_a_module_that_leaves_while_it_is_imported_is_one_line(code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaves.py").write_text(code)
    with pytest.raises(UserError, match=message):
        build_parts(RewardConfig(parts=[RewardPartConfig(name="leaves.py:f")]))
    assert Path.cwd() == tmp_path


def test_a_file_with_postponed_annotations_and_a_dataclass_is_executed_once(tmp_path):
    (tmp_path / "own.py").write_text(
        "from __future__ import annotations\nimport pickle\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Place:\n    x: int\n"
        "def f(completion): return float(pickle.loads(pickle.dumps(Place(1))).x)\n"
        "def g(completion): return float(Place is f.__globals__['Place'])\n"
    )
    paths = [f"{tmp_path}/own.py:{name}" for name in "fg"]
    config = RewardConfig(parts=[RewardPartConfig(name=path) for path in paths])
    parts = build_parts(config, called=True)
    assert [parts[path]("5", "5", {}, {}) for path in paths] == [1.0, 1.0]
    assert own_rewards.imported(paths[0]).__globals__ is own_rewards.imported(paths[1]).__globals__


def test_a_group_that_is_not_graded_in_time_loses_its_grades(rewards):
    config = rewards("hangs")
    config.timeout_seconds = 0.1
    [part] = config.weights
    with GraderPool(config) as pool:
        assert pool.grade_groups([(("a", "b"), PROBLEM, {})]) == [[RawGrade({part: 0.0}, "timed_out")] * 2]


def test_a_part_named_twice_is_refused():
    parts = "task.reward.parts=[{name: number}, {name: number, weight: 0.5}]"
    with pytest.raises(UserError, match="names 'number' 2 times: name it once, with the sum of the weights"):
        validate(compose_config([parts]))


def test_a_module_whose_error_has_several_lines_is_one_line(tmp_path):
    (tmp_path / "long.py").write_text("raise OSError('no such model\\nCheck your internet connection')\n")
    with pytest.raises(UserError, match="cannot import '.*long.py:f': OSError: no such model .line 1 of long.py.\\.$"):
        own_rewards.own_reward(f"{tmp_path}/long.py:f", "answer")


def test_a_module_that_blocks_while_it_is_imported_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(own_rewards, "START_SECONDS", 0.2)
    (tmp_path / "blocking.py").write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(UserError, match="cannot import '.*blocking.py:f': TimeoutError: it takes longer than 0.2 s"):
        own_rewards.own_reward(f"{tmp_path}/blocking.py:f", "answer")
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
