"""This module measures pass@1 and unbiased pass@k on held-out problems, for the policy that the sampler holds."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any

from grpo.config import EvaluationConfig, SamplingConfig, TaskConfig
from grpo.evaluation.pass_rates import mean_interval, pass_at_k_interval
from grpo.interfaces import Collective, Draw, Task
from grpo.types import Problem, ScoredGroup
from grpo.types.rollout import NOT_THEIR_FAULT

Ask = Callable[[Draw], list[ScoredGroup]]
"""This function samples and grades completions. It returns a scored group for each prompt, in order."""

NOT_GRADED = (
    "a reward server did not answer, a reward function failed, a group or an episode took too long, or their own "
    "answers cannot be read"
)
# A score is none where more than this share of the problems could not be graded.
MOST_UNGRADED = 0.5
# The settings under which an evaluation asks.
CONDITIONS = ("samples_per_problem", "temperature", "top_p", "top_k", "max_tokens")
# The keys of an evaluation's rows of problems: those that were graded, and the others.
ROWS = ("per_problem", "ungraded_problems")


def evaluate(
    task: Task, ask: Ask, evaluation: EvaluationConfig, sampling: SamplingConfig, collective: Collective
) -> dict[str, Any]:
    """Evaluates the policy on the first `num_problems` held-out problems, with `samples_per_problem` completions each.

    Sampling follows `drawn_as`. All ranks call it together.

    Returns a JSON object with the sampling settings; `pass@1`, `pass@k`, `maj@k` and, if configured, `greedy` as
    {value, low, high} with 95 % intervals over problems; the mean reward; the mean length in tokens; the truncated
    fraction; and a row per problem with its first completion. For problems of several sources, `sources` holds these
    numbers by source.

    `problems` is the number of problems that were asked, and `ungraded` the number of those whose grading failed for a
    reason outside their completions. These are left out of all other numbers, and their rows are in
    `ungraded_problems`. If no problem could be graded, there are no other numbers (see `is_graded`).
    """
    share = task.held_out_prompts(evaluation.num_problems)[collective.rank :: collective.world_size]
    settings = drawn_as(evaluation, sampling)
    own_rows = [_row(group, task.answer_of) for group in ask(Draw(share, evaluation.samples_per_problem, settings))]
    if evaluation.greedy:
        greedy_groups = ask(Draw(share, 1, replace(settings, temperature=0.0)))
        own_rows = [
            row if group.spoilt else row | {"greedy": group.grades[0].correct}
            for row, group in zip(own_rows, greedy_groups, strict=True)
        ]
    rows = [row for part in collective.gather(own_rows) for row in part]
    rows.sort(key=lambda row: row["problem_id"])
    sampling_settings = {name: getattr(settings, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
    result = summarize(rows, evaluation.pass_at) | by_source(rows, evaluation.pass_at)
    return sampling_settings | result


def by_source(rows: Sequence[Mapping[str, Any]], pass_at: Sequence[int]) -> dict[str, Any]:
    """Returns the statistics of each source of problems under "sources", if there are several. A source without any
    graded problem is left out."""
    rows_by_source: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        rows_by_source.setdefault(row.get("source", ""), []).append(row)
    if len(rows_by_source) < 2:
        return {}
    results = {source: summarize(source_rows, pass_at) for source, source_rows in sorted(rows_by_source.items())}
    return {"sources": {source: {key: value for key, value in result.items() if key not in ROWS}
                        for source, result in results.items() if is_graded(result)}}  # fmt: skip


def drawn_as(evaluation: EvaluationConfig, sampling: SamplingConfig) -> SamplingConfig:
    """Returns the sampling settings of an evaluation: those of training, overridden by those that `evaluation` sets."""
    overrides = {name: getattr(evaluation, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
    return replace(sampling, **{name: value for name, value in overrides.items() if value is not None})


def evaluate_suite(
    suite: Sequence[TaskConfig],
    load: Callable[[TaskConfig], AbstractContextManager[Task]],
    ask: Callable[[Task, int], dict[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Evaluates all problems of each set of a suite. Returns the evaluations by the sets' names.

    `ask` evaluates a task on a number of its problems. A set is loaded, and its graders run, only while it is being
    evaluated.
    """
    results = {}
    for config in suite:
        with load(config) as task:
            results[config.name] = ask(task, task.num_problems)
    return results


def with_suite(result: dict[str, Any], suite: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Adds the evaluations of a suite's sets under `suite`. Sets of which no problem could be graded are named under
    `ungraded_sets` instead."""
    graded_sets = {name: of_set for name, of_set in suite.items() if is_graded(of_set)}
    parts = {"suite": graded_sets, "ungraded_sets": [name for name in suite if name not in graded_sets]}
    return result | {name: part for name, part in parts.items() if part}


def summarize(rows: Sequence[Mapping[str, Any]], pass_at: Sequence[int]) -> dict[str, Any]:
    """Returns the statistics of evaluated problems, with the rows that they are computed from under `per_problem`, and
    those of problems that could not be graded under `ungraded_problems`."""
    ungraded_rows = [row for row in rows if "outcome" in row]
    numbers = {"problems": len(rows), "ungraded": len(ungraded_rows)}
    if graded_rows := [row for row in rows if "outcome" not in row]:
        numbers |= _of_graded(graded_rows, pass_at)
    return numbers | dict(zip(ROWS, (graded_rows, ungraded_rows), strict=True))


def _of_graded(rows: Sequence[Mapping[str, Any]], pass_at: Sequence[int]) -> dict[str, Any]:
    correct, totals = [row["correct"] for row in rows], [row["total"] for row in rows]
    samples = sum(totals)
    return {
        "samples_per_problem": totals[0],
        "pass@1": asdict(mean_interval(correct, totals)),
        "maj@k": asdict(mean_interval([row["majority"] for row in rows], [1] * len(rows))),
        "pass@k": {str(k): asdict(pass_at_k_interval(correct, totals, k)) for k in pass_at},
        **_greedy(rows),
        "mean_reward": sum(row["reward"] for row in rows) / len(rows),
        "mean_length": sum(row["tokens"] for row in rows) / samples,
        "truncated_fraction": sum(row["truncated"] for row in rows) / samples,
    }


def _greedy(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    outcomes = [row["greedy"] for row in rows if "greedy" in row]
    return {"greedy": asdict(mean_interval(outcomes, [1] * len(outcomes)))} if outcomes else {}


def is_graded(result: Mapping[str, Any]) -> bool:
    """Tells whether any problem of an evaluation could be graded. Otherwise there is no pass rate to record."""
    return "pass@1" in result


def points_gained(evaluations: Sequence[Mapping[str, Any]]) -> float:
    """Returns by how many percentage points pass@1 has risen from the first evaluation to the last, and 0 where it has
    not.

    >>> points_gained([{"pass@1": {"value": 0.25}}, {"pass@1": {"value": 0.5}}])
    25.0
    """
    if not evaluations or any(is_unjudged(row) for row in evaluations):
        return 0.0
    return max(0.0, 100 * (evaluations[-1]["pass@1"]["value"] - evaluations[0]["pass@1"]["value"]))


def is_unjudged(result: Mapping[str, Any]) -> bool:
    """Tells whether an evaluation measures the mean reward only. That is so where its problems have no answers, no
    grader judges them, and their mean rewards are not those of right completions that earn 1, and wrong ones 0 or −1.
    """
    rows = result.get("per_problem", ())
    return (
        "mean_reward" in result
        and not any(row.get("answer") or row.get("judged") for row in rows)
        and any(row["reward"] not in _of_right(row["correct"], row["total"]) for row in rows)
    )


def _of_right(correct: int, total: int) -> tuple[float, float]:
    """Returns the mean rewards of `total` completions that earn 1 where they are right, and else 0 or −1."""
    return correct / total, (2 * correct - total) / total


def both_unjudged(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Tells whether two evaluations are to be compared by their mean rewards. Once one of them `is_unjudged`, so is the
    other one, whose rewards may all be 0 or 1 by chance."""
    return all("mean_reward" in side for side in (before, after)) and (is_unjudged(before) or is_unjudged(after))


def score(result: Mapping[str, Any]) -> float | None:
    """Returns the score by which the best checkpoint is chosen.

    It is the mean pass@1 of the suite's sets. When there is no suite, it is the pass@1 of the held-out problems, or
    their mean reward where nothing but rewards was measured. It is None when a set of the suite, or most of the
    problems, could not be graded, since a mean over others cannot be compared.
    """
    if result.get("ungraded_sets") or result.get("ungraded", 0) > MOST_UNGRADED * result.get("problems", 0):
        return None
    sets = [evaluation["pass@1"]["value"] for evaluation in result.get("suite", {}).values()]
    own = result["mean_reward"] if is_unjudged(result) else result["pass@1"]["value"]
    return sum(sets) / len(sets) if sets else own


def scores(results: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    """Returns the `score` of each step whose evaluation can be compared with the last of `results`, which are those of
    the same problems and sets under the same settings. A run that is resumed may have changed them."""
    last = [_terms(result) for result in results.values()][-1:]
    alike = {step: score(result) for step, result in results.items() if [_terms(result)] == last}
    return {step: value for step, value in alike.items() if value is not None}


def _terms(result: Mapping[str, Any]) -> tuple[Any, ...]:
    asked = sorted(str(row["problem_id"]) for rows in ROWS for row in result.get(rows, ()))
    return [result.get(name) for name in CONDITIONS], asked, sorted(result.get("suite", {}))


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """Describes an evaluation in lines for the terminal: pass@1, what could not be graded, and if any, greedy decoding,
    its sources and suite."""
    ungraded = result.get("ungraded", 0)
    if not is_graded(result):
        return [f"none of {ungraded} held-out problems could be graded ({NOT_GRADED}), so there is no pass@1"]
    rate = result["pass@1"]
    num_graded = result["problems"] - ungraded
    if is_unjudged(result):
        lines = [f"the completions of {num_graded} held-out problems earn a mean reward of {result['mean_reward']:.3g}"]
    else:
        lines = [
            f"of {num_graded} held-out problems {rate['value']:.1%} are solved at the first try "
            f"(pass@1; 95 % interval {rate['low']:.1%} to {rate['high']:.1%})"
        ]
    if ungraded:
        lines[0] += f"; {ungraded} of {result['problems']} could not be graded ({NOT_GRADED}) and are left out"
    if names := result.get("ungraded_sets"):
        lines.append(
            f"no problem of {', '.join(names)} could be graded ({NOT_GRADED}), so no checkpoint is chosen by it"
        )
    if greedy := result.get("greedy"):
        lines.append(f"with greedy decoding {greedy['value']:.1%} of them are solved")
    for sets in (result.get("sources"), result.get("suite")):
        if sets:
            spelled = (f"{name} {_spelled(evaluation['pass@1'])}" for name, evaluation in sets.items())
            lines.append("pass@1 of " + ", ".join(spelled))
    return lines


def _spelled(interval: Mapping[str, float]) -> str:
    return f"{interval['value']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]"


def majority(answers: Sequence[str | None], correct: Sequence[bool]) -> bool:
    """Tells whether the answer that most completions give is correct (maj@k, arXiv:2203.11171).

    Ties go to the answer that comes first. Completions without an answer do not vote.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return False
    majority_answer = max(votes, key=lambda answer: votes[answer])
    return correct[answers.index(majority_answer)]


def _row(scored: ScoredGroup, answer_of: Callable[[Problem, str], str | None]) -> dict[str, Any]:
    """Returns a problem's row of `per_problem`, or that of `ungraded_problems`, whose `outcome` says why."""
    completions, problem = scored.group.completions, scored.group.prompt.problem
    row = {"problem_id": problem.problem_id, "question": problem.question, "answer": problem.answer}
    row |= {"source": problem.source} if problem.source else {}
    row |= {"opening": [*problem.messages[:-1]]} if problem.messages[1:] else {}
    row |= {"judged": True} if scored.judged_without_answer else {}
    if scored.spoilt:
        outcome = next(grade.outcome for grade in scored.grades if grade.outcome in NOT_THEIR_FAULT)
        return row | {"outcome": outcome, "completion": completions[0].text}
    return row | {
        "correct": sum(grade.correct for grade in scored.grades),
        "total": len(completions),
        "reward": sum(scored.rewards) / len(completions),
        "majority": majority(
            [answer_of(problem, completion.text) for completion in completions],
            [grade.correct for grade in scored.grades],
        ),
        "completion": completions[0].text,
        "tokens": sum(len(completion.token_ids) for completion in completions),
        "truncated": sum(completion.truncated for completion in completions),
    }
