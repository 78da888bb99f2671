"""These functions find the answer in a completion. Each takes time linear in the length of the text."""

import re
from collections import deque
from collections.abc import Callable

_BRACES = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")

_NUMBER = re.compile(
    r"(?:(?<![\w.)\]}%])(?<![\d)\]}%] )[-\u2212])?"  # a sign, not a subtraction
    r"\$?"
    r"(?:(?:\d{1,3}(?:(?:,|\{,\}|,?\\[,!])\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"  # 1,000 or LaTeX's 1{,}000 and 1\,000
    r"(?:[eE][-+]?\d{1,3}(?!\d))?"
    r"(?:/\d+(?![\d.]))?"
)

_STATED = re.compile(
    # The answer is, The correct option is, Answer:, ####
    r"(?i)(?:\b(?:answer|correct (?:option|choice))\b(?:[^.:=\n]{0,60}?\b(?:is|be|equals)\b|\*{0,2}\s*[:=])|^####)"
    r"[\s*:]*",
    re.MULTILINE,
)
_SENTENCE = re.compile(r"(?:[^.\n]|\.(?!\s|$))*", re.MULTILINE)

_BOLD = re.compile(r"\*\*([^*\n]+)\*\*[.\s]*$")


def extract(text: str, how: str) -> str | None:
    """Returns the part of a completion that is the answer, stripped, or None when there is none.

    `how` is a key of EXTRACTORS.
    """
    return EXTRACTORS[how](text)


def boxed(text: str) -> str | None:
    r"""Returns the content of the last ``\boxed{…}`` whose braces balance. If boxes are nested, it takes the innermost.

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
    """Returns the content of the last ``<answer>…</answer>``."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return text[start + len("<answer>") : end].strip() if start >= 0 else None


def last_number(text: str) -> str | None:
    """Returns the last number, without its ``$`` and thousands commas: ``"-1,234.5"`` gives ``"-1234.5"``.

    A minus is a sign when it touches the number and follows neither a letter, digit or closing bracket,
    nor a digit or closing bracket and a space: "is -3" and "= -3" give -3; "5 - 3", "5 -3", "5-3",
    "x-3" and the list item "- 3" give 3. ``"1/2"`` is one number; LaTeX fractions are not (use boxed).
    """
    last_match = deque(_NUMBER.finditer(text), maxlen=1)
    if not last_match:
        return None
    return re.sub(r"[$,{}\\!]", "", last_match[0].group()).replace("\u2212", "-")


def last_line(text: str) -> str | None:
    """Returns the last line that is not blank."""
    stripped = text.strip()
    return stripped[stripped.rfind("\n") + 1 :].strip() or None


def whole(text: str) -> str | None:
    """Returns the whole completion, stripped."""
    return text.strip() or None


def final(text: str) -> str | None:
    r"""Returns the completion's final answer, whichever of several forms it is written in.

    It is the last ``\boxed``, else the last ``<answer>``, else what follows the last "answer is", "answer:" or "####",
    else the bold text at the end, else the completion itself if it has only one line.

    >>> final("The answer is 41. No: the correct answer is **42**."), final("Answer: 1/2"), final("x = 5")
    ('42', '1/2', 'x = 5')
    """
    marked = boxed(text) or tag(text)
    if marked is not None:
        return marked
    stated = deque(_STATED.finditer(text), maxlen=1)
    if stated:
        return _SENTENCE.match(text, stated[0].end())[0].strip().strip("*") or None
    bold = _BOLD.search(last_line(text) or "")
    if bold:
        return bold[1].strip()
    only = text.strip()
    return only if only and "\n" not in only else None


EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "boxed": boxed,
    "tag": tag,
    "final": final,
    "last_number": last_number,
    "last_line": last_line,
    "all": whole,
}
