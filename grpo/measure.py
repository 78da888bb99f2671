"""This module computes the statistics of a round, summed over all ranks. The scheduler judges them, not this module."""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain, cycle

from grpo.interfaces import Collective
from grpo.types import Collected, Completion, Mean, RoundStatistics, ScoredGroup, StepReport
from grpo.types import metrics as m

LOOKED_AT, SQUEEZED = 10_000, 10
"""A completion repeats itself if this many of its last characters can be packed into less than one part in so many."""


def measure_round(
    round_index: int,
    collected: Collected,
    reports: Sequence[StepReport],
    seconds: Mapping[str, float],
    collective: Collective,
) -> RoundStatistics:
    """Computes the statistics of a round from this rank's groups and the reports of its optimizer steps.

    Groups are summed over ranks here; reports are already summed over ranks. `seconds` come from the loop's clock. The
    seconds of the round and of each phase are averaged over ranks, so that every rank makes the same decision from
    them. Collective.
    """
    stale = staleness(collected, reports)
    means: dict[str, Mean] = {}
    # A rank without groups does not know the names of the reward's parts, so ranks are added up by name. An all-reduce
    # would get vectors of different lengths.
    for rank_means in collective.gather(sampling_means(collected) | {m.STALENESS: _mean(stale)}):
        means |= {name: means.get(name, Mean(0.0, 0.0)) + mean for name, mean in rank_means.items()}
    # A skipped step is left out: its numbers may be NaN, and nothing was learned from it.
    applied = [report.means for report in reports if report.applied]
    for name in applied[0] if applied else ():
        means[name] = reduce(Mean.__add__, (step_means[name] for step_means in applied))
    means[m.MOST_STALENESS] = Mean(float(collective.maximum(max(stale, default=0))), 1)
    by_rank = collective.gather({**seconds, **collected.seconds})
    means[m.SAMPLE_IMBALANCE] = _imbalance([rank_seconds.get("sample", 0.0) for rank_seconds in by_rank])
    counts, first_counts = (
        sum(collective.gather(own_counts), Counter())
        for own_counts in (correct_counts(collected.sampled), first_correct_counts(collected))
    )
    return RoundStatistics(
        round_index=round_index,
        step=reports[-1].step,
        plan=collected.plan,
        means=means,
        reward_counts=dict(counts),
        seconds=mean_seconds(by_rank),
        reports=tuple(reports),
        first_counts=dict(first_counts),
        judged=judged(collected.sampled, collective),
    )


def judged(groups: Sequence[ScoredGroup], collective: Collective) -> bool:
    """Tells whether anything told right completions from wrong ones in a round, over all ranks. Collective."""
    answered = any(scored.group.prompt.problem.answer for scored in groups)
    by_rank = collective.gather((answered, any(scored.unjudged for scored in groups)))
    return any(answered for answered, _ in by_rank) or not any(unjudged for _, unjudged in by_rank)


def staleness(collected: Collected, reports: Sequence[StepReport]) -> list[int]:
    """Returns the staleness of each group that was learned from.

    Staleness is the number of optimizer steps by which the learner was ahead of the policy that sampled the group's
    oldest token. It comes from the refresh interval τ and from sampling ahead. It lies between 0 and τ−1 when the
    newest policy samples every round. A group counts once for each pass over the round's samples.
    """
    return [
        report.step - 1 - scored.group.oldest_version
        for report, groups in zip(reports, cycle(collected.steps), strict=False)
        for scored in groups
    ]


def outcomes(collected: Collected, collective: Collective) -> dict[str, tuple[int, int]]:
    """Counts the completions (correct, tried) of each problem of the round, over all ranks. Those that could not be
    graded do not count. Collective."""
    counts = [(scored.group.prompt.prompt_id, scored.outcome) for scored in collected.sampled]
    return by_problem(chain(*collective.gather(counts)))


def mean_lengths(collected: Collected, collective: Collective) -> dict[str, float]:
    """Returns how long the completions of each problem of the round were: their mean number of tokens, over all ranks.
    One group counts for a problem that was asked several times, the same on all ranks. A group that could not be graded
    does not count, since it may have been given up before its longest completions ended. Collective."""
    groups = [scored.group for scored in collected.sampled if not scored.spoilt]
    lengths = [(group.prompt.problem.problem_id, group.mean_length) for group in groups]
    return dict(chain(*collective.gather(lengths)))


def by_problem(groups: Iterable[tuple[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    """Adds up the counts (correct, tried) of all prompts that ask the same problem.

    >>> by_problem([("mawps-17@0", (1, 4)), ("mawps-17@1", (2, 4)), ("mawps-3@0", (0, 4))])
    {'mawps-17': (3, 8), 'mawps-3': (0, 4)}
    """
    counts: dict[str, tuple[int, int]] = {}
    for prompt_id, (correct, tried) in groups:
        before = counts.get(problem_id(prompt_id), (0, 0))
        counts[problem_id(prompt_id)] = (before[0] + correct, before[1] + tried)
    return counts


def problem_id(prompt_id: str) -> str:
    """Returns the problem of a prompt, without the number of the visit: ``"mawps-17"`` of ``"mawps-17@0"``."""
    return prompt_id.rpartition("@")[0]


def mean_seconds(by_rank: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Averages the seconds of each phase over ranks. A rank that did not enter a phase counts as 0."""
    names = sorted({name for seconds in by_rank for name in seconds})
    return {name: sum(seconds.get(name, 0.0) for seconds in by_rank) / len(by_rank) for name in names}


def _imbalance(by_rank: Sequence[float]) -> Mean:
    """Returns the largest value divided by the mean value, or a `Mean` of count 0 if all values are 0."""
    return Mean(max(by_rank) * len(by_rank) / sum(by_rank), 1) if any(by_rank) else Mean(0.0, 0.0)


def correct_counts(groups: Sequence[ScoredGroup]) -> Counter[tuple[int, int]]:
    """Counts the groups that had k of G completions correct, by (k, G). Those that could not be graded do not count."""
    return Counter(group.count for group in groups if not group.spoilt)


def first_correct_counts(collected: Collected) -> Counter[tuple[int, int]]:
    """Counts groups by (k, G) as `correct_counts` does, over each group's first `asked_first` completions only.

    The result is empty unless the first answers decided how many further completions were sampled.
    """
    first = collected.asked_first
    return Counter(
        (sum(grade.correct for grade in group.grades[:first]), min(first, len(group.grades)))
        for group in (collected.sampled if first else ())
        if not group.spoilt
    )


def sampling_means(collected: Collected) -> dict[str, Mean]:
    """Returns the means over everything that this rank sampled, and the share of its groups that is learned from.

    Rewards and silence are those of groups that could be graded. A round without any such group has no value of them.
    """
    groups = collected.sampled
    graded = [group for group in groups if not group.spoilt]
    grades = [grade for group in groups for grade in group.grades]
    true_grades = [grade for group in graded for grade in group.grades]
    completions = _finished(groups)
    tokens = sum(len(completion.token_ids) for completion in completions)
    logprobs = sum(sum(completion.sampler_logprobs) for completion in completions)
    means = {
        m.REWARD: _mean([grade.reward for grade in true_grades]),
        m.REWARD_SQUARE: _mean([grade.reward**2 for grade in true_grades]),
        m.SILENT: _mean([group.silent for group in graded]),
        m.KEPT: Mean(len(collected.groups), len(groups)),
        m.PROMPT_LENGTH: _mean([len(group.group.prompt.token_ids) for group in groups]),
        m.LENGTH: Mean(tokens, len(completions)),
        m.TRUNCATED: _mean([completion.truncated for completion in completions]),
        m.REPETITION: _mean([repeats_itself(completion.text) for completion in completions]),
        m.TIMED_OUT: _mean([grade.outcome == "timed_out" for grade in grades]),
        m.UNPARSABLE: _mean([grade.outcome == "unparsable" for grade in grades]),
        m.FAILED: _mean([grade.outcome == "failed" for grade in grades]),
        m.UNANSWERED: _mean([grade.outcome == "unanswered" for grade in grades]),
        m.RAISED: _mean([grade.outcome == "raised" for grade in grades]),
        m.LATE: _mean([grade.outcome == "late" for grade in grades]),
        m.SAMPLER_ENTROPY: Mean(-logprobs, tokens),
    }
    means |= episode_means(completions)
    if flags := [grade.answered for grade in grades if grade.answered is not None]:
        means[m.NO_ANSWER] = _mean([not answered for answered in flags])
    for part in sorted({part for grade in true_grades for part in grade.parts}):
        means[f"{m.PART}{part}"] = _mean([grade.parts[part] for grade in true_grades if part in grade.parts])
    return means | _by_source(groups, collected.asked_first)


def episode_means(completions: Sequence[Completion]) -> dict[str, Mean]:
    """Returns what happened in the completions that are episodes, or nothing if none is."""
    facts = [completion.episode for completion in completions if completion.episode is not None]
    if not facts:
        return {}
    calls, turns = (float(sum(counts)) for counts in zip(*((fact.calls, fact.turns) for fact in facts), strict=True))
    return {
        m.TURNS: Mean(turns, len(facts)),
        m.CALLS: Mean(calls, len(facts)),
        m.FAILED_CALLS: Mean(float(sum(fact.failed_calls for fact in facts)), calls),
        m.UNREADABLE_CALLS: Mean(float(sum(fact.unreadable_calls for fact in facts)), turns),
        m.WITHOUT_CALLS: _mean([not fact.calls for fact in facts if fact.shown_tools]),
        m.OBSERVED: _mean([completion.num_observed for completion in completions if completion.episode is not None]),
        m.EPISODE_SECONDS: _mean([fact.seconds for fact in facts]),
        m.EPISODES_FAILED: _mean([bool(fact.error) or fact.ended in ("error", "seconds") for fact in facts]),
        m.OUT_OF_TURNS: _mean([fact.ended == "turns" for fact in facts]),
        m.OUT_OF_ROOM: _mean([fact.ended == "room" for fact in facts]),
        m.BRANCHES: _mean([fact.branches for fact in facts]),
    }


def _by_source(groups: Sequence[ScoredGroup], first: int) -> dict[str, Mean]:
    """Returns reward, pass rate, length, truncation and silence of each named source of problems, see
    `sampling_means`. Where a group's `first` answers decided how many followed, they alone make the pass rate."""
    by_source: dict[str, list[ScoredGroup]] = {}
    for group in groups:
        by_source.setdefault(group.group.prompt.problem.source, []).append(group)
    means = {}
    for source, source_groups in by_source.items():
        if source:
            graded = [group for group in source_groups if not group.spoilt]
            grades = [grade for group in graded for grade in group.grades]
            completions = _finished(source_groups)
            of_source = {
                "reward_mean": [grade.reward for grade in grades],
                m.PASS_RATE: [grade.correct for group in graded for grade in group.grades[: first or None]],
                "length_mean": [len(completion.token_ids) for completion in completions],
                "truncated_fraction": [completion.truncated for completion in completions],
                "silent_fraction": [group.silent for group in graded],
            }
            means |= {f"{m.SOURCE}{source}/{name}": _mean(values) for name, values in of_source.items()}
    return means


def _finished(groups: Sequence[ScoredGroup]) -> list[Completion]:
    """Returns the completions of groups but those that were given up at the deadline, which say nothing."""
    return [completion for group in groups for completion in group.group.completions if not completion.late]


def repeats_itself(text: str) -> bool:
    """Tells whether the end of a completion says the same over and over: it can be packed into a tenth of its bytes, as
    slime measures it. Sums and proofs come to a third or a quarter.

    >>> repeats_itself("Wait, let me check. " * 40), repeats_itself("2 + 2 = 4, and 4 + 5 = 9, so it is 9.")
    (True, False)
    """
    end = text[-LOOKED_AT:].encode("utf-8", "surrogatepass")
    return len(end) > SQUEEZED * len(zlib.compress(end))


def _mean(values: Sequence[float]) -> Mean:
    return Mean(float(sum(values)), len(values))
