"""These tests read the tests of programming problems, and grade programs by them."""

import json

import pytest

from grpo.config import RewardConfig, RewardPartConfig
from grpo.sandbox.sandbox import unavailable
from grpo.tasks.rewards import build_parts
from grpo.tasks.unit_tests import SAME, program_in, row_tests, same_output
from grpo.tasks.verification import UnparsableAnswer

ADDS = "print(sum(map(int, input().split())))"
ADD = "def add(a, b):\n    return a + b"
PAIR = "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b"
METHOD = "class Solution:\n    def add(self, a: List[int], b: int): return [*a, b]"


@pytest.fixture(scope="module")
def code():
    if why := unavailable():
        pytest.skip(f"no sandbox here: {why}")
    return build_parts(RewardConfig(parts=[RewardPartConfig(name="code")], timeout_seconds=60.0), called=True)["code"]


def stdin(*pairs):
    return [{"type": "stdin_stdout", "input": given, "output": wanted, "fn_name": None} for given, wanted in pairs]


@pytest.mark.parametrize(
    ("right", "wrong", "columns", "answer"),
    [
        (ADD, "def add(a, b): return a", {"test_list": "assert add(1, 2) == 3\nassert add(0, 0) == 0"}, ""),
        (ADD, "def add(a, b): return a", {"test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]}, ""),
        ("    return a + b", ADD.replace("+", "-"),
         {"entry_point": "add", "test": "def check(candidate):\n    assert candidate(1, 2) == 3"}, ""),
        (ADDS, "print(3)", {"input_output": json.dumps({"inputs": ["1 2\n", "3 4"], "outputs": ["3\n", "7\n"]})}, ""),
        (METHOD, METHOD.replace("b]", "1]"),
         {"input_output": json.dumps({"fn_name": "add", "inputs": [[[1], 2]], "outputs": [[[1, 2]]]})}, ""),
        ("def spell(n): return str(n)", "def spell(n): return n + 1",
         {"input_output": json.dumps({"fn_name": "spell", "inputs": [[5]], "outputs": ["5"]})}, ""),
        ("def third(n): return {n: [n / 3, (n,)]}", "def third(n): return {n: [n / 4, (n,)]}",
         {"input_output": json.dumps({"fn_name": "third", "inputs": [[1]], "outputs": [{"1": [0.3333333, [1]]}]})}, ""),
        (f"{PAIR}\ndef first(pairs): return min(pairs, key=lambda pair: pair.a).b", "def first(pairs): return 4",
         {"test_list": ["assert first([Pair(5, 24), Pair(1, 2)]) == 2"], "test_setup_code": PAIR}, ""),
        (ADDS, "", {"verification_info": json.dumps({"language": "python", "test_cases": stdin(("1 2", "3"))})}, ""),
        (METHOD, ADD,
         {"public_test_cases": json.dumps([{"input": "[1]\n2", "output": "[1, 2]", "testtype": "functional"}]),
          "metadata": json.dumps({"func_name": "add"})}, ""),
        (ADDS, "import time", {}, json.dumps({"inputs": [["1 2"]], "outputs": [["3"]]})),
        (ADD, "x = 1", {}, "assert add(1, 2) == 3"),
        (f"from __future__ import annotations\n{ADD}", "def check(f): pass\ndef add(a, b): return a",
         {"entry_point": "add", "test": "import unittest\nclass TestCases(unittest.TestCase):\n"
          "    def test_sum(self): self.assertEqual(add(1, 2), 3)"}, ""),
    ],
)  # fmt: skip
def test_a_program_is_graded_by_the_row_tests_its_row(code, right, wrong, columns, answer):
    prompt = 'def add(a, b):\n    """Adds."""'
    for program, reward in ((right, 1.0), (wrong, 0.0)):
        assert code(f"So:\n```python\n{program}\n```", answer, columns, {"prompt": prompt}) == reward


def test_an_entry_point_may_be_a_method_behind_a_prompt_in_words(code):
    columns = {"entry_point": "Solution().add", "test": "def check(f):\n    assert f(a=[1], b=2) == [1, 2]"}
    for program, reward in ((METHOD, 1.0), (METHOD.replace("b]", "1]"), 0.0)):
        assert code(program, "", columns, {"prompt": "Append b to a, and return it."}) == reward


def test_a_program_that_does_not_end_gets_nothing_within_the_limit_of_an_answer():
    if unavailable():
        pytest.skip("no sandbox here")
    part = build_parts(RewardConfig(parts=[RewardPartConfig(name="code")], timeout_seconds=1.0), called=True)["code"]
    assert part("while True: pass", "assert 1", {}, {"prompt": ""}) == 0.0


def test_calls_become_a_source():
    tests = row_tests("", {"input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]})})
    called = "try:\n    _found = add\nexcept NameError:\n    _found = Solution().add\n"
    assert tests == f"{SAME}\n{called}_same(_found(*[1, 2]), [3], 3)"


def test_inputs_and_outputs_become_pairs():
    assert row_tests(json.dumps(stdin(("1", "2"))), {}) == [("1", "2")]


@pytest.mark.parametrize(
    ("answer", "columns"),
    [
        ("42", {}),
        ("", {}),
        ("", {"tests": "[]"}),
        ("", {"private_test_cases": "eJxrYJmayQABNS4="}),
        ("", {"input_output": '{"inputs": [1], "outputs": []}'}),
    ],
)
def test_a_row_without_readable_tests_is_not_the_fault_of_the_program(answer, columns):
    with pytest.raises(UnparsableAnswer):
        row_tests(answer, columns)


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("```python\nx = 1\n```\nor\n```py\nx = 2\n```\n", "x = 2\n"),
        ("x = 3", "x = 3"),
        ("```\nx = 4\n```", "x = 4\n"),
        ("```Python\nx = 5", "x = 5"),
        ("```python\r\nx = 6\r\n```", "x = 6\n"),
        ("- so\n  ```python\n  if x:\n    x = 7\n  ```", "if x:\n  x = 7\n"),
        ("~~~python {.code}\n    x = 8\n~~~", "    x = 8\n"),
        ("```python\nprint(9)\n```\nprints\n```\n9\n```\nand\n```text\nnone\n```", "print(9)\n"),
        ("Here: ```py\nx = 10```", "x = 10"),
        ("```python\ndef f(): return 11\n```\nYou may try:\n```python\nprint(f())\n```\n", "def f(): return 11\n"),
        ("```python\nn = int(input())\n```\n`n` is:\n```python\n12\n```", "n = int(input())\n"),
    ],
)
def test_the_last_program_of_a_completion_counts(completion, program):
    assert program_in(completion) == program


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        ("1 2 \n3\n\n", "1 2\n3", True),
        ("1\n2", "1 2", False),
        ("0.33333334", "0.3333333", True),
        ("1000000.5", "1000000.0", True),
        ("0.34", "0.33", False),
        ("3", "4", False),
        ("nan.", "1.0", False),
        ("", "", True),
        ("1", "1\n2", False),
    ],
)
def test_outputs_are_compared_line_by_line(found, wanted, same):
    assert same_output(found, wanted) == same
