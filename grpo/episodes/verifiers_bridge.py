"""This module plays environments of Prime Intellect's verifiers (0.4), in a Python of their own.

verifiers needs packages in other versions than the trainer does, so it is installed beside it and reaches the policy
through the gateway. `bash launch/verifiers.sh ID` makes that Python, and calls this program to write the tasks of an
environment to ID.jsonl:

    python -m grpo.episodes.verifiers_bridge FILE ID [KEY=VALUE …]

Keys that begin with `select.` are those of verifiers' SelectConfig, such as select.limit=2000.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from grpo.config.errors import UserError
from grpo.episodes.messages import POLICY
from grpo.types import Problem

DEFAULTS = {"agent.harness.id": "null", "agent.runtime.type": "subprocess"}
"""The policy talks without tools of its own, in a process of this machine, unless the words say otherwise."""


def player(words: Sequence[str]) -> Callable[[Any, Problem], Awaitable[dict[str, float]]]:
    """Returns a function that plays one task of an environment. `words` are its ID, and keys of its configuration, such
    as agent.harness.id=bash. Its rewards are those of the task, weighted, and "reward" is their sum."""
    env = _environment(words)
    kind = type(env.taskset).task_type()

    async def solve(chat: Any, problem: Problem) -> dict[str, float]:
        task = kind(kind.data_type().model_validate(problem.metadata["task"]), env.taskset.config.task)
        client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
        async with env.serving():
            [slot] = env.slots(task)
            episode = await env.run_slot(slot, vf.ModelContext(model=POLICY, client=client))
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors:
            raise RuntimeError(f"{errors[-1].type}: {errors[-1].message}")
        named: dict[str, float] = {}
        for trace in episode.traces:
            for name, reward in trace.rewards.items():
                named[name] = named.get(name, 0.0) + (reward.value if reward else 0.0)
        return {**named, "reward": sum(named.values())}

    return solve


def _nested(settings: Mapping[str, str]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *folders, last = key.split(".")
        place = nested
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return nested


def _environment(words: Sequence[str]) -> Any:
    name, *settings = words
    nested = _nested({**DEFAULTS, "taskset.id": name, **dict(word.split("=", 1) for word in settings)})
    try:
        return vf.load_environment(vf.env_config_type(name)(**nested))
    except ModuleNotFoundError as error:
        raise UserError(f"verifiers finds no environment {name} ({error}): install its package beside it") from error


def _tasks(words: Sequence[str]) -> list[Any]:
    """Returns the tasks of an environment that `select.` keys choose, or all."""
    selection = {word for word in words if word.startswith("select.")}
    taskset = _environment([word for word in words if word not in selection]).taskset
    chosen = _nested(dict(word.split("=", 1) for word in selection)).get("select", {})
    taskset = taskset.select(vf.SelectConfig(**chosen))
    if not taskset.bounded:
        raise UserError(f"{words[0]} makes tasks without end: add select.limit=2000, or another number of them")
    try:
        return [*taskset]
    except Exception as error:
        raise UserError(f"{words[0]} cannot make its tasks ({type(error).__name__}: {error})") from error


def main(arguments: Sequence[str]) -> int:
    """Writes the tasks of an environment as lines of JSON, which `task=verifiers` reads."""
    file, *words = arguments
    try:
        tasks = _tasks(words)
    except UserError as error:
        print(f"verifiers: {error}", file=sys.stderr)
        return 2
    rows = []
    for task in tasks:
        data = task.data.model_dump(mode="json", exclude_none=True)
        rows.append(json.dumps({"problem": task.data.prompt_text or f"task {len(rows)}", "task": data}))
    Path(file).write_text("\n".join(rows) + "\n")
    print(f"{len(rows)} tasks of {words[0]} written to {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
