"""These checks compare a run's records with its manifest, and with one another."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from grpo.audit.lines import DIFFERS, UNCHECKED, Line, compared
from grpo.audit.starts import Start, start_of
from grpo.config.errors import UserError
from grpo.config.folder import (
    CHECKPOINTS,
    END_FILE,
    EVALUATIONS_FILE,
    MANIFEST_FILE,
    METRICS_FILE,
    MODEL_FOLDER,
    PROMPTS_FILE,
    RESUMPTIONS_FILE,
    STATE_FILE,
    checkpoints_in,
    step_of,
)
from grpo.config.leaves import differences
from grpo.config.optimizer import learning_rate_factor
from grpo.config.plain_json import read_object
from grpo.config.saved import read_config, read_state
from grpo.models.cache import sha256
from grpo.run.checkpoints import alone, require_whole
from grpo.run.manifest import left_by
from grpo.run.resume import OF_ONE_START, PROBLEMS
from grpo.telemetry.ending import FINISHED, read_ending, read_resumptions
from grpo.telemetry.json_lines import Row
from grpo.telemetry.metrics import without_pass_rates
from grpo.types import metrics as m


def check_digests(output: Path, end: Mapping[str, str] | None) -> Iterator[Line]:
    """Compares each record with the digest that the run wrote at its end."""
    if end is None:
        if (output / END_FILE).exists():
            yield Line(
                "records", DIFFERS, f"{END_FILE} says that the run has ended, and {MANIFEST_FILE} has no digests"
            )
        else:
            yield Line("records", UNCHECKED, f"the run did not close {MANIFEST_FILE}: it goes on, or was killed")
        return
    names = left_by(output)
    wrong = [f"{name} is gone" for name in end if name not in names]
    wrong += [f"{name} was added after the run" for name in names if name not in end]
    wrong += [f"{name} is a link, and runs write plain files" for name in names if (output / name).is_symlink()]
    wrong += [
        f"{name} was changed after the run" for name in names if name in end and sha256(output / name) != end[name]
    ]
    yield from compared("records", wrong, f"{len(end)} files are as the run left them")


def check_checkpoints(output: Path, starts: Sequence[Start], prompts: Sequence[Row]) -> Iterator[Line]:
    """Compares the files of each checkpoint with its checksums, and its state with the other records."""
    checkpoints, cursors, wrong = checkpoints_in(output / CHECKPOINTS), {0: 0}, []
    cursors |= {row["step"]: row["cursor"] for row in prompts}
    for checkpoint in checkpoints:
        try:
            require_whole(checkpoint, alone())
            found = _otherwise_saved(checkpoint, start_of(starts, step_of(checkpoint)), cursors)
            wrong += [f"{checkpoint.name}/{STATE_FILE} has {text}" for text in found]
        except UserError as error:
            wrong.append(str(error))
    if checkpoints:
        yield from compared("checkpoints", wrong, f"{len(checkpoints)} have the files that were saved")
    else:
        yield Line("checkpoints", UNCHECKED, "there are none")


def _otherwise_saved(checkpoint: Path, start: Start, cursors: Mapping[int, int]) -> Iterator[str]:
    state, step = read_state(checkpoint), step_of(checkpoint)
    if step not in cursors:
        yield f"step {step}, and {PROMPTS_FILE} does not"
    elif (cursor := state["progress"]["cursor"]) != cursors[step]:
        yield f"cursor={cursor}, and {PROMPTS_FILE} says {cursors[step]}"
    if state.get(PROBLEMS) != start.facts.get("problems", state.get(PROBLEMS)):
        yield f"other problems than {MANIFEST_FILE}"
    for name, then, now in _changed(asdict(start.config), asdict(read_config(checkpoint))):
        yield f"{name}={now!r}, and the run was started with {then!r}"


def _changed(before: Any, after: Any) -> list[list[Any]]:
    """Returns (key, old value, new value) of each setting that was changed, as JSON has them."""
    return [[*change] for change in differences(before, after) if change[0] not in OF_ONE_START]


def check_course(
    output: Path, manifest: Mapping[str, Any], starts: Sequence[Start], rounds: Mapping[str, Sequence[Row]]
) -> Iterator[Line]:
    """Compares the order of the rounds, the resumptions, the end, and the manifest beside the model with one another.
    `rounds` holds the rows of metrics.jsonl, prompts.jsonl and evaluations.jsonl, by these names."""
    metrics, wrong = rounds[METRICS_FILE], []
    for name in (METRICS_FILE, PROMPTS_FILE, EVALUATIONS_FILE):
        pairs = pairwise(row["step"] for row in rounds[name])
        wrong += [f"{name} has step {after} behind step {before}" for before, after in pairs if after <= before]
    wrong += [
        f"{PROMPTS_FILE} has round {row['round']} in the place of round {number}"
        for number, row in enumerate(rounds[PROMPTS_FILE])
        if row.get("round", number) != number
    ]
    if manifest:
        wrong += _resumed_otherwise(output, starts)
    if manifest.get("end"):
        wrong += _ended_otherwise(output, manifest, starts[-1], metrics[-1]["step"] if metrics else 0)
    yield from compared("course", wrong, f"{len(metrics)} rounds after {len(starts)} starts, in their order")


def _resumed_otherwise(output: Path, starts: Sequence[Start]) -> Iterator[str]:
    resumptions = read_resumptions(output)
    then, now = [resumption.step for resumption in resumptions], [start.step for start in starts[1:]]
    if starts[0].step or then != now:
        said = f"{MANIFEST_FILE} has starts at steps {[starts[0].step, *now]}"
        yield f"{said}, and {RESUMPTIONS_FILE} has resumptions at steps {then}"
        return
    for number, (resumption, start) in enumerate(zip(resumptions, starts[1:], strict=True), 1):
        before = start_of(starts[:number], start.step).config
        if [[*change] for change in resumption.changed] != _changed(asdict(before), asdict(start.config)):
            yield f"{RESUMPTIONS_FILE} and {MANIFEST_FILE} have other changes of settings at step {start.step}"


def _ended_otherwise(output: Path, manifest: Mapping[str, Any], start: Start, last: int) -> Iterator[str]:
    ending, copy = read_ending(output), output / MODEL_FOLDER / MANIFEST_FILE
    exports = start.config.checkpoint.export and not start.config.gates
    if ending is None:
        yield f"{END_FILE} is gone or damaged, and {MANIFEST_FILE} was closed"
    elif ending.step != last:
        yield f"{END_FILE} has step {ending.step}, and {METRICS_FILE} ends at step {last}"
    elif ending.state == FINISHED and not ending.why and last < start.config.num_steps:
        yield f"{END_FILE} says that the run has finished, at step {last} of num_steps={start.config.num_steps}"
    elif ending.state == FINISHED and exports and not copy.parent.exists():
        yield f"{MODEL_FOLDER}/ is gone, and {END_FILE} says that the run has finished"
    if copy.parent.exists() and not (copy.exists() and read_object(copy) == manifest):
        yield f"{MODEL_FOLDER}/{MANIFEST_FILE} is not what {MANIFEST_FILE} says"


def check_metrics(
    starts: Sequence[Start], metrics: Sequence[Row], prompts: Sequence[Row], judged: bool
) -> Iterator[Line]:
    """Compares the metrics of each round with those that follow from the record of its prompts, from its other metrics
    and from the configuration. `judged` says that problems have answers, so that there are pass rates."""
    by_step = {row["step"]: row for row in prompts}
    rounds = [(row, by_step[row["step"]]) for row in metrics if row["step"] in by_step]
    wrong = [f"step {row['step']} has no line in {PROMPTS_FILE}" for row in metrics if row["step"] not in by_step]
    wrong += [
        f"step {step} has no line in {METRICS_FILE}" for step in by_step.keys() - {row["step"] for row in metrics}
    ]
    names = names_by_start(starts, metrics)
    for row, asked in rounds:
        expected = _of_prompts(asked) | _of_counts(row) | _of_settings(row, start_of(starts, row["step"]))
        if not judged and not row.get(m.COUNTS):
            expected = without_pass_rates(expected) | {m.COUNTS: []}
        wrong += differing(row, expected, names[start_of(starts, row["step"]).step])
    yield from compared("metrics of prompts", wrong, f"counts, pass rates and lengths of {len(rounds)} rounds")


def names_by_start(starts: Sequence[Start], metrics: Sequence[Row]) -> dict[int, set[str]]:
    """Returns the names of all metrics of the rounds that a start made, by the step from which it went on."""
    names: dict[int, set[str]] = {}
    for row in metrics:
        names.setdefault(start_of(starts, row["step"]).step, set()).update(row)
    return names


def differing(row: Row, expected: Mapping[str, Any], names: Collection[str]) -> Iterator[str]:
    """Yields each number of a round that is not as expected, or that is missing though it is in `names`."""
    for name, value in expected.items():
        logged = row.get(name)
        if not alike(value, logged) and (logged is not None or name in names):
            yield f"step {row['step']}: {METRICS_FILE} has {name}={logged}, and other records give {value}"


def alike(value: Any, logged: Any) -> bool:
    """Tells whether two values are equal but for rounding."""
    if isinstance(value, Mapping):
        return isinstance(logged, Mapping) and all(alike(own, logged.get(name)) for name, own in value.items())
    if isinstance(value, float) and isinstance(logged, int | float):
        return math.isclose(value, logged, rel_tol=1e-9, abs_tol=1e-9)
    return value == logged


def _of_prompts(asked: Row) -> dict[str, Any]:
    """Returns the metrics that follow from a line of prompts.jsonl."""
    graded = [(correct, size) for correct, size in asked["correct"] if size]
    counts = [[*pair, number] for pair, number in sorted(Counter(graded).items())]
    values: dict[str, Any] = {m.NUM_GROUPS: float(len(asked["prompt_ids"])), m.COUNTS: counts}
    if "lengths" in asked and len(graded) == len(asked["correct"]):
        tokens = sum(length * size for length, (_, size) in zip(asked["lengths"], graded, strict=True))
        values[m.LENGTH] = tokens / sum(size for _, size in graded)
    return values


def _of_counts(row: Row) -> dict[str, float]:
    """Returns the metrics that follow from a round's counts of groups by right completions and size."""
    counts, first = row.get(m.COUNTS) or [], row.get(m.FIRST_COUNTS) or row.get(m.COUNTS) or []
    if not counts:
        return {}
    number = sum(groups for *_, groups in counts)
    right, tried = (sum(values) for values in zip(*((k * n, size * n) for k, size, n in first), strict=True))
    return {
        m.PASS_RATE: right / tried,
        m.ALL_RIGHT: sum(n for k, size, n in counts if k == size) / number,
        m.ALL_WRONG: sum(n for k, _, n in counts if not k) / number,
    }


def _of_settings(row: Row, start: Start) -> dict[str, float]:
    """Returns the metrics that follow from the configuration and from others of a round."""
    values, learner = {}, start.config.learner
    if m.REWARD_SQUARE in row and m.REWARD in row:
        values[m.REWARD_STD] = math.sqrt(max(0.0, row[m.REWARD_SQUARE] - row[m.REWARD] ** 2))
    if m.COUNTS in row and m.FIRST_COUNTS not in row:
        values |= {m.GROUP_SIZE: float(max(size for _, size, _ in row[m.COUNTS]))} if row[m.COUNTS] else {}
    if not row.get(m.SKIPPED) and row.get(m.INTERVAL) == 1:
        rate = learning_rate_factor(row["step"] - 1, learner, start.config.num_steps)
        values[m.LEARNING_RATE] = learner.learning_rate * row.get(m.RATE_FACTOR, 1.0) * rate
    return values
