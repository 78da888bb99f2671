"""This module writes models as folders that transformers, vLLM and peft load, during a run or from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from grpo import models
from grpo.config import UserError
from grpo.config.folder import CHECKPOINTS, MODELS_FOLDER, STATE_FILE, checkpoints_in, step_name, step_of
from grpo.config.saved import read_config, read_state
from grpo.host.disk import size_of
from grpo.learner.collective import TorchCollective
from grpo.learner.export import Folder, export, export_adapter
from grpo.learner.loading import load_policy
from grpo.run.model_card import card_of
from grpo.run.parts import warm_start_examples
from grpo.run.precision import with_precision
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
        folder = self._output / MODELS_FOLDER / step_name(progress.step)
        try:
            self._write(progress.step, folder)
            self._tell(f"step {progress.step}: the model is in {folder} ({size_of(folder)})")
        except UserError as error:
            self._tell(f"step {progress.step}: {error}; the run goes on, and its checkpoints can be exported later")


def export_checkpoint(place: Path, directory: Path, dtype: str = "", adapter: bool = False) -> Path:
    """Writes the model of a checkpoint into `directory`, with adapters merged into its weights. Returns the checkpoint.

    `place` is a checkpoint, or the folder of a run, whose best checkpoint is taken (see `best_checkpoint`). `dtype` is
    the written weights' type, by default the learner's. With `adapter` only the adapters are written, in peft's format.
    Needs no GPU. Raises UserError if there is no checkpoint, if `directory` is not empty, and if `adapter` is set for a
    run without adapters.
    """
    place = place.resolve()
    checkpoint = place if (place / STATE_FILE).exists() else best_checkpoint(place)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} is not an empty folder: give a new one")
    config = with_precision(read_config(checkpoint))
    if adapter and not config.model.lora.rank:
        raise UserError(f"{checkpoint} has no adapter (model.lora.rank=0): leave out adapter=true")
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
    return checkpoint


def best_checkpoint(run: Path) -> Path:
    """Returns the checkpoint of a run with the highest held-out pass rate, or the newest if none was evaluated.

    Raises UserError when the run has no checkpoint.
    """
    checkpoints = checkpoints_in(run / CHECKPOINTS)
    if not checkpoints:
        raise UserError(f"{run} is no checkpoint, and has none in {CHECKPOINTS}/")
    scores = {path: read_state(path).get("score") for path in checkpoints}
    scored = [path for path in checkpoints if scores[path] is not None]
    return max(scored, key=lambda path: scores[path]) if scored else checkpoints[-1]
