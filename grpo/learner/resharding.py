"""This module writes a checkpoint's shards, records their layout, and loads shards of another layout than the
learner's.

The number of ranks and the precision may differ, and ZeRO stages 1 and 2 can be exchanged. DeepSpeed cannot convert
between stage 3 and the others.

A checkpoint may come from a stranger, so its files are read without running code in them.

A rank that cannot write still takes part in the collective save. A rank that left DeepSpeed's save in the middle would
keep the others waiting until their deadline.
"""

import io
import json
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass
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
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from grpo.config.errors import UserError, first_line, require
from grpo.config.folder import LAYOUT_FILE
from grpo.config.optimizer import Optimizer
from grpo.config.plain_json import read_object
from grpo.config.saved import check_stages
from grpo.host.together import from_first
from grpo.learner.collective import TorchCollective
from grpo.types.plain import rebuilt

# The converted checkpoint lies in a folder of its own, because DeepSpeed also writes beside it.
WHOLE = "whole"
RECORDS = [LossScaler, ZeroStageEnum, fragment_address]
"""DeepSpeed's checkpoints contain objects of these classes, which hold numbers and nothing else."""
# DeepSpeed gives these names to shards of an optimizer for bfloat16, and to weights that are not sharded.
WHOLE_WEIGHTS = "mp_rank_*_model_states.pt"
# The folder of the shards within a checkpoint's folder.
SHARDS = "learner"
Attempt = Callable[..., None]
"""Calls a function with the given arguments, unless an earlier call has failed."""


def load_resharded(engine: DeepSpeedEngine, directory: str | Path, collective: TorchCollective) -> dict[str, Any]:
    """Loads weights and optimizer state by way of DeepSpeed's universal checkpoint, which the first rank makes of the
    shards and removes afterwards. Returns the learner's own entries. Call it within `only_plain_data`. Collective."""
    universal = from_first(collective, lambda: _universal(Path(directory)))
    engine._config.load_universal_checkpoint = True
    try:
        _, own_state = engine.load_checkpoint(universal, tag=WHOLE)
        collective.barrier()
    finally:
        engine._config.load_universal_checkpoint = False
        if collective.rank == 0:
            shutil.rmtree(universal, ignore_errors=True)
    return own_state


def _universal(directory: Path) -> str:
    """Converts the shards of one checkpoint and returns the folder of the result, which nobody else reads."""
    universal = ""
    try:
        # Each process uses a new folder, because others may be reading the same checkpoint now.
        universal = tempfile.mkdtemp(prefix=".universal-", dir=directory)
        _check_names(directory / SHARDS)
        _convert(directory / SHARDS, Path(universal, WHOLE))
    except Exception as error:
        shutil.rmtree(universal, ignore_errors=True)
        why = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{directory} cannot be made to fit: {why}") from error
    return universal


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


@contextmanager
def only_plain_data() -> Iterator[None]:
    """Restricts every `torch.load` in the context to tensors, numbers, text and `RECORDS`, whatever its caller asks
    for. It then raises UserError for a file that holds anything else or cannot be read."""
    load = torch.load

    def load_plain(file: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return load(file, *arguments, **{**options, "weights_only": True})
        except Exception as error:
            # Torch's own message is long, and it suggests loading the file without this protection.
            kind = type(error).__name__
            raise UserError(f"{file} is damaged or holds more than numbers: it is not read ({kind})") from error

    torch.load = load_plain
    try:
        with torch.serialization.safe_globals(RECORDS):
            yield
    finally:
        torch.load = load


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout says how a learner's state is split into shards. Only a learner of the same layout reads them without
    conversion. `parameters` counts the trained parameters. `optimizer` is the name of its class in torch."""

    ranks: int
    zero_stage: int
    precision: str
    parameters: int
    optimizer: str

    def write(self, directory: str | Path) -> None:
        Path(directory, LAYOUT_FILE).write_text(json.dumps(asdict(self)))


def saved_layout(directory: str | Path, own_layout: Layout) -> Layout:
    """Returns the layout of a checkpoint. Raises UserError where a learner of layout `own_layout` cannot read it, even
    after conversion."""
    file, shards = Path(directory, LAYOUT_FILE), Path(directory, SHARDS)
    if not shards.is_dir():
        raise UserError(
            f"{directory} holds no learner checkpoint: give a folder such as runs/x/checkpoints/step-00000050"
        )
    require(file.exists(), f"{directory} has lost {LAYOUT_FILE}, which says how its shards were made")
    try:
        saved = rebuilt(Layout, read_object(file), "the layout")
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error})") from error
    if saved.parameters != own_layout.parameters:
        raise UserError(
            f"{directory} is of a model with {saved.parameters:,} trained parameters, this one has "
            f"{own_layout.parameters:,}: give the words of the run again, model and model.lora among them (its "
            "config.json has them)"
        )
    check_stages(saved.zero_stage, own_layout.zero_stage)
    _check_optimizer(directory, saved, own_layout)
    return saved


def _check_optimizer(directory: str | Path, saved: Layout, own_layout: Layout) -> None:
    require(
        saved.optimizer == own_layout.optimizer,
        f"{directory} holds the state of {saved.optimizer}, and this run learns with {own_layout.optimizer}: set "
        f"learner.deepspeed.optimizer.type={saved.optimizer}",
    )
    require(
        saved == own_layout or Optimizer(own_layout.optimizer).converted,
        f"{directory} holds the state of {own_layout.optimizer}, which DeepSpeed does not convert: continue with "
        f"{saved.ranks} ranks, learner.zero_stage={saved.zero_stage} and learner.precision={saved.precision}",
    )


@contextmanager
def raising_os_errors() -> Iterator[None]:
    """Turns the RuntimeErrors that `torch.save` raises, with various texts, when a disk is full into an OSError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise OSError(f"torch could not write a file to its end: {first_line(error)}") from error


@contextmanager
def to_the_end(engine: DeepSpeedEngine) -> Iterator[Attempt]:
    """Delays this rank's write errors: `engine`, and callers of the yielded `Attempt`, go on as though the files were
    written. The first error is raised at the end of the context, when no other rank waits for this one any more."""
    failures: list[Exception] = []

    def attempt(write: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        if failures:
            return
        try:
            with raising_os_errors():
                write(*arguments, **named)
        except Exception as error:
            failures.append(error)

    def attempting(write: Callable[..., Any]) -> Attempt:
        return lambda *arguments, **named: attempt(write, *arguments, **named)

    files = engine.checkpoint_engine
    # Only the instances are patched, so that deleting the attributes restores the methods of their classes.
    put_off = [(files, "save"), (files, "makedirs"), (engine, "_copy_recovery_script")]
    for owner, name in put_off:
        setattr(owner, name, attempting(getattr(owner, name)))
    try:
        yield attempt
    finally:
        for owner, name in put_off:
            delattr(owner, name)
    if failures:
        raise failures[0]
