import pytest

from grpo.config import UserError
from grpo.tasks.arithmetic import arithmetic_problems


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


@pytest.mark.parametrize(
    ("options", "size", "message"),
    [
        ({"max": 1}, 5, "allow 4 distinct questions; lower it, or set it to 0 to take all"),
        ({"max": 10**6}, 0, "too many to take all; set task.data.size"),
        ({"maximum": 3}, 0, "unknown maximum; known are min, max, operators, num_terms"),
        ({"operators": ["/"]}, 0, r"choose from \+ - \*"),
        ({"min": 5, "max": 1}, 0, "swap them"),
        ({"num_terms": 1}, 0, "at least 2"),
    ],
)
def test_options_that_cannot_be_met_are_refused_in_one_line(options, size, message):
    with pytest.raises(UserError, match=message):
        arithmetic_problems(options, size, seed=0)
