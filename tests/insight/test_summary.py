import io

import pytest
from rich.console import Console

from grpo.config import UserError
from grpo.host.terminal import facts_table
from grpo.insight.pages.summary import samples_table, summary_table, write_markdown


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


def shown(table) -> str:
    output = io.StringIO()
    Console(file=output, width=140).print(table)
    return output.getvalue()


def row_of(table, name: str) -> list[str]:
    line = next(line for line in shown(table).splitlines() if line.startswith(f"│ {name}"))
    return [cell.strip() for cell in line.strip("│").split("│")]


# Twenty problems are enough for an interval.
BEFORE, AFTER = evaluation(0, [0, 0, 1, 1] * 5), evaluation(9, [1, 1, 2, 2] * 5)


def test_a_change_on_few_problems_is_open_on_both_sides():
    few = summary_table(evaluation(0, [0, 0, 1, 1]), evaluation(9, [1, 1, 2, 0]))
    assert row_of(few, "pass@1")[3] == "+25.0 points [-100.0, +100.0]"


def test_pass_rates_show_intervals_and_the_paired_change():
    table = summary_table(BEFORE, AFTER)
    # Every problem gained one of two samples. Without a spread there is no interval.
    assert row_of(table, "pass@1") == [
        "pass@1",
        "25.0% [15.0%, 35.0%]",
        "75.0% [65.0%, 85.0%]",
        "+50.0 points",
    ]


def test_the_change_of_pass_at_k_is_that_of_the_problems_own_rates():
    # pass@2 of 0, 0, 1, 1 correct of two is 0, 0, 1, 1; afterwards all are 1.
    change = row_of(summary_table(BEFORE, AFTER), "pass@2")[3]
    assert change == "+50.0 points [+25.0, +75.0]"


def test_truncation_and_length_stand_below():
    table = summary_table(BEFORE, AFTER)
    assert row_of(table, "cut off") == ["cut off", "25.0%", "2.5%", "-22.5 points"]
    assert row_of(table, "mean length") == ["mean length, tokens", "140", "131", "-9"]


def test_problems_are_paired_by_identity_not_by_order():
    shuffled = AFTER | {"per_problem": AFTER["per_problem"][::-1]}
    assert shown(summary_table(BEFORE, shuffled)) == shown(summary_table(BEFORE, AFTER))


def test_unlike_evaluations_are_not_compared():
    with pytest.raises(UserError, match=r"differ in temperature \(1.0 and 0.0\)"):
        summary_table(BEFORE, evaluation(9, [1, 1, 2, 2] * 5, temperature=0.0))
    others = [row | {"problem_id": "x" + row["problem_id"]} for row in AFTER["per_problem"]]
    with pytest.raises(UserError, match="different problems"):
        summary_table(BEFORE, AFTER | {"per_problem": others})


def test_a_completion_is_shown_as_text_whatever_it_contains():
    hostile = evaluation(0, [0], completion="[/b] [red]x \x1b[31m \x07")
    text = shown(samples_table(hostile["per_problem"], hostile["per_problem"]))
    assert "[/b] [red]x �[31m �" in text
    assert "\x1b" not in text


def test_a_long_completion_keeps_its_beginning_and_its_answer():
    long = evaluation(0, [0], completion="First, " + "and " * 500 + "so 42.")
    text = shown(samples_table(long["per_problem"], long["per_problem"]))
    assert "First, " in text
    assert "so 42." in text
    assert text.count("and") < 250


def test_samples_stand_beside_those_of_the_same_problem():
    after = evaluation(9, [1, 2], completion="later")["per_problem"][::-1]
    text = shown(samples_table(evaluation(0, [0, 0])["per_problem"], after))
    lines = text.splitlines()
    first = next(line for line in lines if "q0?" in line)
    assert "0 of 2 correct" in first
    assert "1 of 2 correct" in first


def test_the_first_problems_that_both_evaluations_graded_are_shown():
    before, after = (evaluation(step, [1] * 6)["per_problem"] for step in (0, 9))
    text = shown(samples_table(before, after[2:], 2))
    assert [name for name in ("q0?", "q1?", "q2?", "q3?", "q4?") if name in text] == ["q2?", "q3?"]


def test_facts_are_aligned_and_grouped_by_thousands():
    table = facts_table("batch", ["", "per rank", "in all"], [["tokens", 1234567, 2.5]])
    assert row_of(table, "tokens") == ["tokens", "1,234,567", "2.50"]


def test_markdown_has_the_table_the_picture_and_the_samples(tmp_path):
    before = evaluation(0, [0, 0, 1, 1] * 5, completion="```\n# not a heading")
    path = tmp_path / "deep" / "report.md"
    path.parent.mkdir()
    write_markdown(path, before, AFTER, tmp_path / "a picture.png", num_samples=1)
    lines = path.read_text().splitlines()
    assert "| pass@1 | 25.0% [15.0%, 35.0%] | 75.0% [65.0%, 85.0%] | +50.0 points |" in lines
    assert any(line.endswith("](<../a picture.png>)") for line in lines)
    assert "    # not a heading" in lines
    assert [line for line in lines if line.startswith("### ")] == ["### p0"]


def test_the_most_frequent_answer_and_greedy_decoding_have_rows_where_they_were_measured():
    sides = []
    for step, right in ((0, 5), (9, 15)):
        side = evaluation(step, [1] * 20)
        for index, row in enumerate(side["per_problem"]):
            row |= {"majority": index < right, "greedy": index < right}
        rate = {"value": right / 20, "low": 0.0, "high": 1.0}
        sides.append(side | {"maj@k": rate, "greedy": rate})
    table = summary_table(*sides)
    for name in ("maj@2", "greedy"):
        assert row_of(table, name)[1:3] == ["25.0% [0.0%, 100.0%]", "75.0% [0.0%, 100.0%]"]
        assert row_of(table, name)[3].startswith("+50.0 points [")
    one_sample = [side | {"samples_per_problem": 1} for side in sides]
    assert "maj@" not in shown(summary_table(*one_sample))


def without(result: dict, *lost: str) -> dict:
    """Returns an evaluation in which these problems could not be graded."""
    graded = [row for row in result["per_problem"] if row["problem_id"] not in lost]
    rest = [row | {"outcome": "unanswered"} for row in result["per_problem"] if row["problem_id"] in lost]
    return result | {"per_problem": graded, "ungraded_problems": rest, "ungraded": len(rest)}


def test_problems_that_one_evaluation_could_not_grade_are_left_out_of_the_change():
    table = summary_table(BEFORE, without(AFTER, "p0", "p1"))
    assert row_of(table, "pass@1")[3] == "+50.0 points"
    assert row_of(table, "problems not graded")[1:] == ["0", "2", "+2"]
    assert table.title == "18 graded of 20 held-out problems × 2 samples, temperature 1; 95 % intervals"
    one = {"samples_per_problem": 1}
    assert summary_table(BEFORE | one, AFTER | one).title == (
        "20 held-out problems × 1 sample, temperature 1; 95 % intervals"
    )
    assert summary_table(BEFORE, AFTER).title == "20 held-out problems × 2 samples, temperature 1; 95 % intervals"
    with pytest.raises(UserError, match="no problem was graded in both evaluations"):
        summary_table(without(BEFORE, *(f"p{i}" for i in range(10))), without(AFTER, *(f"p{i}" for i in range(10, 20))))
