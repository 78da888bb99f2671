# Light: imported before torch, or without it.
"""This module chooses the checkpoint to export, and checks what needs neither torch nor the weights."""

import os
from pathlib import Path

from grpo.config import TrainConfig, UserError
from grpo.config.errors import require
from grpo.config.folder import CHECKPOINTS, EVALUATIONS_FILE, STATE_FILE, checkpoints_in, refuse_several, step_of
from grpo.config.pass_through import check_model_settings
from grpo.config.plain_json import read_object
from grpo.config.saved import read_config, read_score, read_step
from grpo.host.disk import require_writable
from grpo.models.resolve import CONFIG, check_early
from grpo.run.gates import require_within
from grpo.telemetry.json_lines import read_metrics


def to_export(place: Path, directory: Path, adapter: bool, despite_gates: bool = True) -> tuple[Path, TrainConfig]:
    """Returns the checkpoint at `place` and the configuration that it was trained with.

    `place` is a checkpoint, or the folder of a run, whose best checkpoint is taken (see `best_checkpoint`). Raises
    UserError if there is no checkpoint, if its model is beyond a gate of its run, unless `despite_gates`, if
    `directory` is not empty or cannot be made, if it is the working folder or that of a whole disk, if `adapter` is set
    for a run without adapters, and if the model that the run began with is gone.
    """
    refuse_several(place)
    place = Path(os.path.realpath(place))
    checkpoint = place if (place / STATE_FILE).exists() else best_checkpoint(place)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} is not an empty folder: give a new one")
    # The whole model takes the place of an empty folder, but for these.
    replaced = Path(os.path.realpath(directory))
    require(
        not replaced.is_mount() and replaced != Path.cwd(),
        f"{directory} is the working folder or that of a whole disk: give a new one in it, as {directory / 'model'}",
    )
    inside = next((parent for parent in replaced.parents if (parent / STATE_FILE).exists()), None)
    require(not inside, f"{directory} lies in the checkpoint {inside}, which it would damage: give a folder elsewhere")
    # The model is written beside the place of an empty folder.
    require_writable(replaced.parent if replaced.exists() else directory, key="")
    config = read_config(checkpoint)
    if config.gates and not despite_gates:
        require_within(records_of(checkpoint), config, read_step(checkpoint))
    if adapter and not config.model.lora.rank:
        raise UserError(f"{checkpoint} has no adapter (model.lora.rank=0): leave out adapter=true")
    check_model_settings(config.model)
    check_early(config.model)
    return checkpoint, config


def records_of(checkpoint: Path) -> Path:
    """Returns the folder whose records tell of a checkpoint: its run's. A copy elsewhere, which may lie in another
    run's folder, stands for itself, and has none."""
    return checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else checkpoint


def best_checkpoint(run: Path) -> Path:
    """Returns the checkpoint of a run with the highest held-out pass rate, or the newest if none was evaluated. Rates
    count that can be compared with the last one.

    Raises UserError when the run has no checkpoint.
    """
    require(run.exists(), f"there is no folder {run}: give a run's folder, or one of its checkpoints")
    checkpoints = checkpoints_in(run / CHECKPOINTS)
    if not checkpoints:
        is_model = (run / CONFIG).exists() and "model_type" in read_object(run / CONFIG)
        what = "is a model already, which needs no export" if is_model else f"has no checkpoint in {CHECKPOINTS}/"
        raise UserError(f"{run} {what}: give a run's folder, or one of its checkpoints")
    known_scores = scores_in(run)
    scores = {path: known_scores.get(step_of(path)) for path in checkpoints}
    if not any(score is not None for score in scores.values()):
        scores = {path: read_score(path) for path in checkpoints}
    scored = [path for path in checkpoints if scores[path] is not None]
    return max(scored, key=lambda path: scores[path]) if scored else checkpoints[-1]


def scores_in(run: Path) -> dict[int, float]:
    """Returns the held-out pass rate of each step of a run that can be compared with the last one, by its records."""
    # It imports NumPy.
    from grpo.evaluation.held_out import scores

    file = run / EVALUATIONS_FILE
    return scores({row["step"]: row for row in read_metrics(file)} if file.exists() else {})
