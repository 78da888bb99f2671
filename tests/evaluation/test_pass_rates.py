from itertools import combinations

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
    paired_difference,
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


def test_intervals_are_the_same_in_every_call():
    assert pass_at_k_interval([0, 1, 2, 4], [4] * 4, 2) == pass_at_k_interval([0, 1, 2, 4], [4] * 4, 2)


def test_pass_at_k_interval_has_the_mean_over_problems():
    # (0 + 1/2 + 5/6 + 1) / 4 from two of four samples.
    assert pass_at_k_interval([0, 1, 2, 4], [4] * 4, 2).value == pytest.approx(7 / 12)


def test_pairing_by_problem_narrows_the_change():
    difficulty = np.linspace(0, 0.8, 40)
    gains = np.tile([0.1, 0.2], 20)
    change = paired_difference(difficulty, difficulty + gains)
    assert change.value == pytest.approx(0.15)
    # The gains' standard error is 0.05 / √40 = 0.0079; the difficulties' alone would give 0.037.
    assert change.high - change.low == pytest.approx(2 * 1.96 * 0.0079, rel=0.1)


def test_exchanging_before_and_after_changes_the_sign():
    before, after = [0.0, 0.5, 0.25, 1.0], [0.5, 1.0, 0.5, 0.75]
    assert paired_difference(before, after).value == 0.25
    assert paired_difference(after, before).value == -0.25


def test_no_change_anywhere_is_no_change():
    assert paired_difference([0.5, 1.0], [0.5, 1.0]) == Interval(0.0, 0.0, 0.0)


def test_rates_that_are_not_pairs_are_refused():
    with pytest.raises(ValueError, match="2 and 1"):
        paired_difference([0.0, 1.0], [1.0])


@pytest.mark.parametrize(
    ("seeds", "of_seeds", "of_problems"), [(3, 0.2, 0.2), (3, 0.05, 0.0), (5, 0.1, 0.1), (10, 0.05, 0.2)]
)
def test_without_a_true_difference_a_crossed_one_is_found_no_more_often_than_it_says(seeds, of_seeds, of_problems):
    """Of 1,000 draws a level of .05 allows 50, and 70 with three standard errors. A tenth of that level allows 5, and
    12 with three standard errors."""
    random = np.random.default_rng(0)
    p_values, held = [], 0
    for _ in range(1000):
        luck = random.normal(0, of_seeds, (seeds, 1)) + random.normal(0, of_problems, (1, 64))
        cells = luck + random.normal(0, 0.3, (seeds, 64))
        p_values.append(crossed_difference(cells)[1])
        interval, _ = crossed_difference(cells + 0.1)
        held += interval.low <= 0.1 <= interval.high
    assert sum(p < 0.05 for p in p_values) == 1000 - held <= 70
    assert sum(p < 0.005 for p in p_values) <= 12


def test_a_crossed_difference_of_one_seed_or_one_problem_is_the_t_test_of_the_other():
    values = np.random.default_rng(2).normal(0.1, 0.3, 12)
    expected = stats.ttest_1samp(values, 0.0)
    for cells in (values[None, :], values[:, None]):
        interval, p = crossed_difference(cells)
        assert p == pytest.approx(expected.pvalue)
        assert (interval.low, interval.high) == pytest.approx(tuple(expected.confidence_interval()))


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
    alone = paired_difference(np.zeros(50), cells.mean(0))
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
