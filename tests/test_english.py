"""These tests find sentences that do not begin with the thing that acts, and names that puzzle a stranger."""

import ast
import functools
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("README.md", "grpo", "tests", "benchmarks", "launch", "configs")
START = r"(?:^|[.!?:;][\"')*]{0,3} )[\"'(*]*"
SENTENCES = {
    "begins with a clause that stands for a noun": re.compile(
        START + r"(?:What|Who|Whoever|Of (?:an?|the|every|each|two|several|all|these|those|somebody))\b"
    ),
    "says nobody who acts": re.compile(
        r"\b(?:is|are|was|were|be|been|being) (?:\w+ )?(?:told|asked of|seen to|said of)\b"
    ),
    "has a riddle": re.compile(
        r"\bfor want of\b|\bas many (?:[\w-]+ ){0,5}as\b|\bof which nearly\b|\bno fault of\b", re.IGNORECASE
    ),
}
RIDDLES = {"held", "told", "mend", "standing"}
TEST_STARTS = ("test_what", "test_whoever", "test_of_")
KEPT = {("grpo/dynamics/adaptive_state.py", "told")}
"""Checkpoints hold these names."""


def is_sentence(rest: str) -> bool:
    """Says whether what begins with these words ends as a sentence does, and not as a question or a heading."""
    end = re.search(r"[.!?:](?=\W*(?:\s|$))", rest)
    return end is not None and end.group() != "?"


def odd_sentences(text: str) -> list[str]:
    """Returns the beginnings of the odd places of a text, each with its pattern."""
    found = []
    for pattern, regex in SENTENCES.items():
        for match in regex.finditer(text):
            if is_sentence(text[match.end() :]) or not pattern.startswith("begins"):
                words = text[match.start() : match.end() + 50].strip(".!?:;\"'*() ")
                found.append(f"{pattern}: {words}")
    return found


def is_odd_name(name: str) -> bool:
    """Says whether a name contains a riddle, or is that of a test which begins with one."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("held_out", "").split("_")
    return bool(RIDDLES.intersection(words)) or name.startswith(TEST_STARTS)


def comments(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Joins comments of consecutive lines to one text each, which ends as a sentence does."""
    joined: list[tuple[int, str]] = []
    last = -1
    for line, text in lines:
        if line == last + 1:
            joined[-1] = (joined[-1][0], f"{joined[-1][1]} {text}")
        else:
            joined.append((line, text))
        last = line
    return [(line, text if text.endswith((".", ":", "?")) else f"{text}.") for line, text in joined]


@functools.lru_cache(maxsize=1)
def nodes(source: str) -> list[ast.AST]:
    """Returns all nodes of Python code. Texts and names are both read from those of the last file."""
    return [*ast.walk(ast.parse(source))]


def python_texts(source: str) -> list[tuple[int, str]]:
    """Returns the docstrings, comments and strings of three words or more in Python, each with its line."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = comments([(t.start[0], t.string.lstrip("#").strip()) for t in tokens if t.type == tokenize.COMMENT])
    pieces: set[int] = set()
    for node in nodes(source):
        if isinstance(node, ast.JoinedStr):
            pieces.update(id(value) for value in node.values)
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
            found.append((node.lineno, text))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
            found += [(node.lineno, paragraph) for paragraph in node.value.split("\n\n")]
    return [(line, " ".join(text.split())) for line, text in found if len(text.split()) > 2]


def python_names(source: str) -> list[tuple[int, str]]:
    """Returns the names that Python code gives to functions, classes, parameters, variables and attributes."""
    found = []
    for node in nodes(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append((node.lineno, node.name))
        elif isinstance(node, ast.arg):
            found.append((node.lineno, node.arg))
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.append((node.lineno, node.id if isinstance(node, ast.Name) else node.attr))
    return found


def markdown_texts(source: str) -> list[tuple[int, str]]:
    """Returns paragraphs, points and cells of tables, without headings and code."""
    found: list[tuple[int, str]] = []
    lines = re.sub(r"```.*?```", lambda block: "\n" * block.group().count("\n"), source, flags=re.DOTALL).split("\n")
    ended = True
    for number, line in enumerate(lines, 1):
        heads_table = number < len(lines) and re.match(r"\|[\s:|-]+$", lines[number])
        if not line.strip() or line.startswith("#") or heads_table:
            ended = True
        elif line.startswith("|"):
            found += [(number, cell.strip()) for cell in line.strip("|").split("|")]
            ended = True
        elif ended or re.match(r"\s*(?:[-*+]|\d+\.) ", line):
            found.append((number, re.sub(r"^\s*(?:[-*+]|\d+\.) ", "", line).strip()))
            ended = False
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return [(number, re.sub(r"`[^`]*`", "`…`", text)) for number, text in found]


def other_texts(source: str) -> list[tuple[int, str]]:
    """Returns the comments of YAML and shell."""
    found = [(n, re.search(r"(?:^|\s)#+ (.*)", line)) for n, line in enumerate(source.split("\n"), 1)]
    return comments([(number, match.group(1).strip()) for number, match in found if match])


def offenders(path: Path) -> list[str]:
    """Returns each odd sentence and name of a file, with its line."""
    source = path.read_text()
    where = path.relative_to(ROOT)
    names = python_names(source) if path.suffix == ".py" else []
    names = [(line, name) for line, name in names if is_odd_name(name) and (str(where), name) not in KEPT]
    texts = {".py": python_texts, ".md": markdown_texts}.get(path.suffix, other_texts)(source)
    found = [f"{where}:{line}: {words}" for line, text in texts for words in odd_sentences(text)]
    return found + [f"{where}:{line}: name: {name}" for line, name in names]


def files() -> list[Path]:
    """Returns the files of these folders that people write."""
    found = [path for name in FOLDERS for path in ((ROOT / name), *(ROOT / name).rglob("*"))]
    written = [path for path in found if path.suffix in (".py", ".md", ".yaml", ".sh") or path.name == "Dockerfile"]
    return sorted(path for path in written if path != Path(__file__).resolve())


def test_sentences_begin_with_the_thing_that_acts():
    found = [line for path in files() for line in offenders(path)]
    assert not found, "\n".join([f"{len(found)} places:", *found])


BAD = [
    "What one rank reads is read by all.",
    "Returns the rows. What is left out is counted.",
    "Who waits is woken.",
    "Whoever asks gets an answer.",
    "Of several ranks, each keeps its engine. Is that so?",
    "Note: Of the groups one counts.",
    "**Rows count.** What is lost stays.",
    'He says "yes." Who asks knows.',
    "The user is told the key.",
    "Losses are not told.",
    "Much is asked of a server.",
    "It fails for want of room.",
    "The grid has as many rows as the table.",
    "Rewards of which nearly all come from the format.",
    "The grader broke by no fault of the completion.",
]
GOOD = [
    "Each rank reads what the first wrote.",
    "What is 3 + 4.5?",
    "It stops. What is 3 + 4.5?",
    "A message names the key.",
    "What a step costs",
    "Offsets count from the start.",
    "Whole rows are read.",
    "The log tells which rank failed.",
    "The run asks each server for its version.",
]


@pytest.mark.parametrize("text", BAD)
def test_the_check_finds_an_odd_sentence(text):
    assert odd_sentences(text)


@pytest.mark.parametrize("text", GOOD)
def test_the_check_leaves_a_plain_sentence(text):
    assert odd_sentences(text) == []


@pytest.mark.parametrize(
    "name", ["test_what_is_lost", "test_of_two_one", "held", "is_told", "Held", "HeldPorts", "_mend"]
)
def test_the_check_finds_an_odd_name(name):
    assert is_odd_name(name)


@pytest.mark.parametrize(
    "name", ["held_out", "held_out_fraction", "test_ranks_say_what_is_lost", "recommended", "withheld"]
)
def test_the_check_leaves_a_plain_name(name):
    assert not is_odd_name(name)


PYTHON = '''
def f(told):
    """Reads.

    What is left
    stays."""
    # The user is
    # told.
    raise Error(f"For {told} what it is told")
'''
PAGE = """# What it is

| What | is |
|---|---|
| Of the rows one counts. | `it is told` |

- Whoever
  asks.
```
What is x
```
"""


def test_the_check_reads_docstrings_comments_messages_and_names_of_python():
    assert sorted(line for line, text in python_texts(PYTHON) if odd_sentences(text)) == [3, 7, 9]
    assert [name for _, name in python_names(PYTHON) if is_odd_name(name)] == ["told"]


def test_the_check_reads_paragraphs_points_and_cells_of_a_page_without_headings_and_code():
    assert [line for line, text in markdown_texts(PAGE) if odd_sentences(text)] == [5, 7]


def test_the_check_reads_comments_of_yaml():
    assert [line for line, text in other_texts("key: 1  # What is\n# x\nother: 2") if odd_sentences(text)] == [1]
