"""This script changes one operator or constant at a time, and reports which changes the quick tests do not notice.

python benchmarks/mutants.py FOLDER [NUMBER] [SEED] [PATH …]    (40 mutants, seed 1, the rooms below)

FOLDER gets a copy of the tree, which alone is changed, and `mutants.jsonl`, a row for each mutant. A script that is
started again goes on there. Each mutant is drawn from one of the paths in turn. Its tests are those of the folder of
the same name and the examples in its docstrings. The processes of tests are forked from this one, which has imported
what is heavy.
"""

import ast
import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("algorithm", "dynamics", "tasks", "config", "evaluation", "insight", "loop.py", "measure.py")
HEAVY = ("numpy", "torch", "scipy.stats", "scipy.optimize", "matplotlib.pyplot", "hydra", "hypothesis", "rich.console")
HEAVY += ("transformers", "datasets", "jinja2", "pyarrow.parquet")
OTHER = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div},
}
# Other values of these change nothing that a program does when it is right.
DECLARATIONS = ("frozen", "strict", "init", "repr", "slots")


def changed(node: ast.AST) -> ast.AST | None:
    """Returns a copy of a node with another operator or constant, or nothing if it has none."""
    other = deepcopy(node)
    match other:
        case ast.Compare(ops=[operator, *_]) if type(operator) in OTHER:
            other.ops[0] = OTHER[type(operator)]()
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in OTHER:
            other.op = OTHER[type(operator)]()
        case ast.UnaryOp(op=ast.Not()):
            return other.operand
        case ast.Constant(value=bool()):
            other.value = not node.value
        case ast.Constant(value=int()):
            other.value += 1
        case ast.Constant(value=float()):
            other.value = other.value * 2 or 1.0
        case _:
            return None
    return other


def sites(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes that can be changed, without annotations, decorators, and strings with values in them."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg in DECLARATIONS):
        return
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if changed(node):
        yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from sites(child)


def mutated(source: str, node: ast.AST) -> tuple[str, str, str]:
    """Returns the source with a node changed, and what stood and stands there."""
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    after = ast.unparse(changed(node))
    text = b"".join(lines)
    return (text[:start] + after.encode() + text[end:]).decode(), text[start:end].decode(), after


def tests_of(file: Path) -> list[str]:
    """Returns the words for pytest that run the quick tests of a file of the package."""
    room = file.relative_to("grpo").parts[0]
    name = ".".join(file.with_suffix("").parts)
    own = f"tests/test_{room}" if room.endswith(".py") else f"tests/{room}"
    examples = [f"tests/test_doctests.py::test_the_examples_of_a_module_are_what_it_does[{name}]"]
    return [*(examples if ">>> " in file.read_text() else []), own, "tests/test_properties.py"]


def run(words: list[str], limit: float) -> tuple[str, float]:
    """Runs pytest in a forked process. Returns "passed", or what else became of it, and its seconds."""
    start = time.monotonic()
    if not (child := os.fork()):
        os.setsid()
        output = os.open("../last.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        import pytest

        os._exit(pytest.main(["-x", "-m", "not slow", "-p", "no:cacheprovider", *words]))
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        seconds = round(time.monotonic() - start, 1)
        if pid:
            return {0: "passed", 1: "killed"}.get(os.waitstatus_to_exitcode(status), "broken"), seconds
        if seconds > limit:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "too long", seconds
        time.sleep(0.1)


def drawn(paths: tuple[str, ...], number: int, seed: int) -> list[tuple[Path, int]]:
    """Draws mutants from the paths in turn: a file, and which of its sites."""
    chance = random.Random(seed)
    of_path = []
    for path in paths:
        files = sorted(Path("grpo", path).rglob("*.py")) if not path.endswith(".py") else [Path("grpo", path)]
        all_of_path = [(file, at) for file in files for at, _ in enumerate(sites(ast.parse(file.read_text())))]
        of_path.append(chance.sample(all_of_path, len(all_of_path)))
    turns = (own[turn] for turn in range(max(map(len, of_path))) for own in of_path if turn < len(own))
    return [mutant for _, mutant in zip(range(number), turns, strict=False)]


def prepare(folder: Path) -> None:
    """Goes into a copy of the tree, and imports what is heavy, but nothing of the project."""
    if not (folder / "original").exists():
        shutil.copytree(ROOT, folder / "original", ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__"))
    # A script that was killed has left a mutant behind.
    shutil.copytree(folder / "original", folder / "tree", dirs_exist_ok=True)
    os.chdir(folder / "tree")
    sys.path[:] = [str(Path.cwd()), *(path for path in sys.path if path not in (str(ROOT), str(ROOT / "benchmarks")))]
    # These stand before torch is imported. No server that starts programs fast is started: quick tests need none.
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GRPO_TESTS_WARM": "none", "PYTHONPATH": "."}
    for name in HEAVY:
        importlib.import_module(name)


def main(folder: str, number: str = "40", seed: str = "1", *paths: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    rows = Path(folder).resolve() / "mutants.jsonl"
    prepare(rows.parent)
    mutants = drawn(paths or ROOMS, int(number), int(seed))
    done = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    limits = {}
    for index, (file, at) in enumerate(mutants[len(done) :], len(done) + 1):
        words, source, stood = tests_of(file), file.read_text(), file.stat().st_mtime
        if words[-2] not in limits:
            fate, seconds = run(words[-2:], 900)
            assert fate == "passed", f"{words[-2]} fails as it is: see {rows.parent}/last.txt"
            limits[words[-2]] = 30 + 3 * seconds
        node = next(node for number, node in zip(count(), sites(ast.parse(source))) if number == at)
        text, before, after = mutated(source, node)
        try:
            file.write_text(text)
            # Python compiles a file anew whose time has changed, and two mutants may be made within one second.
            os.utime(file, (index, index))
            fate, seconds = run(words, limits[words[-2]])
        finally:
            file.write_text(source)
            os.utime(file, (stood, stood))
        row = {"file": str(file), "line": node.lineno, "before": before, "after": after, "fate": fate, "s": seconds}
        with rows.open("a") as out:
            out.write(json.dumps(row) + "\n")
        done.append(row)
        print(json.dumps(row), flush=True)
    passed = [row for row in done if row["fate"] == "passed"]
    print(f"{len(done) - len(passed)} of {len(done)} mutants are noticed")
    for row in passed:
        print(f"{row['file']}:{row['line']}  {row['before']}  →  {row['after']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
