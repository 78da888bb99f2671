"""This module keeps what a proof has measured in `prove.json`, and reads the machine's constants from it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from grpo.config import UserError
from grpo.config.errors import require
from grpo.config.plain_json import parse_json
from grpo.host.disk import write_whole
from grpo.prove.facts import Report
from grpo.prove.settings import Basis, settings_of
from grpo.types import MachineConstants
from grpo.types.plain import rebuilt

FILE = "prove.json"
# Constant → the part that measures it.
MEASURED_BY = {
    "sampling_tokens_per_second": "sampler",
    "learning_tokens_per_second": "learner",
    "refresh_seconds": "sync",
    "round_overhead_seconds": "round",
}


def write_record(folder: Path, about: Mapping[str, Any], reports: Sequence[Report]) -> dict[str, Any]:
    """Writes what was measured into the folder's `prove.json`, and returns the whole record.

    `about` says what was measured on: device, model and further settings. Results of other parts from an earlier proof
    with the same `about` stay, so that parts can be measured one by one.
    """
    new_record = Report.joined(reports).plain()
    measured_now = {fact["part"] for fact in new_record["facts"]}
    old_record = _same(folder / FILE, about)
    record = dict(about) | {
        "facts": [fact for fact in old_record.get("facts", []) if fact["part"] not in measured_now]
        + new_record["facts"],
        "constants": old_record.get("constants", {}) | new_record["constants"],
        "basis": old_record.get("basis", {}) | new_record["basis"],
    }
    # If no row that was tried fitted into the device, there is nothing to choose from.
    is_complete = set(MEASURED_BY) <= set(record["constants"]) and set(_BASIS) <= set(record["basis"])
    is_complete = is_complete and bool(record["basis"]["rows"])
    settings = (
        settings_of(_constants(record), Basis(**{name: record["basis"][name] for name in _BASIS}))
        if is_complete
        else []
    )
    record["settings"] = [asdict(setting) for setting in settings]
    # A proof that is killed while it writes keeps what earlier parts have measured.
    write_whole(folder / FILE, json.dumps(record, indent=1))
    return record


def _same(path: Path, about: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the record at `path` if it has the same device, size and words as `about`, else an empty one."""
    try:
        record = parse_json(path.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) and all(record.get(key) == about[key] for key in about) else {}


def read_constants(path: str | Path) -> MachineConstants:
    """Reads the machine's constants from the `prove.json` at `path`. Raises UserError if the file is unreadable or
    lacks a constant."""
    try:
        record = parse_json(Path(path).read_text())
    except OSError as error:
        raise UserError(f"{path} is no file that `grpo prove` has written: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is no file that `grpo prove` has written: it holds no constants") from error
    constants = record.get("constants") if isinstance(record, dict) else None
    require(isinstance(constants, dict), f"{path} is no file that `grpo prove` has written: it holds no constants")
    missing_names = [name for name in MEASURED_BY if name not in constants]
    if missing_names:
        parts = ",".join(MEASURED_BY[name] for name in missing_names)
        raise UserError(f"{path} lacks {', '.join(missing_names)}: measure it by `grpo prove part={parts}`")
    try:
        return _constants(record)
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path} has constants that cannot be read: {error}") from error


def _constants(record: Mapping[str, Any]) -> MachineConstants:
    """Rebuilds the constants of a record. Raises ValueError for one that no machine has."""
    values = {**record, **record["constants"]}
    constants = rebuilt(MachineConstants, {name: values[name] for name in _NAMES if name in values}, "constants")
    speeds = tuple(sorted(constants.sampling_tokens_per_second))
    above = {"parameters": constants.parameters, "learning_tokens_per_second": constants.learning_tokens_per_second}
    for name, value in (
        *above.items(),
        *(("sampling_tokens_per_second", number) for pair in speeds for number in pair),
    ):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be above 0, not {value}")
    for name in ("refresh_seconds", "round_overhead_seconds"):
        if not 0 <= getattr(constants, name) < math.inf:
            raise ValueError(f"{name} must be at least 0, not {getattr(constants, name)}")
    if len({at_once for at_once, _ in speeds}) != max(len(speeds), 1):
        raise ValueError("sampling_tokens_per_second must hold one speed for each number of completions")
    return replace(constants, sampling_tokens_per_second=speeds)


_NAMES, _BASIS = ([field.name for field in fields(kind)] for kind in (MachineConstants, Basis))
