"""This module has the lines of an audit: what was compared, and what came of it."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from grpo.config.errors import UserError, first_line

SAME, DIFFERS, UNCHECKED = "same", "differs", "not checked"
NONE, ENDS, ALL = "false", "true", "all"
"""No round is computed again, or the first and the last, or all that can be."""


class Line(NamedTuple):
    """A line says of a subject, such as the problems, whether it is what the run's records say."""

    subject: str
    outcome: str
    fact: str


Check = Callable[[], Iterable[Line]]


def compared(subject: str, wrong: list[str], fact: str) -> Iterator[Line]:
    """Yields a line for each thing that is wrong, the first ten of them, or one that nothing is. `fact` says what was
    compared."""
    if not wrong:
        yield Line(subject, SAME, fact)
    for text in wrong[:10]:
        yield Line(subject, DIFFERS, text)
    if len(wrong) > 10:
        yield Line(subject, DIFFERS, f"{len(wrong) - 10} more")


def tried(subject: str, check: Check) -> Iterator[Line]:
    """Yields the lines of a check, or one that says why it could not be made. Records may be forged in any way, so one
    without the form that a run writes is a difference too."""
    try:
        yield from check()
    except UserError as error:
        yield Line(subject, UNCHECKED, str(error))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, OSError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        yield Line(subject, DIFFERS, f"a record has not the form that a run writes ({reason})")
