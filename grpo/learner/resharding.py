"""A checkpoint of other ranks: from the shards of as many as saved it to those of as many as load it."""

from __future__ import annotations

import io
import os
import shutil
from argparse import Namespace
from contextlib import redirect_stderr
from pathlib import Path

from deepspeed import DeepSpeedEngine
from deepspeed.checkpoint.ds_to_universal import main as convert

from grpo.learner.collective import TorchCollective
from grpo.learner.engine import quiet

UNIVERSAL = "universal"
"""The tag of what `load_resharded` makes of a checkpoint: a folder beside its shards."""


def num_shards(directory: str | Path, tag: str) -> int:
    """Ranks that saved the learner's part of a checkpoint."""
    return len(list(Path(directory, tag).glob("*optim_states.pt")))


def load_resharded(engine: DeepSpeedEngine, directory: str | Path, tag: str, collective: TorchCollective) -> str | None:
    """Loads weights and optimizer state by way of DeepSpeed's universal checkpoint, which the first rank makes of the
    shards, once; what `load_checkpoint` says it loaded. Collective."""
    whole = Path(directory, UNIVERSAL)
    if collective.rank == 0 and not whole.exists():
        _convert(Path(directory, tag), whole)
    collective.barrier()
    engine._config.load_universal_checkpoint = True
    try:
        with quiet():
            return engine.load_checkpoint(str(directory), tag=UNIVERSAL)[0]
    finally:
        engine._config.load_universal_checkpoint = False


def _convert(shards: Path, whole: Path) -> None:
    writing = whole.with_name(f".{UNIVERSAL}")
    shutil.rmtree(writing, ignore_errors=True)
    arguments = Namespace(
        input_folder=str(shards),
        output_folder=str(writing),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with quiet(), redirect_stderr(io.StringIO()):
        convert(arguments)
    os.rename(writing, whole)
