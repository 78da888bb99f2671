"""A checkpoint of other ranks or another precision, or of ZeRO stage 1 for 2: from the shards as they were saved to
those that are wanted now. Between stage 3 and the others DeepSpeed has no way."""

from __future__ import annotations

import io
import json
import os
import shutil
from argparse import Namespace
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from deepspeed import DeepSpeedEngine
from deepspeed.checkpoint.ds_to_universal import main as convert

from grpo.config.errors import UserError
from grpo.config.folder import LAYOUT_FILE
from grpo.learner.collective import TorchCollective


@dataclass(frozen=True, slots=True)
class Layout:
    """How a learner's state lies in its shards: only a learner of the same layout reads them as they are.
    `parameters` are the numbers that are trained."""

    ranks: int
    zero_stage: int
    precision: str
    parameters: int

    def write(self, directory: str | Path) -> None:
        Path(directory, LAYOUT_FILE).write_text(json.dumps(asdict(self)))


def saved_layout(directory: str | Path, tag: str, own: Layout) -> Layout:
    """The layout of a checkpoint. One that an older version saved tells its number of ranks alone; in the rest it is
    taken to be like `own`."""
    file = Path(directory, LAYOUT_FILE)
    if file.exists():
        try:
            return Layout(**json.loads(file.read_text()))
        except (ValueError, TypeError) as error:
            raise UserError(f"{file} is damaged ({error})") from error
    return replace(own, ranks=len(list(Path(directory, tag).glob("*optim_states.pt"))))


def load_resharded(engine: DeepSpeedEngine, directory: str | Path, tag: str, collective: TorchCollective) -> None:
    """Loads weights and optimizer state by way of DeepSpeed's universal checkpoint, which the first rank makes of the
    shards and removes afterwards. Collective."""
    # Of its own for each process: others may read the same checkpoint now.
    universal = collective.gather(f".universal-{os.getpid()}")[0]
    whole, failure = Path(directory, universal), ""
    if collective.rank == 0:
        try:
            shutil.rmtree(whole, ignore_errors=True)
            _convert(Path(directory, tag), whole)
        except Exception as error:
            # Whatever it is, the other ranks wait for this one.
            failure = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            shutil.rmtree(whole, ignore_errors=True)
    if failure := collective.gather(failure)[0]:
        raise UserError(f"{directory} cannot be made to fit: {failure}")
    engine._config.load_universal_checkpoint = True
    try:
        engine.load_checkpoint(str(directory), tag=universal)
    finally:
        engine._config.load_universal_checkpoint = False
    collective.barrier()
    if collective.rank == 0:
        shutil.rmtree(whole)


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
