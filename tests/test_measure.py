import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from grpo.config import BudgetConfig
from grpo.dynamics.history import pass_rate
from grpo.measure import (
    episode_means,
    first_correct_counts,
    judged,
    mean_lengths,
    mean_seconds,
    measure_round,
    outcomes,
    sampling_means,
)
from grpo.rollout.collect import BudgetedCollector, PlainCollector
from grpo.rollout.grading_thread import GradingThread
from grpo.telemetry.metrics import flatten
from grpo.types import Collected, Completion, EpisodeFacts, Mean, Observed, RoundPlan, StepReport
from tests.fakes import ScriptedSampler, ScriptedTask, SingleRank, asking, on_ranks, ungraded

PLAN = RoundPlan(group_size=2, refresh_interval=2, prompts_per_step=2)


# Four groups with one of two completions right.
COLLECTED = PlainCollector(asking(ScriptedTask([(1, 0)] * 4), ScriptedSampler())).collect(PLAN, 9)
REPORTS = [StepReport(step, True, 2.0, 1e-3, 1e12, {}) for step in (7, 8)]


@pytest.mark.parametrize("busy", [0, 1])
def test_whichever_rank_has_the_groups_all_ranks_have_the_same_facts(busy):
    nothing = Collected(((), ()), (), PLAN, COLLECTED.cursor)

    def measured(ranks):
        return measure_round(3, COLLECTED if ranks.rank == busy else nothing, REPORTS, {}, ranks)

    alone = measure_round(3, COLLECTED, REPORTS, {}, SingleRank())
    assert alone.means["reward/part/exact"] == Mean(4.0, 8.0)
    assert [statistics.means for statistics in on_ranks(2, measured)] == [alone.means] * 2


def test_one_rank_with_answers_is_enough_for_all_ranks_to_have_pass_rates():
    def judges(answers):
        groups = {
            rank: [replace(scored, group=asked(scored.group, answer)) for scored in graded_between]
            for rank, answer in enumerate(answers)
        }
        return on_ranks(2, lambda ranks: judged(groups[ranks.rank], ranks))

    def asked(group, answer):
        return replace(group, prompt=replace(group.prompt, problem=replace(group.prompt.problem, answer=answer)))

    graded_between = PlainCollector(asking(ScriptedTask([(1, 0.5)] * 4), ScriptedSampler())).collect(PLAN, 9).sampled
    assert judges(["", ""]) == [False, False]
    assert judges(["", "7"]) == judges(["7", "7"]) == [True, True]


def during_an_outage(num_ungraded):
    """Returns the round whose first groups could not be graded."""
    return replace(
        COLLECTED, sampled=(*map(ungraded, COLLECTED.sampled[:num_ungraded]), *COLLECTED.sampled[num_ungraded:])
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_ungraded_completion_counts_as_neither_right_nor_wrong(ranks):
    groups = during_an_outage(3)
    # The second of two ranks has the only group that was graded.
    shares = (
        [groups] if ranks == 1 else [replace(groups, sampled=part) for part in (groups.sampled[:3], groups.sampled[3:])]
    )

    def measured(collective):
        return measure_round(3, shares[collective.rank], REPORTS, {}, collective)

    for statistics in on_ranks(ranks, measured):
        assert statistics.reward_counts == {(1, 2): 1}
        metrics = flatten(statistics)
        names = ("pass_rate", "reward/mean", "reward/std", "reward/part/exact")
        assert [metrics[name] for name in names] == [0.5] * 4
        assert metrics["groups/silent_fraction"] == metrics["groups/all_wrong_fraction"] == 0.0
        assert metrics["completions/unanswered_fraction"] == 0.75 and metrics["completions/length_mean"] == 2.0
        assert (metrics["groups/num_sampled"], metrics["completions/num_sampled"]) == (4.0, 8.0)


def test_a_round_tells_for_how_many_completions_the_users_function_raised_an_exception():
    round_ = during_an_outage(0)
    broken = [replace(grade, reward=0.0, correct=False, outcome="raised") for grade in round_.sampled[0].grades]
    sampled = (replace(round_.sampled[0], grades=tuple(broken)), *round_.sampled[1:])
    statistics = measure_round(3, replace(round_, sampled=sampled), REPORTS, {}, SingleRank())
    metrics = flatten(statistics)
    assert statistics.reward_counts == {(1, 2): 3} and metrics["completions/raised_fraction"] == 0.25
    assert metrics["completions/unanswered_fraction"] == metrics["completions/failed_fraction"] == 0.0


def test_a_round_of_which_nothing_could_be_graded_has_no_pass_rate_and_no_reward():
    statistics = measure_round(3, during_an_outage(4), REPORTS, {}, SingleRank())
    assert statistics.reward_counts == {}
    metrics = flatten(statistics)
    assert metrics["completions/unanswered_fraction"] == 1.0 and metrics["completions/num_sampled"] == 8.0
    by_pass_rate = ("pass_rate", "reward/", "groups/silent", "groups/all_")
    assert not [name for name in metrics if name.startswith(by_pass_rate)]


def test_first_completions_of_an_ungraded_group_do_not_count_either():
    assert first_correct_counts(replace(during_an_outage(3), asked_first=2)) == {(1, 2): 1}


def test_a_group_that_could_not_be_graded_says_nothing_about_its_problem():
    first, second = COLLECTED.sampled[:2]
    assert outcomes(Collected((), (first, ungraded(second)), PLAN, 2), SingleRank()) == {"p0": (1, 2), "p1": (0, 0)}


def test_a_group_that_was_given_up_says_nothing_about_how_long_completions_are():
    first, second = COLLECTED.sampled[:2]
    late = ungraded(replace(second, group=replace(second.group, completions=(Completion.given_up(0),) * 2)))
    given_up = Collected((), (first, late), PLAN, 2)
    assert mean_lengths(given_up, SingleRank()) == {"p0": first.group.mean_length}
    source = replace(first.group.prompt.problem, source="s")
    of_source = [
        replace(g, group=replace(g.group, prompt=replace(g.group.prompt, problem=source))) for g in (first, late)
    ]
    means = sampling_means(replace(given_up, sampled=tuple(of_source)))
    assert means["source/s/length_mean"].value == means["completions/length_mean"].value == first.group.mean_length


def test_the_share_without_an_answer_is_among_the_completions_in_which_one_was_looked_for():
    assert "completions/no_answer_fraction" not in sampling_means(COLLECTED)
    scored = COLLECTED.sampled[0]
    for answered, without in ((True, 0.0), (False, 2.0)):
        grades = tuple(replace(grade, answered=answered) for grade in scored.grades)
        looked = replace(COLLECTED, sampled=[replace(scored, grades=grades), *COLLECTED.sampled[1:]])
        assert sampling_means(looked)["completions/no_answer_fraction"] == Mean(without, 2)


def test_seconds_are_the_mean_over_ranks():
    assert mean_seconds([{"sample": 2.0}, {"sample": 4.0, "save": 1.0}]) == {"sample": 3.0, "save": 0.5}


def test_the_busiest_ranks_share_of_the_sampling_is_reported():
    reports = [StepReport(7, True, 2.0, 1e-3, 1e12, {})]

    def measured(ranks):
        return measure_round(3, COLLECTED, reports, {"sample": [1.0, 1.5, 3.5][ranks.rank]}, ranks)

    assert [flatten(statistics)["throughput/sample_imbalance"] for statistics in on_ranks(3, measured)] == [1.75] * 3
    assert "throughput/sample_imbalance" not in flatten(measure_round(3, COLLECTED, reports, {}, SingleRank()))


def test_a_skipped_step_stays_out_of_every_mean():
    applied = StepReport(7, True, 2.0, 1e-3, 1e12, {"policy/entropy": Mean(1.0, 4.0)})
    skipped = StepReport(8, False, math.inf, 9.0, 1e12, {"policy/entropy": Mean(math.nan, 4.0)})
    for reports in ((applied, skipped), (skipped, applied)):
        statistics = measure_round(3, COLLECTED, reports, {}, SingleRank())
        assert flatten(statistics)["policy/entropy"] == 0.25
    assert "policy/entropy" not in flatten(measure_round(3, COLLECTED, (skipped, skipped), {}, SingleRank()))


def test_facts_of_a_round_by_hand():
    task = ScriptedTask([(1, 0), (1, 1), (0, 0), (1, 0)])
    sampler = ScriptedSampler()
    sampler.policy_version = 6
    collected = PlainCollector(asking(task, sampler)).collect(PLAN, 9)
    weights = {"mismatch/weight": Mean(4.0, 4), "mismatch/weight_squared": Mean(5.0, 4)}
    reports = [
        StepReport(step, True, norm, 1e-5, 1e12, {"policy/entropy": Mean(entropy, 4), **weights})
        for step, norm, entropy in ((7, 2.0, 6.0), (8, 4.0, 2.0))
    ]
    statistics = measure_round(3, collected, reports, {"sample": 2.0}, SingleRank())
    assert statistics.step == 8
    assert statistics.reward_counts == {(1, 2): 2, (2, 2): 1, (0, 2): 1}
    metrics = flatten(statistics)
    assert metrics["reward/mean"] == metrics["pass_rate"] == metrics["reward/part/exact"] == 0.5
    assert metrics["reward/std"] == 0.5
    assert metrics["groups/silent_fraction"] == 0.5
    assert metrics["groups/all_correct_fraction"] == metrics["groups/all_wrong_fraction"] == 0.25
    assert metrics["completions/length_mean"] == 2.0
    assert metrics["policy/sampler_entropy"] == 0.375
    assert metrics["policy/entropy"] == 1.0
    assert metrics["mismatch/ess_fraction"] == 0.8
    assert metrics["learner/gradient_norm"] == 3.0
    # Steps 7 and 8 learned from the policy of step 6.
    assert metrics["staleness/mean"] == 0.5 and metrics["staleness/max"] == 1.0
    assert metrics["throughput/sample_tokens_per_second"] == 8.0


def test_the_pass_rate_of_ragged_groups_is_that_of_the_completions_asked_for_first():
    """Two prompts are asked twice each, then the silent one four times more: 1 of 2 and 0 of 2, then 2 of 4."""
    tasks = ScriptedTask([(1, 0), (0, 0, 1, 0, 1, 0)])
    plan = RoundPlan(group_size=4, refresh_interval=1, prompts_per_step=2)
    budget = BudgetConfig(enabled=True, pilot=2)
    collector = BudgetedCollector(
        tasks, ScriptedSampler(), GradingThread(tasks), budget, SingleRank(), lambda *_: [0, 4]
    )
    statistics = measure_round(
        0, collector.collect(plan, 9), [StepReport(1, True, 2.0, 1e-3, 1e12, {})], {}, SingleRank()
    )
    assert statistics.first_counts == {(1, 2): 1, (0, 2): 1}
    assert statistics.reward_counts == {(1, 2): 1, (2, 6): 1}
    assert flatten(statistics)["pass_rate"] == 0.25
    assert pass_rate(statistics.unbiased_counts)[0] == 0.25
    assert pass_rate(replace(statistics, first_counts={}).unbiased_counts)[0] == pytest.approx((1 / 2 + 2 / 6) / 2)


def test_a_policy_that_stops_asking_speaking_prompts_reports_the_true_rate():
    """Each prompt gets 4 completions, and silent prompts alone get 12 more. The rate of all counts would be off by
    ¾pq((1 − p)³ − p³), which is .046 at p = .09."""
    generator = np.random.default_rng(0)
    rates = np.full(40_000, 0.09)
    first = generator.binomial(4, rates)
    more = np.where((first == 0) | (first == 4), 12, 0)
    correct = first + generator.binomial(more, rates)
    everything = Counter(zip(correct.tolist(), (4 + more).tolist(), strict=True))
    assert pass_rate(everything)[0] == pytest.approx(0.136, abs=0.002)
    assert pass_rate(Counter((int(k), 4) for k in first))[0] == pytest.approx(0.09, abs=0.002)


def test_each_source_of_problems_has_numbers_of_its_own():
    class Sourced(ScriptedTask):
        def next_prompts(self, count):
            prompts = super().next_prompts(count)
            sources = ["sums", "words", "", "sums"]
            return [
                replace(prompt, problem=replace(prompt.problem, source=source))
                for prompt, source in zip(prompts, sources, strict=True)
            ]

    task = Sourced([(1, 0), (0, 0), (1, 1), (1, 1)])
    plan = RoundPlan(group_size=2, refresh_interval=1, prompts_per_step=4)
    means = sampling_means(PlainCollector(asking(task, ScriptedSampler())).collect(plan, 9))
    by_source = {name: mean.value for name, mean in means.items() if name.startswith("source/")}
    assert by_source == {
        **{"source/sums/reward_mean": 0.75, "source/sums/pass_rate": 0.75, "source/sums/length_mean": 2.0},
        **{"source/sums/truncated_fraction": 0.0, "source/sums/silent_fraction": 0.5},
        **{"source/words/reward_mean": 0.0, "source/words/pass_rate": 0.0, "source/words/length_mean": 2.0},
        **{"source/words/truncated_fraction": 0.0, "source/words/silent_fraction": 1.0},
    }
    collected = PlainCollector(asking(Sourced(task.rewards), ScriptedSampler())).collect(plan, 9)
    outage = [ungraded(scored) if place in (0, 1) else scored for place, scored in enumerate(collected.sampled)]
    means = sampling_means(replace(collected, sampled=outage))
    assert means["source/sums/pass_rate"] == means["source/sums/reward_mean"] == Mean(2.0, 2)
    assert means["source/words/pass_rate"].count == 0 and means["source/words/length_mean"].value == 2.0
    # Under a rollout budget mixed first answers bring more, which would draw the rate towards one half.
    spread = replace(collected, asked_first=1)
    assert sampling_means(spread)["source/sums/pass_rate"] == Mean(2.0, 2)
    assert sampling_means(spread)["source/sums/reward_mean"] == Mean(3.0, 4)


def test_means_of_episodes_count_turns_calls_and_failures():
    def episode(**facts):
        return Completion(
            (1, 2), (-1.0, -1.0), "", False, observed=(Observed(1, (5, 6, 7)),), episode=EpisodeFacts(**facts)
        )

    single = Completion((1,), (-1.0,), "", False)
    several = episode(turns=3, calls=4, failed_calls=1, seconds=2.0)
    failed = episode(turns=1, unreadable_calls=1, error="KeyError: gone")
    assert episode_means([single]) == {}
    without_tools = episode(turns=1, shown_tools=False)
    assert episode_means([without_tools])["episodes/without_calls_fraction"].count == 0
    means = episode_means([single, several, failed])
    assert means["episodes/turns_mean"] == Mean(4.0, 2)
    assert means["episodes/calls_mean"] == Mean(4.0, 2)
    assert means["episodes/failed_calls_fraction"] == Mean(1.0, 4)
    assert means["episodes/unreadable_fraction"] == Mean(1.0, 4)
    assert means["episodes/without_calls_fraction"] == Mean(1.0, 2)
    assert means["episodes/observed_mean"] == Mean(6.0, 2)
    assert means["episodes/failed_fraction"] == Mean(1.0, 2)
