r"""These functions decide whether an extracted answer is equal to the problem's own answer.

There are three comparisons, from narrow to wide: the same text (`exact`), the same number (`number`), and the same
mathematics (`mathematics`: numbers exactly, words as words, all else by math_verify's symbolic equality).
benchmarks/verification.py measures how often they misjudge rewritten answers and nearly right ones.
"""

import functools
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any


class UnparsableAnswer(ValueError):
    """This error says that a problem's own answer cannot be read, so nothing can be compared with it."""


_PLAIN_NUMBER = re.compile(r"([-+]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:e[-+]?\d{1,3})?)(?:/(\d{1,400}))?")
_MIXED_NUMBER = re.compile(r"([-+]?)(\d{1,400}) (\d{1,400})/(\d{1,400})")


def exact(extracted: str, answer: str) -> float:
    """Returns 1.0 when both texts are the same, else 0.0.

    The comparison ignores ``$``, thousands commas, and spaces that do not separate two words or numbers.
    """
    return float(_squeeze(extracted) == _squeeze(answer))


def number(extracted: str, answer: str) -> float:
    """Returns 1.0 when both texts are the same number, else 0.0.

    "1,000", "$1000.0" and "1e3" are equal, and so are "1 1/2" and "1.5"; 50% counts as 50. Returns 0.0 when
    `extracted` is not one plain number. Raises `UnparsableAnswer` when `answer` is not one.
    """
    expected = value(answer)
    if expected is None:
        raise UnparsableAnswer(answer)
    return float(expected == value(extracted))


def value(text: str) -> Fraction | None:
    """Returns the value of a text that is one plain number, else None."""
    plain = re.sub(r"[\\%]", "", _squeeze(text)).removesuffix(".").lower()
    mixed = _MIXED_NUMBER.fullmatch(plain)
    if mixed and int(mixed[3]) < int(mixed[4]):
        return Fraction(mixed[1] + "1") * (int(mixed[2]) + Fraction(int(mixed[3]), int(mixed[4])))
    match = _PLAIN_NUMBER.fullmatch(plain)
    if match is None or (match.group(2) and not int(match.group(2))):
        return None
    return Fraction(match.group(1)) / int(match.group(2) or 1)


_DIGITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fifteen hundred thousand"
_SPELLED = re.compile(
    rf"(?:(?:{_DIGITS.replace(' ', '|')}|\w+(?:teen|ty)|and)\b[ -]?)+|[-+]?\d+,(?:\d\d?|\d{{4,}})", re.IGNORECASE
)


def spelled(answer: str) -> bool:
    """Tells whether an answer is a number in English words or with a decimal comma, which no plain number equals.

    >>> spelled("twenty-one"), spelled("3,5"), spelled("1,000"), spelled("yes"), spelled("7")
    (True, True, False, False, False)
    """
    return bool(_SPELLED.fullmatch(answer))


def _squeeze(text: str) -> str:
    bare = " ".join(text.replace("$", "").split())
    return re.sub(r"(?<!\w) | (?!\w)|(?<=\d),(?=(?:\d{3})+(?!\d))", "", bare)


LONGEST_FORMULA = 4096
"""A formula of more characters than this counts as wrong without being parsed, which would take very long."""

_FONT = r"\\(?:text|math)(?:bf|rm|it|normal)?\s*\{"
_FONTS = re.compile(_FONT + r"([^{}]*)\}")
_WORDS = re.compile(rf"(?:{_FONT})?[\s(]*(?:(?:[Tt]he|[Aa]n?) +(?=[A-Za-z]))?([A-Za-z]+(?:[ -][A-Za-z]+)*)[\s).]*\}}?")
# A letter with its choice, such as (C) 42, but not with another letter.
_OTHER_LETTER = r"(?!.*(?:\b[B-HJ]\b|\(A\)|\b(?:or|and) A\b))"
_CHOICE = re.compile(rf"\s*(?:[Oo]ption |[Cc]hoice )?\(?([A-J])(?:[).:]+(?:[\s\\]{_OTHER_LETTER}.*)?)?", re.DOTALL)
# sympy opens an interval at infinity, so the wrong "[0, ∞]" would equal the right "[0, ∞)".
_CLOSED_AT_INFINITY = re.compile(r"\\infty\s*(?:\\right)?\]|\[\s*-\s*\\infty")
# math_verify takes a set such as {0, 1} for the pair or interval (0, 1).
_SET = re.compile(r"(?:\\left *)?\\\{.*\}", re.DOTALL)
_PAIR = re.compile(r"(?:\\left *)?[(\[][^()\[\]]*,[^()\[\]]*[)\]]")
_TYPESETTING = tuple(
    (re.compile(old), new)
    for old, new in (
        (r"~", " "),
        (
            r"\\[$()!]|(?<!\\)\\[\[\]]|\$|\\displaystyle\s*|^(?:\\[,;]|\s)+|(?:\\[,;]|\s)+$",
            "",
        ),  # delimiters and outer spaces
        (r"\\,(?=\d{3}(?!\d))", ""),  # 13\,535
        (r"^\{((?:[^{}\\]|\\.|\{[^{}]*\})*)\}$", r"\1"),  # {(2,4)}
        (r"\.(\s*\}?)$", r"\1"),  # the sentence's full stop
        (_FONT + r"\s*([-+.]?\d[^{}]*)\}", r"\1"),  # \mathbf{1.8}
        (r"[\\,\s]*(?:\\?%|\bpercent\b|\\text\{\s*percent\s*\})", ""),  # 50% counts as 50, as in `number`
        (r"\^\s*\{?\\circ\}?|°", ""),
        (r"^\w+\s*\\in\b", ""),  # x \in [0, 1)
        (r"\\varnothing\b", r"\\emptyset"),
        (r"^(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}$", r"\1\2/\3"),
        (r"(?<=[\d}])\s+([A-Za-z]{3,})$", r"\\text{ \1}"),  # a word after a number is a unit, which does not count
        # A number with its base becomes a word, because math_verify would drop the base.
        (r"^\(?(\w+)\)?[\\,\s]*_\s*\{?(?:\\text\{)?\(?(\d+)\)?\}*$", r"\\text{\1base\2}"),
    )
)


# A sign behind a term. The braces of a formula are taken out before.
_SUM = re.compile(r"[\w)}!']\s*[-+]")
_LAST_LETTER = re.compile(r"(?<=[\d}\s])[a-z]$")


def bare(text: str) -> str:
    r"""Strips an answer of everything that is only typesetting.

    >>> bare(r"\(\mathbf{1.8}\)."), bare(r"\dfrac{1}{2}"), bare("12.5\\%"), bare(r"x \in [0, 1)")
    ('1.8', '1/2', '12.5', ' [0, 1)')
    """
    for old, new in _TYPESETTING:
        text = old.sub(new, text)
    return text


def _is_word(text: str) -> bool:
    """Tells whether letters are surely a word, which sympy would multiply, so that "tea" would be "eat". The factors of
    a product are usually written in order, such as xyz."""
    return len(text) > 2 and text.isalpha() and [*text.casefold()] != sorted(text.casefold())


def _with_last_letter(text: str) -> str:
    """Protects the last letter of a sum, which math_verify would take for a unit and drop.

    >>> _with_last_letter("3+5t"), _with_last_letter("5m"), _with_last_letter(r"\\frac{1+x}{2} m")
    ('3+5{t}', '5m', '\\\\frac{1+x}{2} m')
    """
    outside, inside = "", text
    while outside != inside:
        outside, inside = inside, re.sub(r"\{[^{}]*\}", "0", inside)
    return _LAST_LETTER.sub(r"{\g<0>}", text) if _SUM.search(outside.rpartition("=")[2]) else text


def _ends_in_word(text: str, answer: str) -> bool:
    """Tells whether the answer is a word or a letter, which math_verify does not read in a text, and the text ends in
    it. A letter has its own case."""
    word = _WORDS.fullmatch(answer)
    case = re.IGNORECASE if word and len(word[1]) > 1 else re.NOFLAG
    return bool(word and re.search(rf"\b{re.escape(word[1])}\W*$", _FONTS.sub(r"\1", text), case))


def _with_imaginary_unit(reading: Any, unit: Any) -> Any:
    """Returns a reading in which each i is the imaginary `unit`. math_verify makes different symbols of the i of 2i and
    that of (1/2)i, which are never equal."""
    try:
        return reading.xreplace({symbol: unit for symbol in reading.free_symbols if str(symbol) == "i"})
    except (AttributeError, TypeError):  # it is a text, or orders what only real numbers have
        return reading


def mathematics(prose: bool = False) -> Callable[[str, str], float]:
    """Returns a function (extracted, answer) → 1.0 when both are the same number, word or formula, else 0.0.

    With `prose`, it searches for the answer within the extracted text, as math_verify does. The returned function
    raises `UnparsableAnswer` for an answer that is neither number, word nor formula.
    """
    import logging

    from math_verify import LatexExtractionConfig, parse, verify

    # math_verify warns in every worker that it enforces no time limit; the pool of workers enforces one.
    logging.getLogger("math_verify").setLevel(logging.ERROR)

    # math_verify's own time limits use signal.alarm, which works in main threads only. Its search for plain numbers is
    # left out, because in a formula that it cannot read it would find some 2 and take that for the answer.
    def read(text: str) -> list[Any]:
        return parse(f"${text}$", [LatexExtractionConfig()], parsing_timeout=None)

    unit = read(r"\sqrt{-1}")[0].doit()

    def formula(text: str) -> list[Any]:
        return [_with_imaginary_unit(reading, unit) for reading in read(_with_last_letter(text))]

    gold = functools.lru_cache(maxsize=1024)(formula)

    def same(extracted: str, answer: str) -> float:
        right = bare(answer)
        # math_verify returns what it cannot read as plain text, and it cannot read the word "true".
        readable = value(right) is not None or _WORDS.fullmatch(right)
        if not readable and all(isinstance(reading, str) for reading in gold(right)):
            raise UnparsableAnswer(answer)
        if exact(extracted, answer):
            return 1.0
        if prose:
            if _ends_in_word(extracted, right):
                return 1.0
            found = [_with_imaginary_unit(reading, unit) for reading in parse(extracted, parsing_timeout=None)]
            return float(verify(gold(right), found, timeout_seconds=None))
        if len(extracted) > LONGEST_FORMULA or _CLOSED_AT_INFINITY.search(extracted):
            return 0.0
        attempt = bare(extracted)
        if exact(*(_FONTS.sub(r"\1", text) for text in (attempt, right))):
            return 1.0
        words = _WORDS.fullmatch(right), _WORDS.fullmatch(attempt)
        if words[0] and words[1] and words[0][1].casefold() == words[1][1].casefold():
            return 1.0
        choice = _CHOICE.fullmatch(_FONTS.sub(r"\1", attempt))
        if choice and words[0] and len(words[0][1]) == 1:
            return float(choice[1] == words[0][1].upper())
        if words[0] and words[1] and _is_word(words[0][1]) and _is_word(words[1][1]):
            return 0.0
        if any(_SET.fullmatch(one) and _PAIR.fullmatch(other) for one, other in ((right, attempt), (attempt, right))):
            return 0.0
        numbers = value(right), value(attempt)
        if None not in numbers:
            return float(numbers[0] == numbers[1])
        return float(verify(gold(right), formula(attempt), allow_set_relation_comp=True, timeout_seconds=None))

    return same
