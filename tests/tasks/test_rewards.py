import pytest

from grpo.config import RewardConfig, RewardPartConfig, UserError
from grpo.tasks.grading import overlong_penalty
from grpo.tasks.rewards import build_parts
from grpo.tasks.verification import UnparsableAnswer, exact, number


def part(name, **settings):
    return build_parts(RewardConfig(parts=[RewardPartConfig(name=name)], **settings))[name]


@pytest.mark.parametrize(
    ("extracted", "answer", "equal"),
    [
        ("5", "5", True),
        ("$1,000$", "1000", True),
        (" 3 , 5 ", "3,5", True),
        ("A  cat", "A cat", True),
        ("3,5", "35", False),
        ("1 2", "12", False),
        ("5.0", "5", False),
        ("a", "A", False),
    ],
)
def test_exact_ignores_dollars_thousands_commas_and_idle_spaces(extracted, answer, equal):
    assert exact(extracted, answer) == float(equal)


@pytest.mark.parametrize(
    ("extracted", "answer", "equal"),
    [
        ("1,000", "1000.0", True),
        ("$1e3", "1000", True),
        ("0.5", "1/2", True),
        ("-1 1/2", "-1.5", True),
        ("1 1/2", "11/2", False),
        ("1 3/2", "5/2", False),
        (r"50\%", "50", True),
        ("5.", "5", True),
        ("-3", "3", False),
        ("0.30000000000000001", "0.3", False),
        ("1/0", "1", False),
        ("2+3", "5", False),
        ("10**10**10", "1", False),
        ("1e999999999", "1", False),
        ("9" * 1_000_000, "9", False),
    ],
)
def test_number_compares_values_and_computes_nothing(extracted, answer, equal):
    assert number(extracted, answer) == float(equal)


def test_nothing_is_compared_with_an_answer_that_cannot_be_read():
    with pytest.raises(UnparsableAnswer):
        number("5", "five")
    math = part("math")
    for answer in ("?!", r"\frac{1}{", "{{{"):
        with pytest.raises(UnparsableAnswer):
            math(r"\boxed{5}", answer, {})


@pytest.mark.parametrize(
    ("completion", "answer", "equal"),
    [
        (r"\boxed{\frac{11}{2}}", "5.5", True),
        (r"\boxed{0.5}", r"\frac{1}{2}", True),
        (r"\boxed{1,000}", "1000", True),
        (r"\boxed{$5$}", "5", True),
        (r"\boxed{x=5}", "5", True),
        (r"\boxed{(-\sqrt{3}, \sqrt{3})}", r"(-\sqrt3,\sqrt3)", True),
        (r"\boxed{7 \text{ cm}}", "$7$", True),
        (r"\boxed{5, 7}", "7", False),
        (r"\boxed{6}", "5", False),
        (r"\boxed{}", "5", False),
        ("5", "5", False),
    ],
)
def test_math_compares_boxed_formulas(completion, answer, equal):
    assert part("math")(completion, answer, {}) == float(equal)


def test_math_searches_prose_when_a_whole_line_is_extracted():
    judge = part("math", extract="last_line")
    assert judge("Let us see.\nThe answer is $\\frac{1}{2}$.", "0.5", {}) == 1.0
    assert judge("So the total is 5 apples", "5", {}) == 1.0
    assert judge("The answer is 3", "0.5", {}) == 0.0


def test_format_wants_its_pattern_in_the_completion():
    judge = part("format", format_pattern=r"<think>[\s\S]*</think>")
    assert judge("<think>a\nb</think> 5", "5", {}) == 1.0
    assert judge("5", "5", {}) == 0.0


def test_parts_keep_the_order_of_the_config():
    parts = build_parts(RewardConfig(parts=[RewardPartConfig(name=name) for name in ("number", "exact", "math")]))
    assert list(parts) == ["number", "exact", "math"]


def test_a_function_is_imported_by_its_path(custom_rewards):
    assert part(f"{custom_rewards}:obey")("5", "5", {"bonus": 0.5}) == 1.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parts": []}, "name at least one part"),
        (
            {"parts": [RewardPartConfig(name="maths")]},
            "unknown part 'maths'; choose from math, exact, number, reasoning_gym, format",
        ),
        (
            {"parts": [RewardPartConfig(name="no_such_module:f")]},
            "cannot import 'no_such_module:f': ModuleNotFoundError",
        ),
        (
            {"parts": [RewardPartConfig(name="os:no_such_function")]},
            "cannot import 'os:no_such_function': AttributeError",
        ),
        ({"parts": [RewardPartConfig(name="os:sep")]}, "is of type str, and no function or class"),
        ({"parts": [RewardPartConfig(name="format")]}, "needs task.reward.format_pattern"),
        (
            {"parts": [RewardPartConfig(name="format")], "format_pattern": "(<think>.*</think>)?"},
            "occurs in every completion, even in an empty one, so it rewards nothing in particular",
        ),
        ({"parts": [RewardPartConfig(name="format")], "format_pattern": "("}, "is not a valid regular expression"),
        (
            {"parts": [RewardPartConfig(name="exact")], "extract": "last"},
            "choose one of boxed, tag, final, last_number, last_line, all",
        ),
    ],
)
def test_a_reward_that_cannot_be_built_is_one_line(settings, message):
    with pytest.raises(UserError, match=message):
        build_parts(RewardConfig(**settings))


@pytest.mark.parametrize(
    ("length", "penalty"), [(1, 0.0), (16384, 0.0), (17408, -0.25), (18432, -0.5), (20480, -1.0), (20481, -1.0)]
)
def test_the_penalty_of_the_dapo_paper_with_16384_tokens_and_a_buffer_of_4096(length, penalty):
    assert overlong_penalty(length, 20480, 4096) == penalty
