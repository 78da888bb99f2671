# Light: imported before torch, or without it.
"""This module checks the names of vLLM's arguments before a model is loaded, and without importing vLLM.

An engine would refuse an unknown name only after the learner has loaded its model. The import of vLLM takes seconds,
and a learner with servers does without it. So the names are read from vLLM's source.
"""

import ast
import difflib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from grpo.config import RolloutConfig
from grpo.config.errors import require

# File of vLLM → classes in it whose fields are arguments, of every engine and of servers besides.
ENGINES = {"engine/arg_utils.py": ("EngineArgs",)}
SERVERS = ENGINES | {
    "engine/arg_utils.py": ("EngineArgs", "AsyncEngineArgs"),
    "entrypoints/launchers/cli_args.py": ("BaseFrontendArgs", "FrontendArgs"),
}
# Flags of servers that belong to no class.
FLAGS = {"config", "headless", "grpc", "api_server_count"}


def check_engine_arguments(rollout: RolloutConfig) -> None:
    """Raises UserError for a name in `rollout.engine_args` that the installed vLLM does not know. Where none is
    installed, it does nothing."""
    if not rollout.engine_args or not find_spec("vllm"):
        return
    servers = rollout.engine == "vllm_server"
    argument_names = known_arguments(servers)
    for argument in rollout.engine_args if argument_names else ():
        # Servers take them as flags, in which both signs are one.
        name = argument.replace("-", "_") if servers else argument
        similar_names = difflib.get_close_matches(name, argument_names, n=1)
        hint = f"; did you mean {similar_names[0]}?" if similar_names else ": leave it out, or correct its name"
        require(name in argument_names, f"rollout.engine_args.{argument} is no argument of the installed vLLM{hint}")


def known_arguments(servers: bool) -> set[str]:
    """Returns the names of the arguments of the installed vLLM's engines, or of its servers; none if its source is
    elsewhere."""
    folder = Path(find_spec("vllm").origin).parent
    files = SERVERS if servers else ENGINES
    if not all((folder / file).exists() for file in files):
        return set()
    names = {name for file, classes in files.items() for name in _fields(folder / file, classes)}
    return names | FLAGS if servers else names


def _fields(file: Path, classes: tuple[str, ...]) -> Iterator[str]:
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield line.target.id
