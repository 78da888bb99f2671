"""These checks compare a run's held-out evaluations with their rows of problems, with the rounds, and with the data."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo.audit.lines import Line, compared
from grpo.audit.records import alike
from grpo.audit.replayed import not_gradable
from grpo.audit.starts import Start, start_of
from grpo.config.folder import EVALUATIONS_FILE
from grpo.evaluation.held_out import ROWS, by_source, summarize
from grpo.tasks.task import VerifiableTask
from grpo.telemetry.json_lines import Row
from grpo.types import Completion, Prompt, RolloutGroup


def check_evaluations(
    starts: Sequence[Start], finished: bool, metrics: Sequence[Row], evaluations: Sequence[Row]
) -> Iterator[Line]:
    """Compares the numbers of each evaluation with those that follow from its problems, and their steps with those at
    which the run had to evaluate. `finished` says that the last of these is after the last round."""
    steps, wrong = [row["step"] for row in evaluations], []
    wrong += [f"{EVALUATIONS_FILE} has no line of step {step}" for step in _due(starts, finished, metrics, steps)]
    taken = {0, *(row["step"] for row in metrics)}
    wrong += [f"{EVALUATIONS_FILE} has step {step}, after which no round ended" for step in steps if step not in taken]
    for row in evaluations:
        for place, of_set in [("", row), *row.get("suite", {}).items()]:
            wrong += _otherwise(f"step {row['step']}{place and f', {place}'}", of_set)
    if wrong or evaluations:
        yield from compared("evaluations", wrong, f"{len(evaluations)} follow from their problems")


def check_held_out(starts: Sequence[Start], task: VerifiableTask, evaluations: Sequence[Row]) -> Iterator[Line]:
    """Compares the evaluated problems with those that the task holds out now, and their first completions with their
    grades."""
    wrong = []
    for row in evaluations:
        config = start_of(starts, row["step"]).config
        prompts = {
            prompt.problem.problem_id: prompt for prompt in task.held_out_prompts(config.evaluation.num_problems)
        }
        problems = {of["problem_id"]: of for name in ROWS for of in row.get(name, ())}
        for name in sorted(prompts.keys() | problems.keys()):
            of, prompt = problems.get(name), prompts.get(name)
            if not (
                of and prompt and (prompt.problem.question, prompt.problem.answer) == (of["question"], of["answer"])
            ):
                wrong.append(
                    f"step {row['step']}: {name} is not what the data says of this held-out problem, or is none"
                )
        if not not_gradable(config, task, whole=False):
            wrong += _graded_otherwise(row, task, prompts)
    if evaluations:
        yield from compared("held-out problems", wrong, f"those of {len(evaluations)} evaluations, in grades too")


def _graded_otherwise(row: Row, task: VerifiableTask, prompts: Mapping[str, Prompt]) -> Iterator[str]:
    """Grades the first completion of each problem again, which is the only one that is kept."""
    rows = [of for of in row.get("per_problem", ()) if of["problem_id"] in prompts]
    firsts = [Completion((0,) * of["tokens"], (0.0,) * of["tokens"], of["completion"], False) for of in rows]
    groups = [RolloutGroup(prompts[of["problem_id"]], (one,), 0, 0) for of, one in zip(rows, firsts, strict=True)]
    for of, scored in zip(rows, task.grade(groups), strict=True):
        right, outcome = scored.grades[0].correct, scored.grades[0].outcome
        if outcome == "graded" and not right <= of["correct"] <= of["total"] - (not right):
            yield (
                f"step {row['step']}: {of['problem_id']} has {of['correct']} of {of['total']} right, whose first "
                f"completion is {'right' if right else 'wrong'} when it is graded again"
            )


def _due(starts: Sequence[Start], finished: bool, metrics: Sequence[Row], steps: Sequence[int]) -> Iterator[int]:
    """Yields the steps at which an evaluation is missing. One that was due when the run was stopped may be."""
    rounds = [(0, 0), *((number, row["step"]) for number, row in enumerate(metrics, 1))]
    for number, step in rounds if finished else rounds[:-1]:
        evaluation = start_of(starts, step).config.evaluation
        at_end = finished and step == rounds[-1][1]
        due = number == 0 or at_end or (evaluation.every_rounds and number % evaluation.every_rounds == 0)
        if due and evaluation.num_problems and step not in steps:
            yield step


def _otherwise(place: str, logged: Mapping[str, Any]) -> Iterator[str]:
    rows = [of for name in ROWS for of in logged.get(name, ())]
    pass_at = [int(k) for k in logged.get("pass@k", ())]
    again = summarize(sorted(rows, key=lambda row: row["problem_id"]), pass_at) | by_source(rows, pass_at)
    for name, value in again.items():
        if name not in ROWS and name in logged and not alike(value, logged[name]):
            yield f"{place}: {EVALUATIONS_FILE} has {name}={logged[name]}, and its problems give {value}"
