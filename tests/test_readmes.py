"""These tests hold that links of the README files lead somewhere, that files exist, and that commands are
understood."""

import re
import shlex
from pathlib import Path

import pytest

from grpo.commands.sweep import OWN_KEYS
from grpo.config.hydra import compose_config, compose_sweep
from grpo.config.sweep import grid, plain

ROOT = Path(__file__).resolve().parent.parent
# Not those that pytest and runs leave in folders of their own.
FOLDERS = ("grpo", "configs", "launch", "tests", "benchmarks")
FILES = [ROOT / "README.md", *(file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.md")))]
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
OF_A_RUN = re.compile(
    r"(?:grpo (?:train|launch|serve|eval|solve-rates|check-reward)|bash launch/node\.sh|sbatch .*?launch/slurm\.sh) "
)


def name_of(file):
    return str(file.relative_to(ROOT))


def prose(file):
    """Returns the text of a file without its blocks of code."""
    return BLOCK.sub("", file.read_text())


def anchors(file):
    """Returns the fragments (#…) that GitHub gives to the headings of a file."""
    headings = re.findall(r"^#+ (.*)$", prose(file), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(file):
    """Returns every line of the file's shell code blocks, and every piece of inline code."""
    blocks = [text for language, text in BLOCK.findall(file.read_text()) if language == "bash"]
    lines = [line for text in blocks for line in text.replace("\\\n", " ").splitlines()]
    pieces = re.findall(r"`([^`]+)`", prose(file).replace(r"\|", "|"))
    return lines + [" ".join(piece.split()) for piece in pieces]


def keys(command):
    """Returns the `key=value` words of a command. "…" stands for words of the reader's own, and N for a number."""
    return [word.replace("=N", "=1") for word in shlex.split(command, comments=True) if re.match(r"[\w+/.@]+=", word)]


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_link_leads_somewhere(file):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(file)):
        path, _, fragment = link.partition("#")
        if not path.startswith("http"):
            linked = file.parent / path if path else file
            assert linked.exists(), link
            assert not fragment or fragment in anchors(linked), link


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_file_that_is_named_exists(file):
    named = re.findall(r"`((?:grpo|benchmarks|configs|launch|tests)/[\w/]+\.(?:py|sh|yaml|md))`", file.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []
    modules = {path.name for folder in ("grpo", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py")}
    own = {"rewards.py", "my_losses.py"}
    assert set(re.findall(r"`(\w+\.py)`", file.read_text())) <= modules | own


@pytest.mark.slow
@pytest.mark.parametrize("file", [file for file in FILES if file.parent.name != "configs"], ids=name_of)
def test_every_command_of_a_run_is_understood(file):
    for words in dict.fromkeys(tuple(keys(command)) for command in commands(file) if OF_A_RUN.match(command)):
        assert compose_config(list(words)).num_steps > 0


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_sweep_is_understood(file):
    for command in commands(file):
        if command.startswith("grpo sweep ") and (words := keys(command)):
            [preset] = [word for word in words if word.startswith("sweep=")]
            of_sweep = [word for word in words if word.partition("=")[0] in OWN_KEYS]
            of_runs = [word for word in words if word not in (preset, *of_sweep) and not word.startswith("hydra")]
            assert compose_sweep(preset.removeprefix("sweep="), of_sweep).variants
            last = [f"{key}={value}" for key, value in grid(of_runs)[-1].items()]
            compose_config([*plain(of_runs), *last])


def test_every_benchmark_is_described():
    scripts = [path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()]
    scripts += (ROOT / "benchmarks").glob("*.sh")
    table = (ROOT / "benchmarks" / "README.md").read_text()
    assert scripts and [path.name for path in scripts if f"`{path.name}" not in table] == []


def test_the_map_shows_every_room_and_no_other():
    tree, *_ = [text for _, text in BLOCK.findall((ROOT / "grpo" / "README.md").read_text())]
    inside = tree.partition("configs/  ")[0].removeprefix("grpo/\n")
    drawn = re.findall(r"(?:^| )(\w+)(?:/|\.py)(?= )", inside, re.MULTILINE)
    rooms = [path.stem for path in (ROOT / "grpo").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    assert sorted(drawn) == sorted(set(rooms) - {"__init__"})
    assert re.findall(r"^(\w+)/ ", tree, re.MULTILINE) == ["configs", "launch", "benchmarks"]
