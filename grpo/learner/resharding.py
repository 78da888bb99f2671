"""This module loads checkpoints whose shards have another layout than the learner.

The number of ranks and the precision may differ, and ZeRO stages 1 and 2 can be exchanged. DeepSpeed cannot convert
between stage 3 and the others."""

from __future__ import annotations

import io
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
from deepspeed import DeepSpeedEngine
from deepspeed.checkpoint.constants import (
    AUTOEP_LAYERS_KEY,
    AUTOEP_LAYERS_KEY_LEGACY,
    OPTIMIZER_STATE_DICT,
    PARAM_SHAPES,
    PARAM_SLICE_MAPPINGS,
)
from deepspeed.checkpoint.ds_to_universal import main as convert

from grpo.config.errors import UserError
from grpo.learner.collective import TorchCollective

# The converted checkpoint lies in a folder of its own, because DeepSpeed also writes beside it.
WHOLE = "whole"


def load_resharded(
    engine: DeepSpeedEngine, directory: str | Path, tag: str, collective: TorchCollective
) -> dict[str, Any]:
    """Loads weights and optimizer state by way of DeepSpeed's universal checkpoint, which the first rank makes of the
    shards and removes afterwards. Returns the learner's own entries. Call it within `only_plain_data`. Collective."""
    universal, failure = "", ""
    if collective.rank == 0:
        try:
            # Each process uses a new folder, because others may be reading the same checkpoint now.
            universal = tempfile.mkdtemp(prefix=".universal-", dir=directory)
            _check_names(Path(directory, tag))
            _convert(Path(directory, tag), Path(universal, WHOLE))
        except Exception as error:
            # Every kind of error is caught, because the other ranks wait for this one.
            failure = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            shutil.rmtree(universal, ignore_errors=True)
    universal, failure = collective.gather((universal, failure))[0]
    if failure:
        raise UserError(f"{directory} cannot be made to fit: {failure}")
    engine._config.load_universal_checkpoint = True
    try:
        _, own_state = engine.load_checkpoint(universal, tag=WHOLE)
    finally:
        engine._config.load_universal_checkpoint = False
    collective.barrier()
    if collective.rank == 0:
        shutil.rmtree(universal)
    return own_state


def _check_names(shards: Path) -> None:
    """Raises UserError where a parameter's name could be a path: DeepSpeed makes folders with these names."""
    for file in sorted(shards.glob("*_states.pt")):
        for name in _names(torch.load(file, map_location="cpu", mmap=True)):
            if not isinstance(name, str) or name in ("", ".", "..") or {"/", "\\", "\0"} & set(name):
                raise UserError(f"{file} names a parameter {str(name)!r}, which is a path and no name: it is not read")


def _names(state: Mapping[str, Any]) -> Iterator[Any]:
    """Yields all names of parameters in a shard, of weights or of an optimizer. Raises UserError where DeepSpeed has
    spread experts over ranks."""
    if state.get(AUTOEP_LAYERS_KEY) or state.get(AUTOEP_LAYERS_KEY_LEGACY):
        raise UserError("it holds experts that DeepSpeed has spread over ranks, which this version does not save")
    yield from state.get("module") or ()
    shapes = state.get(PARAM_SHAPES) or ()
    for group in [shapes] if isinstance(shapes, Mapping) else shapes:
        yield from group
    for group in state.get(OPTIMIZER_STATE_DICT, {}).get(PARAM_SLICE_MAPPINGS) or ():
        yield from group


def _convert(shards: Path, whole: Path) -> None:
    arguments = Namespace(
        input_folder=str(shards),
        output_folder=str(whole),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with redirect_stderr(io.StringIO()):
        convert(arguments)
