"""This module writes models as folders that transformers, vLLM and peft load, during a run or from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from grpo import models
from grpo.config import UserError
from grpo.config.folder import MODELS_FOLDER, step_of
from grpo.config.saved import read_config
from grpo.host.disk import size_of
from grpo.learner.collective import TorchCollective
from grpo.learner.export import Folder, export, export_adapter
from grpo.learner.loading import load_policy
from grpo.run import preflight
from grpo.run.model_card import card_of
from grpo.run.parts import warm_start_examples
from grpo.run.starting import check_start
from grpo.types import FinishedRound


class Exporter:
    """The exporter writes the model into the run's `models` folder every `every` rounds, and reports its size.

    When a model cannot be written, for example on a full disk, the exporter reports that, and the run goes on.
    """

    def __init__(self, every: int, output: Path, write: Callable[[int, Path], None], tell: Callable[[str], None]):
        """Takes `write`, which writes the model of a step into a folder, and `tell`, which shows a line.

        With `every` 0 nothing is written.
        """
        self._every, self._output, self._write, self._tell = every, output, write, tell

    def after_round(self, finished: FinishedRound) -> None:
        progress = finished.progress
        if not self._every or progress.round_index % self._every:
            return
        folder = self._output / MODELS_FOLDER / f"step-{progress.step:08d}"
        try:
            self._write(progress.step, folder)
            self._tell(f"step {progress.step}: the model is in {folder} ({size_of(folder)})")
        except UserError as error:
            self._tell(f"step {progress.step}: {error}; the run goes on, and its checkpoints can be exported later")


def export_checkpoint(checkpoint: Path, directory: Path, dtype: str = "", adapter: bool = False) -> None:
    """Writes the model of a checkpoint into `directory`, with adapters merged into its weights.

    `dtype` is the written weights' type, by default the learner's. With `adapter` only the adapters are written, in
    peft's format. Needs no GPU. Raises UserError if the checkpoint is damaged, or if its model cannot be had.
    """
    config = preflight.with_precision(read_config(checkpoint))
    started = replace(config, model=replace(config.model, start=str(checkpoint)))
    path = models.resolve(config.model, lambda: warm_start_examples(config))
    tokenizer = models.load_tokenizer(path, config.model)
    alone = TorchCollective(torch.device("cpu"))
    check_start(started, path, alone)
    learner = config.learner
    policy = load_policy(path, started.model, learner.precision, learner.logit_chunk_tokens, lora_seed=config.seed)
    run, step = checkpoint.parent.parent, step_of(checkpoint)
    folder = Folder(directory, tokenizer, card_of(run, config, step, adapter))
    if adapter:
        export_adapter(policy, folder, alone)
    else:
        export(policy, dtype or learner.precision, folder, alone)
