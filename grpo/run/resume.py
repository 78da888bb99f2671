"""This module resumes a run from its newest undamaged checkpoint, and reports config changes since it was saved.

It also prepares a run's start. It keeps what an earlier run left in the folder, checks that all ranks have the
same problems, and checks a checkpoint to start from: its files, and the base of its adapters.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import count, takewhile
from pathlib import Path

from grpo.config import TrainConfig
from grpo.config.errors import UserError, require
from grpo.config.folder import (
    CHECKPOINTS,
    EARLIER,
    LEFT_BEHIND,
    METRICS_FILE,
    MODEL_FOLDER,
    MODELS_FOLDER,
    PROMPTS_FILE,
    REFERENCE_FILE,
    STATE_FILE,
    checkpoints_in,
    step_name,
    step_of,
)
from grpo.config.leaves import differences
from grpo.config.saved import check_resumed, is_checkpoint, read_config, read_state
from grpo.dynamics.scheduler import build_scheduler, replanned
from grpo.host.disk import remove
from grpo.host.together import from_first, on_first
from grpo.interfaces import Collective, Task
from grpo.loop import LoopParts
from grpo.measure import by_problem, problem_id
from grpo.models.files import ModelFiles
from grpo.models.upload import WeightsIdentity, check_base, weights_identity
from grpo.run.checkpoints import CheckpointStore, read_progress, require_whole, saved_random_state
from grpo.tasks.task import LoadedTask
from grpo.telemetry.ending import FINISHED, KILLED, Resumption, read_ending
from grpo.telemetry.json_lines import Row, read_metrics
from grpo.types import Progress, RoundPlan, Verdict
from grpo.types.plain import rebuilt

# These keys belong to one start of a run, and are no change of its settings.
OF_ONE_START = ("output_dir", "checkpoint.resume")
PROBLEMS = "problems"
"""A checkpoint's state holds under this name the identity of the problems that the run was trained on."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved run is an undamaged checkpoint, with the progress from which the run goes on.

    `resumption` says on the first rank what the run had done since, and how it had ended.
    """

    checkpoint: Path
    progress: Progress
    resumption: Resumption | None


def checkpoint_store(config: TrainConfig, collective: Collective) -> CheckpointStore:
    """Opens the store of the run's checkpoints."""
    retention = config.checkpoint
    return CheckpointStore(Path(config.output_dir) / CHECKPOINTS, retention.keep_last, collective, retention.keep_every)


def goes_on(config: TrainConfig, collective: Collective) -> bool:
    """Tells whether a run goes on from a checkpoint: where it is to, or where `checkpoint.resume=auto` finds one.
    Called with the folder's lock. Collective."""
    if config.checkpoint.resume != "auto":
        return bool(config.checkpoint.resume)
    return from_first(collective, lambda: bool(checkpoints_in(Path(config.output_dir) / CHECKPOINTS)))


def saved_run(config: TrainConfig, path: Path, task: LoadedTask, collective: Collective) -> Saved:
    """Finds the newest undamaged checkpoint of the run in `output_dir`. Collective.

    `path` is the folder of the run's model, which has to be the one that a checkpoint's adapters were trained on.
    Prints the checkpoint's name and the config keys that have changed since. Also prints whether the problems of `task`
    have changed, for example because the file of that name holds others now. Raises UserError when there is no such
    checkpoint, or when the run cannot continue with the present config.
    """
    ranks = collective.world_size

    def check(checkpoint: Path) -> None:
        _progress(checkpoint, config, ranks)
        saved_random_state(checkpoint, collective.rank)
        saved_base(checkpoint)

    checkpoint = checkpoint_store(config, collective).whole(check=check)
    if checkpoint is None:
        raise UserError(
            f"there is no undamaged checkpoint in {Path(config.output_dir) / CHECKPOINTS}: restore one from a copy, or "
            "start anew in another output_dir without checkpoint.resume"
        )
    state, old = read_state(checkpoint), read_config(checkpoint)
    before, progress = _progress(checkpoint, config, ranks)
    if collective.rank == 0:
        print(f"resuming from {checkpoint.name}")
        for name, *values in differences(asdict(old), asdict(config)):
            then, now = (value if isinstance(value, str) and value else json.dumps(value) for value in values)
            if name != "checkpoint.resume":
                read = _read_of_start(config, checkpoint) * (name == "model.start")
                print(f"  changed since: {name}: {then} → {now}{read}")
        if state.get(PROBLEMS, task.identity) != task.identity:
            print("  changed since: the problems, so those of the rounds before may come again or not at all")
    check_resumed(old, config, progress.step)
    require_base(config, path, checkpoint, collective)
    if collective.rank == 0:
        _tell_plan(before, progress.plan, ranks)
        if progress.step >= config.num_steps:
            steps = f"{progress.step} of num_steps={config.num_steps} steps"
            print(f"  it has taken {steps}, so none is left: raise num_steps")
    reached = on_first(collective, lambda: _reached(Path(config.output_dir), progress.step))
    resumption = None if reached is None else _resumption(config, old, checkpoint, progress.step, reached)
    return Saved(checkpoint, progress, resumption)


def _read_of_start(config: TrainConfig, checkpoint: Path) -> str:
    """Says what a run that goes on from a checkpoint reads of `model.start`."""
    kept = config.model.lora.rank or (checkpoint / REFERENCE_FILE).exists()
    what = "does not read" if kept or not config.objective.kl.coefficient else "takes as the reference of its KL alone"
    return f", which a resumed run {what}: its weights are the checkpoint's"


def _reached(output: Path, step: int) -> float:
    """Returns the step at which the run's metrics end. Prints a line for each record that ends before the checkpoint of
    `step`, since someone has cut it."""
    prompts = output / PROMPTS_FILE
    asked = asked_of(read_metrics(prompts), prompts) if prompts.exists() else []
    metrics = read_metrics(output / METRICS_FILE) if (output / METRICS_FILE).exists() else []
    ends = {PROMPTS_FILE: asked[-1].step if asked else 0, METRICS_FILE: metrics[-1]["step"] if metrics else 0}
    for name, end in ends.items():
        if end < step:
            lost = "its curriculum and the lengths of its completions" if name == PROMPTS_FILE else "its curves"
            print(
                f"  {output / name} ends at step {end:g}, and the checkpoint is of step {step}, so the run goes on "
                f"without those rounds in {lost}: restore the file from a copy, or go on"
            )
    return ends[METRICS_FILE]


def _progress(checkpoint: Path, config: TrainConfig, ranks: int) -> tuple[RoundPlan, Progress]:
    """Returns the plan in a checkpoint, and the progress from which a run with `config` goes on. Raises UserError for
    a checkpoint that holds no such progress."""
    state, old = read_state(checkpoint), read_config(checkpoint)
    try:
        saved = read_progress(state.get("progress"))
        if saved.step != step_of(checkpoint) or min(saved.round_index, saved.cursor) < 0:
            raise ValueError(f"progress.step={saved.step} and its other counts are not those of {checkpoint.name}")
        return saved.plan, replanned(saved, old, config, build_scheduler(config, ranks), ranks)
    except ValueError as error:
        raise UserError(f"{checkpoint / STATE_FILE} is damaged: {error}") from error


def _tell_plan(before: RoundPlan, now: RoundPlan, ranks: int) -> None:
    """Prints in which sizes the plan that a run goes on with differs from the saved one."""
    for name in ("group_size", "refresh_interval", "prompts_per_step"):
        then, value = getattr(before, name), getattr(now, name)
        if then != value:
            print(f"  {name.replace('_', ' ')}: {then} → {value} on {ranks} ranks")


def _resumption(config: TrainConfig, old: TrainConfig, checkpoint: Path, step: int, reached: float) -> Resumption:
    """Describes how the run in `output_dir` goes on from `step`. Called before the run forgets how it ended."""
    output = Path(config.output_dir)
    ending = read_ending(output)
    changed = [change for change in differences(asdict(old), asdict(config)) if change[0] not in OF_ONE_START]
    how = (ending.state, ending.why) if ending else (KILLED, "")
    return Resumption(step, checkpoint.name, max(step, reached), *how, changed)


@dataclass(frozen=True, slots=True)
class Asked:
    """This type is a line of `prompts.jsonl`, as far as a resumed run reads it."""

    step: float
    cursor: int
    prompt_ids: tuple[str, ...]
    correct: tuple[tuple[int, int], ...]
    lengths: tuple[float, ...]


def asked_of(rows: Iterable[Row], file: str | Path = PROMPTS_FILE) -> list[Asked]:
    """Returns which prompts a run asked, a round a row of `file`. Raises UserError for a row that is damaged."""
    return [_asked(row, f"line {number} of {file}") for number, row in enumerate(rows, start=1)]


def _asked(row: Row, place: str) -> Asked:
    present = {field.name: row[field.name] for field in fields(Asked) if field.name in row}
    try:
        asked = rebuilt(Asked, present, place)
    except ValueError as error:
        raise UserError(f"{error}: delete that line") from error
    same = len(asked.prompt_ids) == len(asked.correct) == len(asked.lengths)
    require(same, f"{place} has lists of different lengths under prompt_ids, correct and lengths: delete that line")
    return asked


def relearn(task: Task, rounds: Iterable[Asked], step: int) -> None:
    """Passes the outcomes and lengths of the rounds up to `step` to the task.

    An online curriculum is then in the state in which the run was saved, and prompts are dealt to ranks as they would
    have been. The later rounds of a run that was killed are taken again, so they do not count.
    """
    for asked in takewhile(lambda asked: asked.step <= step, rounds):
        record(task, asked)


def record(task: Task, asked: Asked) -> None:
    """Passes the outcomes and lengths of a round to the task."""
    task.record_outcomes(by_problem(zip(asked.prompt_ids, asked.correct, strict=True)), asked.cursor)
    measured = zip(asked.prompt_ids, asked.lengths, asked.correct, strict=True)
    # A group of which no completion counts could not be graded, see `measure.mean_lengths`.
    task.record_lengths({problem_id(prompt): length for prompt, length, (_, tried) in measured if tried})


def fresh(parts: LoopParts) -> tuple[Progress, Verdict]:
    """Returns the progress and verdict with which a new run begins."""
    plan, state = parts.scheduler.init()
    return Progress(0, 0, 0, plan, state), Verdict()


def resumed(config: TrainConfig, saved: Saved, parts: LoopParts, store: CheckpointStore) -> tuple[Progress, Verdict]:
    """Loads a checkpoint. Returns the progress from which the run goes on, and a newly judged verdict. Collective."""
    parts.learner.load(str(saved.checkpoint))
    store.restore_rng(saved.checkpoint)
    parts.task.cursor = saved.progress.cursor
    # Every rank reads the rounds before from the log that the first one has.
    prompts = Path(config.output_dir) / PROMPTS_FILE
    rounds = from_first(parts.collective, lambda: asked_of(read_metrics(prompts) if prompts.exists() else [], prompts))
    relearn(parts.task, rounds, saved.progress.step)
    return saved.progress, parts.scheduler.judge(saved.progress.step, saved.progress.scheduler)


def set_aside(output: Path) -> Path | None:
    """Moves what a run without a checkpoint left in `output` into a folder of its own there, so that nothing is lost.

    Returns that folder, or None if no earlier run has finished a round. Called with the folder's lock.
    """
    if not ((output / METRICS_FILE).exists() and read_metrics(output / METRICS_FILE)):
        return None
    folder_of_earlier_run = next(
        folder for number in count(1) if not os.path.lexists(folder := output / f"{EARLIER}{number}")
    )
    folder_of_earlier_run.mkdir()
    for name in LEFT_BEHIND:
        if (output / name).exists():
            (output / name).rename(folder_of_earlier_run / name)
    return folder_of_earlier_run


def keep_model(output: Path, before: Resumption) -> None:
    """Moves the model of a finished run that goes on to `models/step-N`, so that nobody takes it for the model of the
    run's last step. Removes models that a killed run had begun to write."""
    for begun in (output / MODELS_FOLDER).glob(".writing-*"):
        remove(begun)
    model, kept = output / MODEL_FOLDER, output / MODELS_FOLDER / step_name(int(before.reached))
    if before.ended != FINISHED or not model.is_dir():
        return
    if kept.exists():  # checkpoint.export_every has written it
        remove(model)
        return
    kept.parent.mkdir(exist_ok=True)
    model.rename(kept)
    print(f"the model of step {before.reached} is now in {kept}")


def require_same_inputs(task: LoadedTask, model: ModelFiles, collective: Collective) -> None:
    """Raises UserError when ranks have read different problems, or in another order, or have other files of the model.
    Collective.

    Each rank takes its positions of one stream of prompts. Of different streams, some prompts would come twice and
    others never. A branch on the hub may move between the downloads of two machines.
    """
    tasks, models = zip(*collective.gather((task.identity, model.identity)), strict=True)

    def compare() -> None:
        require(
            not (ranks := _differing(tasks)),
            f"the problems of rank {ranks} differ from those of rank 0, or come in another order: give every machine "
            "the same data, in the same order",
        )
        require(
            not (ranks := _differing(models)),
            f"the files of the model of rank {ranks} differ from those of rank 0: give every machine the same files, "
            "or a commit as model.revision if they are those of a branch that has moved",
        )

    on_first(collective, compare)


def _differing(by_rank: Sequence[object]) -> str:
    """Returns the ranks that have something else than rank 0, or ""."""
    return ", ".join(str(rank) for rank, own in enumerate(by_rank) if own != by_rank[0])


def check_start(config: TrainConfig, path: Path, collective: Collective) -> None:
    """Raises UserError when `model.start` is a damaged checkpoint, or has adapters that were trained on another model
    than the one in the folder `path`. Collective."""
    if is_checkpoint(config.model.start):
        checkpoint = Path(config.model.start)
        try:
            require_whole(checkpoint, collective)
        except UserError as error:
            raise UserError(f"{error}; restore it from a copy, or give another checkpoint") from error
        require_base(config, path, checkpoint, collective)


def require_base(config: TrainConfig, path: Path, checkpoint: Path, collective: Collective) -> None:
    """Raises UserError when the model in the folder `path` is not the one that a checkpoint's adapters were trained on.
    Collective."""

    def compare() -> None:
        if (base := base_of(config, path)) and (saved := saved_base(checkpoint)):
            check_base(saved, base, checkpoint)

    on_first(collective, compare)


def saved_base(checkpoint: Path) -> WeightsIdentity | None:
    """Returns the identity of the weights that a checkpoint's adapters were trained on, or None if it names none.
    Raises UserError where it names something else."""
    try:
        return rebuilt(WeightsIdentity | None, read_state(checkpoint).get("base"), "base")
    except ValueError as error:
        raise UserError(f"{checkpoint / STATE_FILE} is damaged: {error}") from error


def base_of(config: TrainConfig, path: Path) -> WeightsIdentity | None:
    """Returns the identity of the weights that adapters are trained on, or None for a run without adapters."""
    return weights_identity(config.model, path) if config.model.lora.rank else None
