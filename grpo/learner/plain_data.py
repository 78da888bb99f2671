"""This module reads files that torch saved without running code in them: a checkpoint may come from a stranger."""

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
"""DeepSpeed's checkpoints contain objects of these classes, which hold numbers and nothing else."""


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
