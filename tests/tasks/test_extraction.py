import pytest

from grpo.config.ranges import CHOICES
from grpo.tasks.extraction import EXTRACTORS, extract


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{5}", "5"),
        (r"\boxed{1} then \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{3} and cut off \boxed{\frac{1", "3"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"{ \boxed {4}", "4"),
        (r"} \boxed{4}", "4"),
        (r"\boxed{", None),
        ("5", None),
        ("", None),
    ],
)
def test_boxed_takes_the_last_balanced_box(text, answer):
    assert extract(text, "boxed") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 5 </answer>", "5"),
        ("<answer>1</answer> no: <answer>2\n</answer> <answer>3", "2"),
        ("</answer> <answer>", None),
        ("<answer>5", None),
        ("5", None),
    ],
)
def test_tag_takes_the_last_closed_tag(text, answer):
    assert extract(text, "tag") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"The answer is 1, so \boxed{2}. Anything else?", "2"),
        ("The answer is 1. <answer>2</answer>", "2"),
        ("The answer is 41. Wait. The answer is 3.5.", "3.5"),
        ("The answer to the second question must be $x = 5$, I think", "$x = 5$, I think"),
        ("The answer is definitely not 42.", "definitely not 42"),
        ("One might guess 42, but the correct answer is 43.", "43"),
        ("work\n\n**Answer:** 7 apples\n\nTell me if it helps.", "7 apples"),
        ("work\n**Final Answer**: **7**", "7"),
        ("Final Answer: The final answer is $5$. I hope it is correct.", "$5$"),
        ("A: no. The correct option is C.", "C"),
        ("48 + 24 = 72\n#### 72", "72"),
        ("## Solution\n\nThe product is **42**.", "42"),
        (" 1/2 ", "1/2"),
        ("two lines\nand no answer", None),
        ("Answer:", None),
        ("", None),
    ],
)
def test_final_takes_what_the_completion_ends_by_stating(text, answer):
    assert extract(text, "final") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It is 5 apples.", "5"),
        ("7 + 5 = 12.", "12"),
        ("5 - 3", "3"),
        ("5 -3", "3"),
        ("5-3", "3"),
        ("x-3", "3"),
        ("(2)-3", "3"),
        ("list:\n- 3", "3"),
        ("The answer is -3.", "-3"),
        ("= -3", "-3"),
        ("$-3$", "-3"),
        ("-$1,234.50", "-1234.50"),
        ("\u22127", "-7"),
        ("1,000,000", "1000000"),
        (r"it is $1{,}000$, or 13\,535", "13535"),
        (r"$1{,}000.5$", "1000.5"),
        ("1, 2, 3", "3"),
        ("1,2", "2"),
        ("about .5", ".5"),
        ("6.02e23", "6.02e23"),
        ("it is 1/2", "1/2"),
        ("10**10**10", "10"),
        ("no number", None),
        ("", None),
    ],
)
def test_last_number_tells_signs_from_subtractions(text, answer):
    assert extract(text, "last_number") == answer


def test_last_line_and_all_strip_blanks():
    assert extract("one\n two \n\n", "last_line") == "two"
    assert extract(" \n", "last_line") is None
    assert extract(" one\ntwo ", "all") == "one\ntwo"
    assert extract("  ", "all") is None


def test_megabytes_of_hostile_text_are_read_in_one_pass():
    count = 100_000
    assert extract(r"\boxed{" * count, "boxed") is None
    assert extract("{" * count + r"\boxed{1}", "boxed") == "1"
    assert extract("<answer>" * count, "tag") is None
    assert extract("1,111" * count, "last_number") is not None
    assert extract("-$" * count, "last_number") is None
    assert extract("\n" * count, "last_line") is None


def test_every_way_to_extract_can_be_configured():
    assert CHOICES["task.reward.extract"] == tuple(EXTRACTORS)
