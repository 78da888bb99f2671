"""These are the names of the files in a run's folder, `output_dir`, and in each of its checkpoints.

Messages name the runs that a folder of runs, such as runs/tiny, holds.
"""

import os
import re
from pathlib import Path

from grpo.config.errors import UserError

# These say how the run was configured, which code ran, and what had been changed in that code.
CONFIG_FILE, CODE_FILE, PATCH_FILE = "config.json", "code.json", "code.patch"
# The manifest names what the run was made from, with digests of data, weights and files, and of what it left.
MANIFEST_FILE = "manifest.json"
# Each round adds a line of numbers, and one with the identity of every prompt asked. Each evaluation adds a line too,
# and some completions are kept.
METRICS_FILE, PROMPTS_FILE = "metrics.jsonl", "prompts.jsonl"
EVALUATIONS_FILE, SAMPLES_FILE = "evaluations.jsonl", "samples.jsonl"
# How the run ended stands here, once it has. Each time the run is resumed adds a line to the other file.
END_FILE, RESUMPTIONS_FILE = "end.json", "resumptions.jsonl"
# A run cuts and continues these files where they are. All others it replaces.
CONTINUED = (METRICS_FILE, PROMPTS_FILE, EVALUATIONS_FILE, SAMPLES_FILE, RESUMPTIONS_FILE)
# With tracking.completions=all every completion is kept here.
COMPLETIONS_FOLDER = "completions"
# Traces of the rounds in tracking.profile_rounds lie here.
PROFILE_FOLDER = "profile"
# A finished run leaves these.
MODEL_FOLDER, PAGE_FILE, DYNAMICS_PAGE_FILE, WHATIF_PAGE_FILE = "model", "report.html", "dynamics.html", "whatif.html"
# A page is also written in these formats on request, as is a comparison of runs.
REPORT_FILE, PICTURE_FILE = "report.md", "report.png"
# A plan is made before a run, and written beside the file of pass rates.
PLAN_PAGE_FILE = "plan.html"
# checkpoint.export_every leaves models here while the run goes on.
MODELS_FOLDER = "models"
# Problems that a program gave as objects are kept here, and every rank reads them.
DATA_FILE = "data.jsonl"
# A resumed run goes on under the identity that a tracker gave it.
RUN_ID_FILE = "run-id"
# The lock is held while the run goes on. The launcher is the process that started it on several machines. The logs are
# what machines and servers print.
LOCK_FILE, LAUNCHER_FILE, LOG_FOLDER = "run.lock", "launcher.pid", "logs"
CHECKPOINTS = "checkpoints"
# A sweep has its runs in this folder.
CELLS = "cells"

# A run writes into these folders of its own. The last two get their names from trackers.
FOLDERS = (
    *(CHECKPOINTS, COMPLETIONS_FOLDER, PROFILE_FOLDER, MODEL_FOLDER, MODELS_FOLDER, LOG_FOLDER),
    *("tensorboard", "wandb"),
)

# A run that died before its first checkpoint cannot be resumed. The next run in the same folder moves what it left into
# a folder of this name with a number.
EARLIER = "earlier-"
LEFT_BEHIND = (
    *(CONFIG_FILE, CODE_FILE, PATCH_FILE, MANIFEST_FILE, METRICS_FILE, PROMPTS_FILE, EVALUATIONS_FILE, SAMPLES_FILE),
    *(END_FILE, COMPLETIONS_FOLDER, PROFILE_FOLDER, MODEL_FOLDER, MODELS_FOLDER),
    *(PICTURE_FILE, REPORT_FILE, PAGE_FILE, DYNAMICS_PAGE_FILE),
)

# A checkpoint says where the run stood, the checksums of its files, and how the learner's shards are cut.
STATE_FILE, CHECKSUMS_FILE, LAYOUT_FILE = "state.json", "SHA256SUMS", "layout.json"
# A reference that is not the run's first model lies here.
REFERENCE_FILE = "reference.safetensors"
# `grpo eval` and `grpo solve-rates` leave these in their output_dir.
EVALUATION_FILE = "evaluation.json"
RATES_FILE, RATES_SETTINGS_FILE, RATES_PAGE_FILE = "solve_rates.jsonl", "solve_rates.json", "solve_rates.html"
_STEP = re.compile(r"step-(\d+)")
_RANDOM_STATE = re.compile(r"rng-(\d+)\.pt")
_COMPLETIONS = re.compile(r"step-(\d+)-rank-(\d+)\.parquet")
SHOWN = 3
"""A message names this many of the newest runs."""


def step_name(step: int) -> str:
    """Returns the name of the folder of a checkpoint, or of a model, after `step` optimizer steps.

    >>> step_name(12)
    'step-00000012'
    """
    return f"step-{step:08d}"


def random_state_name(rank: int) -> str:
    """Returns the name of the file in a checkpoint that holds the state of a rank's random generator."""
    return f"rng-{rank}.pt"


def is_random_state(name: str) -> bool:
    """Tells whether a file in a checkpoint is named by `random_state_name`."""
    return _RANDOM_STATE.fullmatch(name) is not None


def completions_name(step: int, rank: int) -> str:
    """Returns the name of the file with a rank's completions of the round that ended at `step`.

    >>> completions_name(12, 0)
    'step-00000012-rank-0.parquet'
    """
    return f"{step_name(step)}-rank-{rank}.parquet"


def trace_name(round_index: int, rank: int) -> str:
    """Returns the name of the file with the trace of a profiled round on one rank."""
    return f"round-{round_index:05d}-rank-{rank}.json.gz"


def server_log_name(place: str, port: int) -> str:
    """Returns the name of the file with what a vLLM server prints. `place` is its address or its machine's name."""
    return f"server-{place}-{port}.log"


def checkpoints_in(directory: Path) -> list[Path]:
    """Returns the checkpoints in a run's `checkpoints` folder, in the order of their steps.

    Other names there, such as a copy or a note, are passed over.
    """
    paths = directory.iterdir() if directory.is_dir() else ()
    return sorted((path for path in paths if _STEP.fullmatch(path.name) and path.is_dir()), key=step_of)


def step_of(checkpoint: Path) -> int:
    """Returns the number of optimizer steps after which a checkpoint was saved."""
    return int(_STEP.fullmatch(checkpoint.name)[1])


def evaluation_name(of_suite: str = "") -> str:
    """Returns the name of the file with an evaluation, or with that of one set of a suite.

    >>> evaluation_name(), evaluation_name("math500")
    ('evaluation.json', 'math500.json')
    """
    return f"{of_suite}.json" if of_suite else EVALUATION_FILE


def completions_in(folder: Path) -> list[tuple[Path, int]]:
    """Returns the files of completions in a run's `completions` folder, in the order of steps and ranks, each with its
    step."""
    matches = [(_COMPLETIONS.fullmatch(path.name), path) for path in folder.glob("step-*.parquet")]
    found = sorted((int(match[1]), int(match[2]), path) for match, path in matches if match)
    return [(path, step) for step, _, path in found]


def is_run(folder: Path) -> bool:
    """Says whether a run of grpo has written its settings with a round, or a checkpoint, into a folder."""
    logged = (folder / METRICS_FILE).exists() and (folder / CONFIG_FILE).exists()
    return logged or bool(checkpoints_in(folder / CHECKPOINTS))


def runs_within(folder: Path) -> list[Path]:
    """Returns the runs whose folders lie in `folder`, in the order in which they last wrote. Passes over folders that
    this user may not read."""
    readable = [path for path in _entries(folder) if os.access(path, os.R_OK | os.X_OK) and path.is_dir()]
    return sorted(filter(is_run, readable), key=_written)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def refuse_several(folder: Path, instead: str = "") -> None:
    """Raises `UserError` for a folder that is no run and holds runs, as that of a sweep does.

    The message names the newest ones, and ends with what may be done `instead` of naming one.
    """
    runs = [] if is_run(folder) else runs_within(folder) or runs_within(folder / CELLS)
    if not runs:
        return
    newest = [str(run) for run in reversed(runs[-SHOWN:])]
    older = len(runs) - SHOWN
    others = f", and {older} older {'ones' if older > 1 else 'one'}" if older > 0 else ""
    raise UserError(
        f"{folder} is no run, but holds {len(runs)}: give one of them, the newest first {', '.join(newest)}{others}"
        + instead
    )


def resumable(output: Path) -> Path | None:
    """Returns the newest run with a checkpoint in `output`, beside it or around it, or None where there is none."""
    near = [*runs_within(output), *runs_within(output.parent), output.parent]
    return max((run for run in near if checkpoints_in(run / CHECKPOINTS)), key=_saved, default=None)


def _written(run: Path) -> float:
    """Returns when a run last wrote its log, or a checkpoint where it has none, in seconds since 1970."""
    log = run / METRICS_FILE
    return (log if log.exists() else run / CHECKPOINTS).stat().st_mtime


def _saved(run: Path) -> float:
    """Returns when a run saved its last checkpoint, in seconds since 1970."""
    return checkpoints_in(run / CHECKPOINTS)[-1].stat().st_mtime


LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def is_pointer(file: Path) -> bool:
    """Tells whether a file is Git LFS's pointer to a larger one that has not been fetched."""
    with file.open("rb") as beginning:
        return beginning.read(len(LFS_POINTER)) == LFS_POINTER
