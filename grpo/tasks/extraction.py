"""Where the answer stands in a completion. Every function is linear in the length of the text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

_BRACES = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")

_NUMBER = re.compile(
    r"(?:(?<![\w.)\]}%])(?<![\d)\]}%] )[-\u2212])?"  # a sign, not a subtraction
    r"\$?"
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:[eE][-+]?\d{1,3}(?!\d))?"
    r"(?:/\d+(?![\d.]))?"
)


def extract(text: str, how: str) -> str | None:
    """The answer's part of a completion, stripped, or None where there is none. `how` is a key of EXTRACTORS."""
    return EXTRACTORS[how](text)


def boxed(text: str) -> str | None:
    r"""Content of the last ``\boxed{…}`` whose braces balance; of nested ones, the innermost.

    >>> boxed(r"\boxed{1} so \boxed{\frac{1}{2}} and \boxed{3")
    '\\frac{1}{2}'
    """
    opened: list[tuple[bool, int]] = []
    last_start, answer = -1, None
    for match in _BRACES.finditer(text):
        token = match.group()
        if token in (r"\{", r"\}"):
            continue
        if token != "}":
            opened.append((token != "{", match.end()))
        elif opened:
            is_boxed, start = opened.pop()
            if is_boxed and start > last_start:
                last_start, answer = start, text[start : match.start()].strip()
    return answer


def tag(text: str) -> str | None:
    """Content of the last ``<answer>…</answer>``."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return text[start + len("<answer>") : end].strip() if start >= 0 else None


def last_number(text: str) -> str | None:
    """The last number, without its ``$`` and thousands commas: ``"-1,234.5"`` gives ``"-1234.5"``.

    A minus is a sign when it touches the number and follows neither a letter, digit or closing bracket,
    nor a digit or closing bracket and a space: "is -3" and "= -3" give -3; "5 - 3", "5 -3", "5-3",
    "x-3" and the list item "- 3" give 3. ``"1/2"`` is one number; LaTeX fractions are not (use boxed).
    """
    found = deque(_NUMBER.finditer(text), maxlen=1)
    if not found:
        return None
    return found[0].group().replace("$", "").replace(",", "").replace("\u2212", "-")


def last_line(text: str) -> str | None:
    """The last line that is not blank."""
    stripped = text.strip()
    return stripped[stripped.rfind("\n") + 1 :].strip() or None


def whole(text: str) -> str | None:
    return text.strip() or None


EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "boxed": boxed,
    "tag": tag,
    "last_number": last_number,
    "last_line": last_line,
    "all": whole,
}
