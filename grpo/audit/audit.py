"""This module audits a run: it compares all that the run left with its manifest, with other records, and with what
data, graders and the specification of a step give now."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from grpo.audit.completions import check_completions, check_samples, check_texts, judged
from grpo.audit.evaluations import check_evaluations, check_held_out
from grpo.audit.lines import ALL, DIFFERS, ENDS, NONE, UNCHECKED, Line, tried
from grpo.audit.made_from import check_made_from, problems_of
from grpo.audit.recomputed import check_model, check_steps
from grpo.audit.records import check_checkpoints, check_course, check_digests, check_metrics
from grpo.audit.replayed import check_grades, check_prompts, recorded_groups
from grpo.audit.starts import Start, start_of, starts_of
from grpo.config import TrainConfig
from grpo.config.errors import UserError
from grpo.config.folder import (
    COMPLETIONS_FOLDER,
    CONFIG_FILE,
    EVALUATIONS_FILE,
    MANIFEST_FILE,
    METRICS_FILE,
    MODEL_FOLDER,
    PROMPTS_FILE,
    SAMPLES_FILE,
    completions_in,
)
from grpo.config.plain_json import read_object
from grpo.config.saved import from_dict
from grpo.run.manifest import read_manifest
from grpo.run.model_folder import model_files
from grpo.run.parts import load_task
from grpo.run.resume import Asked, asked_of, relearn
from grpo.tasks.task import LoadedTask, VerifiableTask
from grpo.telemetry.completions import read_completions
from grpo.telemetry.ending import FINISHED, read_ending
from grpo.telemetry.json_lines import Row, read_metrics
from grpo.types import Prompt


class Rows(NamedTuple):
    """These are the rows of a run. `completions` are all that were kept: `whole` says that these are all of a round."""

    by_file: Mapping[str, list[Row]]
    asked: list[Asked]
    completions: list[Row]
    whole: bool


def audited(output: Path, recompute: str = ENDS) -> Iterator[Line]:
    """Yields the lines of the audit of a run. `recompute` says of which rounds log-probabilities and losses are
    computed again."""
    manifest: dict[str, Any] = {}
    if (output / MANIFEST_FILE).exists():
        manifest = read_manifest(output)
        starts = starts_of(manifest)
        yield from tried("manifest", lambda: check_made_from(output, starts))
        yield from tried("records", lambda: check_digests(output, manifest.get("end")))
    else:
        if (output / MODEL_FOLDER / MANIFEST_FILE).exists():
            yield Line("manifest", DIFFERS, f"{MANIFEST_FILE} is gone, and {MODEL_FOLDER}/ has a copy of it")
        else:
            yield Line("manifest", UNCHECKED, f"the run was made by a version without {MANIFEST_FILE}")
        starts = [Start(0, from_dict(read_object(output / CONFIG_FILE)), {})]
    try:
        rows = _rows(output)
    except UserError as error:
        yield Line("records", DIFFERS, str(error))
        return
    yield from _compared(output, manifest, starts, rows)
    yield from tried("prompts and grades", lambda: _asked_again(output, starts, rows, recompute))


def _rows(output: Path) -> Rows:
    """Reads the rows of a run. Raises UserError for those that no run writes."""
    by_file = {name: read_metrics(output / name) if (output / name).exists() else []
               for name in (METRICS_FILE, PROMPTS_FILE, EVALUATIONS_FILE, SAMPLES_FILE)}  # fmt: skip
    whole = bool(completions_in(output / COMPLETIONS_FOLDER))
    has_any = whole or (output / SAMPLES_FILE).exists()
    completions = sorted(read_completions(output), key=lambda row: row["step"]) if has_any else []
    return Rows(by_file, asked_of(by_file[PROMPTS_FILE]), completions, whole)


def _compared(output: Path, manifest: Mapping[str, Any], starts: Sequence[Start], rows: Rows) -> Iterator[Line]:
    """Compares the records of a run with one another."""
    metrics, prompts = rows.by_file[METRICS_FILE], rows.by_file[PROMPTS_FILE]
    ending, samples = read_ending(output), rows.by_file[SAMPLES_FILE]
    finished = ending is not None and ending.state == FINISHED
    # A round without a file of its own has rows of samples.jsonl among the completions. These lack tokens.
    whole = [row for row in rows.completions if "token_ids" in row]
    yield from tried("course", lambda: check_course(output, manifest, starts, rows.by_file))
    yield from tried("checkpoints", lambda: check_checkpoints(output, starts, prompts))
    yield from tried("metrics of prompts", lambda: check_metrics(starts, metrics, prompts, judged(rows.completions)))
    yield from tried("metrics of completions", lambda: check_completions(starts, metrics, prompts, whole))
    yield from tried("samples", lambda: check_samples(starts, prompts, whole, samples))
    evaluations = rows.by_file[EVALUATIONS_FILE]
    yield from tried("evaluations", lambda: check_evaluations(starts, finished, metrics, evaluations))


def _asked_again(output: Path, starts: Sequence[Start], rows: Rows, recompute: str) -> Iterator[Line]:
    """Checks what needs the run's problems: the prompts' order, the grades, and the steps."""
    last = starts[-1].config
    tokenizer, by_id, begin = model_files(last, needs_weights=False).tokenizer, dict[str, Prompt](), 0
    yield from tried("texts", lambda: check_texts(rows.completions, tokenizer))
    # Settings of the task may have changed when the run was resumed. Its stream goes on at the same place.
    settings = [(start_of(starts, asked.step).config, asked) for asked in rows.asked]
    for _, pairs in groupby(settings, key=lambda pair: (repr(pair[0].task), pair[0].seed)):
        [*configs], [*asked] = zip(*pairs, strict=True)
        loaded = LoadedTask(configs[-1].task, problems_of(configs[-1]), {})
        with contextlib.closing(load_task(configs[-1], tokenizer, loaded=loaded)) as task:
            relearn(task, rows.asked[:begin], asked[0].step)
            task.cursor = rows.asked[begin - 1].cursor if begin else 0
            yield from _under(configs[-1], task, starts, rows, asked, by_id)
        begin += len(asked)
    if recompute == NONE:
        yield Line("steps", UNCHECKED, f"recompute={NONE}")
        return
    groups, metrics = recorded_groups(rows.completions, by_id), rows.by_file[METRICS_FILE]
    yield from tried("steps", lambda: check_steps(output, starts, metrics, groups, recompute == ALL))
    if metrics:
        yield from tried("model", lambda: check_model(output, last, metrics[-1]["step"]))


def _under(
    config: TrainConfig,
    task: VerifiableTask,
    starts: Sequence[Start],
    rows: Rows,
    asked: Sequence[Asked],
    by_id: dict[str, Prompt],
) -> Iterator[Line]:
    """Checks the rounds that asked prompts under one configuration of the task."""
    steps = {of.step for of in asked}
    yield from tried("prompts", lambda: check_prompts(config, task, asked, by_id))
    kept = recorded_groups((row for row in rows.completions if row["step"] in steps), by_id)
    yield from tried("grades", lambda: check_grades(config, task, kept, rows.whole))
    # The evaluation before the first round belongs to that round's settings.
    steps |= {0} if asked[0] is rows.asked[0] else set()
    evaluated = [row for row in rows.by_file[EVALUATIONS_FILE] if row["step"] in steps]
    yield from tried("held-out problems", lambda: check_held_out(starts, task, evaluated))
