"""This module generates sums and products of small integers: a data set that needs neither files nor a network."""

import random
import sys
from dataclasses import dataclass, fields
from typing import Any

from grpo.config import UserError
from grpo.config.errors import require
from grpo.types import Problem

MAX_ENUMERATED = 1_000_000
# Larger options make no prompt.
LARGEST, MOST_TERMS = 10**12, 100


@dataclass(frozen=True)
class ArithmeticOptions:
    """These are the `task.data.options` of the arithmetic source.

    A question has `num_terms` operands from [min, max], joined by `operators` (out of "+", "-", "*").
    """

    min: int = 0
    max: int = 9
    operators: tuple[str, ...] = ("+",)
    num_terms: int = 2

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise UserError(f"task.data.options: min {self.min} is above max {self.max}; swap them.")
        if self.num_terms < 2:
            raise UserError(f"task.data.options: num_terms is {self.num_terms}; a question needs at least 2.")
        if not self.operators or set(self.operators) - {"+", "-", "*"}:
            raise UserError(f"task.data.options: operators are {list(self.operators)}; choose from + - *.")
        if len(set(self.operators)) < len(self.operators):
            raise UserError("task.data.options: an operator is named twice; name each once.")

    @property
    def num_questions(self) -> int:
        """Returns the number of distinct questions. One digit, two terms and "+" give 100."""
        return (self.max - self.min + 1) ** self.num_terms * len(self.operators) ** (self.num_terms - 1)


def arithmetic_problems(options: dict[str, Any], size: int, seed: int) -> list[Problem]:
    """Returns `size` distinct questions such as ``"7 + 5 ="``, drawn by `seed`. Size 0 returns all of them in order.

    A question's id depends on the options only: ``"arithmetic-75"`` is ``"7 + 5 ="`` in every draw.

    Raises `UserError` for unknown options, and when `size` exceeds the number of distinct questions.
    """
    arithmetic = checked(options, size)
    available = arithmetic.num_questions
    indices = random.Random(seed).sample(range(available), size) if size else range(available)
    return [_problem(index, arithmetic) for index in indices]


def checked(options: dict[str, Any], size: int) -> ArithmeticOptions:
    """Returns the options, and makes no question. Raises `UserError` as `arithmetic_problems` does."""
    names = [field.name for field in fields(ArithmeticOptions)]
    unknown = sorted(set(options) - set(names))
    if unknown:
        raise UserError(f"task.data.options: unknown {', '.join(unknown)}; known are {', '.join(names)}.")
    for name, value in options.items():
        if name == "operators":
            is_list = isinstance(value, list | tuple) and all(isinstance(operator, str) for operator in value)
            require(is_list, f'task.data.options: operators are {value}; write a list, such as ["+","-"].')
        else:
            most = MOST_TERMS if name == "num_terms" else LARGEST
            is_small = type(value) is int and abs(value) <= most
            require(is_small, f"task.data.options: {name} is {value}; it takes a whole number of at most {most:,}.")
    arithmetic = ArithmeticOptions(**{**options, "operators": tuple(options.get("operators", ("+",)))})
    available = arithmetic.num_questions
    require(
        available <= sys.maxsize,
        "task.data.options allow more than 10^18 distinct questions, too many to number; lower max or num_terms.",
    )
    if size > available:
        raise UserError(
            f"task.data.size is {size}, but task.data.options allow {available} distinct questions; lower it, or set "
            "it to 0 to take all."
        )
    if size == 0 and available > MAX_ENUMERATED:
        raise UserError(
            f"task.data.options allow {available:,} distinct questions, too many to take all; set task.data.size."
        )
    return arithmetic


def _problem(index: int, options: ArithmeticOptions) -> Problem:
    """Returns question number `index`. The digits of `index`, in mixed radix, are first its operators, then its
    operands."""
    rest, operands = index, []
    for _ in range(options.num_terms):
        rest, digit = divmod(rest, options.max - options.min + 1)
        operands.insert(0, options.min + digit)
    operators = []
    for _ in range(options.num_terms - 1):
        rest, digit = divmod(rest, len(options.operators))
        operators.insert(0, options.operators[digit])
    words = [str(operands[0])]
    for operator, operand in zip(operators, operands[1:], strict=True):
        words += [operator, str(operand)]
    return Problem(f"arithmetic-{index}", f"{' '.join(words)} =", str(_value(operands, operators)))


def _value(operands: list[int], operators: list[str]) -> int:
    """Evaluates the expression: products first, then sums from left to right."""
    summands = [operands[0]]
    for operator, operand in zip(operators, operands[1:], strict=True):
        if operator == "*":
            summands[-1] *= operand
        else:
            summands.append(operand if operator == "+" else -operand)
    return sum(summands)
