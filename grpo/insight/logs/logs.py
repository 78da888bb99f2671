"""This module reads the log of a run of this framework, or of another one, into a `RunLog`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from grpo.config import UserError
from grpo.config.errors import require
from grpo.config.folder import CONFIG_FILE, EVALUATIONS_FILE, METRICS_FILE, refuse_several
from grpo.config.leaves import leaves
from grpo.config.plain_json import read_object
from grpo.config.ranges import check_values
from grpo.config.saved import from_dict
from grpo.dynamics.history import Counts, history_of, num_tried
from grpo.dynamics.replay import round_seconds
from grpo.dynamics.scheduler import CHANGING
from grpo.evaluation.held_out import is_unjudged
from grpo.insight.logs.foreign_columns import Columns, series_of
from grpo.insight.logs.foreign_logs import read_foreign
from grpo.insight.logs.foreign_names import Row
from grpo.insight.logs.run_log import NOTHING, RunLog, Series
from grpo.insight.pages.course import how_often
from grpo.telemetry.ending import read_resumptions
from grpo.telemetry.json_lines import read_json_lines, read_metrics
from grpo.telemetry.row_kinds import PLAN
from grpo.types import metrics as m
from grpo.types.rounds import is_news, lag

# A comparison of evaluations needs these besides pass@1.
COMPARED = ("per_problem", "pass@k", "samples_per_problem", "mean_length", "truncated_fraction")


def read_log(path: str | Path, column: str | None = None, scale: float = 1.0) -> RunLog:
    """Reads the log in a file or folder.

    `column` names the column of pass rates, by the file's name or this project's, and `scale` is its value for a right
    answer. Raises `UserError` when there is nothing to read, no such column, or values that leave [0, scale].
    """
    require(
        column is not None or scale == 1.0, "scale= says which number in column=NAME means a right answer: give both"
    )
    require(column != "", "column= names no column: write column=NAME, or leave it out")
    path = Path(path)
    file = path if path.name == METRICS_FILE else path / METRICS_FILE
    if file.is_file() and _of_another_program(file):
        return read_foreign(file, column, scale)
    if file.exists():
        require(column is None, f"{path} is a run of grpo, whose pass rates are known: leave out column=")
        return _read_ours(path if path.is_dir() else path.parent)
    refuse_several(path)
    return read_foreign(path, column, scale)


def _of_another_program(file: Path) -> bool:
    """Tells whether no row of a metrics.jsonl has counts of completions, and no configuration lies beside it."""
    values = [] if (file.parent / CONFIG_FILE).exists() else read_json_lines(file)
    rows = [row for row in values if isinstance(row, Mapping)]
    return bool(rows) and not any(m.COUNTS in row for row in rows)


def run_config(folder: Path) -> Mapping[str, Any]:
    """Reads the configuration that a run saved in its folder. Keys that it lacks have their defaults.

    Raises `UserError` when there is none, and for values of another type or out of their range.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        refuse_several(folder)
        raise UserError(f"there is no file {path}: give the output_dir of a run")
    remedy = ": restore it; a resumed run writes it anew"
    values = read_object(path, remedy)
    try:
        config = from_dict(values)
        check_values(config, ())
    except UserError as error:
        raise UserError(f"{path} is damaged ({error}){remedy}") from error
    return asdict(config)


def read_run(folder: Path) -> list[Row]:
    """Reads the rows of `metrics.jsonl` with counts of correct completions. Raises `UserError` when there are none.

    A row's counts are empty when no completion of the round could be graded.
    """
    path = folder / METRICS_FILE
    rows = [row for row in read_metrics(path) if m.COUNTS in row]
    if not rows:
        whole = read_metrics(path)
        lacks = f"has no values of {m.COUNTS}" if whole else "is empty: restore that file from a copy"
        raise UserError(f"{path} {lacks}, so there is nothing to fit")
    return rows


def read_evaluations(folder: Path) -> list[Row]:
    """Reads a run's evaluations, of which there may be none. Raises `UserError` for one that cannot be compared."""
    path = folder / EVALUATIONS_FILE
    evaluations = read_metrics(path) if path.exists() else []
    _require_all(evaluations, COMPARED, path)
    return evaluations


def read_plans(folder: Path) -> list[Row]:
    """Reads the rows of `read_run` for a replay. Raises `UserError` for one that does not hold its whole plan and
    the lengths that decisions need."""
    rows = read_run(folder)
    _require_all(rows, (*PLAN, m.PROMPT_LENGTH, m.LENGTH), folder / METRICS_FILE)
    return rows


def _require_all(rows: Sequence[Row], names: Sequence[str], path: Path) -> None:
    for row in rows:
        for name in names:
            require(name in row, f"the row of step {row['step']:g} in {path} has no {name}: delete that line")


def counts_of(row: Row, name: str = m.COUNTS) -> dict[tuple[int, int], int]:
    """Returns the counts in one row of metrics, {(correct, group size): number of groups}, empty if it has none."""
    return {(k, size): groups for k, size, groups in row.get(name, ())}


def num_completions(row: Row) -> int:
    """Returns the number of completions that were sampled in one row of metrics, or of those that were graded
    where it lacks that."""
    return round(row.get(m.NUM_COMPLETIONS, num_tried(counts_of(row))))


def costs(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Returns the costs of each round, by unit: "samples" (completions), "tokens" (of completions) and "seconds"."""
    samples = np.array([num_completions(row) for row in rows])
    lengths = np.array([row.get(m.LENGTH, 0.0) for row in rows])
    return {"samples": samples, "tokens": lengths * samples, "seconds": np.array([round_seconds(row) for row in rows])}


def log_of(rows: Sequence[Row], config: Mapping[str, Any], held_out: Series = NOTHING) -> RunLog:
    """Makes a `RunLog` from this framework's rows of metrics, for a run that has ended or still goes on."""
    present_rows, normalization = since_going_back(rows), config["normalization"]
    return RunLog(
        history=history_of(map(past_round, present_rows)),
        series=_series(rows),
        counts=[counts_of(row) for row in present_rows if row[m.COUNTS]],
        held_out=held_out,
        exponent=normalization["exponent"],
        mean_exponent=normalization.get("mean_exponent", 0.0),
        dialled=normalization.get("name", "dial") == "dial" and normalization.get("parts", "sum") == "sum",
        shared_std=normalization.get("scope", "group") == "batch",
        # REINFORCE++ takes its baseline over the whole step. Parts of the reward that are normalized one by one may
        # differ within a group although their sums are equal.
        learns_from_equal=normalization.get("name") == "reinforce_plus_plus" or normalization.get("parts") == "each",
        changing_prompts=config.get("task", {}).get("curriculum", {}).get("name", "uniform") in CHANGING,
        num_steps=config["num_steps"],
        decisions=decisions_of(rows),
        settings=dict(leaves(config)),
    )


def _series(rows: Sequence[Row]) -> dict[str, Series]:
    """Returns every numeric metric as a series."""
    columns = Columns()
    for row in rows:
        columns.add(row["step"], {name: value for name, value in row.items()
                                  if isinstance(value, int | float) and name != "step"})  # fmt: skip
    return series_of(np.array(columns.steps), columns.named())


def past_round(row: Row) -> tuple[int, int, int, Counts]:
    """Returns a round as `history_of` takes it: its step, refresh interval, lag and counts.

    If answers decided how often a prompt was sampled, only its first completions give an unbiased pass rate.
    """
    return row["step"], *_timing(row), counts_of(row, m.FIRST_COUNTS) or counts_of(row)


def since_going_back(rows: Sequence[Row]) -> Sequence[Row]:
    """Returns the rows since the run last went back to an earlier policy, which form one curve without a jump."""
    firsts = [index + 1 for index, row in enumerate(rows[:-1]) if row.get(m.WENT_BACK)]
    return rows[max(firsts, default=0) :]


def decisions_of(rows: Sequence[Row]) -> list[tuple[int, str]]:
    """Returns (step, reason) of the rounds after which the plan changed, the run went back to an earlier policy, or the
    scheduler had something to say."""
    keys = (m.GROUP_SIZE, m.INTERVAL, m.PROMPTS, m.RATE_FACTOR)
    return [
        (before["step"], before.get(m.REASON, ""))
        for before, after in pairwise(rows)
        if before.get(m.WENT_BACK)
        or is_news(before.get(m.REASON, ""))
        or any(before.get(key) != after.get(key) for key in keys)
    ]


def _read_ours(folder: Path) -> RunLog:
    path = folder / EVALUATIONS_FILE
    evaluations = read_metrics(path) if path.exists() else []
    # The pass rates of an evaluation that has only measured rewards say nothing.
    evaluations = [] if any(map(is_unjudged, evaluations)) else evaluations
    scores = [(row["step"], row["pass@1"]["value"]) for row in evaluations]
    # A 95 % interval is 2 × 1.96 standard errors wide.
    errors = [(row["pass@1"]["high"] - row["pass@1"]["low"]) / 3.92 for row in evaluations if "low" in row["pass@1"]]
    held_out = Series(*np.array(scores, float).T) if scores else NOTHING
    log = log_of(read_run(folder), run_config(folder), held_out)
    notes = how_often(read_resumptions(folder))
    if len(errors) < max(len(evaluations), 1):
        return replace(log, notes=notes, held_out_error=float(np.mean(errors)) if errors else 0.0)
    low, high = (np.array([row["pass@1"][end] for row in evaluations]) for end in ("low", "high"))
    bounds = Series(held_out.steps, low), Series(held_out.steps, high)
    return replace(log, notes=notes, held_out_error=float(np.mean(errors)), held_out_bounds=bounds)


def _timing(row: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the refresh interval and the lag of a round."""
    interval = round(row[m.INTERVAL])
    return interval, lag(row.get(m.STALENESS, 0.0), interval)
