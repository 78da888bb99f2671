"""These tests check which rank gets which prompt, and the built-in sums."""

import numpy as np
import pytest

from grpo.config import UserError
from grpo.measure import mean_lengths
from grpo.tasks.arithmetic import arithmetic_problems
from grpo.tasks.curriculum import uniform
from grpo.tasks.prompt_stream import PromptStream, dealt
from grpo.types import Collected, Completion, Problem, Prompt, RolloutGroup, RoundPlan, ScoredGroup
from tests.fakes import on_ranks

LENGTHS = [900.0, 100.0, 300.0, 500.0, 200.0, 800.0, 400.0, 600.0]


def problems(count, **columns):
    return [
        Problem(f"p{index}", "q", "a", {name: values[index] for name, values in columns.items()})
        for index in range(count)
    ]


def streams(ranks, asked):
    order = uniform(len(asked), seed=0)
    return [PromptStream(asked, lambda problem: (1,), order, rank=rank, world_size=ranks) for rank in range(ranks)]


def names(prompts):
    return [prompt.problem.problem_id for prompt in prompts]


@pytest.mark.parametrize(("ranks", "count", "first"), [(1, 5, 3), (2, 8, 0), (3, 12, 5), (4, 10, 1), (8, 3, 0)])
def test_prompts_of_equal_length_are_dealt_in_turn(ranks, count, first):
    assert dealt([7.0] * count, ranks, first) == [(first + place) % ranks for place in range(count)]


def test_the_longest_prompt_goes_to_the_rank_with_least_to_write():
    # Ranks have 900 and 100, then 1,200 and 600, then 1,400 each. The first of equals gets the longer of the last two.
    assert dealt(LENGTHS, 2) == [0, 1, 0, 1, 0, 1, 1, 0]
    assert dealt([900, 100, 500, 300], 2) == [0, 1, 1, 0]


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_the_busiest_rank_has_little_more_than_the_mean(ranks):
    by_rank, plain = np.zeros(ranks), np.zeros(ranks)
    lengths = np.random.default_rng(ranks).lognormal(6, 0.4, 16 * ranks)
    np.add.at(by_rank, dealt(list(lengths), ranks), lengths)
    np.add.at(plain, np.arange(16 * ranks) % ranks, lengths)
    assert by_rank.max() / by_rank.mean() < 1.05 < plain.max() / plain.mean()


def test_ranks_share_out_the_stream_by_the_lengths_that_were_recorded():
    asked = problems(8)
    ranks = streams(2, asked)
    first_epoch = [stream.next_prompts(8) for stream in ranks]
    assert [[prompt.position for prompt in share] for share in first_epoch] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    lengths = {f"p{index}": length for index, length in enumerate(LENGTHS)}
    for stream in ranks:
        stream.record_lengths(lengths | {"unknown": 5.0})
    second_epoch = [stream.next_prompts(8) for stream in ranks]
    assert sorted(names(second_epoch[0] + second_epoch[1])) == sorted(lengths)
    assert sorted(prompt.position for share in second_epoch for prompt in share) == list(range(8, 16))
    loads = [sum(lengths[name] for name in names(share)) for share in second_epoch]
    assert sum(loads) == 3800 and abs(loads[0] - loads[1]) <= 200
    assert [len(share) for share in second_epoch] == [4, 4]


def test_a_problem_of_unknown_length_counts_as_long_as_the_others_of_its_turn():
    asked = problems(4)
    ranks = streams(2, asked)
    order = [int(index) for index in uniform(4, seed=0).indices(4, 4)]
    # In the second epoch's order: 600, unknown (so 400), 200, unknown.
    for stream in ranks:
        stream.next_prompts(4)
        stream.record_lengths({f"p{order[0]}": 600.0, f"p{order[2]}": 200.0})
    shares = [names(stream.next_prompts(4)) for stream in ranks]
    assert shares == [[f"p{order[0]}", f"p{order[2]}"], [f"p{order[1]}", f"p{order[3]}"]]


@pytest.mark.parametrize("nothing", [None, "long", float("nan"), 0, -3.0])
def test_the_lengths_that_solve_rates_measured_count_from_the_first_epoch_on(nothing):
    order = [int(index) for index in uniform(4, seed=0).indices(0, 4)]
    measured = [nothing] * 4
    plain = [names(stream.next_prompts(4)) for stream in streams(2, problems(4, completion_tokens=measured))]
    assert plain == [[f"p{order[0]}", f"p{order[2]}"], [f"p{order[1]}", f"p{order[3]}"]]
    measured[order[0]], measured[order[2]] = 900, 500.0
    measured[order[1]], measured[order[3]] = 100, 300
    shares = [names(stream.next_prompts(4)) for stream in streams(2, problems(4, completion_tokens=measured))]
    assert shares == [[f"p{order[0]}", f"p{order[3]}"], [f"p{order[1]}", f"p{order[2]}"]]


def test_every_rank_learns_the_lengths_of_all_ranks():
    def group(name, *lengths):
        completions = tuple(Completion((1,) * length, (0.0,) * length, "", False) for length in lengths)
        return ScoredGroup(RolloutGroup(Prompt(Problem(name, "q", "a"), (1,)), completions, 0, 0), (), ())

    def lengths_of(collective):
        # Both ranks asked p1, and the later rank's length holds, as it does for a resumed run.
        own = ((group("p0", 2, 4), group("p1", 9)), (group("p1", 5, 6), group("p3", 1)))[collective.rank]
        return mean_lengths(Collected((), own, RoundPlan(2, 1, 4), 4), collective)

    assert on_ranks(2, lengths_of) == [{"p0": 3.0, "p1": 5.5, "p3": 1.0}] * 2


def asked(problems):
    return [(problem.question, problem.answer) for problem in problems]


def test_size_zero_enumerates_every_question_once():
    problems = arithmetic_problems({"min": 1, "max": 2, "operators": ["+", "-"]}, size=0, seed=0)
    assert asked(problems) == [
        ("1 + 1 =", "2"), ("1 + 2 =", "3"), ("2 + 1 =", "3"), ("2 + 2 =", "4"),
        ("1 - 1 =", "0"), ("1 - 2 =", "-1"), ("2 - 1 =", "1"), ("2 - 2 =", "0"),
    ]  # fmt: skip


def test_a_question_keeps_its_id_in_every_draw():
    for seed in range(3):
        ids = {problem.question: problem.problem_id for problem in arithmetic_problems({}, size=100, seed=seed)}
        assert len(ids) == 100
        assert ids["7 + 5 ="] == "arithmetic-75"


def test_a_seed_draws_the_same_questions_again_and_another_seed_others():
    draw = arithmetic_problems({"max": 999, "num_terms": 3}, size=20, seed=1)
    assert draw == arithmetic_problems({"max": 999, "num_terms": 3}, size=20, seed=1)
    assert draw != arithmetic_problems({"max": 999, "num_terms": 3}, size=20, seed=2)


def test_products_come_before_sums_and_sums_go_left_to_right():
    options = {"min": 2, "max": 4, "operators": ["+", "-", "*"], "num_terms": 3}
    answers = dict(asked(arithmetic_problems(options, size=0, seed=0)))
    assert len(answers) == 27 * 9
    assert answers["2 + 3 * 4 ="] == "14"
    assert answers["2 - 3 - 4 ="] == "-5"
    assert answers["2 * 3 - 4 ="] == "2"


def test_a_questions_number_has_its_operators_and_then_its_operands_as_digits():
    drawn = arithmetic_problems({"min": 2, "max": 4, "operators": ["+", "-", "*"], "num_terms": 3}, size=0, seed=0)
    numbers = {problem.question: problem.problem_id for problem in drawn}
    # Operators 1 and 2 of three, operands 0, 1 and 2 of three: ((((1·3 + 2)·3 + 0)·3 + 1)·3 + 2).
    assert numbers["2 - 3 * 4 ="] == "arithmetic-140"


@pytest.mark.parametrize(
    ("options", "size", "message"),
    [
        ({"max": 1}, 5, "allow 4 distinct questions; lower it, or set it to 0 to take all"),
        ({"max": 10**6}, 0, "too many to take all; set task.data.size"),
        ({"maximum": 3}, 0, "unknown maximum; known are min, max, operators, num_terms"),
        ({"operators": ["/"]}, 0, r"choose from \+ - \*"),
        ({"min": 5, "max": 1}, 0, "swap them"),
        ({"num_terms": 1}, 0, "at least 2"),
        ({"num_terms": 2.5}, 0, "num_terms is 2.5; it takes a whole number of at most 100"),
        ({"num_terms": 101}, 5, "num_terms is 101; it takes a whole number of at most 100"),
        ({"num_terms": 100}, 5, "more than 10\\^18 distinct questions, too many to number; lower max or num_terms"),
        ({"min": None}, 0, "min is None; it takes a whole number of at most 1,000,000,000,000"),
        ({"max": True}, 0, "max is True; it takes a whole number"),
        ({"operators": "+"}, 0, r'operators are \+; write a list, such as \["\+","-"\]'),
        ({"operators": [["+"]]}, 0, r"operators are \[\['\+'\]\]; write a list"),
    ],
)
def test_options_that_cannot_be_met_are_refused_in_one_line(options, size, message):
    with pytest.raises(UserError, match=message):
        arithmetic_problems(options, size, seed=0)
