"""UserError and its kinds tell a person what can be mended."""

from pathlib import Path
from sysconfig import get_path
from traceback import extract_tb

# Code here is grpo's, Python's or an installed package's.
_FOREIGN = [f"{place}/" for place in (Path(__file__).parents[1], *map(get_path, ("stdlib", "purelib", "platlib")))]
LONGEST_LINE = 1000
# A process that ends by a UserError has this exit code.
WRONG_USE = 2


class UserError(Exception):
    """A UserError is a mistake that the person at the keyboard can mend. Its one line says what, and how.

    `grpo.cli` prints it without a traceback and exits with 2.
    """


class SamplerLost(UserError):
    """This error says that no server is left that could sample. The run ends with a checkpoint of its last round."""


class Diverged(UserError):
    """This error says that the policy's numbers are not finite. The run ends without a checkpoint of this policy."""


class EndedElsewhere(UserError):
    """This error ends a rank in silence, because another rank has failed and says why."""


class GradingFailed(UserError):
    """This error says that answers could not be graded. All ranks raise it, and the run ends with a checkpoint of its
    last round."""


class GradingFailedElsewhere(GradingFailed, EndedElsewhere):
    """This error ends a rank in silence, because another rank could not grade its answers and says why."""


class Interrupted(Exception):
    """This ends sampling and grading, because the run has to save at once. All ranks raise it together. Nothing has
    been learned of what was sampled, and a resumed run samples it again."""


NOBODY_LEFT = (
    "no vLLM server is left: see logs/ in the run's folder, and continue from its newest checkpoint with "
    "checkpoint.resume=true"
)


def first_line(error: BaseException) -> str:
    r"""Returns the first line of an error's text, or the name of its type where it has no text. A longer line than
    `LONGEST_LINE` characters, such as one that quotes a whole answer of a server, is cut.

    >>> first_line(ValueError("no such name\nat line 3")), first_line(TimeoutError())
    ('no such name', 'TimeoutError')
    >>> len(first_line(ValueError("x" * 10**6)))
    1000
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:LONGEST_LINE]


def place_of(error: BaseException) -> str:
    """Returns where in a user's own code an error was raised, as " (line N of FILE)", or ""."""
    own = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(("<", *_FOREIGN))]
    return f" (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""


def require(condition: bool, message: str) -> None:
    """Raises UserError with `message` where `condition` does not hold."""
    if not condition:
        raise UserError(message)
