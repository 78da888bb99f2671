import io

import pytest
from rich.console import Console

from grpo.config import UserError
from grpo.host.terminal import facts_table
from grpo.insight.pages.summary import before_and_after, conditions, samples_rows, summary_rows


def evaluation(step: int, correct: list[int], completion: str = "so 42", **changes) -> dict:
    mean = sum(correct) / (2 * len(correct))
    interval = {"value": mean, "low": mean - 0.1, "high": mean + 0.1}
    rows = [
        {"problem_id": f"p{i}", "question": f"q{i}?", "answer": "42", "correct": c, "total": 2}
        | {"completion": completion}
        for i, c in enumerate(correct)
    ]
    return {
        "step": step,
        "problems": len(correct),
        "samples_per_problem": 2,
        "temperature": 1.0,
        "pass@1": interval,
        "pass@k": {"1": interval, "2": {"value": 0.75, "low": 0.5, "high": 1.0}},
        "per_problem": rows,
        "truncated_fraction": 0.25 / (step + 1),
        "mean_length": 140.0 - step,
    } | changes


def row_of(rows, name: str) -> list[str]:
    return next(row for row in rows if row[0].startswith(name))


# Twenty problems are enough for an interval.
BEFORE, AFTER = evaluation(0, [0, 0, 1, 1] * 5), evaluation(9, [1, 1, 2, 2] * 5)


def test_a_change_on_few_problems_is_open_on_both_sides():
    few = summary_rows(evaluation(0, [0, 0, 1, 1]), evaluation(9, [1, 1, 2, 0]))
    assert row_of(few, "pass@1")[3] == "+25.0 points [-100.0, +100.0]"


def test_the_change_of_pass_at_k_is_that_of_the_problems_own_rates():
    # pass@2 of 0, 0, 1, 1 correct of two is 0, 0, 1, 1; afterwards all are 1.
    change = row_of(summary_rows(BEFORE, AFTER), "pass@2")[3]
    assert change == "+50.0 points [+25.0, +75.0]"


def test_truncation_and_length_stand_below():
    table = summary_rows(BEFORE, AFTER)
    assert row_of(table, "cut off") == ["cut off", "25.0%", "2.5%", "-22.5 points"]
    assert row_of(table, "mean length") == ["mean length, tokens", "140", "131", "-9"]


def test_problems_are_paired_by_identity_not_by_order():
    shuffled = AFTER | {"per_problem": AFTER["per_problem"][::-1]}
    assert summary_rows(BEFORE, shuffled) == summary_rows(BEFORE, AFTER)


def test_unlike_evaluations_are_not_compared():
    with pytest.raises(UserError, match=r"differ in temperature \(1.0 and 0.0\)"):
        summary_rows(BEFORE, evaluation(9, [1, 1, 2, 2] * 5, temperature=0.0))
    others = [row | {"problem_id": "x" + row["problem_id"]} for row in AFTER["per_problem"]]
    with pytest.raises(UserError, match="different problems"):
        summary_rows(BEFORE, AFTER | {"per_problem": others})


def test_each_set_of_a_suite_that_was_asked_before_and_after_has_a_table():
    other = evaluation(9, [1] * 4, temperature=0.5)
    old, new = ({"math500": one, "aime24": one} for one in (BEFORE, AFTER))
    blocks = before_and_after([BEFORE | {"suite": old}, AFTER | {"suite": new | {"aime24": other, "amc23": AFTER}}])
    assert [block.title for block in blocks[1:]] == ["Held-out problems", "math500, of evaluation.suite"]
    # Every problem gained one of two samples. Without a spread there is no interval.
    assert row_of(blocks[2].content, "pass@1")[1:] == ["25.0% [15.0%, 35.0%]", "75.0% [65.0%, 85.0%]", "+50.0 points"]


def test_a_completion_is_shown_as_text_whatever_it_contains():
    hostile = evaluation(0, [0], completion="[/b] [red]x \x1b[31m \x07")
    [_, (_, before, _)] = samples_rows(hostile["per_problem"], hostile["per_problem"])
    assert before == "0 of 2 correct, the first:\n[/b] [red]x �[31m �"


def test_a_long_completion_keeps_its_beginning_and_its_answer():
    long = evaluation(0, [0], completion="First, " + "and " * 500 + "so 42.")
    [_, (_, before, _)] = samples_rows(long["per_problem"], long["per_problem"])
    assert "First, " in before and "so 42." in before and before.count("and") < 125


def test_a_completion_of_blanks_is_said_to_be_one():
    blank = evaluation(0, [0], completion=" \n")
    [_, (_, before, _)] = samples_rows(blank["per_problem"], blank["per_problem"])
    assert before == "0 of 2 correct, the first:\n(blank)"


def test_samples_stand_beside_those_of_the_same_problem():
    after = evaluation(9, [1, 2], completion="later")["per_problem"][::-1]
    rows = samples_rows(evaluation(0, [0, 0])["per_problem"], after)
    assert rows[1] == ["q0?\n→ 42", "0 of 2 correct, the first:\nso 42", "1 of 2 correct, the first:\nlater"]


def test_the_first_problems_that_both_evaluations_graded_are_shown():
    before, after = (evaluation(step, [1] * 6)["per_problem"] for step in (0, 9))
    assert [row[0][:3] for row in samples_rows(before, after[2:], 2)[1:]] == ["q2?", "q3?"]


def test_facts_are_aligned_and_grouped_by_thousands():
    output = io.StringIO()
    Console(file=output, width=140).print(facts_table("batch", ["", "per rank", "in all"], [["tokens", 1234567, 2.5]]))
    [line] = [line for line in output.getvalue().splitlines() if "tokens" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["tokens", "1,234,567", "2.50"]


def test_the_most_frequent_answer_and_greedy_decoding_have_rows_where_they_were_measured():
    sides = []
    for step, right in ((0, 5), (9, 15)):
        side = evaluation(step, [1] * 20)
        for index, row in enumerate(side["per_problem"]):
            row |= {"majority": index < right, "greedy": index < right}
        rate = {"value": right / 20, "low": 0.0, "high": 1.0}
        sides.append(side | {"maj@k": rate, "greedy": rate})
    table = summary_rows(*sides)
    for name in ("maj@2", "greedy"):
        assert row_of(table, name)[1:3] == ["25.0% [0.0%, 100.0%]", "75.0% [0.0%, 100.0%]"]
        assert row_of(table, name)[3].startswith("+50.0 points [")
    one_sample = [side | {"samples_per_problem": 1} for side in sides]
    assert not [row for row in summary_rows(*one_sample) if "maj@" in row[0]]


def without(result: dict, *lost: str) -> dict:
    """Returns an evaluation in which these problems could not be graded."""
    graded = [row for row in result["per_problem"] if row["problem_id"] not in lost]
    rest = [row | {"outcome": "unanswered"} for row in result["per_problem"] if row["problem_id"] in lost]
    return result | {"per_problem": graded, "ungraded_problems": rest, "ungraded": len(rest)}


def test_problems_that_one_evaluation_could_not_grade_are_left_out_of_the_change():
    table = summary_rows(BEFORE, without(AFTER, "p0", "p1"))
    assert row_of(table, "pass@1")[3] == "+50.0 points"
    assert row_of(table, "problems not graded")[1:] == ["0", "2", "+2"]
    assert (
        conditions(BEFORE, without(AFTER, "p0", "p1"))
        == "18 graded of 20 problems × 2 samples, temperature 1; 95 % intervals"
    )
    one = {"samples_per_problem": 1}
    assert conditions(BEFORE | one, AFTER | one) == ("20 problems × 1 sample, temperature 1; 95 % intervals")
    assert conditions(BEFORE, AFTER) == "20 problems × 2 samples, temperature 1; 95 % intervals"
    with pytest.raises(UserError, match="no problem was graded in both evaluations"):
        summary_rows(without(BEFORE, *(f"p{i}" for i in range(10))), without(AFTER, *(f"p{i}" for i in range(10, 20))))
