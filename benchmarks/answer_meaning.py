"""This module reads the kind, the parts and the value of a written answer, by rules independent of the code under
test."""

import re
from fractions import Fraction

import sympy.parsing.sympy_parser as reader

FRAC = r"\\[dt]?frac\s*(?:\{(-?\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))"
KINDS = {
    "letter": r"(\\text\{)?\(?[A-E]\)?\}?",
    "text, yes/no": r"\\text\{[A-Za-z]+\}|[A-Za-z]{2,}",
    "matrix, vector": r"\\begin\{[pb]matrix\}.*",
    "base-n": r"\d+_\{?\d+\}?",
    "percentage": r"[\d.]+\\?%",
    "units, money": r".*(\\text|\\mbox|\\circ|\\\$).*",
    "mixed number": rf"-?\d+{FRAC}",
    "integer": r"-?(\d{1,3}(,\d{3})+|\d+)",
    "decimal": r"-?\d*\.\d+",
    "fraction": rf"-?{FRAC}",
    "interval": r".*\\(cup|in|infty)\b.*|[(\[].*[)\]]!|\[.*[)\]]|\(.*\]",
    "tuple": r"\(.*,.*\)!?",
    "set, list": r".*(,|\\pm|\\\{).*",
    "equation": ".*=.*",
    "expression": ".*",
}
WORDS = ("letter", "text, yes/no")
NUMBERS = ("percentage", "units, money", "mixed number", "integer", "decimal", "fraction")


def kind_of(answer: str, problem: str) -> str:
    """Returns the first kind whose pattern fits the answer. A pair in round brackets is an interval if the problem
    says so."""
    bare = re.sub(r"\\left|\\right|\\!|\s", "", answer) + "!" * (answer[-1] == ")" and "interval" in problem)
    return next(kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, bare))


def split(text: str, marks: str) -> list[str]:
    """Returns the parts of `text` between `marks`, except inside brackets. The marks + and - stay with the part after
    them."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        cut = sign in marks and depth == 0 and "".join(parts).strip()
        parts += [sign if sign in "+-" else ""] if cut else []
        parts[-1] += "" if cut else sign
    return [part.strip() for part in parts]


def listed(gold: str) -> list[str]:
    """Returns the members of a set or list."""
    items = split(re.sub(r"\\[{}]", "", gold), ",")
    return [item.replace(r"\pm", sign) for item in items for sign in ("+-" if r"\pm" in item else "+")]


def reordered(formula: str) -> str:
    """Returns a sum with its terms in the opposite order."""
    terms = [term if term[0] in "+-" else f"+ {term}" for term in split(formula, "+-")]
    return " ".join(reversed(terms)).removeprefix("+").strip()


def evaluate(latex: str, point: int = 0) -> complex:
    """Returns a formula's value with fixed irrational numbers for its letters; raises if it cannot read the formula."""
    text = re.sub(FRAC, r"((\1\2)/(\3\4))", re.sub(r"\\(left|right|[!, ])", " ", latex))
    text = re.sub(r"\\sqrt\s*(\d)", r"\\sqrt{\1}", re.sub(r"frac\{(\w+)\}\s*(\d)", r"frac{\1}{\2}", text))
    for _ in range(4):
        text = re.sub(r"\\sqrt\s*\{([^{}]*)\}", r"((\1)**(1/2))", re.sub(r"\^\{([^{}]*)\}", r"**(\1)", text))
        text = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"((\1)/(\2))", text)
    text = re.sub(r"\\(pi|cot|cdot)", r" \1 ", text).replace("cdot", "*").replace(r"\infty", "10**30")
    rules = (*reader.standard_transformations, reader.implicit_multiplication_application, reader.convert_xor)
    tree = reader.parse_expr(text, {"i": reader.parse_expr("I")}, transformations=rules)
    return complex(tree.subs({s: reader.parse_expr(f"sqrt({ord(s.name) + 7 * point})/7") for s in tree.free_symbols}))


def meaning(kind: str, text: str) -> object:
    """Returns a value that is equal for equal answers. Numbers are compared to ten digits."""
    plain = re.sub(r"\\left|\\right|\\(begin|end)\{.*?\}", "", text)
    if kind == "interval":
        pieces = re.findall(r"([(\[])([^()\[\]]*)([)\]])", plain)
        return sorted((a, meaning("tuple", f"({body})"), b) for a, body, b in pieces), r"\cap" in plain
    if kind == "equation":
        left, right = plain.split("=")
        values = [evaluate(f"{left}-({right})", point) for point in (0, 1)]
        return (left, right) if 0 in values else f"{values[0] / values[1]:.9g}"
    if kind == "set, list":
        return sorted({meaning("expression", item) for item in listed(plain)})
    if kind in ("tuple", "matrix, vector"):
        cells = re.split(r"\\\\|&", plain) if kind[0] == "m" else split(plain.strip()[1:-1], ",")
        return tuple(meaning("expression", cell) for cell in cells)
    value = evaluate(plain)
    return f"{value.real:.10g} {value.imag:.10g}"


def number(gold: str) -> Fraction:
    """Returns a plain or mixed number, whatever its unit."""
    bare = re.sub(r"\\(text|mbox).*|\^?\{?\\circ\}?|\\!\s*|\\[%$]|[,%]", "", gold)
    parts = re.sub(FRAC, r" \1\2/\3\4", bare).replace("- ", "-").split()
    return Fraction(parts[0]) + (-1 if "-" in parts[0] else 1) * sum(map(Fraction, parts[1:]))
