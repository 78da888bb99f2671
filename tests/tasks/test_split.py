import pytest

from grpo.config import UserError
from grpo.tasks.problem_selection import question_hash, split
from grpo.types import Problem


def numbered(count):
    return [Problem(f"p-{index}", f"What is {index}?", str(index)) for index in range(count)]


def test_the_hash_is_the_same_on_every_machine_and_in_every_version():
    # blake2b of b"what is 1?" to six bytes, over 2^48: checked with coreutils' b2sum -l 48.
    assert question_hash("What is 1?") == int("29a8fd35a317", 16) / 2**48


def test_case_spacing_and_unicode_form_do_not_move_a_question():
    assert question_hash("What  is\n1?") == question_hash("what is 1?") == question_hash(" What is \uff11?")
    assert question_hash("what is 1?") != question_hash("what is 2?")


def test_a_repeated_question_stands_on_one_side_only():
    problems = numbered(200)
    again = [Problem(f"q-{index}", f"  WHAT is {index}? ", "") for index in range(200)]
    train, held_out = split(problems + again, 0.3)
    train_indices = {problem.problem_id[2:] for problem in train}
    held_out_indices = {problem.problem_id[2:] for problem in held_out}
    assert train_indices | held_out_indices == {str(index) for index in range(200)}
    assert train_indices & held_out_indices == set()
    assert len(train) + len(held_out) == 400


def test_a_tenth_is_about_a_tenth_and_smaller_fractions_are_the_first_of_larger_ones():
    problems = numbered(2000)
    _, tenth = split(problems, 0.1)
    _, fifth = split(problems, 0.2)
    assert 150 < len(tenth) < 250
    assert fifth[: len(tenth)] == tenth


def test_the_split_does_not_depend_on_the_order_or_company_of_problems():
    problems = numbered(100)
    _, held_out = split(problems, 0.2)
    _, reversed_held_out = split(problems[::-1], 0.2)
    _, some = split(problems[:50], 0.2)
    assert reversed_held_out == held_out
    assert some == [problem for problem in held_out if problem in problems[:50]]


def test_training_keeps_its_order_and_zero_holds_nothing_out():
    problems = numbered(10)
    assert split(problems, 0.0) == (problems, [])


def test_an_empty_side_and_a_wrong_fraction_are_refused():
    with pytest.raises(UserError, match="leaves 1 problems for training and 0 held out"):
        split(numbered(1), 1e-9)
    with pytest.raises(UserError, match="leaves 0 problems for training"):
        split(numbered(1), 0.9999999)
    with pytest.raises(UserError, match="0 held out, of 50 with 1 different question: set it to 0"):
        split([Problem(f"p-{index}", "1 + 1", "2") for index in range(50)], 0.1)
    with pytest.raises(UserError, match="below 1"):
        split(numbered(5), 1.0)
