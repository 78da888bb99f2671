"""These are the names of the files in a run's folder, `output_dir`, and in each of its checkpoints."""

from __future__ import annotations

import re
from pathlib import Path

# These say how the run was configured, which code ran, and what had been changed in that code.
CONFIG_FILE, CODE_FILE, PATCH_FILE = "config.json", "code.json", "code.patch"
# Each round adds a line of numbers, and one with the identity of every prompt asked. Each evaluation adds a line too,
# and some completions are kept.
METRICS_FILE, PROMPTS_FILE = "metrics.jsonl", "prompts.jsonl"
EVALUATIONS_FILE, SAMPLES_FILE = "evaluations.jsonl", "samples.jsonl"
# How the run ended stands here, once it has.
END_FILE = "end.json"
# With tracking.completions=all every completion is kept here.
COMPLETIONS_FOLDER = "completions"
# Traces of the rounds in tracking.profile_rounds lie here.
PROFILE_FOLDER = "profile"
# A finished run leaves these.
CURVES_FILE, REPORT_FILE, MODEL_FOLDER = "curves.png", "report.md", "model"
DYNAMICS_PLOT_FILE, DYNAMICS_PAGE_FILE = "dynamics.png", "dynamics.html"
WHATIF_PLOT_FILE, WHATIF_PAGE_FILE = "whatif.png", "whatif.html"
# A plan is made before a run, and written beside the file of pass rates.
PLAN_PLOT_FILE, PLAN_PAGE_FILE = "plan.png", "plan.html"
# checkpoint.export_every leaves models here while the run goes on.
MODELS_FOLDER = "models"
PAGE_FILE = "report.html"
# A comparison of runs leaves this picture beside a REPORT_FILE and a PAGE_FILE.
COMPARISON_PLOT_FILE = "report.png"
# Problems that a program gave as objects are kept here, and every rank reads them.
DATA_FILE = "data.jsonl"
# A resumed run goes on under the identity that a tracker gave it.
RUN_ID_FILE = "run-id"
# The lock is held while the run goes on. The launcher is the process that started it on several machines. The logs are
# what machines and servers print.
LOCK_FILE, LAUNCHER_FILE, LOG_FOLDER = "run.lock", "launcher.pid", "logs"
CHECKPOINTS = "checkpoints"

# A checkpoint says where the run stood, the checksums of its files, and how the learner's shards are cut.
STATE_FILE, CHECKSUMS_FILE, LAYOUT_FILE = "state.json", "SHA256SUMS", "layout.json"
# A reference that is not the run's first model lies here.
REFERENCE_FILE = "reference.safetensors"
_NAME = re.compile(r"step-(\d+)")


def checkpoints_in(directory: Path) -> list[Path]:
    """Returns the checkpoints in a run's `checkpoints` folder, in the order of their steps.

    Other names there, such as a copy or a note, are passed over.
    """
    paths = directory.iterdir() if directory.is_dir() else ()
    return sorted((path for path in paths if _NAME.fullmatch(path.name) and path.is_dir()), key=step_of)


def step_of(checkpoint: Path) -> int:
    """Returns the number of optimizer steps after which a checkpoint was saved."""
    return int(_NAME.fullmatch(checkpoint.name)[1])
