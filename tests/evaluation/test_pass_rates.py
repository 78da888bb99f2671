from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from grpo.config import UserError
from grpo.evaluation.pass_rates import (
    Interval,
    crossed_difference,
    geometric_ratio,
    holm,
    mean_interval,
    paired_change,
    pass_at_k,
    pass_at_k_interval,
    ratio_p_value,
)


def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample():
    for n in range(1, 7):
        for c in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(combinations([True] * c + [False] * (n - c), k))
                assert pass_at_k(n, c, k) == sum(map(any, subsets)) / len(subsets)


def test_pass_at_k_keeps_its_digits_where_factorials_overflow():
    # One correct sample is among k of n with probability k/n.
    assert pass_at_k(100_000, 1, 3) == 3 / 100_000


def test_pass_at_more_than_was_sampled_names_the_setting():
    with pytest.raises(UserError, match="evaluation.samples_per_problem"):
        pass_at_k(4, 2, 8)


def test_one_sample_per_problem_has_wilsons_interval():
    # Wilson's score interval of 20 in 100: (0.13337, 0.28883), by hand from its formula with z = 1.95996.
    interval = mean_interval([1] * 20 + [0] * 80, [1] * 100)
    assert interval.value == 0.2
    assert (interval.low, interval.high) == pytest.approx((0.13337, 0.28883), abs=1e-5)


def test_nothing_solved_is_not_certainly_nothing():
    # z² / (n + z²) for no success in n = 10: problems count, not their 8 samples each.
    interval = mean_interval([0] * 10, [8] * 10)
    assert (interval.value, interval.low) == (0.0, 0.0)
    assert interval.high == pytest.approx(3.841459 / 13.841459, abs=1e-6)


def test_wilsons_interval_of_a_share_of_a_problem_is_not_that_of_a_rounded_one():
    # Of ten problems each is solved in one of four samples: 2.5 of 10, by hand from Wilson's formula, z = 1.95996.
    interval = mean_interval([1] * 10, [4] * 10)
    assert (interval.value, interval.low, interval.high) == pytest.approx((0.25, 0.080948, 0.557819), abs=1e-6)


def test_repeating_identical_samples_adds_no_certainty():
    solved = [1, 0] * 32
    once = mean_interval(solved, [1] * 64)
    often = mean_interval([16 * count for count in solved], [16] * 64)
    assert often.high - often.low == pytest.approx(once.high - once.low, rel=0.1)


def test_the_bootstrap_covers_the_truth_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        counts = random.binomial(4, random.beta(0.6, 1.4, size=48))
        interval = mean_interval(counts.tolist(), [4] * 48)
        covered += interval.low <= 0.3 <= interval.high
    assert 88 <= covered <= 99


def test_pass_at_k_interval_has_the_mean_over_problems_and_is_the_same_in_every_call():
    interval, again = (pass_at_k_interval([0, 1, 2, 4], [4] * 4, 2) for _ in range(2))
    assert interval == again
    # (0 + 1/2 + 5/6 + 1) / 4 from two of four samples.
    assert interval.value == pytest.approx(7 / 12)


def test_pairing_by_problem_narrows_the_change():
    difficulty = np.linspace(0, 0.8, 40)
    gains = np.tile([0.1, 0.2], 20)
    change = paired_change(difficulty, difficulty + gains).interval
    assert change.value == pytest.approx(0.15)
    # The gains' standard error is 0.05 / √40 = 0.0079; the difficulties' alone would give 0.037.
    assert change.high - change.low == pytest.approx(2 * 1.96 * 0.0079, rel=0.1)


def test_exchanging_before_and_after_changes_the_sign():
    before, after = [0.0, 0.5, 0.25, 1.0], [0.5, 1.0, 0.5, 0.75]
    gain, loss = paired_change(before, after), paired_change(after, before)
    assert gain[0].value == 0.25 and loss[0].value == -0.25
    assert gain[1:] == (3, 1, loss.p) and loss[1:3] == (1, 3)


def test_no_change_anywhere_is_no_change():
    assert paired_change([0.5] * 6, [0.5] * 6) == (Interval(0.0, 0.0, 0.0), 0, 0, 1.0)


def test_rates_that_are_not_pairs_are_refused():
    with pytest.raises(ValueError, match="2 and 1"):
        paired_change([0.0, 1.0], [1.0])


def test_a_paired_change_by_hand():
    # Only two of the eight choices of signs reach as far on each side: none turned, or the third alone.
    few = paired_change([0.5, 0.5, 0.5], [1.0, 1.0, 0.25])
    assert (few.better, few.worse, few.p) == (2, 1, 0.5)
    assert few.interval == Interval(0.25, -1.0, 1.0), "three problems never decide anything"
    # Of 64 choices the measured one and its opposite are the farthest. A 40th of 64 is 1.6, so one mean lies outside.
    six = paired_change([0.0] * 6, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert (six.p, six.interval.low, six.interval.high) == (2 / 64, 0.1, 0.6)


@pytest.mark.parametrize("count", [5, 8, 13, 14, 40])
def test_the_interval_of_a_paired_change_excludes_0_exactly_where_the_test_finds_a_change(count):
    random, seen = np.random.default_rng(0), set()
    for gain in (0.0, 0.2, 0.4):
        for _ in range(40):
            before, after = random.binomial(4, 0.3, count) / 4, random.binomial(4, 0.3 + gain, count) / 4
            change = paired_change(before, after)
            assert (change.p < 0.05) == (not change.interval.low <= 0 <= change.interval.high)
            assert change.interval.low <= change.interval.value <= change.interval.high
            seen.add(change.p < 0.05)
    assert seen == ({True, False} if count > 5 else {False})


def test_a_change_is_found_where_there_is_none_in_no_more_than_one_of_twenty_cases():
    """All outcomes of seven problems are gone through that got better and worse equally easily, or stayed the same."""
    for moved in (0.1, 0.3, 0.5):
        found = 0.0
        for outcome in product((-1.0, 0.0, 1.0), repeat=7):
            if paired_change([0.0] * 7, outcome).p < 0.05:
                found += np.prod([moved if change else 1 - 2 * moved for change in outcome])
        assert found <= 0.05


def test_the_interval_of_a_paired_change_of_many_problems_is_that_of_their_standard_error():
    differences = np.random.default_rng(0).normal(0.1, 0.3, 400)
    interval = paired_change(np.zeros(400), differences).interval
    error = differences.std(ddof=1) / 400**0.5
    assert interval.low == pytest.approx(differences.mean() - 1.96 * error, abs=0.1 * error)
    assert interval.high == pytest.approx(differences.mean() + 1.96 * error, abs=0.1 * error)


@pytest.mark.parametrize(
    ("seeds", "of_seeds", "of_problems"), [(3, 0.2, 0.2), (3, 0.05, 0.0), (5, 0.1, 0.1), (10, 0.05, 0.2)]
)
def test_without_a_true_difference_a_crossed_one_is_found_no_more_often_than_it_says(seeds, of_seeds, of_problems):
    """Of 1,000 draws a level of .05 allows 50, and 70 with three standard errors. A tenth of that level allows 5, and
    12 with three standard errors."""
    random = np.random.default_rng(0)
    p_values, hits = [], 0
    for _ in range(1000):
        luck = random.normal(0, of_seeds, (seeds, 1)) + random.normal(0, of_problems, (1, 64))
        cells = luck + random.normal(0, 0.3, (seeds, 64))
        p_values.append(crossed_difference(cells)[1])
        interval, _ = crossed_difference(cells + 0.1)
        hits += interval.low <= 0.1 <= interval.high
    assert sum(p < 0.05 for p in p_values) == 1000 - hits <= 70
    assert sum(p < 0.005 for p in p_values) <= 12


def test_a_crossed_difference_of_one_seed_or_one_problem_is_the_t_test_of_the_other():
    values = np.random.default_rng(2).normal(0.1, 0.3, 12)
    expected = stats.ttest_1samp(values, 0.0)
    for cells in (values[None, :], values[:, None]):
        interval, p = crossed_difference(cells)
        assert p == pytest.approx(expected.pvalue)
        assert (interval.low, interval.high) == pytest.approx(tuple(expected.confidence_interval()))


def test_differences_that_are_equal_but_for_rounding_are_equal():
    cells = np.array([[0.3 - 0.2, 0.7 - 0.6], [0.4 - 0.3, 0.9 - 0.8], [0.5 - 0.4, 0.2 - 0.1]])
    assert np.ptp(cells) > 0 and crossed_difference(cells)[1] == 0.25


def test_a_crossed_difference_by_hand():
    # Mean squares: seeds 4·(2·.2²)/1 = .32, problems 2·(4·.1²)/3 = .0267, rest 0.
    cells = np.array([[0.4, 0.4, 0.2, 0.2], [0.0, 0.0, -0.2, -0.2]]) + 0.3
    interval, p = crossed_difference(cells)
    error = ((0.32 + 0.08 / 3) / 8) ** 0.5
    assert interval.value == pytest.approx(0.4)
    # With the one degree of freedom of the two seeds: t = 12.706 at 97.5 %, and p = 1 − 2·arctan(t)/π.
    assert interval.high - 0.4 == pytest.approx(12.7062 * error, rel=1e-5)
    assert p == pytest.approx(1 - 2 * np.arctan(0.4 / error) / np.pi)


def test_a_crossed_difference_is_wider_than_one_over_problems_alone_when_seeds_differ():
    cells = np.repeat([[0.2], [-0.1], [0.3], [0.0]], 50, axis=1) + np.random.default_rng(1).normal(0, 0.1, (4, 50))
    crossed, p = crossed_difference(cells)
    alone = paired_change(np.zeros(50), cells.mean(0)).interval
    assert crossed.value == pytest.approx(alone.value)
    assert crossed.high - crossed.low > 3 * (alone.high - alone.low)
    assert p > 0.05


def test_seeds_whose_means_are_alike_by_chance_are_not_certain():
    """Each seed gains one problem and loses one; the pairs differ. Mean squares: seeds 0, problems 1/6, rest 2/3."""
    cells = np.array([[1.0, -1.0, 0.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0, 0.0]])
    interval, p = crossed_difference(cells)
    error = (2 / 3 / 15) ** 0.5
    assert p == 1.0 and interval.value == 0.0
    # Two degrees of freedom: t = 4.303 at 97.5 %.
    assert interval.high == pytest.approx(4.30265 * error, rel=1e-5)
    _, p = crossed_difference(cells + 0.1)
    assert p == pytest.approx(2 * stats.t.sf(0.1 / error, 2))


def test_no_difference_at_all_has_p_one_and_the_same_everywhere_that_of_its_signs():
    assert crossed_difference(np.zeros((3, 5))) == (Interval(0.0, 0.0, 0.0), 1.0)
    assert crossed_difference(np.full((3, 5), 0.5)) == (Interval(0.5, 0.5, 0.5), 0.25)
    assert crossed_difference(np.full((1, 5), 0.5))[1] == 1.0


def test_holm_corrects_by_rank_and_keeps_the_order():
    # Sorted .005, .01, .03, .04 times 4, 3, 2, 1, and never less than the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_a_geometric_ratio_is_the_t_interval_of_the_logarithms():
    ratio = geometric_ratio([2.0, 8.0], [1.0, 1.0])
    # Mean log 2·ln 2, standard error ln 2, t(1 degree of freedom) = 12.706.
    assert ratio.value == pytest.approx(4.0)
    assert ratio.low == pytest.approx(4.0 * 2**-12.7062, rel=1e-4)
    assert geometric_ratio([3.0], [2.0]) == Interval(1.5, 1.5, 1.5)
    # t = 2 at one degree of freedom: p = 1 − 2·arctan(2)/π.
    assert ratio_p_value([2.0, 8.0], [1.0, 1.0]) == pytest.approx(1 - 2 * np.arctan(2) / np.pi)
    assert ratio_p_value([3.0], [2.0]) == ratio_p_value([2.0, 1.0], [2.0, 1.0]) == 1.0
    assert ratio_p_value([2.0] * 4, [1.0] * 4) == 0.125
