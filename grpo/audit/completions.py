"""These checks compare the completions that a run has kept with its metrics, prompts and samples, and their texts with
their tokens."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from grpo.audit.lines import UNCHECKED, Line, compared
from grpo.audit.records import differing, names_by_start
from grpo.audit.replayed import group_of
from grpo.audit.starts import Start, start_of
from grpo.config.folder import COMPLETIONS_FOLDER, PROMPTS_FILE, SAMPLES_FILE
from grpo.measure import problem_id, sampling_means
from grpo.telemetry.breakdown import breakdown, completion_facts
from grpo.telemetry.completions import encodable, first_groups
from grpo.telemetry.json_lines import Row
from grpo.telemetry.metrics import without_pass_rates
from grpo.types import Collected, Problem, Prompt, RoundPlan
from grpo.types import metrics as m


def by_step(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """Returns the rows of each step in their order."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["step"], []).append(row)
    return found


def check_completions(
    starts: Sequence[Start], metrics: Sequence[Row], prompts: Sequence[Row], rows: Sequence[Row]
) -> Iterator[Line]:
    """Compares metrics and the record of prompts with all completions of each round, where the run has kept them."""
    kept, wrong, names = by_step(rows), [], names_by_start(starts, metrics)
    asked = {row["step"]: row for row in prompts}
    for row in metrics:
        of_round = kept.get(row["step"])
        if of_round:
            expected = _of_completions(of_round)
            expected = expected if row.get(m.COUNTS) or judged(rows) else without_pass_rates(expected)
            wrong += differing(row, expected, names[start_of(starts, row["step"]).step])
        elif start_of(starts, row["step"]).config.tracking.completions == "all":
            wrong.append(f"step {row['step']} has no completions in {COMPLETIONS_FOLDER}/")
    for step, of_round in kept.items():
        wrong += _prompt_differences(step, COMPLETIONS_FOLDER, of_round, asked.get(step), whole=True)
        wrong += _malformed(step, of_round)
    if kept or wrong:
        yield from compared("metrics of completions", wrong, f"rewards and lengths of {len(kept)} rounds")
    else:
        reason = "the run kept some completions only (tracking.completions=some)"
        yield Line("metrics of completions", UNCHECKED, reason)


def check_samples(
    starts: Sequence[Start], prompts: Sequence[Row], rows: Sequence[Row], samples: Sequence[Row]
) -> Iterator[Line]:
    """Compares the first groups of each round in samples.jsonl with the record of prompts, and with all completions."""
    kept, shown, wrong = by_step(rows), by_step(samples), []
    for asked in prompts:
        step = asked["step"]
        of_round, number = shown.pop(step, []), start_of(starts, step).config.tracking.samples_per_round
        whole = len({row["prompt_id"] for row in of_round}) == len(asked["prompt_ids"])
        enough = first_groups(of_round, number) == of_round and (whole or len(of_round) >= number)
        if not enough:
            wrong.append(f"step {step} lacks some of the first {number} completions in {SAMPLES_FILE}")
        wrong += _prompt_differences(step, SAMPLES_FILE, of_round, asked, whole=False)
        for sample, row in zip(of_round, kept.get(step, ()), strict=False):
            wrong += [
                f"step {step}: {SAMPLES_FILE} and {COMPLETIONS_FOLDER}/ have another {name} of sample "
                f"{sample['sample']} of {sample['prompt_id']}"
                for name, value in encodable(sample).items()
                if value != row.get(name)
            ]
    wrong += [f"step {step} has samples, and no line in {PROMPTS_FILE}" for step in shown]
    yield from compared("samples", wrong, f"{len(samples)} completions in {SAMPLES_FILE}")


def check_texts(rows: Sequence[Row], tokenizer: Any) -> Iterator[Line]:
    """Compares the text of each completion with that of its tokens. Episodes have messages in place of a text."""
    written = [row for row in rows if row.get("token_ids") and not row.get("messages")]
    wrong = [
        f"step {row['step']}: sample {row['sample']} of {row['prompt_id']} has another text than its tokens"
        for row in written
        if encodable({"": tokenizer.decode(row["token_ids"], skip_special_tokens=True)})[""] != row["completion"]
    ]
    if written:
        yield from compared("texts", wrong, f"{len(written)} completions have the text of their tokens")


def _of_completions(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the metrics that follow from all completions of a round."""
    groups, learned = [], 0
    for prompt_id, of_prompt in groupby(rows, key=lambda row: row["prompt_id"]):
        own = [*of_prompt]
        problem = Problem(problem_id(prompt_id), own[0]["question"], own[0]["answer"], source=own[0].get("source", ""))
        groups.append(group_of(own, Prompt(problem, ())))
        learned += own[0]["learned_in"] >= 0
    means = sampling_means(Collected((), tuple(groups), RoundPlan(0, 0, 0), 0))
    values = {name: mean.value for name, mean in means.items() if mean.count and name != m.PROMPT_LENGTH}
    values |= {
        m.KEPT: learned / len(groups),
        m.NUM_GROUPS: float(len(groups)),
        m.NUM_COMPLETIONS: float(means[m.LENGTH].count),
    }
    return values | breakdown([fact for group in groups for fact in completion_facts(group)])


def _prompt_differences(step: int, place: str, rows: Sequence[Row], asked: Row | None, whole: bool) -> Iterator[str]:
    """Yields the differences between prompts.jsonl and the completions of a step. `rows` are all completions of the
    step if they are `whole`, and its first ones otherwise."""
    if asked is None:
        yield f"step {step} has completions, and no line in {PROMPTS_FILE}"
        return
    found = {prompt_id: [*own] for prompt_id, own in groupby(rows, key=lambda row: row["prompt_id"])}
    ids = asked["prompt_ids"] if whole else asked["prompt_ids"][: len(found)]
    if [*found] != ids and {*found} == {*ids}:
        yield f"step {step}: {PROMPTS_FILE} has the prompts in another order than {place}"
    recorded = {
        prompt_id: {name: asked[name][number] for name in ("correct", "lengths", "versions") if name in asked}
        for number, prompt_id in enumerate(asked["prompt_ids"])
    }
    for prompt_id in sorted({*ids} | {*found}):
        then, own = recorded.get(prompt_id), found.get(prompt_id)
        if then is None or own is None:
            yield f"step {step}: {prompt_id} is in {place if then is None else PROMPTS_FILE} only"
            continue
        now = _as_asked(own)
        yield from (
            f"step {step}: {prompt_id} has {name}={now[name]} by its completions, and {PROMPTS_FILE} says {value}"
            for name, value in then.items()
            if value != now.get(name, value)
        )


def _as_asked(own: Sequence[Row]) -> dict[str, Any]:
    """Returns the values that prompts.jsonl should hold for a group with these completions."""
    group = group_of(own, Prompt(Problem("", own[0]["question"], own[0]["answer"]), ()))
    versions = [version for row in own for version, _ in row["versions"]]
    # A group in which every episode failed before its first turn has no token that names a version.
    ends = {"versions": [min(versions), max(versions)]} if versions else {}
    return {"correct": [*group.outcome], "lengths": group.group.mean_length, **ends}


def _malformed(step: int, rows: Sequence[Row]) -> Iterator[str]:
    """Yields the groups whose samples are not numbered in order, and the completions that do not have one
    log-probability for each token."""
    for prompt_id, of_prompt in groupby(rows, key=lambda row: row["prompt_id"]):
        own = [*of_prompt]
        if [row["sample"] for row in own] != [*range(len(own))]:
            yield f"step {step}: the samples of {prompt_id} are not numbered from 0 in their order"
        for row in own:
            numbers = {row["tokens"], *(len(row[name]) for name in ("token_ids", "logprobs") if name in row)}
            if len(numbers) > 1 or sum(count for _, count in row["versions"]) not in numbers:
                sample = f"sample {row['sample']} of {prompt_id}"
                yield f"step {step}: {sample} has more or fewer log-probabilities or versions than tokens"


def judged(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Says whether the run has pass rates, since answers or graders tell its right completions from wrong ones."""
    return any(row["answer"] or row.get("judged") for row in rows)
