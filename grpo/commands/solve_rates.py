"""This module implements `grpo solve-rates`, which adds to a data set how often a model solves each problem."""

import json
from collections.abc import Set
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from scipy import stats

from grpo.config import TrainConfig, UserError
from grpo.config.errors import require
from grpo.config.folder import RATES_FILE, RATES_SETTINGS_FILE
from grpo.config.leaves import differences
from grpo.config.plain_json import read_object
from grpo.config.saved import from_dict
from grpo.config.validate import validate_evaluation
from grpo.evaluation.held_out import drawn_as
from grpo.host import ranks
from grpo.host.disk import open_own, write_whole
from grpo.insight.pages.solve_rates import write_solve_rates
from grpo.interfaces import Draw
from grpo.rollout.grading_thread import GradingThread, sampled_and_graded
from grpo.run.measured_model import Candidate, candidate
from grpo.tasks.files import read_rows
from grpo.tasks.solve_rates import MEASURED_COLUMN, MEASURED_LENGTH, PROMPT_LENGTH, SAMPLES_ENDING
from grpo.tasks.sources import load_problems
from grpo.tasks.task import VerifiableTask
from grpo.types import ScoredGroup

# This many problems are sampled, graded and written at a time. A killed command loses no more than these.
CHUNK = 64
TEXT = {"encoding": "utf-8", "errors": "backslashreplace"}
# Rates depend on these keys. All others may change when the command is started again to continue its work.
DECISIVE = (
    "model.", "seed", "task.data.", "task.prompt.", "task.reward.", "task.episode", "task.limits.", "task.python",
    "rollout.sampling.", "rollout.precision", "rollout.engine_args.", "rollout.group_deadline_seconds",
    "evaluation.samples_per_problem", "evaluation.temperature", "evaluation.top_p", "evaluation.top_k",
    "evaluation.max_tokens",
)  # fmt: skip


def run(config: TrainConfig) -> int:
    """Asks every selected problem `evaluation.samples_per_problem` times. Returns the exit code.

    It writes `solve_rates.jsonl` into `output_dir`: one row per problem in Big-Math's schema, with `solve_rate`, its
    counts and its 95 % interval. It also writes a page about what the rates mean for training. When the command is
    started again with the same `output_dir`, it continues where it was stopped. Raises `UserError` when the folder
    holds rates of another model or of other settings.
    """
    config = _asking_each_once(config)
    validate_evaluation(config)
    if config.task.sets:
        raise UserError(f"grpo solve-rates measures one set at a time: choose one of {', '.join(config.task.sets)}")
    output = Path(config.output_dir)
    finished_rows = _begun(output, config)
    if not ranks.rank():
        print(f"if this is stopped, the same words with output_dir={output} continue it", flush=True)
    problems, _ = load_problems(config.task.data, config.task.reward)  # errors show before the engine starts
    if finished_rows:
        _require_same(output / RATES_FILE, {(problem.problem_id, problem.answer) for problem in problems})
    model = candidate(config, [config.task])
    with model.load_task(model.tasks[0]) as task:
        _measure(task, model, config, finished_rows)
    if model.collective.rank:
        return 0
    rows = read_rows(output / RATES_FILE, "the file of solve rates")
    write_solve_rates(rows, output / RATES_FILE, MEASURED_COLUMN, *config.normalization.dials)
    return 0


def _asking_each_once(config: TrainConfig) -> TrainConfig:
    """Returns the config with nothing held out and no curriculum, so that the stream of prompts has each problem once,
    and with pass@1 alone, which needs one completion of each."""
    task = config.task
    data, curriculum = replace(task.data, held_out_fraction=0.0), replace(task.curriculum, name="uniform")
    return replace(
        config, task=replace(task, data=data, curriculum=curriculum), evaluation=replace(config.evaluation, pass_at=[1])
    )


def _require_same(rates: Path, problems: Set[tuple[str, str]]) -> None:
    """Raises UserError where the file holds the pass rate of a problem that the data no longer have."""
    for row in read_rows(rates, "the file of solve rates"):
        require(
            (row["problem_id"], row.get("answer", "")) in problems,
            f"{rates} was begun with other problems: {row['problem_id']} had the answer {row.get('answer', '')!r:.80}, "
            "and the data have no such row: choose another output_dir",
        )


def _measure(task: VerifiableTask, model: Candidate, config: TrainConfig, done: int) -> None:
    """Measures all problems but the first `done`, which the first rank counted, and appends their rows to the file."""
    collective = model.collective
    sampling = drawn_as(config.evaluation, config.rollout.sampling)
    task.cursor = collective.gather(done)[0]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    first = collective.rank == 0
    with Progress(*columns, disable=not first) as progress, GradingThread(task) as thread:
        grading = model.clocks.evaluation_grading(thread)
        bar = progress.add_task("problems", total=task.num_problems, completed=task.cursor)
        while task.cursor < task.num_problems:
            prompts = task.next_prompts(min(CHUNK, task.num_problems - task.cursor))
            samples = config.evaluation.samples_per_problem
            scored = sampled_and_graded(model.sampler, grading, Draw(prompts, samples, sampling))
            shares = collective.gather({group.group.prompt.position: _row(group) for group in scored})
            # Rows are written in the stream's order. A file that is cut off then holds the first problems, and the
            # count of its rows is the cursor to continue from.
            rows = [row for _, row in sorted(chain(*(share.items() for share in shares)))]
            if first:
                with open_own(Path(config.output_dir, RATES_FILE), "a", **TEXT) as file:
                    file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
            progress.update(bar, completed=task.cursor)


def _row(scored: ScoredGroup) -> dict[str, Any]:
    """Makes the row of one problem, with its solve rate. The problem's own columns come after those of the schema, and
    do not replace them. A group that could not be graded gives no rate."""
    problem = scored.group.prompt.problem
    correct, tried = (0, 0) if scored.spoilt else scored.count
    interval = stats.binomtest(correct, tried).proportion_ci(method="wilson") if tried else None
    asked = {
        "problem_id": problem.problem_id,
        "problem": [*map(dict, problem.messages)] if len(problem.messages) > 1 else problem.question,
    }
    asked |= {"answer": problem.answer} if problem.answer else {}
    return (
        asked
        | {name: value for name, value in problem.metadata.items() if name not in asked}
        | {
            MEASURED_COLUMN: correct / tried if tried else None,
            f"{MEASURED_COLUMN}_correct": correct,
            MEASURED_COLUMN + SAMPLES_ENDING: tried,
            f"{MEASURED_COLUMN}_low": round(interval.low, 4) if interval else None,
            f"{MEASURED_COLUMN}_high": round(interval.high, 4) if interval else None,
            PROMPT_LENGTH: len(scored.group.prompt.token_ids),
            MEASURED_LENGTH: scored.group.mean_length,
        }
    )


def _begun(output: Path, config: TrainConfig) -> int:
    """Returns the number of problems that are done already, and 0 on all ranks but the first.

    Removes an incomplete last line, which a killed command may leave. Raises `UserError` when the folder holds rates of
    other settings.
    """
    if ranks.rank():
        return 0
    output.mkdir(parents=True, exist_ok=True)
    rates, settings = output / RATES_FILE, output / RATES_SETTINGS_FILE
    if not rates.exists():
        write_whole(settings, json.dumps(asdict(config), indent=1))
        return 0
    before = from_dict(read_object(settings) if settings.exists() else {})
    for name, old, new in differences(before, config):
        if name.startswith(DECISIVE):
            raise UserError(f"{rates} was begun with {name}={old!r}, but now it is {new!r}: choose another output_dir")
    content = rates.read_bytes()
    # The file is truncated, not rewritten, so that neither a full disk nor a kill loses the rates that are kept.
    with open_own(rates, "ab") as file:
        file.truncate(content.rfind(b"\n") + 1)
    return content.count(b"\n")
