"""This module runs the tests of a row in a process of their own, against the program in another one.

Names that tests use without making them are the program's, and so is what they import from `solution`.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from grpo.sandbox.peers import Channel, Peer, call

if TYPE_CHECKING:
    import ast

# Every sandbox pays for what is imported here. Only some programs need the rest.


class Unreadable(Exception):
    """This error says that tests cannot judge any program here."""


def examine(source: str, channel: Channel, verdict: int) -> None:
    """Runs tests, and writes to `verdict` why they have failed, or why they say nothing of any program."""
    peer = Peer(os.fdopen(channel[0], "rb"), os.fdopen(channel[1], "wb"), {"call": call}, imports=False)
    error, unreadable = "", False
    try:
        tree = _readable(source)
        names = peer.ask("loaded")
        if isinstance(names, str):
            error = f"the program ended in {names}"
        else:
            _run_tests(tree, peer, names)
    except Unreadable as reason:
        error, unreadable = str(reason), True
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"[:1000]
    os.write(verdict, json.dumps({"error": error, "unreadable": unreadable}).encode() + b"\n")
    os._exit(0)


def _readable(source: str) -> ast.Module:
    """Parses tests, and leaves out the line that would start them. Raises Unreadable for what is no Python, and for
    tests that import what is not installed."""
    import ast
    import importlib

    try:
        tree = ast.parse(source, "<tests>")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.Expr) and ast.unparse(node).startswith(("unittest.main(", "pytest.main(")))
    ]
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            try:
                importlib.import_module(name if name != SOLUTION else "builtins")
            except (ImportError, ValueError) as error:  # a relative import may have no name
                raise Unreadable(f"they import {name or '.'}, which is not installed: {error}") from error
    if name := _out_of_reach(tree):
        raise Unreadable(f"they use {name}, and what a program prints or imports is out of their reach")
    return tree


OUT_OF_REACH = {
    **dict.fromkeys(("mock", "unittest.mock"), ("patch", "mock_open")),
    "contextlib": ("redirect_stdout", "redirect_stderr"),
}
"""Tests use these of these modules to replace or to read what stands in the process of the program."""


def _out_of_reach(tree: ast.Module) -> str:
    """Returns what tests use of `OUT_OF_REACH`, or that they put something in the place of sys.stdout, or ""."""
    import ast

    nodes = list(ast.walk(tree))
    imported = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in OUT_OF_REACH.get(node.module or "", ())
    }
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in imported:
            return node.id
        if isinstance(node, ast.Attribute):
            module = ast.unparse(node.value)
            if node.attr in OUT_OF_REACH.get(module, ()) or (module, node.attr) == ("sys", "stdout"):
                return f"{module}.{node.attr}"
    return ""


SOLUTION = "solution"
"""Tests may import the program by this name."""


def _run_tests(tree: ast.Module, peer: Peer, names: list[str]) -> None:
    """Runs the tests, and then each that they only define: functions test_…, in classes Test… too, and unittest's.

    Raises what fails first, and Unreadable for tests that need arguments, and where nothing is tested.
    """
    import ast

    def of_program(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"the program has no {name}")
        return peer.ask("global", name)

    program = ModuleType(SOLUTION)
    program.__dict__.update(__all__=names, __getattr__=of_program)
    sys.modules[SOLUTION] = program
    space = _namespace(tree, peer, names)
    before = {*space}
    exec(compile(tree, "<tests>", "exec"), space)
    tests = [test for name, value in space.items() if name not in before for test in _tests_of(name, value)]
    skipped = [test() for test in tests]
    asserts = any(isinstance(node, ast.Assert) for node in _at_once(tree))
    if all(skipped) and not (asserts or peer.calls):
        raise Unreadable("nothing in them is run: functions named test_… are, and asserts outside of functions")


def _at_once(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of tests that run without a call."""
    import ast

    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
            yield from _at_once(child)


def _tests_of(name: str, value: Any) -> list[Callable[[], bool]]:
    """Returns the tests that a name stands for, ready to be called: each returns whether it was skipped. Raises
    Unreadable for one that needs arguments, before any test has failed, since it judges right programs no better than
    wrong ones."""
    unittest = sys.modules.get("unittest")
    if isinstance(value, FunctionType) and name.startswith("test_"):
        return [_ready(name, value)]
    if not isinstance(value, type) or value.__module__ != "tests":
        return []
    if unittest and issubclass(value, unittest.TestCase):
        cases = unittest.defaultTestLoader.loadTestsFromTestCase(value)
        return [partial(_run_cases, cases)] if cases.countTestCases() else []
    methods = [test for test in vars(value) if test.startswith("test_")] if name.startswith("Test") else []
    return [_ready(method, getattr(one := value(), method), getattr(one, "setup_method", None)) for method in methods]


def _run_cases(cases: Any) -> bool:
    """Runs the tests of a class of unittest, between its setUpClass and its tearDownClass. Raises what fails first, and
    returns whether all were skipped."""
    import unittest

    result = unittest.TestResult()
    cases.run(result)
    for _, trace in (*result.errors, *result.failures):
        raise AssertionError(trace.strip().rpartition("\n")[2])
    return len(result.skipped) >= result.testsRun


def _ready(name: str, test: Callable[[], Any], setup: Callable[..., Any] | None = None) -> Callable[[], bool]:
    import inspect

    try:
        inspect.signature(test).bind()
    except TypeError as error:
        raise Unreadable(f"{name} needs arguments, which nothing gives it ({error})") from error

    def run() -> bool:
        if setup:
            # pytest passes it the method of the test, if it takes one.
            setup(*[test][: len(inspect.signature(setup).parameters)])
        outcome = test()
        if inspect.iscoroutine(outcome):
            import asyncio

            asyncio.run(outcome)
        return False

    return run


OTHER_MODULES = {"np": "numpy", "pd": "pandas"}


def _namespace(tree: ast.Module, peer: Peer, names: list[str]) -> dict[str, Any]:
    """Returns the names that tests use and do not make themselves, as the program has them.

    A program cannot put its own function in the place of one of Python's, such as `set`, unless the tests are of
    nothing else. Nor can it stand for a module of Python's library, or for numpy.
    """
    import ast
    import importlib

    nodes = list(ast.walk(tree))
    loaded = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    made = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    made |= {node.name or "" for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    made |= {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    bases = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    own = dir(builtins)
    wanted = loaded - made
    space: dict[str, Any] = {"__name__": "tests"}
    for name in (wanted & bases & {*sys.stdlib_module_names, *OTHER_MODULES}) - {*own}:
        space[name] = importlib.import_module(OTHER_MODULES.get(name, name))
    theirs = wanted - {*own} - space.keys() or wanted & {*own}
    return space | {name: peer.ask("global", name) for name in theirs & {*names}}
