"""These tools come with grpo. `task.episode` names them without a file."""

import ast
import math
import operator
from collections.abc import Callable
from decimal import Context, Decimal, Inexact
from fractions import Fraction

from grpo.config import LimitsConfig
from grpo.sandbox.sandbox import Limits, Run, Sandbox, require_sandbox


def python_tool(limits: LimitsConfig) -> Callable[[str], str]:
    """Returns a tool that runs Python programs in a sandbox. Raises UserError where there can be none."""
    closed = limits.sandbox == "auto"
    require_sandbox("the tool python", "task.limits.sandbox", closed)
    # One character more than the model reads shows that there are more.
    of_program = Limits(limits.program_seconds, limits.memory_gib, limits.program_characters + 1)

    def python(code: str) -> str:
        """Runs a Python program in a fresh interpreter, without network and files. Returns what it prints, and the
        value of its last line if that is an expression.

        Args:
            code: The program.
        """
        with Sandbox(of_program, closed) as sandbox:
            return _shown(sandbox.run(code, last_value=True), limits)

    return python


def _shown(run: Run, limits: LimitsConfig) -> str:
    ends = {
        "seconds": f"The program was stopped: it takes longer than {limits.program_seconds:g} s.",
        "output": "The program was stopped: it writes without end.",
        "sandbox": "The program was stopped: it has broken its sandbox.",
    }
    texts = [_cut(text, limits.program_characters) for text in (run.out, run.error_out)]
    if run.ended in ends or (run.ended and not run.error_out):
        texts.append(ends.get(run.ended, f"The program ended with status {run.ended}."))
    return "\n".join(text.rstrip("\n") for text in texts if text) or "The program printed nothing."


def _cut(text: str, characters: int) -> str:
    """Cuts a text that is beyond its limit, with a mark, so that the model knows of it."""
    return f"{text[:characters]}\n… (cut at {characters} characters)" if len(text) > characters else text


LONGEST_EXPRESSION, MOST_DIGITS = 200, 200
OPERATORS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def calculator_tool(limits: LimitsConfig) -> Callable[[str], str]:
    """Returns a tool that computes sums, differences, products and quotients. It runs no code of the model."""

    def calculator(expression: str) -> str:
        """Computes an expression.

        Args:
            expression: For example 3 * (4 + 5).
        """
        if len(expression) > LONGEST_EXPRESSION:
            raise ValueError("the expression is too long")
        try:
            text = expression.strip()
            return _written(_value(ast.parse(text, mode="eval").body, text))
        except OverflowError:
            raise ValueError("the numbers are too large") from None

    return calculator


def _written(number: Fraction) -> str:
    """Writes a number exactly if its digits end, and otherwise with twelve of them. Raises OverflowError for a number
    that is too large."""
    rounded = float(f"{float(number):.12g}")
    if number.denominator == 1:
        return str(number)
    context = Context(prec=MOST_DIGITS)
    exact = context.divide(Decimal(number.numerator), Decimal(number.denominator))
    return str(rounded) if context.flags[Inexact] else str(exact).lower()


def _value(node: ast.AST, text: str) -> Fraction:
    """Returns the exact value of a node of the expression `text`. Raises ValueError for anything but numbers, + - * /
    and brackets, and OverflowError for a number that is too large."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        if node.value == math.inf:
            raise OverflowError
        if isinstance(node.value, int) or not node.value:
            return Fraction(node.value)
        # The node itself holds a float, which keeps 17 digits.
        return Fraction(ast.get_source_segment(text, node) or "")
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left, text), _value(node.right, text))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return _value(node.operand, text) * (-1 if isinstance(node.op, ast.USub) else 1)
    raise ValueError("only numbers, + - * / and brackets can be computed")


READY: dict[str, Callable[[LimitsConfig], Callable[..., str]]] = {"python": python_tool, "calculator": calculator_tool}
