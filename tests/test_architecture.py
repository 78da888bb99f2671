"""These tests check which rooms may import which, and how large files, functions and signatures may grow."""

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "grpo"
FILES = sorted(ROOT.rglob("*.py"))

# The first line of a file that is one of its own only since nothing heavy may be loaded with it.
LIGHT = "# Light: imported before torch, or without it."

# Room → rooms of grpo it may import from. The order is from the ground up.
MAY_IMPORT = {
    "__init__": set(),
    # The heart: nouns, contracts, the loop, the facts of a round.
    "types": set(),
    "interfaces": {"types"},
    "measure": {"types", "interfaces"},
    "loop": {"types", "interfaces", "measure"},
    # Every room may need these: a run's settings, and the machine.
    "config": set(),
    "host": {"config", "interfaces"},
    # Programs that a model has written run apart.
    "sandbox": {"config"},
    # The parts.
    "algorithm": {"types", "interfaces"},
    "dynamics": {"types"},
    "tasks": {"types", "config", "sandbox"},
    "models": {"config"},
    "weight_sync": {"types", "config", "interfaces", "host"},
    "rollout": {"types", "config", "interfaces", "host", "models", "weight_sync"},
    "learner": {"types", "config", "interfaces", "host", "models", "algorithm"},
    "evaluation": {"types", "config", "interfaces"},
    "telemetry": {"types", "config", "interfaces", "host"},
    # The other wing studies runs, whoever trained them. It has no part of the trainer but the readers of its files.
    "insight": {"types", "config", "host", "evaluation", "telemetry", "dynamics"},
    # The model talks with tools and environments.
    "episodes": {"types", "config", "interfaces", "rollout", "sandbox"},
    # These put a run together, and start several.
    "run": {
        *("types", "interfaces", "measure", "loop", "config", "host", "algorithm", "dynamics", "tasks", "models"),
        *("weight_sync", "rollout", "learner", "evaluation", "telemetry", "insight", "episodes"),
    },
    # This compares what a run left with its configuration. Its specification of a step shares no code with the learner.
    "audit": {"types", "measure", "config", "models", "tasks", "evaluation", "telemetry", "run"},
    "sweep": {"config", "host", "telemetry"},
    "launch": {"config", "host"},
    # This puts the engines of a run together to measure them.
    "prove": {
        *("types", "interfaces", "config", "host", "algorithm", "models", "weight_sync", "rollout", "learner"),
        *("telemetry", "run"),
    },
    # The door.
    "commands": {
        *("types", "interfaces", "config", "host", "tasks", "models", "rollout", "evaluation", "insight"),
        *("telemetry", "run", "sweep", "launch", "prove", "audit"),
    },
    "trainer": {"types", "config", "host", "telemetry", "run"},
    "cli": {"config", "host", "run"},
}

# Room → rooms whose classes it may name in annotations too, under `if TYPE_CHECKING`. A program that uses such a room
# alone imports nothing more.
MAY_ANNOTATE = {
    "interfaces": {"config"},
    "algorithm": {"config"},
    "dynamics": {"config", "interfaces"},
}

# Room → packages that it may name besides Python's own; rooms that are not here name none.
MAY_NAME = {
    "config": {"hydra", "omegaconf", "yaml"},
    "host": {"psutil", "rich", "torch"},
    "algorithm": {"torch"},
    "dynamics": {"numpy", "scipy"},
    "tasks": {"numpy", "pyarrow", "datasets", "math_verify", "reasoning_gym", "pebble", "cloudpickle", "aiohttp"},
    "models": {"torch", "transformers", "tokenizers", "safetensors", "gguf", "huggingface_hub", "filelock"},
    "weight_sync": {"torch", "vllm"},
    "rollout": {"torch", "transformers", "vllm", "aiohttp"},
    "learner": {"torch", "transformers", "deepspeed", "peft", "safetensors"},
    "evaluation": {"numpy", "scipy"},
    "telemetry": {"torch", "rich", "pyarrow", "wandb", "mlflow"},
    "episodes": {"cloudpickle", "transformers", "aiohttp", "verifiers"},
    "insight": {"numpy", "scipy", "matplotlib", "jinja2", "rich", "pyarrow", "tensorboard"},
    "run": {"torch", "transformers", "safetensors", "fsspec"},
    "audit": {"torch", "transformers", "safetensors"},
    "launch": {"torch"},
    "prove": {"torch", "transformers"},
    "commands": {"torch", "scipy", "rich"},
    "trainer": {"torch", "pandas"},
}

# Heavy packages that one room hides from all others.
HIDDEN = {
    *("deepspeed", "peft", "datasets", "math_verify", "reasoning_gym", "pebble", "wandb", "mlflow"),
    *("tensorboard", "matplotlib", "jinja2", "hydra", "omegaconf"),
}
# These put a run together or may call it. `cli` imports the commands by name.
CALLERS = {
    "cli": set(),
    "commands": set(),
    "run": {"commands", "trainer", "prove", "audit", "cli"},
    "loop": {"run"},
    "measure": {"loop", "run", "audit"},
    # This is the wall between the trainer and what studies runs.
    "insight": {"run", "commands"},
}


def room(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


parsed = cache(ast.parse)


@cache
def imports(source: str, annotations: bool = False) -> set[str]:
    """Returns every module that is imported at run time, or with `annotations` those under `if TYPE_CHECKING`."""
    tree = parsed(source)
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and isinstance(branch.test, ast.Name) and branch.test.id == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    modules = set()
    for node in ast.walk(tree):
        if (id(node) in typing_only) != annotations:
            continue
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are written in full"
            modules |= {node.module} if node.module != "grpo" else {f"grpo.{alias.name}" for alias in node.names}
    return modules


def forbidden(own: str, source: str) -> set[str]:
    """Returns the rooms and packages that a file of room `own` imports although it may not."""
    modules = imports(source)
    rooms = {name.split(".")[1] for name in modules if name.startswith("grpo.")} - {own}
    packages = {name.split(".")[0] for name in modules} - {"grpo"} - sys.stdlib_module_names
    return (rooms - MAY_IMPORT[own]) | (packages - MAY_NAME.get(own, set()))


def test_rooms_import_only_what_the_design_allows():
    found = {str(file.relative_to(ROOT)): forbidden(room(file), file.read_text()) for file in FILES}
    assert not {name: rooms for name, rooms in found.items() if rooms}


def test_annotations_name_only_what_the_design_allows():
    named = {own: set() for own in MAY_IMPORT}
    for file in FILES:
        modules = imports(file.read_text(), annotations=True)
        named[room(file)] |= {name.split(".")[1] for name in modules if name.startswith("grpo.")} - {room(file)}
    more = {own: rooms - MAY_IMPORT[own] for own, rooms in named.items()}
    assert {own: rooms for own, rooms in more.items() if rooms} == MAY_ANNOTATE


@pytest.mark.parametrize(
    ("own", "source", "caught"),
    [
        ("run", "import grpo.cli", {"cli"}),
        ("rollout", "from grpo.run import session", {"run"}),
        ("dynamics", "import torch, pandas", {"torch", "pandas"}),
        ("algorithm", "def f():\n    import requests, logging", {"requests"}),
        ("learner", "from grpo.rollout.engine_arguments import sample_seed", {"rollout"}),
        ("rollout", "from deepspeed.runtime import zero", {"deepspeed"}),
        ("types", "if TYPE_CHECKING:\n    import torch", set()),
    ],
)
def test_a_forbidden_import_would_be_found(own, source, caught):
    assert forbidden(own, source) == caught


def test_every_room_is_described_and_no_other():
    rooms = {room(file) for file in FILES}
    assert set(MAY_IMPORT) == rooms
    assert set(MAY_NAME) <= rooms


def test_nothing_is_allowed_that_no_file_needs():
    modules = {own: set() for own in MAY_IMPORT}
    for file in FILES:
        modules[room(file)] |= imports(file.read_text())
    # `_package` in the trackers imports mlflow by its name.
    modules["telemetry"].add("mlflow")
    rooms = {own: {name.split(".")[1] for name in names if "grpo." in name} for own, names in modules.items()}
    packages = {own: {name.split(".")[0] for name in names} for own, names in modules.items()}
    assert not {own: allowed - rooms[own] for own, allowed in MAY_IMPORT.items() if allowed - rooms[own]}
    assert not {own: allowed - packages[own] for own, allowed in MAY_NAME.items() if allowed - packages[own]}


def test_no_two_rooms_import_each_other_in_a_circle():
    order = list(graphlib.TopologicalSorter(MAY_IMPORT).static_order())
    assert set(order) == set(MAY_IMPORT)


def module(file: Path) -> str:
    return ".".join(("grpo", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def imported_files(source: str, files: dict[str, Path]) -> set[str]:
    """Returns the files of grpo that a source imports anywhere. `from package import file` counts as the file, not as
    the package."""
    names, at_run_time = set(), imports(source)
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ImportFrom) and node.module in at_run_time:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= members & set(files) or {node.module}
    return names & set(files)


def test_no_two_files_import_each_other_in_a_circle():
    files = {module(file): file for file in FILES}
    graph = {name: imported_files(file.read_text(), files) - {name} for name, file in files.items()}
    assert set(graphlib.TopologicalSorter(graph).static_order()) == set(files)


def test_benchmarks_import_nothing_of_the_tests():
    for file in (ROOT.parent / "benchmarks").rglob("*.py"):
        assert "tests" not in {name.split(".")[0] for name in imports(file.read_text())}, file


def test_a_command_imports_no_other_command():
    for file in (ROOT / "commands").glob("*.py"):
        others = {name for name in imports(file.read_text()) if name.startswith("grpo.commands.")}
        assert others <= {"grpo.commands.words"}


def test_a_heavy_package_is_named_in_one_room_only():
    for package in HIDDEN:
        assert len([own for own, named in MAY_NAME.items() if package in named]) == 1, package
    assert {own for own, named in MAY_NAME.items() if "vllm" in named} == {"rollout", "weight_sync"}
    assert {own for own, named in MAY_NAME.items() if "aiohttp" in named} == {"rollout", "tasks", "episodes"}


def test_every_package_that_is_imported_is_declared():
    """An installation gets all that the package imports, the wings each with their own."""
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    known = {"hydra-core": "hydra", "pyyaml": "yaml", "mlflow-skinny": "mlflow"}

    def declared(lines):
        names = [re.match(r"[\w-]+", line)[0] for line in lines]
        return {known.get(name, name).replace("-", "_") for name in names}

    light = declared(project["dependencies"])
    everything = light.union(*map(declared, extras.values()))
    assert set().union(*MAY_NAME.values()) <= everything
    # Files that these rooms only read where somebody has them need more.
    assert MAY_NAME["insight"] | MAY_NAME["dynamics"] | MAY_NAME["evaluation"] | MAY_NAME["config"] <= light | {
        *("pyarrow", "tensorboard")
    }


def test_a_run_is_put_together_in_one_place():
    for entry, callers in CALLERS.items():
        assert {own for own, allowed in MAY_IMPORT.items() if entry in allowed} == callers


def loaded(names: list[str]) -> str:
    """Returns which heavy packages a fresh process has after it has imported modules."""
    heavy = ("torch", "transformers", "deepspeed", "vllm", "datasets", "wandb", "pandas")
    program = f"import sys, importlib\nfor name in {names}: importlib.import_module(name)\n"
    program += f"print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT.parent)
    return done.stdout + done.stderr


def test_insight_loads_nothing_of_the_trainer():
    """The light package installs none of these."""
    assert loaded(sorted(module(file) for file in FILES if room(file) == "insight")) == "[]\n"


def test_files_that_bear_the_mark_load_nothing_heavy():
    """They are files of their own, beside others that do, since they are needed before torch or without it."""
    light = sorted(module(file) for file in FILES if file.read_text().startswith(LIGHT))
    assert len(light) == 11
    assert loaded(light) == "[]\n"


def test_below_run_a_part_takes_its_own_sections_of_a_configuration():
    """A schedule is chosen by keys of seven sections, and whole saved configurations are what insight compares."""
    whole = {room(file) for file in FILES if re.search(r"\bTrainConfig\b", file.read_text())}
    assert whole & MAY_IMPORT["run"] == {"config", "dynamics", "insight"}


def test_learner_and_rollout_never_meet():
    assert "learner" not in MAY_IMPORT["rollout"] and "rollout" not in MAY_IMPORT["learner"]


def too_large(source: str) -> Iterator[str]:
    """Yields what of a file is too large for its reader: the file itself, or a function or a signature by its name."""
    if source.count("\n") >= 400:
        yield "the file"
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            named = [argument for argument in arguments if argument.arg not in ("self", "cls")]
            if node.end_lineno - node.lineno >= 60 or len(named) > 7:
                yield node.name


def test_files_functions_and_signatures_stay_small():
    found = {str(file.relative_to(ROOT)): list(too_large(file.read_text())) for file in FILES}
    assert not {name: parts for name, parts in found.items() if parts}
    assert list(too_large("def f(a, b, c, d, e, f, g, h): ...\n" + "\n" * 400)) == ["the file", "f"]


def test_the_map_of_a_room_names_all_of_its_files():
    for folder in sorted(path.parent for path in ROOT.glob("*/**/__init__.py")):
        named = set(re.findall(r"[\w-]+", ast.get_docstring(parsed((folder / "__init__.py").read_text()))))
        inside = {path.stem for path in folder.glob("*.py")} | {
            path.parent.name for path in folder.glob("*/__init__.py")
        }
        # A command is named by its file already, and `words` is what the commands share.
        if folder.name != "commands":
            assert inside - {"__init__"} <= {word.replace("-", "_") for word in named}, folder
