"""This module tells how a run was started: its command, seed, machine and versions, and when and by whom."""

import json
from pathlib import Path
from typing import Any

from grpo.config.folder import CODE_FILE, PATCH_FILE
from grpo.host.terminal import clean
from grpo.telemetry.json_lines import Row


def run_facts(output: Path, config: Row) -> list[tuple[str, str]]:
    """Returns a table of what is known of the start of the run in `output`, a header and a row for each fact."""
    code = _code(output)
    start, versions = code.get("start", {}), code.get("versions", {})
    changed = f", with changes ({PATCH_FILE})" if code.get("changed") else ""
    by_whom = " on ".join(start[name] for name in ("user", "host") if name in start)
    rows = [
        ("command", start.get("command")),
        ("seed", config.get("seed")),
        ("model and task", about(config)),
        ("machine", start.get("processors")),
        ("processes that learn", _ranks(config)),
        ("started or last resumed", ", by ".join(part for part in (start.get("time"), by_whom) if part)),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
        ("commit of grpo", f"{code['commit']}{changed}" if "commit" in code else ""),
    ]
    return [("what", "value"), *((name, clean(str(value))) for name, value in rows if value not in (None, ""))]


def about(config: Row) -> str:
    """Names the model and the task of a run, as its settings do."""
    model, task = config.get("model", {}), config.get("task", {})
    model_name = model.get("path") or model.get("source", "")
    named = [f"{word} {name}" for word, name in (("model", model_name), ("task", task.get("name"))) if name]
    return clean(" · ".join(named))


def _code(output: Path) -> dict[str, Any]:
    """Returns the content of code.json, which is empty where there is none or it is damaged."""
    try:
        code = dict(json.loads((output / CODE_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return {}
    kinds = {"start": dict, "versions": dict, "commit": str}
    return {name: value for name, value in code.items() if isinstance(value, kinds.get(name, object))}


def _ranks(config: Row) -> str:
    hardware = config.get("hardware", {})
    ranks = hardware.get("learner_nodes", 1) * hardware.get("ranks_per_node", 1)
    return f"{ranks} (device={config['device']})" if "device" in config else ""
