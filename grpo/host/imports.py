"""This module sets where Python finds modules, says which extra installs a package that is missing, and pauses garbage
collection while heavy packages are imported."""

import gc
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from grpo.config.errors import UserError, first_line

ROOT = Path(__file__).resolve().parent.parent.parent
# `pip install` needs this name. The index knows another package as `grpo`.
DISTRIBUTION = "grpo-dynamics"


def safe_path() -> dict[str, str]:
    """Returns the environment variable that keeps Python from looking for modules in the working folder first.

    Returns no variable in grpo's own checkout, where grpo may be found only through the working folder.
    """
    return {} if Path.cwd() == ROOT else {"PYTHONSAFEPATH": "1"}


def look_here_last() -> None:
    """Makes Python look for modules in the working folder, such as the user's rewards.py, after all other folders.

    A json.py or random.py there must not replace Python's own, neither here nor in processes started later. Raises
    UserError when the working folder does not exist any more.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the working folder has been deleted: change to one that exists, such as with `cd`") from error
    if here not in sys.path:
        sys.path.append(here)
    for name, value in safe_path().items():
        os.environ.setdefault(name, value)


@contextmanager
def importing() -> Iterator[None]:
    """Pauses garbage collection, which takes a quarter of the time of importing torch and transformers.

    Objects that a module creates stay for good. So all objects that exist at the end are frozen: no later collection
    examines them, neither Python's own nor those that DeepSpeed and vLLM start several times as they load.

    Raises UserError for a package that refuses to be loaded, as many do for an odd value of their variables.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    except ValueError as error:
        reason = "; ".join(first_line(one) for one in (error, error.__cause__) if one)
        raise UserError(
            f"a package cannot be loaded ({reason}): unset or correct the environment variable that it means, whose "
            "name begins with TORCH, VLLM or DS"
        ) from error
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def how_to_install(module: str) -> str | None:
    """Returns how a missing module is installed with one of grpo's extras, or None if none of them has it.

    >>> how_to_install("torch.nn"), how_to_install("rewards")
    ("in a clone of grpo: pip install '.[train]'", None)
    """
    wanted = module.partition(".")[0].replace("_", "-")
    try:
        needed = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        needed = []
    for line in needed:
        requirement, _, extra = line.partition("; extra == ")
        if extra and re.match(r"[\w-]+", requirement)[0] == wanted:
            return f"in a clone of grpo: pip install '.[{extra[1:-1]}]'"
    return None


def is_unguarded() -> bool:
    """Tells whether this process's script does all it does again where another process imports it."""
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    return script.suffix == ".py" and script.is_file() and "__name__" not in script.read_text(errors="replace")
