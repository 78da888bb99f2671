"""This module writes right answers in other forms, and nearly right answers, for benchmarks/verification.py.

Both are made by rule and without the code under test: numbers by exact fractions, formulas by edits of the LaTeX. An
edit counts as a near miss only if a separate evaluation finds that it differs from the gold. Forms that one may argue
about are left out: 50 % for 0.5, a base left out or converted, another unit or none, y = 2x + 3 without its "y =", a
multiple of an equation, a tuple for a column vector, roundings to more than two decimals.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

from answer_meaning import NUMBERS, WORDS, listed, meaning, number, reordered, split

# Each changes how a formula is written, not what it says.
REWRITES = (
    *((r"\\[dt]?frac", r"\\dfrac"), (r"\\[dt]?frac", r"\\tfrac"), (r"\\[dt]?frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}")),
    *((r"\\[dt]?frac\{(\d)\}\{(\d)\}", r"\\frac\1\2"), (r"(?<=[ \-])(\d+)/(\d+)", r"\\frac{\1}{\2}")),
    (r"(?<![\d}])\\[dt]?frac\{(-?\d+)\}\{(\d+)\}(?=\s*($|[,)\]&]|\\\\|\\right|\\end))", r"\1/\2"),
    (r"^(-?)\\[dt]?frac\{([^{}]*(?:\{\w+\})?[^{}]*)\}\{(\d+)\}$", r"\1\\frac{1}{\3} \\left(\2\\right)"),
    (r"^(-?)\\[dt]?frac\{([^{}]*(?:\{\w+\})?[^{}]*)\}\{(\d+)\}$", r"\1(\2)/\3"),
    *((r"\\sqrt\s*(\d)", r"\\sqrt{\1}"), (r"\\sqrt\{(\d)\}", r"\\sqrt\1"), (r"\\sqrt\{(\d)\}", r"\\sqrt \1")),
    *((r"(\d)\s*(\\sqrt|\\pi)", new) for new in (r"\1 \\cdot \2", r"\1*\2", r"\1\\,\2", r"\1 \2")),
    *((r"(?<![\d }])\\sqrt\{(\w+)\}", r"\1^{1/2}"), (r"(?<![a-zA-Z])\s+", ""), (r",\s*", r",\\,"), (r",\s*", r",\\ ")),
    *((r"\s*([=+])\s*", r" \1 "), (r"([(\[])([^()\[\]]*)([)\]])", r"\\left\1\2\\right\3")),
    *((r"\\(?:left|right)\s*", ""), (r"(?<!-)\\infty", r"+\\infty"), (r"(?<=[(\[, ])(\d)(?=[,)\]])", r"\1.0")),
    *((r"\^(\d)", r"^{\1}"), ("pmatrix", "bmatrix"), ("bmatrix", "pmatrix"), (r"\\mbox", r"\\text")),
)
AROUND = ("{}", "${}$", r"\displaystyle {}", "{}.", r"\,{}\,", r"\({}\)", "{{{}}}", "\n{}\n", r"\!{}\!")
FONTS = (
    *("{}", "{}.", "${}$", r"\text{{{}}}", r"\text{{{}}}.", r"\textbf{{{}}}", r"\mathrm{{{}}}", r"\mathbf{{{}}}"),
    *(r"\text{{ {} }}", r"\text{{{}.}}"),
)
MONEY = (r"\${}", r"\$ {}", "${}", r"{} \text{{ dollars}}", "{} dollars")
UNITS = (
    r"\text{ cm}",
    r"\text{ square units}",
    r"\ \text{apples}",
    r"\,\text{cm}^2",
    r" \mathrm{km/h}",
    r"\text{ ways}",
)
DEGREES = (r"^\circ", r"^{\circ}", "°", r"\text{ degrees}", " degrees")
# Each changes one sign or digit of a formula; the brackets only of an interval.
EDITS = (
    (r"\d(?!\d)", lambda digit: str((int(digit[0]) + 1) % 10)),
    (r"\+", "-"),
    ("-", "+"),
    (r"\\sqrt", ""),
    (r"\\pi", ""),
)
EDITS += ((r"^(?!-)", "-"), (r"(?<=[,&(\[{])\s*(?=\d|\\frac|\\sqrt)", "-"))
BRACKETS = ((r"\[", "("), (r"\(", "["), (r"\]", ")"), (r"\)", "]"), (r"\\cup", r"\cap"), (r"\\cup.*", ""))


def numerals(q: Fraction) -> Iterator[str]:
    """Yields the ways to write a number."""
    n, d, sign = abs(q.numerator), q.denominator, "-" * (q < 0)
    if d == 1:
        yield from (f"{sign}{n}", f"{sign}{n}.0", f"{sign}{n}.00", rf"{sign}\frac{{{2 * n}}}{{2}}")
        yield from (sign + f"{n:,}".replace(",", comma) for comma in (",", "{,}", r",\!", r"\,") if n >= 1000)
        yield from [rf"{sign}{n // 100} \times 10^2", rf"{sign}{n // 100} \cdot 10^{{2}}"] * (n > 0 == n % 100)
        return
    if 10**9 % d == 0:
        decimal = f"{Fraction(n, d):.9f}".rstrip("0") if sys.version_info >= (3, 12) else f"{n / d:.9f}".rstrip("0")
        yield from (sign + decimal, sign + decimal + "0", sign + decimal.removeprefix("0"))
    yield from (f"{sign}{n}/{d}", rf"{sign}\frac{{{2 * n}}}{{{2 * d}}}", rf"\frac{{{sign}{n}}}{{{d}}}")
    yield from (rf"{sign}\{name}{{{n}}}{{{d}}}" for name in ("frac", "dfrac", "tfrac"))
    if n > d:
        yield from (rf"{sign}{n // d}{gap}frac{{{n % d}}}{{{d}}}" for gap in ("\\", r" \d", r"\,\t"))


def right_forms(kind: str, gold: str) -> Iterator[str]:
    """Returns forms of the gold answer that a model may write and that are right."""
    if kind in WORDS:
        yield from right_words(kind, gold)
        return
    yield from (around.format(gold) for around in AROUND)
    yield from (re.sub(old, new, gold) for old, new in REWRITES if r"\left" not in gold or r"\left" not in new)
    if kind in NUMBERS:
        yield from right_numbers(kind, gold)
    else:
        yield from RIGHT[kind](gold)


def wrong_forms(kind: str, gold: str, words: set[str]) -> Iterator[str]:
    """Yields answers that are close to the gold answer but differ from it. `words` are other golds that are words."""
    if kind in WORDS:
        yield from wrong_words(kind, gold, words)
    elif kind in NUMBERS:
        yield from wrong_numbers(kind, gold)
    elif kind == "base-n":
        yield from wrong_bases(gold)
    else:
        yield from wrong_formulas(kind, gold)


def word_of(gold: str) -> str:
    return re.sub(r"\\text|[{}()]", "", gold)


def right_words(kind: str, gold: str) -> Iterator[str]:
    word = word_of(gold)
    words = (word, f"({word})") if kind == "letter" else (word, word.lower(), word.capitalize())
    yield from (font.format(word) for word in words for font in FONTS)


def wrong_words(kind: str, gold: str, words: set[str]) -> Iterator[str]:
    word = word_of(gold)
    others = set("ABCDE") if kind == "letter" else {*words, f"not {word}", word[:-1]}
    for other in sorted(others - {word, word.lower(), word.capitalize()}):
        yield from (font.format(other) for font in ("{}", r"\text{{{}}}", r"\text{{({})}}", r"\textbf{{{}}}"))
    yield from (rf"\text{{{word} or {other}}}" for other in sorted(others - {word})[:3])


def right_numbers(kind: str, gold: str) -> Iterator[str]:
    bare = list(numerals(number(gold)))
    signs = {"percentage": (r"\%", "%", r"\,\%", r"\text{ percent}", " percent"), "integer": ("",)}
    ends = DEGREES if r"\circ" in gold else signs.get(kind, ("",))
    own = ends[0] if kind == "percentage" else ""
    yield from (form + own for form in bare)
    yield from (form + end for form in bare[:4] for end in (*ends, own))
    yield from (
        font.format(bare[0] + ends[0]) for font in ("x={}", "x = {}.", "n = {}", r"\mathbf{{{}}}", r"\text{{{}}}")
    )
    yield from (bare[0] + unit for unit in UNITS if kind == "integer")
    if r"\$" in gold or kind == "integer":
        yield from (money.format(bare[0]) for money in MONEY)


def wrong_numbers(kind: str, gold: str) -> Iterator[str]:
    q = number(gold)
    n = q.numerator
    sign = r"\%" if kind == "percentage" else ""
    for other in sorted(other_numbers(kind, gold, q) - {q}):
        yield from (form + sign for form in list(numerals(other))[:6:2])
    own = next(numerals(q)) + sign
    yield from (f"{own}, {n + 1}", rf"{own} \text{{ or }} {n + 1}")
    yield from (rf"x \neq {own}", f"x > {own}", f"({own}, {n + 1})")
    if n not in (0, 1, 2):
        yield from (f"{own}x", rf"{own}\pi", f"{own}i", rf"{own}\sqrt{{2}}")
        yield from [f"{own}!"] * (n < 20)


def other_numbers(kind: str, gold: str, q: Fraction) -> set[Fraction]:
    """Returns wrong numbers near `q`: off by one, by a sign or a factor of ten, with digits swapped, inverted or
    rounded."""
    n, d = q.numerator, q.denominator
    step = Fraction(1, d if 10**9 % d == 0 else 1)
    if kind == "decimal":
        step = Fraction(1, 10 ** len(gold.partition(".")[2].strip("\\%")))
    swapped = int(re.sub(r"(\d)(\d)(?!\d)", r"\2\1", str(n)))
    near = {-q, 10 * q, q / 10, 1000 * q, q + step, q - step, q + 1, q - 1, Fraction(n, d + 1), Fraction(n + 1, d)}
    return near | {Fraction(swapped, d), Fraction(d, n or 1), Fraction(round(q, 2))}


def right_bases(gold: str) -> Iterator[str]:
    digits, base = re.findall(r"\d+", gold)
    forms = ("{}_{}", "{}_{{{}}}", "({})_{}", "({})_{{{}}}", r"{}_{{\text{{{}}}}}", r"{}_{{({})}}", r"{}\,_{{{}}}")
    yield from (form.format(digits, base) for form in forms)


def wrong_bases(gold: str) -> Iterator[str]:
    digits, base = re.findall(r"\d+", gold)
    yield from (f"{digits}_{{{other}}}" for other in range(int(base) - 1, 11) if other != int(base))
    others = {digits[::-1], digits[:-1], digits + "0", f"1{digits}"} - {digits}
    yield from (f"{wrong}_{{{base}}}" for wrong in others)


def right_sets(gold: str) -> Iterator[str]:
    for items in (listed(gold), listed(gold)[::-1]):
        inside = ", ".join(items)
        yield from (inside, rf"\{{{inside}\}}", rf"\left\{{ {inside} \right\}}")
        yield from (f"x = {inside}", f"x={', x='.join(items)}")
        yield from (rf"{', '.join(items[:-1])} \text{{ {word} }} {items[-1]}" for word in ("and", "or"))


def right_tuples(gold: str) -> Iterator[str]:
    yield f"P = {gold}"
    if len(split(gold, ",")) == 2:
        yield f"(x, y) = {gold}"


def right_intervals(gold: str) -> Iterator[str]:
    bare = gold.split(r"\in ")[-1]
    yield from (bare, rf"x \in {bare}", r" \cup ".join(reversed(bare.split(r"\cup"))))
    left, low, high, right = re.fullmatch(r"(?:\\left)?(.)(.*),(.*?)(?:\\right)?(.)", bare).groups()
    if r"\cup" not in bare:
        below, above = (" < " if mark in "()" else r" \le " for mark in (left, right))
        yield (low + below) * ("infty" not in low) + "x" + (above + high) * ("infty" not in high)


def right_matrices(gold: str) -> Iterator[str]:
    body = re.sub(r"\\(begin|end)\{.matrix\}", "", gold)
    columns = "c" * (1 + body.split(r"\\")[0].count("&"))
    yield from (rf"\left{a}\begin{{array}}{{{columns}}}{body}\end{{array}}\right{b}" for a, b in ("()", "[]"))


def right_equations(gold: str) -> Iterator[str]:
    left, right = (side.strip() for side in gold.split("="))
    yield from (f"{right} = {left}", f"{left} = {reordered(right)}")
    if left == "x":
        yield right


def right_expressions(gold: str) -> Iterator[str]:
    yield reordered(gold)


RIGHT: dict[str, Callable[[str], Iterable[str]]] = {
    "base-n": right_bases,
    "set, list": right_sets,
    "tuple": right_tuples,
    "interval": right_intervals,
    "matrix, vector": right_matrices,
    "equation": right_equations,
    "expression": right_expressions,
}


def wrong_formulas(kind: str, gold: str) -> Iterator[str]:
    wanted = meaning(kind, gold)
    for form in (*edited(kind, gold), *rearranged(kind, gold)):
        try:
            if meaning(kind, form) != wanted:
                yield form
        except Exception:  # no formula any more
            continue


def edited(kind: str, gold: str) -> Iterator[str]:
    """Returns the gold with one sign or digit changed."""
    for old, new in (*EDITS, *(BRACKETS if kind == "interval" else ())):
        for match in re.finditer(old, gold):
            yield gold[: match.start()] + (new(match) if callable(new) else new) + gold[match.end() :]


def rearranged(kind: str, gold: str) -> Iterator[str]:
    """Returns the gold list with one member more, one member less, or its members in another order."""
    if kind == "set, list":
        items = listed(gold)
        yield from (", ".join(items[:i] + items[i + 1 :]) for i in range(len(items)))
        yield ", ".join([*items, "17"])
    if kind == "tuple":
        items = split(re.sub(r"\\left|\\right", "", gold)[1:-1], ",")
        others = (items[::-1], items[:-1], [*items, "0"], items[1:] + items[:1])
        yield from (f"({', '.join(other)})" for other in others)
    if kind == "matrix, vector":
        start, body, end = re.fullmatch(r"(\\begin\{.*?\})(.*)(\\end.*)", gold).groups()
        rows = body.split(r"\\")
        yield from (start + r"\\".join(other) + end for other in (rows[::-1], rows[:-1]))
