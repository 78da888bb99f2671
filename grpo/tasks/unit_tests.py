"""This module is the reward part "code": the program in a completion runs in a sandbox, and its row's tests judge it.

Tests are read in the forms of the known sets of programming problems. They become either one source of `assert`s on the
program's functions, or pairs of an input and the output that is wanted. The program sees neither.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any

from grpo.config import RewardConfig
from grpo.config.errors import first_line
from grpo.config.plain_json import parse_json
from grpo.sandbox.sandbox import Limits, Sandbox, UnreadableTests, require_sandbox
from grpo.tasks.own_rewards import CompletionReward
from grpo.tasks.verification import UnparsableAnswer

Tests = str | Sequence[tuple[str, str]]
"""Tests are a source, or pairs of an input and an output."""

SHARE_OF_TIME = 0.8
"""A program may take this share of `task.reward.timeout_seconds`. The rest is for the sandbox itself."""
MOST_CHARACTERS = 1_000_000
TOLERANCE = Decimal("1e-6")
_BLOCK = re.compile(r"^([^\n`~]*)(`{3,8}|~{3,8})[ \t]*\{?\.?(\w*)[^\n]*\n(.*?)(?:\2|\Z)", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"^\s*(?:def|class|import|from|assert|async)\b", re.MULTILINE)
_WHOLE = re.compile(r"^(?:async def|def|class)\b|\binput\(|\bstdin\b|\bopen\(0", re.MULTILINE)
PRELUDE = """from typing import *
from collections import *
from functools import *
from heapq import *
from bisect import *
from itertools import *
import math, re, string, random, collections, functools, itertools, heapq, bisect, operator
"""
"""Solutions of sets in which functions are written take these for granted."""
SAME = """
def _alike(one, other):
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):  # JSON makes texts of all keys
        one, other = ({str(key): value for key, value in both.items()} for both in (one, other))
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, (int, float)) or isinstance(other, float) and isinstance(one, int):
        return one == other or abs(one - other) <= 1e-6 * max(1, abs(other))
    return one == other
def _same(found, *wanted):
    assert any(_alike(found, value) for value in wanted), f"{found!r} is not {wanted[0]!r}"
"""
"""These compare values as `same_output` does outputs."""


def code(config: RewardConfig) -> CompletionReward:
    """Builds the part that is 1 if the program in a completion passes all tests of its row, and 0 otherwise.

    Raises UserError where no sandbox can be made.
    """
    closed = config.sandbox == "auto"
    require_sandbox("the reward part 'code'", "task.reward.sandbox", closed)
    limits = Limits(SHARE_OF_TIME * config.timeout_seconds, config.memory_gib, MOST_CHARACTERS)

    def part(completion: str, answer: str, metadata: Mapping[str, Any], prompt: str) -> float:
        tests, program = row_tests(answer, metadata), program_in(completion)
        # It may be a method, such as Solution().twoSum.
        name = str(metadata.get("entry_point") or "").rpartition(".")[2]
        if name and not re.search(rf"\bdef\s+{re.escape(name)}\b", program):
            # The completion goes on where the prompt ends.
            program = f"{prompt}\n{program}"
        if not program.strip():
            return 0.0
        # The program works with objects of the classes that a setup makes, and knows none of the tests' own classes.
        program = f"{program}\n{metadata.get('test_setup_code') or ''}"
        with Sandbox(limits, closed) as sandbox:
            if not isinstance(tests, str):
                return float(all(_prints(sandbox, program, *pair) for pair in tests))
            try:
                return float(not sandbox.test(program, tests, PRELUDE))
            except UnreadableTests as error:
                raise UnparsableAnswer(str(error)) from error

    names = frozenset({"completion", "answer", "metadata", "prompt"})
    return CompletionReward(part, names, names - {"answer"})


def program_in(completion: str) -> str:
    """Returns the last program between fences, or the whole text if it has none. Blocks that are called Python come
    before others, such as one that shows an output, and those that define or read something before others, such as one
    that shows how the program is used.

    >>> program_in("First:\\n```python\\nx = 1\\n```\\nThat is all."), program_in("x = 2")
    ('x = 1\\n', 'x = 2')
    """
    blocks: dict[tuple[bool, bool], str] = {}
    for before, _, name, text in _BLOCK.findall(completion.replace("\r\n", "\n")):
        if name.lower() in ("", "python", "python3", "py"):
            # A block in a list is indented as its fence is.
            indent = "" if before.strip() else before
            program = re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
            blocks[bool(name), bool(_WHOLE.search(program))] = program
    return blocks[max(blocks)] if blocks else completion


def known_program(metadata: Mapping[str, Any]) -> str:
    """Returns the program that a row of a known set has as its solution, or "".

    >>> known_program({"solutions": '["x = 1", "x = 2"]'}), known_program({})
    ('x = 1', '')
    """
    found = (
        _read(metadata.get(name)) for name in ("code", "gold_standard_solution", "canonical_solution", "solutions")
    )
    value = next(filter(None, found), "")
    return program_in(str(value[0] if isinstance(value, list) else value))


def _prints(sandbox: Sandbox, program: str, given: str, wanted: str) -> bool:
    run = sandbox.run(program, given)
    return not run.ended and same_output(run.out, wanted)


def same_output(found: str, wanted: str) -> bool:
    """Compares outputs line by line, whatever their blanks. Decimal numbers may differ by a millionth.

    >>> same_output("1 2 \\n0.3333333\\n", "1 2\\n0.3333334"), same_output("1\\n2", "1 2"), same_output("3", "4")
    (True, False, False)
    """
    lines = [[line.split() for line in text.strip().split("\n")] for text in (found, wanted)]
    same_lengths = [*map(len, lines[0])] == [*map(len, lines[1])]
    return same_lengths and all(map(_same_word, chain(*lines[0]), chain(*lines[1])))


def _same_word(found: str, wanted: str) -> bool:
    if found == wanted:
        return True
    if "." not in found + wanted:
        return False
    with suppress(InvalidOperation):
        one, other = Decimal(found), Decimal(wanted)
        return abs(one - other) <= TOLERANCE * max(1, abs(other))
    return False


# --- the forms of tests ----------------------------------------------------------------------------


def row_tests(answer: str, metadata: Mapping[str, Any]) -> Tests:
    """Returns the tests of a row. Raises UnparsableAnswer if it has none that can be read.

    test_list                                     MBPP, whose test_setup_code belongs to the program
    test, entry_point                             HumanEval, BigCodeBench; without `check`, test_… and unittest
    input_output                                  APPS, TACO
    verification_info                             Prime Intellect
    tests                                         DeepCoder
    public_test_cases, private_test_cases         LiveCodeBench
    the column of answers                         any of these
    """
    if asserts := _read(metadata.get("test_list")):
        return "\n".join([*(metadata.get("test_imports") or []), *([asserts] if isinstance(asserts, str) else asserts)])
    if isinstance(source := metadata.get("test"), str):
        name = metadata.get("entry_point")
        return f"{source}\ncheck({name})" if name and re.search(r"^def check\b", source, re.MULTILINE) else source
    columns = ("input_output", "verification_info", "tests", "public_test_cases", "private_test_cases")
    found = [_read(metadata[name]) for name in columns if metadata.get(name)] or [_read(answer)]
    if len(found) == 1 and isinstance(found[0], str):
        if not _CODE.search(found[0]):
            raise UnparsableAnswer("no column has tests in a form that is known")
        return found[0]
    more = _read(metadata.get("metadata")) if metadata.get("metadata") else {}
    try:
        cases = [case for value in found for case in _cases(value, more if isinstance(more, Mapping) else {})]
    except (KeyError, TypeError, ValueError) as error:
        raise UnparsableAnswer(f"tests have a form that is not known: {first_line(error)}") from error
    if not cases:
        raise UnparsableAnswer("its list of tests is empty")
    if all(name is None for name, _, _ in cases):
        return [(_text(given), _text(wanted)) for _, given, wanted in cases]
    return "\n".join([SAME, *(_assertion(*case) for case in cases)])


def _read(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    try:
        return parse_json(cell)
    except ValueError:
        return cell


def _cases(value: Any, further: Mapping[str, Any]) -> Iterable[tuple[str | None, Any, Any]]:
    """Yields a name of a function or None, what is given, and what is wanted, for each test."""
    if isinstance(value, Mapping) and "inputs" in value:
        name = value.get("fn_name")
        return [(name, *pair) for pair in zip(value["inputs"], value["outputs"], strict=True)]
    if isinstance(value, Mapping) and "test_cases" in value:
        value = value["test_cases"]
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(v, Mapping) for v in value):
        raise ValueError(f"{value!r:.80}")
    cases = []
    for case in value:
        kind = case.get("type") or case.get("testtype") or ""
        own = case.get("metadata")
        name = case.get("fn_name") or (own if isinstance(own, Mapping) else further).get("func_name")
        cases.append((name if "std" not in kind else None, case["input"], case["output"]))
    return cases


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _assertion(name: str | None, given: Any, wanted: Any) -> str:
    """Returns one test of a function, which may be a method of a class Solution."""
    lines = given.split("\n") if isinstance(given, str) else None
    arguments = [_read(line) for line in lines if line.strip()] if lines is not None else given
    # Beside arguments in lines of JSON a text is JSON too, and beside others it may be meant as it stands.
    as_is, wanted = wanted, _read(wanted)
    unwrapped = f", {as_is!r}" if lines is None and as_is != wanted else ""
    # Some sets put the value that is wanted into a list.
    if lines is None and isinstance(wanted, list) and len(wanted) == 1:
        unwrapped += f", {wanted[0]!r}"
    return (
        f"try:\n    _found = {name}\nexcept NameError:\n    _found = Solution().{name}\n"
        f"_same(_found(*{list(arguments)!r}), {wanted!r}{unwrapped})"
    )
