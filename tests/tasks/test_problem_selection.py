"""These tests check which problems are selected or held out, and what is reported of the others."""

import json
import math
from dataclasses import replace

import pytest

from grpo.config import CurriculumConfig, SelectionConfig, UserError
from grpo.tasks.curriculum import check_rates
from grpo.tasks.problem_selection import answer_type, normalized, question_hash, select, solve_rate, split
from grpo.types import Problem


def problem(number, question="", answer="1", **metadata):
    return Problem(f"p-{number}", question or f"question {number}", answer, metadata)


def taken(problems, **settings):
    kept, left_out = select(problems, SelectionConfig(**settings))
    return [problem.problem_id for problem in kept], left_out


RATED = [problem(index, llama8b_solve_rate=rate) for index, rate in enumerate([0.0, 0.1, None, 0.5, 0.8, 1.0])]


def test_a_band_of_pass_rates_keeps_its_ends_and_what_has_none():
    kept, left_out = taken(RATED, solve_rate=[0.1, 0.8])
    assert kept == ["p-1", "p-2", "p-3", "p-4"]
    assert left_out.reasons == {"with a pass rate outside [0.1, 0.8]": ("p-0", "p-5")}
    assert str(left_out) == "4 of 6 problems taken; left out: 2 with a pass rate outside [0.1, 0.8]"


def test_a_band_of_pass_rates_that_no_row_has_is_refused():
    unrated = [problem(index, llama8b_solve_rate=None) for index in range(3)]
    with pytest.raises(
        UserError, match="selects by the column llama8b_solve_rate, which is empty in every row: measure"
    ):
        taken(unrated, solve_rate=[0.1, 0.8])


def test_problems_without_a_pass_rate_can_be_dropped():
    kept, left_out = taken(RATED, without_solve_rate="drop")
    assert kept == ["p-0", "p-1", "p-3", "p-4", "p-5"]
    assert left_out.reasons == {"without a pass rate": ("p-2",)}


def test_sources_and_domains_are_kept_by_name():
    problems = [
        problem(0, source="gsm8k", domain=["Mathematics -> Algebra -> Prealgebra"]),
        problem(1, source="olympiads", domain=["Mathematics -> Geometry", "Mathematics -> Algebra"]),
        problem(2, source="olympiads", domain=["Mathematics -> Number Theory"]),
    ]
    assert taken(problems, sources=["olympiads"])[0] == ["p-1", "p-2"]
    assert taken(problems, domains=["algebra"])[0] == ["p-0", "p-1"]
    assert taken(problems, domains=["Mathematics -> Geo"])[0] == ["p-1"]
    assert taken(problems, domains=["Prealgebra"], sources=["gsm8k"])[0] == ["p-0"]
    with pytest.raises(
        UserError, match="domains: 'Geometri' is unknown; choose from Algebra, Geometry, Mathematics, Nu"
    ):
        taken(problems, domains=["algebra", "Geometri"])


def test_sources_are_those_of_the_column_that_is_named():
    problems = [replace(problem(0), source="a"), replace(problem(1), source="b")]
    assert taken(problems, sources=["b"])[0] == ["p-1"]
    with pytest.raises(UserError, match="has origin: name theirs in task.data.source_column"):
        taken([problem(0, origin="a")], sources=["a"])


@pytest.mark.parametrize(("key", "column"), [("sources", "source"), ("domains", "domain")])
def test_names_may_be_numbers_or_several(key, column):
    problems = [problem(place, **{column: name}) for place, name in enumerate([3, None, ["3", "4"], "4", [4]])]
    assert taken(problems, **{key: ["3"]})[0] == ["p-0", "p-2"]
    assert taken(problems, **{key: ["4"]})[0] == ["p-2", "p-3", "p-4"]


MEASURED = [problem(index, solve_rate=rate) for index, rate in enumerate([0.0, 0.5, 1.0])]


@pytest.mark.parametrize("others", [{}, {"llama8b_solve_rate": None}])
def test_rates_that_were_measured_here_are_found_where_big_maths_are_lacking(others):
    problems = [replace(each, metadata={**each.metadata, **others}) for each in MEASURED]
    kept, _ = taken(problems, solve_rate=[0.1, 0.9])
    assert kept == ["p-1"]
    check_rates(problems, CurriculumConfig(name="weighted"))
    both = [replace(problems[0], metadata={"solve_rate": 0.0, "llama8b_solve_rate": 0.5}), problems[1]]
    assert taken(both, solve_rate=[0.1, 0.9])[0] == ["p-0", "p-1"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("42", "integer"),
        ("-1,234", "integer"),
        ("$3.50", "decimal"),
        (".5", "decimal"),
        ("3/4", "fraction"),
        (r"-\dfrac{3}{4}", "fraction"),
        (r"\frac12", "fraction"),
        (r"12.5\%", "percent"),
        (r"\text{(B)}", "choice"),
        ("Yes", "yes_no"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "matrix"),
        (r"\{1, 2\}", "set"),
        (r"[-2,7]", "interval"),
        (r"(3, \frac{\pi}{2})", "interval"),
        ("y = 2x + 1", "equation"),
        (r"\text{Evelyn}", "text"),
        (r"2\sqrt{3}", "expression"),
        ("x^2 + 1", "expression"),
        ("3x", "expression"),
    ],
)
def test_answers_are_distinguished_by_their_form(answer, kind):
    assert answer_type(answer) == kind


def test_kinds_of_answers_and_lengths_select():
    problems = [problem(0, answer="7"), problem(1, answer=r"\sqrt{2}"), problem(2, "long " * 20, answer="8")]
    assert taken(problems, answer_types=["integer"])[0] == ["p-0", "p-2"]
    assert taken(problems, max_characters=50)[0] == ["p-0", "p-1"]


def test_a_question_is_asked_once_whatever_its_case_and_spacing():
    problems = [problem(0, "What is  $2+2$?"), problem(1, "what is 2 + 2"), problem(2, "What is 2 - 2?")]
    kept, left_out = taken(problems, deduplicate=True)
    assert kept == ["p-0", "p-2"]
    assert left_out.reasons == {"with a repeated question": ("p-1",)}
    assert normalized("What is  $2+2$?") == "what is 2 + 2"
    assert normalized(r"how\ much: 2\,+ 2.") == "how much 2 + 2"
    different = ["12 × 3", "12 − 3", "12 ÷ 3", "(1 + 2) * 3", "1 + 2 * 3", "A ∪ B", "A ∩ B", "|x|", "x", "5!%", "x ≤ 1"]
    assert len({*map(normalized, different)}) == len(different)


def test_problems_of_an_evaluation_are_left_out_and_reported(tmp_path):
    asked = "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts in total does it take?"
    path = tmp_path / "test.jsonl"
    path.write_text("\n".join(json.dumps({"question": text}) for text in ["Unrelated?", asked, "Find x."]))
    problems = [
        problem(0, "A ROBE takes 2 bolts of blue fiber and half that much white fiber: how many bolts does it need?"),
        problem(1, "A robe takes 2 bolts of red fiber and half as much white fiber. How many bolts does it take?"),
        problem(2, "find x"),
        problem(3, "Find y."),
    ]
    kept, left_out = taken(problems, evaluation_sets=[str(path)], ngram=10)
    assert kept == ["p-1", "p-3"]
    assert left_out.overlaps == {"p-0": "test.jsonl, row 1", "p-2": "test.jsonl, row 2"}
    assert taken(problems, evaluation_sets=[str(path)], ngram=0)[0] == ["p-0", "p-1", "p-3"]


def test_an_evaluation_set_of_conversations_is_compared_by_their_last_questions(tmp_path):
    asked = "A robe takes 2 bolts of blue fiber\nand half that much white fiber. How many in total?"
    system = {"role": "system", "content": "Be brief."}
    rows = [{"prompt": [system, {"role": "user", "content": text}]} for text in ("Find\nx.", asked)]
    path = tmp_path / "test.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, {"question": "of another column"}]))
    problems = [problem(0, "find X"), problem(1, f"Once more: {asked}"), problem(2, "Be brief."), problem(3, "?!")]
    kept, left_out = taken(problems, evaluation_sets=[str(path)])
    assert kept == ["p-2", "p-3"]
    assert left_out.overlaps == {"p-0": "test.jsonl, row 0", "p-1": "test.jsonl, row 1"}


def test_checks_work_one_after_another_and_count_each_problem_once():
    problems = [
        problem(0, "same", llama8b_solve_rate=0.0),
        problem(1, "same", llama8b_solve_rate=0.5),
        problem(2, "same", llama8b_solve_rate=0.5),
    ]
    kept, left_out = taken(problems, solve_rate=[0.1, 0.9], deduplicate=True)
    assert kept == ["p-1"]
    assert left_out.total == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solve_rate": [0.1, 1.0], "solve_rate_column": "rate"}, "needs a column 'rate'; the data set has llama8b"),
        ({"sources": ["x"]}, "needs a column 'source'"),
        ({"answer_types": ["number"]}, "answer_types: 'number' is unknown; choose from choice, decimal"),
        ({"solve_rate": [0.6, 0.7], "without_solve_rate": "drop"}, "leaves no problem: 0 of 6 problems taken"),
        ({"evaluation_sets": ["nowhere.jsonl"]}, "there is no file 'nowhere.jsonl'"),
    ],
)
def test_a_selection_that_cannot_be_meant_is_one_line(settings, message):
    with pytest.raises(UserError, match=message):
        taken(RATED, **settings)


def test_problems_without_any_column_are_not_said_to_have_one_to_rename():
    with pytest.raises(
        UserError, match="has no further column: name theirs, or measure pass rates by grpo solve-rates"
    ):
        taken([problem(0)], solve_rate=[0.1, 0.9])
    with pytest.raises(UserError, match="needs a column 'domain'; the data set has no further column: leave it out"):
        taken([problem(0)], domains=["Algebra"])


def test_an_unknown_source_names_those_there_are():
    with pytest.raises(UserError, match="sources: 'GSM8k' is unknown; choose from gsm8k, math"):
        taken([problem(0, source="gsm8k"), problem(1, source="math")], sources=["GSM8k"])


def test_a_pass_rate_that_is_none_is_named():
    assert solve_rate(problem(0, "1?", llama8b_solve_rate=math.nan), "llama8b_solve_rate") is None
    with pytest.raises(UserError, match="p-0: llama8b_solve_rate is 64, which is not a pass rate between 0 and 1"):
        taken([problem(0, llama8b_solve_rate=64)], solve_rate=[0.1, 0.9])


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
