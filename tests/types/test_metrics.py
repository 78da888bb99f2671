"""These tests check that metrics are spelt in their table alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from grpo.types.metrics import TABLE

ROOT = Path(__file__).resolve().parents[2] / "grpo"
NAMES = re.compile(rf"(?<![\w/])({'|'.join(name for name in TABLE if not name.endswith('/'))})(?![\w/])")
FAMILIES = tuple(name for name in TABLE if name.endswith("/"))


def spelt(source: str) -> Iterator[str]:
    """Yields the metrics that a source spells in its strings, except docstrings. `pass_rate` is a string of its own."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found = {match.group() for match in NAMES.finditer(node.value)}
            yield from (name for name in found if "/" in name or name == node.value)
            yield from (family for family in FAMILIES if node.value.startswith(family))


def test_no_metric_is_spelt_outside_the_table():
    files = [file for file in ROOT.rglob("*.py") if file != ROOT / "types" / "metrics.py"]
    found = {str(file.relative_to(ROOT)): sorted(spelt(file.read_text())) for file in files}
    assert not {name: names for name, names in found.items() if names}


def test_a_metric_that_is_spelt_is_found():
    source = '"""Of reward/mean."""\nrow["pass_rate"]\nf"time/{phase}_seconds"\nprint("policy/entropy, or pass_rate")'
    assert sorted(spelt(source)) == ["pass_rate", "policy/entropy", "time/"]
