"""This module writes models as folders that transformers, vLLM and peft load, during a run or from a checkpoint."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from grpo.config import TrainConfig, UserError
from grpo.config.directory import chat_template_in
from grpo.config.folder import MANIFEST_FILE, MODELS_FOLDER, step_name
from grpo.config.saved import read_step
from grpo.host.alive import working
from grpo.host.disk import size_of
from grpo.host.terminal import say
from grpo.host.together import from_first, on_first
from grpo.interfaces import Collective
from grpo.learner.collective import TorchCollective
from grpo.learner.export import CARD_FILE, Folder, export, export_adapter
from grpo.learner.loading import load_policy
from grpo.learner.policy import Policy
from grpo.loop import LoopParts
from grpo.run.assembly import turn_of_learner
from grpo.run.export_source import records_of, to_export
from grpo.run.model_card import card_of
from grpo.run.model_folder import model_files
from grpo.run.preparing import with_precision
from grpo.run.resume import check_start
from grpo.types import FinishedRound, Progress
from grpo.weight_sync.refresh import WeightSyncError


class ModelWriter:
    """The writer writes the present model of a run into folders, each with a model card. Its methods are collective."""

    def __init__(self, config: TrainConfig, policy: Policy, tokenizer: PreTrainedTokenizerBase, parts: LoopParts):
        self._config, self._policy, self._tokenizer, self._parts = config, policy, tokenizer, parts

    def between_rounds(self, step: int, directory: Path) -> None:
        """Writes the adapter alone if there is one, else the whole model."""
        parts = self._parts
        with turn_of_learner(self._config, parts.learner, parts.sampler, parts.weight_sync):
            self._write(step, directory, adapter=self._config.model.lora.rank > 0)

    def at_the_end(self, step: int, directory: Path) -> None:
        """Writes the whole model. The sampler cannot be used afterwards."""
        # Weights are gathered on a device that the sampler may have.
        self._parts.sampler.sleep()
        with working("writing the trained model"):
            self._write(step, directory)

    def _write(self, step: int, directory: Path, adapter: bool = False) -> None:
        config, collective = self._config, self._parts.collective
        texts = on_first(collective, lambda: _texts(Path(config.output_dir), config, step, adapter))
        folder = Folder(directory, as_asked(self._tokenizer, config), texts or {})
        _write_into(folder, self._policy, config.learner.precision, collective, adapter)


class Exporter:
    """The exporter writes the model into the run's `models` folder every `every` rounds, and reports its size.

    When a model cannot be written, for example on a full disk, the exporter reports that, and the run goes on. An error
    of the weight sync ends the run.
    """

    def __init__(
        self,
        every: int,
        output: Path,
        write: Callable[[int, Path], None],
        tell: Callable[[str], None],
        collective: Collective,
    ):
        """Takes `write`, which writes the model of a step into a folder, and `tell`, which shows a line.

        With `every` 0 nothing is written.
        """
        self._every, self._output, self._write, self._tell = every, output, write, tell
        self._collective = collective

    def after_round(self, finished: FinishedRound) -> None:
        if self._is_due(finished.progress):
            self._export(finished.progress, self._folder(finished.progress))

    def make_up(self, progress: Progress) -> None:
        """Writes the model that was due when the run stopped, unless it is there."""
        folder = self._folder(progress)
        if progress.round_index and self._is_due(progress) and not from_first(self._collective, folder.exists):
            self._export(progress, folder)

    def _is_due(self, progress: Progress) -> bool:
        return bool(self._every) and progress.round_index % self._every == 0

    def _folder(self, progress: Progress) -> Path:
        return self._output / MODELS_FOLDER / step_name(progress.step)

    def _export(self, progress: Progress, folder: Path) -> None:
        try:
            self._write(progress.step, folder)
            self._tell(f"step {progress.step}: the model is in {folder} ({size_of(folder)})")
        except WeightSyncError:
            raise
        except UserError as error:
            self._tell(f"step {progress.step}: {error}; the run goes on, and its checkpoints can be exported later")


def export_checkpoint(
    place: Path, directory: Path, dtype: str = "", adapter: bool = False, trust_remote_code: bool = False
) -> Path:
    """Writes the model of a checkpoint into `directory`, with adapters merged into its weights. Returns the checkpoint.

    `dtype` is the written weights' type, by default the learner's. With `adapter` only the adapters are written, in
    peft's format. Needs no GPU. A checkpoint may be somebody else's, so Python code that comes with its model runs only
    with `trust_remote_code`, whatever its configuration says. Raises UserError as `to_export` does.
    """
    checkpoint, config = to_export(place, directory, adapter)
    config = with_precision(config, samples=False)
    model = replace(config.model, trust_remote_code=trust_remote_code)
    started = replace(config, model=replace(model, start=str(checkpoint)))
    files = model_files(replace(config, model=model), samples=False)
    alone = TorchCollective(torch.device("cpu"))
    check_start(started, files.path, alone)
    learner = config.learner
    policy = load_policy(files, started.model, learner.precision, learner.logit_chunk_tokens, lora_seed=config.seed)
    run, step = records_of(checkpoint), read_step(checkpoint)
    # A link leads to the disk on which somebody wants the model, so it stays.
    folder = Folder(directory.resolve(), as_asked(files.tokenizer, config), _texts(run, config, step, adapter))
    _write_into(folder, policy, dtype or learner.precision, alone, adapter)
    return checkpoint


def as_asked(tokenizer: PreTrainedTokenizerBase, config: TrainConfig) -> PreTrainedTokenizerBase:
    """Returns the tokenizer with the chat template by which the run has asked the model, so that others ask it alike.
    Says where the file of that template is gone. A mixture's sets may have several templates, so none is taken."""
    template = config.task.prompt.chat_template
    if not template or config.task.sets:
        return tokenizer
    own = copy.copy(tokenizer)
    try:
        own.chat_template = chat_template_in(template)
    except UserError as error:
        say(f"grpo: the model is written with the chat template of the model that it was trained from: {error}")
    return own


def _texts(run: Path, config: TrainConfig, step: int, adapter: bool) -> dict[str, str]:
    """Returns the model card, and the manifest of the run if it has one, by the names of their files."""
    manifest = run / MANIFEST_FILE
    texts = {CARD_FILE: card_of(run, config, step, adapter)}
    return texts | ({MANIFEST_FILE: manifest.read_text(encoding="utf-8")} if manifest.exists() else {})


def _write_into(folder: Folder, policy: Policy, dtype: str, collective: Collective, adapter: bool) -> None:
    """Writes a policy's whole model as `dtype`, or with `adapter` its adapter alone. Collective."""
    if adapter:
        export_adapter(policy, folder, collective)
    else:
        export(policy, dtype, folder, collective)
