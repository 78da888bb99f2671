"""This module reads from a manifest how a run was started, the first time and at every resumption."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grpo.config import TrainConfig
from grpo.config.errors import require
from grpo.config.folder import MANIFEST_FILE
from grpo.config.saved import from_dict


class Start(NamedTuple):
    """A start went on from `step` with a configuration. `facts` are all that the manifest says of it."""

    step: int
    config: TrainConfig
    facts: Mapping[str, Any]


def starts_of(manifest: Mapping[str, Any]) -> list[Start]:
    """Returns the starts of a run in their order. Raises UserError for a manifest without any."""
    starts = manifest.get("starts")
    require(isinstance(starts, list) and bool(starts), f"{MANIFEST_FILE} names no start of the run")
    return [Start(facts["step"], from_dict(facts["config"]), facts) for facts in starts]


def start_of(starts: Sequence[Start], step: float) -> Start:
    """Returns the start that made the round which ended at `step`."""
    return next((start for start in reversed(starts) if start.step < step), starts[0])
