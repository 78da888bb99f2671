"""These tests put several sets of problems into one stream."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from grpo.config import DataConfig, PromptConfig, RewardConfig, RewardPartConfig, TaskConfig, UserError
from grpo.config.hydra import compose_config
from grpo.config.task import CurriculumConfig, SourceRewardConfig
from grpo.config.validate import validate
from grpo.tasks.curriculum import Grouping, uniform
from grpo.tasks.early_checks import check_files
from grpo.tasks.prompt_stream import BLOCK, Mixture
from grpo.tasks.task import build_task, loaded_task
from grpo.types import Completion, RolloutGroup

SIZES = (5, 40)


def mixture(*weights):
    return Mixture([uniform(size, 3) for size in SIZES], SIZES, weights, seed=7)


def test_each_set_has_its_share_of_every_block_and_its_own_order():
    order, count = mixture(3, 1), 4 * BLOCK
    indices = order.indices(0, count)
    for block in np.split(indices, 4):
        assert Counter(block < 5) == {True: 48, False: 16}
    # The small set is asked as it would be alone: every problem once an epoch.
    assert [index for index in indices if index < 5] == [*uniform(5, 3).indices(0, 192)]
    assert [index - 5 for index in indices if index >= 5] == [*uniform(40, 3).indices(0, 64)]
    visits = [order.visit(place) for place in range(count) if indices[place] < 5]
    assert visits[:5] == [0] * 5 and visits[5:10] == [1] * 5


def test_the_stream_depends_on_the_position_only():
    whole = mixture(1, 1).indices(0, 300)
    assert [*mixture(1, 1).indices(250, 50)] == [*whole[250:]]
    pieces = mixture(1, 1)
    assert [index for start in range(0, 300, 7) for index in pieces.indices(start, min(7, 300 - start))] == [*whole]


class Noted:
    """This order of problems keeps the outcomes that it gets."""

    def __init__(self):
        self.noted = []

    def indices(self, start, count):
        return np.arange(start, start + count) % 5

    def record_outcomes(self, outcomes, cursor):
        self.noted.append((outcomes, cursor))


def test_outcomes_reach_the_order_of_their_set_with_its_own_cursor():
    orders = [Noted(), Noted()]
    mixed = Mixture(orders, (5, 5), (1, 1), seed=0)
    mixed.indices(0, BLOCK)
    mixed.record_outcomes([(2, 1, 4), (8, 3, 4)], BLOCK)
    assert orders[0].noted == [([(2, 1, 4)], 32)]
    assert orders[1].noted == [([(3, 3, 4)], 32)]


def sums(name="number", extract="last_number", weight=1.0, **data):
    return TaskConfig(
        data=DataConfig(source="arithmetic", held_out_fraction=0.2, options=data),
        reward=RewardConfig(parts=[RewardPartConfig(name=name)], extract=extract),
        prompt=PromptConfig(template="{question}!" if extract == "all" else "{question}"),
        weight=weight,
    )


@pytest.fixture
def two_sets():
    sets = {"plus": sums(operators=["+"]), "minus": sums("exact", "all", weight=3.0, operators=["-"])}
    return TaskConfig(name="mixed", sets=sets)


def build(config, tokenizer, **settings):
    return build_task(
        loaded_task(config, tokenizer), tokenizer, seed=0, max_tokens=16, grouping=Grouping(8), **settings
    )


def graded(task, prompt, *texts):
    completions = tuple(Completion((0,), (-1.0,), text, False) for text in texts)
    [scored] = task.grade([RolloutGroup(prompt, completions, 0, 0)])
    return scored.rewards


def test_a_problem_that_one_set_holds_out_is_not_trained_on_through_another_set(tokenizer):
    sets = {"half": sums(operators=["+"]), "tenth": sums(operators=["+"])}
    sets["half"].data.held_out_fraction, sets["tenth"].data.held_out_fraction = 0.5, 0.1
    with build(TaskConfig(name="mixed", sets=sets), tokenizer) as task:
        held_out = {prompt.problem.question for prompt in task.held_out_prompts(10_000)}
        trained = {problem.question for problem in task._stream._problems}
    assert len(held_out) > 20 and not held_out & trained


def test_every_set_has_its_own_prompt_and_reward(two_sets, tokenizer):
    with build(two_sets, tokenizer) as task:
        prompts = task.next_prompts(BLOCK)
        assert Counter(prompt.problem.source for prompt in prompts) == {"plus": 16, "minus": 48}
        by_source = {prompt.problem.source: prompt for prompt in prompts}
        assert {name: prompt.problem.problem_id.partition("/")[0] for name, prompt in by_source.items()} == {
            "plus": "plus",
            "minus": "minus",
        }
        assert "!" in tokenizer.decode(by_source["minus"].token_ids)
        assert "!" not in tokenizer.decode(by_source["plus"].token_ids)
        for name, rewards in (("plus", (1.0, 1.0)), ("minus", (1.0, 0.0))):
            answer = by_source[name].problem.answer
            assert graded(task, by_source[name], answer, f"It is {answer}") == rewards
            assert task.answer_of(by_source[name].problem, answer) == answer
        # Held-out problems are those of all sets in turn.
        assert [prompt.problem.source for prompt in task.held_out_prompts(4)] == ["plus", "minus"] * 2


def test_without_held_out_problems_an_evaluation_asks_each_problem_once(two_sets, tokenizer):
    two_sets.sets["plus"].data = DataConfig(source="arithmetic", size=5, held_out_fraction=0.0)
    two_sets.sets["minus"].data.held_out_fraction = 0.0
    two_sets.curriculum = CurriculumConfig(name="online")
    with build(two_sets, tokenizer) as task:
        names = [prompt.problem.problem_id for prompt in task.held_out_prompts(100_000)]
        stream = task.next_prompts(task.num_problems)
    assert len(names) == len({*names}) == task.num_problems
    assert [name.partition("/")[0] for name in names[:12]] == ["plus", "minus"] * 5 + ["minus"] * 2
    # The stream, which goes by weights, has some problems several times and others not at all.
    assert len({prompt.problem.problem_id for prompt in stream}) < len(names)


def test_a_mixed_stream_goes_on_where_it_stood(two_sets, tokenizer):
    two_sets.curriculum = CurriculumConfig(name="online")
    with build(two_sets, tokenizer) as task:
        first = task.next_prompts(20)
        task.record_outcomes({prompt.problem.problem_id: (1, 2) for prompt in first}, task.cursor)
        following = [prompt.prompt_id for prompt in task.next_prompts(20)]
    with build(two_sets, tokenizer) as resumed:
        resumed.cursor = 20
        resumed.record_outcomes({prompt.problem.problem_id: (1, 2) for prompt in first}, 20)
        assert [prompt.prompt_id for prompt in resumed.next_prompts(20)] == following


ROWS = [{"problem": f"{kind} {n}", "answer": str(n), "kind": kind} for n in range(10) for kind in ("add", "name")]


def sourced(path, **by_source):
    own = {name: SourceRewardConfig(parts=[RewardPartConfig(name=part)]) for name, part in by_source.items()}
    return TaskConfig(
        data=DataConfig(path=path, source_column="kind", held_out_fraction=0.0),
        reward=RewardConfig(parts=[RewardPartConfig(name="number")], extract="last_line", by_source=own),
    )


def test_a_source_of_one_data_set_may_have_its_own_parts(tokenizer, write_rows):
    with build(sourced(write_rows(ROWS), name="exact"), tokenizer) as task:
        prompts = {prompt.problem.source: prompt for prompt in task.next_prompts(20)}
        assert set(prompts) == {"add", "name"}
        for source, rewards in (("add", (1.0, 1.0)), ("name", (1.0, 0.0))):
            answer = prompts[source].problem.answer
            assert graded(task, prompts[source], answer, f"{answer}.0") == rewards


def test_a_source_that_no_problem_has_is_refused(tokenizer, write_rows):
    with pytest.raises(UserError, match="by_source: no problem has the source nam; there are add, name"):
        loaded_task(sourced(write_rows(ROWS), nam="exact"), tokenizer)


def test_a_column_with_a_value_for_each_row_is_no_source(tokenizer, write_rows):
    rows = [{"problem": f"{n} + 1", "answer": "1", "kind": str(n)} for n in range(65)]
    with pytest.raises(UserError, match="source_column='kind' has 65 values, and each would get numbers of its own"):
        loaded_task(sourced(write_rows(rows)), tokenizer)


TWO = ["task=mixed", "+task@task.sets.a=tiny_arithmetic", "+task@task.sets.b=arithmetic"]
LENGTHS = ["task.sets.a.prompt.max_tokens=99", "task.sets.b.prompt.max_tokens=3"]
BUFFER = ["task.sets.b.reward.overlong_buffer=8"]
NEGATIVE = [
    "task=arithmetic",
    "task.data.source_column=kind",
    "+task.reward.by_source={x: {parts: [{name: exact, weight: -1.0}]}}",
]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task=gsm8k", *TWO[1:]], "task.data is not read where task.sets has sets of problems: begin with task=mixed"),
        ([*TWO, "task.prompt.system=hello"], "task.prompt is not read where task.sets has"),
        ([*TWO, "task.prompt.max_tokens=9"], "task.prompt is not read where task.sets has"),
        ([*TWO, "task.sets.b.weight=0"], "task.sets.b.weight=0 must be above 0"),
        ([*TWO, "task.sets.b.reward.extract=xml"], "task.sets.b.reward.extract='xml' is unknown"),
        ([*TWO, "task.sets.a.data.seed=-1"], "task.sets.a.data.seed=-1 must not be negative"),
        ([*TWO, "task.sets.b.curriculum.name=online"], "task.sets.b: task.curriculum is that of all sets"),
        ([*TWO, "normalization=gdpo", "+task.sets.b.reward.parts=[{name: exact}]"], "all sets need the same parts"),
        (
            [*TWO, "normalization=maxrl", "task.sets.b.reward.signed=true"],
            "divides by the mean reward, which has to be",
        ),
        ([*TWO, "normalization=maxrl", "task.sets.b.reward.overlong=soft", *BUFFER], "divides by the mean reward"),
        (["normalization=maxrl", *NEGATIVE], "divides by the mean reward, which has to be positive"),
        (["+task.reward.by_source={x: {parts: [{name: exact}]}}"], "by_source needs task.data.source_column"),
        (
            ["task=mixed", "+task@task.sets.a=arithmetic", "+task@task.sets.b=arithmetic", "task.sets.b.weight=2"],
            "task.sets.a and task.sets.b are one set of problems: remove one of them, and set task.sets.a.weight",
        ),
        (["task.weight=5"], "task.weight=5 is read only where a task is one of several sets"),
        (["task=mixed"], r"task=mixed has no problems: add sets of problems with \+task@task.sets.NAME=TASK"),
        ([*TWO, "task.sets.c.weight=2"], r"there is no task.sets.c.weight: a set is added by \+task@task.sets.NAME"),
        (["task.reward.parts=[{name: number, weight: 0}]"], "task.reward.parts: all weights are 0"),
    ],
)
def test_sets_that_do_not_go_together_are_refused(words, message):
    with pytest.raises(UserError, match=message):
        validate(compose_config([word.replace("+task.sets.b.reward", "task.sets.b.reward") for word in words]))


def test_prompts_that_are_too_long_name_the_key_of_their_set(tokenizer):
    loaded = loaded_task(compose_config([*TWO, *LENGTHS]).task, tokenizer)
    with pytest.raises(UserError, match=r"longer than 3 tokens, .*; raise task.sets.b.prompt.max_tokens and model"):
        build_task(loaded, tokenizer, seed=0, max_tokens=8, grouping=Grouping(8))


def test_a_set_of_a_missing_file_is_refused_by_its_key():
    config = compose_config([*TWO, "task.sets.b.data.source=file", "task.sets.b.data.path=no.jsonl"])
    with pytest.raises(UserError, match=r"task.sets.b.data.path: there is no file 'no.jsonl'"):
        check_files(config.task)


def test_the_example_of_a_mixed_task_is_valid():
    config = compose_config(["task=gsm8k_and_math", "model.max_length=0"])
    validate(config)
    assert {name: of_set.weight for name, of_set in config.task.sets.items()} == {"math": 2.0, "gsm8k": 1.0}
    assert Path(config.task.sets["gsm8k"].data.path).name == "gsm8k"
