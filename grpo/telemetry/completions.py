"""A run writes its completions as rows: some of them to samples.jsonl, and all of them to Parquet files if asked."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from grpo.config import UserError
from grpo.config.errors import require
from grpo.config.folder import COMPLETIONS_FOLDER, SAMPLES_FILE, completions_in, completions_name, refuse_several
from grpo.host.disk import replaced
from grpo.telemetry.json_lines import Row, read_metrics
from grpo.telemetry.row_kinds import OF_SAMPLE, wrong_in
from grpo.types import Completion, EpisodeFacts, FinishedRound, ScoredGroup
from grpo.types.rollout import NOT_THEIR_FAULT


def completion_row(scored: ScoredGroup, sample: int) -> dict[str, Any]:
    """Returns one completion of a group with its problem and its grade, as a JSON object.

    `versions` lists (policy version, number of tokens that it wrote). A row without an answer is `judged` where the
    reward tells right from wrong all the same.
    """
    completion, grade, problem = scored.group.completions[sample], scored.grades[sample], scored.group.prompt.problem
    return {
        "prompt_id": scored.group.prompt.prompt_id,
        "source": problem.source,
        "sample": sample,
        "question": problem.question,
        "answer": problem.answer,
        "completion": completion.text,
        "reward": grade.reward,
        "correct": grade.correct,
        "outcome": grade.outcome,
        "tokens": len(completion.token_ids),
        "truncated": completion.truncated,
        "versions": completion.versions,
        **({"judged": True} if scored.judged_without_answer else {}),
        **({} if completion.episode is None else _episode_row(completion, completion.episode)),
    }


def _episode_row(completion: Completion, episode: EpisodeFacts) -> dict[str, Any]:
    """Returns what a row says of an episode besides: its conversation, as JSON, and how it went."""
    return {
        "messages": json.dumps(episode.messages, default=str, ensure_ascii=False),
        "written": list(episode.written),
        "branches": episode.branches,
        "turns": episode.turns,
        "calls": episode.calls,
        "failed_calls": episode.failed_calls,
        "observed_tokens": completion.num_observed,
        "ended": episode.ended,
        "error": episode.error,
    }


def tokens_row(scored: ScoredGroup, sample: int, learned_in: int) -> dict[str, Any]:
    """Returns what a learner needs of a completion: its tokens, their log-probabilities under the sampler, and whether
    it is learned from. Tools and an environment's text decide how an episode opens, so its row has those tokens too.

    `learned_in` is the number of the optimizer step within its round, or −1 for a group that no step learns from.
    """
    completion = scored.group.completions[sample]
    observed = [[piece.at, piece.token_ids, piece.keep] for piece in completion.observed]
    return {
        "token_ids": completion.token_ids,
        "logprobs": completion.sampler_logprobs,
        "included": scored.included[sample],
        "learned_in": learned_in,
        **(
            {}
            if completion.episode is None
            else {"observed": json.dumps(observed), "opening_ids": scored.group.prompt.token_ids}
        ),
    }


def first_groups(rows: Iterable[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Returns the rows of the first groups that have at least `count` rows together. Rows of a group follow each other.

    >>> rows = [{"prompt_id": name} for name in ("a", "a", "b", "b", "c")]
    >>> [row["prompt_id"] for row in first_groups(rows, 3)]
    ['a', 'a', 'b', 'b']
    """
    first_rows: list[dict[str, Any]] = []
    for _, group in groupby(rows, key=lambda row: row["prompt_id"]):
        if len(first_rows) >= count:
            break
        first_rows += group
    return first_rows


class CompletionFiles:
    """This observer writes every completion of a round to a Parquet file, one for each rank.

    The file `completions/step-00000012-rank-0.parquet` holds what rank 0 sampled for the round that ended at step 12.
    It has the columns of `completion_row` and of `tokens_row`, `step`, and one `reward/NAME` for each part of the
    reward.
    """

    def __init__(
        self,
        output: Path,
        rank: int,
        resume_step: int | None = None,
        gather: Callable[[Any], Sequence[Any]] = lambda value: [value],
    ):
        """Takes the run's folder. The first rank removes the files of steps after `resume_step`, which the resumed run
        writes again; None removes all. `gather` is that of the ranks' `Collective`."""
        self._folder, self._rank, self._gather = output / COMPLETIONS_FOLDER, rank, gather
        self._folder.mkdir(parents=True, exist_ok=True)
        for path, step in completions_in(self._folder):
            if rank == 0 and (resume_step is None or step > resume_step):
                path.unlink()

    def after_round(self, finished: FinishedRound) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        step = finished.progress.step
        own_steps = enumerate(finished.collected.steps)
        own = {scored.group.prompt.prompt_id: number for number, groups in own_steps for scored in groups}
        # Another rank may have learned from a group.
        learned = {prompt_id: number for share in self._gather(own) for prompt_id, number in share.items()}
        rows = [
            {"step": step, **encodable(completion_row(scored, sample))}
            | tokens_row(scored, sample, learned.get(scored.group.prompt.prompt_id, -1))
            | {f"reward/{name}": value for name, value in scored.grades[sample].parts.items()}
            for scored in finished.collected.sampled
            for sample in range(len(scored.grades))
        ]
        final = self._folder / completions_name(step, self._rank)
        # Completions that could not be graded lack a reward's further numbers, and the first row names the columns.
        every = dict.fromkeys(name for row in rows for name in row)
        with replaced(final) as new:
            pq.write_table(pa.Table.from_pylist([every | row for row in rows]), new)


def encodable(row: Row) -> dict[str, Any]:
    """Escapes lone surrogates, which JSON can hold and so a problem may have, but no Parquet file."""
    return {
        name: value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
        for name, value in row.items()
    }


def is_graded(row: Row) -> bool:
    """Tells whether a completion counts as right or wrong, rather than stand in a group that could not be graded."""
    return row["outcome"] not in NOT_THEIR_FAULT


def is_unjudged(group: Sequence[Row]) -> bool:
    """Tells whether a group's rewards do not say which completions are right, see `ScoredGroup.unjudged`."""
    known = group[0]["answer"] or group[0].get("judged")
    return not known and any(abs(row["reward"]) not in (0.0, 1.0) for row in group)


def score_of(group: Sequence[Row]) -> str:
    """Says how many of a group's completions are right, or what they earn on average where nothing says which are."""
    if not is_graded(group[0]):
        return "not graded"
    if is_unjudged(group):
        return f"mean reward {sum(row['reward'] for row in group) / len(group):.3g}"
    return f"{sum(row['correct'] for row in group)} of {len(group)} right"


def kind_of(group: Sequence[Row]) -> str:
    """Returns whether a group's completions are all "right", all "wrong", "mixed", or "ungraded"."""
    if not is_graded(group[0]):
        return "ungraded"
    correct = sum(row["correct"] for row in group)
    return "mixed" if 0 < correct < len(group) else "right" if correct else "wrong"


def read_completions(output: Path) -> Iterator[dict[str, Any]]:
    """Yields a run's completions as rows, those of the last round first.

    A round's rows come from its Parquet files where the run wrote them, otherwise from samples.jsonl. Raises
    `UserError` when the run has written neither.
    """
    files: dict[int, list[Path]] = defaultdict(list)
    for path, step in completions_in(output / COMPLETIONS_FOLDER):
        files[step].append(path)
    if not files and not (output / SAMPLES_FILE).exists():
        refuse_several(output)
        require(output.exists(), f"there is no folder {output}: give the folder of a run")
        raise UserError(f"{output} has no {SAMPLES_FILE}: give the folder of a run that has finished a round")
    samples: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in read_metrics(output / SAMPLES_FILE) if (output / SAMPLES_FILE).exists() else ():
        samples[row["step"]].append(row)
    for step in sorted({*files, *samples}, reverse=True):
        if step not in files:
            yield from samples[step]
        for path in files.get(step, ()):
            # Without such files the run is read where pyarrow is not installed.
            import pyarrow.parquet as pq
            from pyarrow import ArrowInvalid

            try:
                rows = pq.read_table(path).to_pylist()
            except (OSError, ArrowInvalid) as error:
                raise UserError(f"{path} is damaged ({error}): remove it") from error
            for number, row in enumerate(rows, start=1):
                wrong = wrong_in(SAMPLES_FILE, row)
                require(not wrong, f"{path} is damaged (row {number}: {wrong}): remove it")
                require(row["step"] == step, f"{path} has those of step {row['step']}: give it its own name back")
            yield from rows


def whole_completions(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields a run's completions to show. Raises `UserError` for one that lacks what is shown of it."""
    for row in read_completions(folder):
        for name in OF_SAMPLE:
            require(name in row, f"a completion of step {row['step']} in {folder} has no {name}: delete its row")
        # A table has all columns of episodes, also for a single turn beside them.
        yield {name: value for name, value in row.items() if value is not None}
