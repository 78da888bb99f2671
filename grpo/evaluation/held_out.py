"""Held-out evaluation: pass@1 and unbiased pass@k of the policy that the sampler holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any

from grpo.config import EvaluationConfig, SamplingConfig, TaskConfig
from grpo.evaluation.pass_rates import mean_interval, pass_at_k_interval
from grpo.interfaces import Collective, Sampler, Task
from grpo.types import Prompt, ScoredGroup


def evaluate(
    task: Task, sampler: Sampler, evaluation: EvaluationConfig, sampling: SamplingConfig, collective: Collective
) -> dict[str, Any]:
    """Asks the first `num_problems` held-out problems (of all, where none are held out),
    `samples_per_problem` times each, as `sampling` says but at the evaluation's temperature. Collective.

    Returns a JSON object: how completions were drawn, `pass@1`, `pass@k`, `maj@k` and, where asked for, `greedy` as
    {value, low, high} with 95 % intervals over problems, mean length in tokens, truncated fraction, and a row per
    problem with its first completion.
    """
    share = _share(task, evaluation.num_problems, collective)
    drawn = replace(sampling, temperature=evaluation.temperature)
    scored = task.grade(sampler.generate(share, evaluation.samples_per_problem, drawn))
    mine = [_row(group, task.answer_of) for group in scored]
    if evaluation.greedy:
        likeliest = task.grade(sampler.generate(share, 1, replace(drawn, temperature=0.0)))
        mine = [row | {"greedy": each.grades[0].correct} for row, each in zip(mine, likeliest, strict=True)]
    rows = [row for part in collective.gather(mine) for row in part]
    rows.sort(key=lambda row: row["problem_id"])
    asked = {"temperature": drawn.temperature, "top_p": drawn.top_p, "top_k": drawn.top_k}
    return {"step": sampler.policy_version, **asked, **summarize(rows, evaluation.pass_at)}


def evaluate_suite(
    suite: Sequence[TaskConfig],
    load: Callable[[TaskConfig], AbstractContextManager[Task]],
    ask: Callable[[Task, int], dict[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Name → evaluation of each set, whole: `ask` is given the task and the number of its problems. A set is loaded,
    and its graders run, only while it is asked."""
    results = {}
    for config in suite:
        with load(config) as task:
            results[config.name] = ask(task, task.num_problems)
    return results


def _share(task: Task, count: int, collective: Collective) -> list[Prompt]:
    """This rank's part of the held-out problems; where none are held out, of the stream's first ones. The stream
    itself goes on where it stood."""
    if held_out := task.held_out_prompts(count):
        return held_out[collective.rank :: collective.world_size]
    cursor, task.cursor = task.cursor, 0
    share = task.next_prompts(count)
    task.cursor = cursor
    return share


def summarize(rows: Sequence[Mapping[str, Any]], pass_at: Sequence[int]) -> dict[str, Any]:
    """Statistics of evaluated problems; `rows` as in the result's `per_problem`."""
    correct, totals = [row["correct"] for row in rows], [row["total"] for row in rows]
    samples = sum(totals)
    return {
        "problems": len(rows),
        "samples_per_problem": totals[0],
        "pass@1": asdict(mean_interval(correct, totals)),
        "maj@k": asdict(mean_interval([row["majority"] for row in rows], [1] * len(rows))),
        "pass@k": {str(k): asdict(pass_at_k_interval(correct, totals, k)) for k in pass_at},
        **_greedy(rows),
        "mean_length": sum(row["tokens"] for row in rows) / samples,
        "truncated_fraction": sum(row["truncated"] for row in rows) / samples,
        "per_problem": list(rows),
    }


def _greedy(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = [row["greedy"] for row in rows if "greedy" in row]
    return {"greedy": asdict(mean_interval(found, [1] * len(found)))} if found else {}


def score(result: Mapping[str, Any]) -> float:
    """What a checkpoint is kept for: the mean pass@1 of the suite's sets, or that of the held-out problems where there
    is no suite."""
    sets = [each["pass@1"]["value"] for each in result.get("suite", {}).values()]
    return sum(sets) / len(sets) if sets else result["pass@1"]["value"]


def told(result: Mapping[str, Any]) -> list[str]:
    """An evaluation in a line for people, and one for its suite."""
    lines = [f"held-out pass@1 {_spelled(result['pass@1'])} on {result['problems']} problems"]
    if suite := result.get("suite"):
        lines.append("pass@1 of " + ", ".join(f"{name} {_spelled(each['pass@1'])}" for name, each in suite.items()))
    return lines


def _spelled(interval: Mapping[str, float]) -> str:
    return f"{interval['value']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]"


def majority(answers: Sequence[str | None], correct: Sequence[bool]) -> bool:
    """Whether the answer that most completions give is right (maj@k, arXiv:2203.11171); of equally frequent ones the
    first. Completions without an answer do not vote."""
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return False
    chosen = max(votes, key=lambda answer: votes[answer])
    return correct[answers.index(chosen)]


def _row(scored: ScoredGroup, answer_of: Callable[[str], str | None]) -> dict[str, Any]:
    completions, problem = scored.group.completions, scored.group.prompt.problem
    return {
        "problem_id": problem.problem_id,
        "question": problem.question,
        "answer": problem.answer,
        "correct": sum(grade.correct for grade in scored.grades),
        "total": len(completions),
        "majority": majority(
            [answer_of(completion.text) for completion in completions], [grade.correct for grade in scored.grades]
        ),
        "completion": completions[0].text,
        "tokens": sum(len(completion.token_ids) for completion in completions),
        "truncated": sum(completion.truncated for completion in completions),
    }
