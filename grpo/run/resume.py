"""This module resumes a run from its newest undamaged checkpoint, and reports config changes since it was saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from grpo.config import TrainConfig, UserError
from grpo.config.compare_saved import check_resumed, differences
from grpo.config.folder import CHECKPOINTS, METRICS_FILE, PROMPTS_FILE, STATE_FILE
from grpo.config.saved import flat, read_config, read_state
from grpo.dynamics.scheduler import replanned
from grpo.interfaces import Collective, Task
from grpo.loop import LoopParts
from grpo.measure import by_problem, problem_id
from grpo.run.checkpoints import CheckpointStore, read_progress
from grpo.run.first_rank import from_first
from grpo.run.starting import require_base
from grpo.tasks import LoadedTask
from grpo.telemetry import KILLED, Resumption, read_ending, read_metrics
from grpo.types import Progress, Verdict

# These keys belong to one start of a run, and are no change of its settings.
OF_ONE_START = ("output_dir", "checkpoint.resume")
PROBLEMS = "problems"
"""A checkpoint's state holds under this name the identity of the problems that the run was trained on."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved run is an undamaged checkpoint, with the run's config and progress at that time.

    `resumption` says on the first rank what the run had done since, and how it had ended.
    """

    checkpoint: Path
    config: TrainConfig
    progress: Progress[Mapping[str, Any]]
    resumption: Resumption | None


def checkpoint_store(config: TrainConfig, collective: Collective) -> CheckpointStore:
    """Opens the store of the run's checkpoints."""
    retention = config.checkpoint
    return CheckpointStore(Path(config.output_dir) / CHECKPOINTS, retention.keep_last, collective, retention.keep_every)


def saved_run(config: TrainConfig, path: Path, task: LoadedTask, collective: Collective) -> Saved:
    """Finds the newest undamaged checkpoint of the run in `output_dir`. Collective.

    `path` is the folder of the run's model, which has to be the one that a checkpoint's adapters were trained on.
    Prints the checkpoint's name and the config keys that have changed since. Also prints whether the problems of `task`
    have changed, for example because the file of that name holds others now. Raises UserError when there is no such
    checkpoint, or when the run cannot continue with the present config.
    """
    checkpoint = checkpoint_store(config, collective).whole()
    if checkpoint is None:
        raise UserError(
            f"there is no undamaged checkpoint in {Path(config.output_dir) / CHECKPOINTS}: restore one from a copy, or "
            "start anew in another output_dir without checkpoint.resume"
        )
    state, old = read_state(checkpoint), read_config(checkpoint)
    if collective.rank == 0:
        print(f"resuming from {checkpoint.name}")
        for name, before, after in differences(old, config):
            if name != "checkpoint.resume":
                print(f"  changed since: {name}: {before!r} → {after!r}")
        if state.get(PROBLEMS, task.identity) != task.identity:
            print("  changed since: the problems, so those of the rounds before may come again or not at all")
    check_resumed(old, config)
    require_base(config, path, checkpoint, collective)
    try:
        progress = read_progress(state["progress"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{checkpoint / STATE_FILE} is damaged: its progress lacks {error}") from error
    if collective.rank == 0 and progress.step >= config.num_steps:
        print(f"  it has taken {progress.step} of num_steps={config.num_steps} steps, so none is left: raise num_steps")
    resumption = _resumption(config, old, checkpoint, progress.step) if collective.rank == 0 else None
    return Saved(checkpoint, old, progress, resumption)


def _resumption(config: TrainConfig, old: TrainConfig, checkpoint: Path, step: int) -> Resumption:
    """Describes how the run in `output_dir` goes on from `step`. Called before the run forgets how it ended."""
    output = Path(config.output_dir)
    ending = read_ending(output)
    rows = read_metrics(output / METRICS_FILE) if (output / METRICS_FILE).exists() else []
    reached = max(step, rows[-1]["step"] if rows else 0)
    before, now = (dict(flat(asdict(settings))) for settings in (old, config))
    changed = [
        (key, before.get(key), now.get(key))
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key) and key not in OF_ONE_START
    ]
    how = (ending.state, ending.why) if ending else (KILLED, "")
    return Resumption(step, checkpoint.name, reached, *how, changed)


def relearn(task: Task, rows: Iterable[Mapping[str, Any]], step: int) -> None:
    """Passes the outcomes and lengths of the rounds up to `step`, read from `prompts.jsonl`, to the task.

    An online curriculum is then in the state in which the run was saved, and prompts are dealt to ranks as they would
    have been. The later rounds of a run that was killed are taken again, so they do not count.
    """
    for row in takewhile(lambda row: row["step"] <= step, rows):
        task.record_outcomes(by_problem(zip(row["prompt_ids"], row["correct"], strict=True)), row["cursor"])
        if "lengths" in row:
            task.record_lengths(dict(zip(map(problem_id, row["prompt_ids"]), row["lengths"], strict=True)))


def fresh(parts: LoopParts) -> tuple[Progress, Verdict]:
    """Returns the progress and verdict with which a new run begins."""
    plan, state = parts.scheduler.init()
    return Progress(0, 0, 0, plan, state), Verdict()


def resumed(config: TrainConfig, saved: Saved, parts: LoopParts, store: CheckpointStore) -> tuple[Progress, Verdict]:
    """Loads a checkpoint. Returns the progress from which the run goes on, and a newly judged verdict. Collective."""
    parts.learner.load(str(saved.checkpoint))
    store.restore_rng(saved.checkpoint)
    parts.task.cursor = saved.progress.cursor
    collective = parts.collective
    progress = replanned(saved.progress, saved.config, config, parts.scheduler, collective.world_size)
    before, now = saved.progress.plan.prompts_per_step, progress.plan.prompts_per_step
    if collective.rank == 0 and before != now:
        print(f"  prompts per step: {before} → {now} on {collective.world_size} ranks")
    # Every rank reads the rounds before from the log that the first one has.
    rounds = from_first(collective, lambda: read_metrics(Path(config.output_dir) / PROMPTS_FILE))
    relearn(parts.task, rounds, saved.progress.step)
    return progress, parts.scheduler.judge(progress.step, progress.scheduler)
