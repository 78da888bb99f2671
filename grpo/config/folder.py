"""The names in a run's folder, `output_dir`, and in each of its checkpoints."""

from __future__ import annotations

import re
from pathlib import Path

# How the run was configured, which code ran, and what had been changed in that code.
CONFIG_FILE, CODE_FILE, PATCH_FILE = "config.json", "code.json", "code.patch"
# A line each round: numbers, and the identity of every prompt asked. A line each evaluation, and some completions.
METRICS_FILE, PROMPTS_FILE = "metrics.jsonl", "prompts.jsonl"
EVALUATIONS_FILE, SAMPLES_FILE = "evaluations.jsonl", "samples.jsonl"
# What is left at the end.
CURVES_FILE, REPORT_FILE, MODEL_FOLDER = "curves.png", "report.md", "model"
DYNAMICS_PLOT_FILE, DYNAMICS_PAGE_FILE = "dynamics.png", "dynamics.html"
# Held while the run goes on; the process that launched it on several machines; what machines and servers print.
LOCK_FILE, LAUNCHER_FILE, LOG_FOLDER = "run.lock", "launcher.pid", "logs"
CHECKPOINTS = "checkpoints"

# In a checkpoint: where the run stood, the checksums of all files, and how the learner's shards are cut.
STATE_FILE, CHECKSUMS_FILE, LAYOUT_FILE = "state.json", "SHA256SUMS", "layout.json"
_NAME = re.compile(r"step-(\d+)")


def checkpoints_in(directory: Path) -> list[Path]:
    """The checkpoints in a run's `checkpoints` folder, in the order of their steps. Whatever else lies there, such as
    a copy or a note, is none."""
    found = directory.iterdir() if directory.is_dir() else ()
    return sorted((path for path in found if _NAME.fullmatch(path.name) and path.is_dir()), key=step_of)


def step_of(checkpoint: Path) -> int:
    """The optimizer steps after which a checkpoint was saved."""
    return int(_NAME.fullmatch(checkpoint.name)[1])
