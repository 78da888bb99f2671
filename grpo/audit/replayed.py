"""These checks take a run's prompts and grades again: the stream of prompts is replayed, and completions are graded."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from grpo.audit.lines import UNCHECKED, Line, compared
from grpo.config import TrainConfig
from grpo.config.errors import UserError
from grpo.config.folder import PROMPTS_FILE
from grpo.run.resume import Asked, record
from grpo.tasks.rewards import of_episode
from grpo.tasks.task import VerifiableTask
from grpo.telemetry.completions import encodable
from grpo.telemetry.json_lines import Row
from grpo.types import Completion, Grade, Observed, Prompt, RolloutGroup, ScoredGroup

SERVED = ("http", "judge")


def check_prompts(
    config: TrainConfig, task: VerifiableTask, rounds: Sequence[Asked], into: dict[str, Prompt]
) -> Iterator[Line]:
    """Compares the prompts that each round asked with the stream that seed and data give. Puts the stream's prompts
    into `into`, by their ids."""
    wrong, seen = [], Counter()
    for asked in rounds:
        if asked.cursor < task.cursor:
            wrong.append(f"step {asked.step:g}: the count of prompts goes back from {task.cursor} to {asked.cursor}")
            break
        promised = task.next_prompts(asked.cursor - task.cursor)
        into |= {prompt.prompt_id: prompt for prompt in promised}
        wrong += _other_prompts(asked, Counter(prompt.prompt_id for prompt in promised))
        seen.update(asked.prompt_ids)
        record(task, asked)
    wrong += [f"{prompt_id} was asked {count} times" for prompt_id, count in seen.items() if count > 1]
    yield from compared(
        "prompts", wrong, f"{sum(seen.values())} prompts of {len(rounds)} rounds, in the order of the stream"
    )


def _other_prompts(asked: Asked, promised: Counter[str]) -> Iterator[str]:
    recorded = Counter(asked.prompt_ids)
    for prompt_id in promised - recorded:
        yield f"step {asked.step:g}: {PROMPTS_FILE} lacks {prompt_id}, which was next"
    for prompt_id in recorded - promised:
        yield f"step {asked.step:g}: {PROMPTS_FILE} has {prompt_id}, which was not next"


def recorded_groups(rows: Iterable[Row], prompts: Mapping[str, Prompt]) -> list[tuple[Row, ScoredGroup]]:
    """Returns the groups of recorded completions whose prompts are known, each with its first row.

    Without its tokens, a completion has zeros in their place.
    """
    groups = []
    for prompt_id, of_prompt in groupby(rows, key=lambda row: row["prompt_id"]):
        own = [*of_prompt]
        if prompt := prompts.get(prompt_id):
            groups.append((own[0], group_of(own, prompt)))
    return groups


def group_of(rows: Sequence[Row], prompt: Prompt) -> ScoredGroup:
    """Returns the group of a prompt with these recorded completions."""
    included = tuple(bool(row.get("included", True)) for row in rows)
    if opening := rows[0].get("opening_ids"):
        prompt = replace(prompt, token_ids=tuple(opening))
    return ScoredGroup(RolloutGroup(prompt, tuple(map(_completion, rows)), 0, 0), tuple(map(_grade, rows)), included)


def _completion(row: Row) -> Completion:
    tokens = tuple(row.get("token_ids") or (0,) * int(row["tokens"]))
    logprobs = tuple(row.get("logprobs") or (0.0,) * len(tokens))
    observed = tuple(Observed(at, tuple(ids), keep) for at, ids, keep in json.loads(row.get("observed") or "[]"))
    late = row["outcome"] == "late"
    return Completion(tokens, logprobs, row["completion"], bool(row.get("truncated")), observed=observed, late=late)


def _grade(row: Row) -> Grade:
    parts = {name.removeprefix("reward/"): value for name, value in row.items()
             if name.startswith("reward/") and value is not None}  # fmt: skip
    return Grade(float(row["reward"]), bool(row["correct"]), parts, row["outcome"], sum(map(abs, parts.values())))


def check_grades(
    config: TrainConfig, task: VerifiableTask, groups: Sequence[tuple[Row, ScoredGroup]], whole: bool
) -> Iterator[Line]:
    """Grades recorded completions again. `whole` says that all completions of each round are there."""
    if reason := not_gradable(config, task, whole):
        yield Line("grades", UNCHECKED, reason)
        return
    wrong, count = [], 0
    for step, of_step in groupby(groups, key=lambda pair: pair[0]["step"]):
        recorded = [(row, scored) for row, scored in of_step]
        for row, scored in recorded:
            problem = scored.group.prompt.problem
            now = encodable({"question": problem.question, "answer": problem.answer, "source": problem.source})
            if any(row.get(name, value) != value for name, value in now.items()):
                wrong.append(f"step {step}: {row['prompt_id']} has another question, answer or source than the problem")
        try:
            again = task.grade([scored.group for _, scored in recorded])
        except UserError as error:
            yield Line("grades", UNCHECKED, str(error))
            return
        for (row, scored), graded in zip(recorded, again, strict=True):
            outcomes = {grade.outcome for grade in (*scored.grades, *graded.grades)}
            if "included" in row and scored.included != graded.included and "timed_out" not in outcomes:
                wrong += [
                    f"step {step}: sample {sample} of {row['prompt_id']} has included={was} in the record"
                    for sample, (was, now) in enumerate(zip(scored.included, graded.included, strict=True))
                    if was != now
                ]
            for sample, (then, now) in enumerate(zip(scored.grades, graded.grades, strict=True)):
                count += 1
                if not _same_grade(then, now) and "timed_out" not in (then.outcome, now.outcome):
                    wrong.append(
                        f"step {step}: sample {sample} of {row['prompt_id']} has {_spelled(then)} in the record, and "
                        f"{_spelled(now)} when it is graded again"
                    )
    yield from compared("grades", wrong, f"{count} completions were graded again")


def _same_grade(then: Grade, now: Grade) -> bool:
    """Compares grades. Those of samples.jsonl have no parts."""
    numbers = [
        (then.reward, now.reward),
        *((value, now.parts.get(name, math.nan)) for name, value in then.parts.items()),
    ]
    same = all(math.isclose(*pair, rel_tol=1e-9, abs_tol=1e-9) for pair in numbers)
    return same and (then.correct, then.outcome) == (now.correct, now.outcome)


def _spelled(grade: Grade) -> str:
    parts = "".join(f", {name} {value:g}" for name, value in grade.parts.items())
    return f"reward {grade.reward:g} ({'right' if grade.correct else 'wrong'}, {grade.outcome}{parts})"


def not_gradable(config: TrainConfig, task: VerifiableTask, whole: bool) -> str:
    """Returns why completions cannot be graded again, or "". `whole` says that all of each round are there."""
    rewards = [
        reward
        for of_set in config.task.all_sets.values()
        for reward in (of_set.reward, *of_set.reward.by_source.values())
    ]
    names = [part.name for reward in rewards for part in reward.parts]
    if served := [name for name in names if name.partition("/")[0] in SERVED]:
        return f"the reward {served[0]} is a server's, which may answer otherwise each time"
    if any(map(of_episode, names)) or any(of_set.episode for of_set in config.task.all_sets.values()):
        return "the rewards of episodes are made while they are played"
    if task.grades_together and not whole:
        return "a reward takes all completions of a round, and the run kept some (tracking.completions=some)"
    return ""
