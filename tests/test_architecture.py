"""Who may import whom, and how large things may grow."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "grpo"
FILES = sorted(ROOT.rglob("*.py"))

# Room → rooms of grpo it may import from.
MAY_IMPORT = {
    "values": set(),
    "types": {"values"},
    "config": set(),
    "environment": set(),
    "tether": set(),
    "network": set(),
    "terminal": set(),
    "statistics": {"types", "config"},
    "interfaces": {"types", "config"},
    "run_lock": {"config", "interfaces"},
    "algorithm": {"values", "types", "config", "interfaces"},
    "dynamics": {"types", "config", "interfaces"},
    "tasks": {"types", "config"},
    "models": {"config"},
    "rollout": {"types", "config", "interfaces", "network", "terminal", "tether", "weight_sync"},
    "learner": {"types", "config", "interfaces", "network", "algorithm"},
    "weight_sync": {"config", "types", "interfaces", "network"},
    "telemetry": {"types", "config", "interfaces", "terminal"},
    "report": {"types", "config", "statistics", "telemetry", "terminal", "dynamics"},
    "measure": {"types", "interfaces", "algorithm"},
    "loop": {"types", "interfaces", "measure"},
    "evaluation": {"types", "config", "interfaces", "statistics"},
}
# The composition: these put parts together and may import everything but each other's callers.
COMPOSITION = {
    "train",
    "pipeline",
    "parts",
    "resume",
    "arguments",
    "cli",
    "eval",
    "observers",
    "launch_check",
    "doctor",
    "dynamics_command",
    "reproduce",
    "solve_rates",
    "sweep",
    "launch",
    "serve",
    "report_command",
    "__init__",
}

# Heavy package → the rooms that may name it.
HEAVY = {
    "vllm": {"rollout", "weight_sync"},
    "deepspeed": {"learner"},
    "transformers": {"learner", "rollout", "models", "train", "parts", "launch_check"},
    "peft": {"learner"},
    "aiohttp": {"rollout"},
    "datasets": {"tasks"},
    "math_verify": {"tasks"},
    "reasoning_gym": {"tasks"},
    "pebble": {"tasks"},
    "wandb": {"telemetry"},
    "mlflow": {"telemetry"},
    "tensorboard": {"telemetry"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "hydra": {"config"},
    "omegaconf": {"config"},
    "optuna": {"sweep"},
}


def room(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(file: Path) -> set[str]:
    """Every module imported at run time: what stands under `if TYPE_CHECKING` is for readers only."""
    tree = ast.parse(file.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} if node.module != "grpo" else {f"grpo.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_rooms_import_only_what_the_design_allows(file):
    own = room(file)
    used = {name.split(".")[1] for name in imports(file) if name.startswith("grpo.")} - {own}
    if own in COMPOSITION:
        return
    assert used <= MAY_IMPORT[own], f"{own} imports {used - MAY_IMPORT[own]}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_heavy_packages_are_named_in_their_own_room_only(file):
    for package in {name.split(".")[0] for name in imports(file)} & set(HEAVY):
        assert room(file) in HEAVY[package], f"{package} in {room(file)}"


def test_nobody_imports_the_entry_points():
    for file in FILES:
        if room(file) not in COMPOSITION:
            assert not imports(file) & {"grpo.train", "grpo.parts", "grpo.cli", "grpo.loop", "grpo.eval"}


def test_learner_and_rollout_never_meet():
    for file in FILES:
        if room(file) in ("learner", "rollout"):
            other = "rollout" if room(file) == "learner" else "learner"
            assert not any(name.startswith(f"grpo.{other}") for name in imports(file))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_functions_and_signatures_stay_small(file):
    source = file.read_text()
    assert source.count("\n") < 300
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            named = [argument for argument in arguments if argument.arg not in ("self", "cls")]
            assert node.end_lineno - node.lineno < 60, f"{node.name} is too long"
            assert len(named) <= 7, f"{node.name} takes too many arguments"
