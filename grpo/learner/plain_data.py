"""Files that torch saved are read without running them: a checkpoint may be somebody else's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from grpo.config.errors import UserError

RECORDS = [LossScaler, ZeroStageEnum, fragment_address]
"""Classes of DeepSpeed that it saves: they hold numbers and nothing else."""


@contextmanager
def only_plain_data() -> Iterator[None]:
    """Lets `torch.load` read tensors, numbers, text and `RECORDS`, whoever calls it and whatever it is told. For a
    file that holds anything else, or that cannot be read, it raises UserError."""
    load = torch.load

    def load_plain(file: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return load(file, *arguments, **{**options, "weights_only": True})
        except Exception as error:
            # What torch says of it is long, and invites to load it all the same.
            kind = type(error).__name__
            raise UserError(f"{file} is damaged or holds more than numbers: it is not read ({kind})") from error

    torch.load = load_plain
    try:
        with torch.serialization.safe_globals(RECORDS):
            yield
    finally:
        torch.load = load
