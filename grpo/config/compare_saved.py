"""A resumed run is compared with its saved configuration: what has changed, and what must not change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from grpo.config.errors import UserError
from grpo.config.run import TrainConfig


def differences(old: Any, new: Any, path: str = "") -> Iterable[tuple[str, Any, Any]]:
    """Yields (dotted path, old value, new value) of every leaf in which two configurations differ."""
    for field in fields(new):
        before, after = getattr(old, field.name), getattr(new, field.name)
        name = f"{path}{field.name}"
        if is_dataclass(after):
            yield from differences(before, after, f"{name}.")
        elif before != after:
            yield name, before, after


def check_resumed(old: TrainConfig, new: TrainConfig) -> None:
    """Raises UserError where a run that was configured as `old` cannot go on as `new`."""
    check_stages(old.learner.zero_stage, new.learner.zero_stage)
    adapters = [old.model.lora, new.model.lora]
    # The rank is compared first, because without adapters the other fields mean nothing.
    for field in sorted(fields(adapters[0]), key=lambda field: field.name != "rank"):
        before, after = (getattr(adapter, field.name) for adapter in adapters)
        if before != after and any(adapter.rank for adapter in adapters):
            name = f"model.lora.{field.name}"
            raise UserError(
                f"{name}={after} does not go on from a checkpoint of {name}={before}, which trained other weights: "
                f"continue with {name}={before}, or begin anew from a model that this run has exported"
            )


def check_stages(before: int, after: int) -> None:
    """Raises UserError where a learner at ZeRO stage `after` cannot read shards that were saved at stage `before`."""
    if (before == 3) != (after == 3):
        raise UserError(
            f"learner.zero_stage={after} cannot read a checkpoint of learner.zero_stage={before}, which stores weights "
            f"differently: continue with learner.zero_stage={before} (1 and 2 can be exchanged)"
        )
