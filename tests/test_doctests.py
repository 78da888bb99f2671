"""The examples in docstrings say what happens."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in sorted((ROOT / "grpo").rglob("*.py"))
    if ">>> " in file.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_what_it_does(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried and not failed


def test_the_types_whose_layout_is_not_obvious_have_examples():
    assert {f"grpo.{name}" for name in ("types.learning", "types.rollout", "types.rounds", "algorithm.packing")} <= {
        *MODULES
    }
