"""This module audits a run: it compares all that the run left with its manifest, with other records, and with what
data, graders and the specification of a step give now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.audit.lines import UNCHECKED, Line, tried
from grpo.audit.made_from import check_made_from, problems_of
from grpo.audit.recomputed import check_steps
from grpo.audit.records import check_checkpoints, check_completions, check_digests, check_metrics
from grpo.audit.replayed import check_grades, check_prompts, recorded_groups
from grpo.config import TrainConfig
from grpo.config.errors import UserError
from grpo.config.folder import (
    COMPLETIONS_FOLDER,
    CONFIG_FILE,
    MANIFEST_FILE,
    METRICS_FILE,
    PROMPTS_FILE,
    completions_in,
)
from grpo.config.plain_json import read_object
from grpo.config.saved import from_dict
from grpo.run.manifest import read_manifest
from grpo.run.model_folder import model_files
from grpo.run.parts import load_task
from grpo.run.resume import asked_of
from grpo.tasks.task import LoadedTask
from grpo.telemetry.completions import read_completions
from grpo.telemetry.json_lines import Row, read_metrics
from grpo.types import Prompt


def audited(output: Path, recompute: bool = True) -> Iterator[Line]:
    """Yields the lines of the audit of a run. With `recompute` log-probabilities and losses are computed again."""
    manifest: dict[str, Any] = {}
    if (output / MANIFEST_FILE).exists():
        manifest = read_manifest(output)
        start = manifest["starts"][-1]
        yield from check_made_from(output, start)
        yield from check_digests(output, manifest.get("end"))
        config = from_dict(start["config"])
    else:
        yield Line("manifest", UNCHECKED, f"the run was made by a version without {MANIFEST_FILE}")
        config = from_dict(read_object(output / CONFIG_FILE))
    yield from check_checkpoints(output)
    metrics, prompts = read_metrics(output / METRICS_FILE), read_metrics(output / PROMPTS_FILE)
    yield from check_metrics(metrics, prompts)
    whole = bool(completions_in(output / COMPLETIONS_FOLDER))
    rows: list[Row] = []
    try:
        rows = sorted(read_completions(output), key=lambda row: row["step"])
    except UserError as error:
        yield Line("completions", UNCHECKED, str(error))
    yield from check_completions(metrics, rows if whole else [], prompts)
    yield from tried("prompts and grades", lambda: _asked_again(output, config, metrics, rows, whole, recompute))


def _asked_again(
    output: Path, config: TrainConfig, metrics: list[Row], rows: list[Row], whole: bool, recompute: bool
) -> Iterator[Line]:
    """Checks what needs the run's problems: the prompts' order, the grades, and the steps."""
    tokenizer, asked = model_files(config, needs_weights=False).tokenizer, asked_of(read_metrics(output / PROMPTS_FILE))
    loaded, by_id = LoadedTask(config.task, problems_of(config), {}), dict[str, Prompt]()
    with contextlib.closing(load_task(config, tokenizer, loaded=loaded)) as task:
        yield from check_prompts(config, task, asked, by_id)
        groups = recorded_groups(rows, by_id)
        yield from check_grades(config, task, groups, whole)
    if recompute:
        yield from tried("steps", lambda: check_steps(output, config, metrics, groups))
    else:
        yield Line("steps", UNCHECKED, "recompute=false")
