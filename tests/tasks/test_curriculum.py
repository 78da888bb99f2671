"""These tests check the order of problems under each curriculum."""

from collections import Counter

import numpy as np
import pytest
from scipy import integrate, special, stats

from grpo.config import CurriculumConfig, UserError
from grpo.dynamics.sigma import drift
from grpo.tasks.curriculum import Grouping, build_order, check_rates, expected_gradient, resampled
from grpo.tasks.prompt_stream import PromptStream
from grpo.types import Problem

RATES = [0.0, 0.02, 0.2, 0.5, 0.5, 0.8, 0.98, 1.0]


def problems(rates=RATES):
    return [Problem(f"p-{index}", str(index), "", {"rate": rate}) for index, rate in enumerate(rates)]


def order(name, rates=RATES, exponent=1.0, seed=0, mean_exponent=0.0, size=8, **settings):
    config = CurriculumConfig(name=name, solve_rate_column="rate", **settings)
    return build_order(problems(rates), config, Grouping(size, exponent, mean_exponent), seed)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("mean_exponent", [0.0, 0.5, 1.0, -1.0])
@pytest.mark.parametrize("size", [2, 8])
def test_the_expected_gradient_is_the_drift_over_the_posterior(exponent, mean_exponent, size):
    right, wrong = 2.5, 6.5

    def gradient(p):
        return drift(p, size, exponent, mean_exponent=mean_exponent) * stats.beta.pdf(p, right, wrong)

    expected, _ = integrate.quad(gradient, 0, 1)
    grouping = Grouping(size, exponent, mean_exponent)
    assert expected_gradient(np.array([right]), np.array([wrong]), grouping)[0] == pytest.approx(expected, rel=1e-8)


def test_under_maxrl_a_problem_that_is_never_solved_is_hardly_asked():
    """The problems had 0, 3, 6 and 13 right of 64. MaxRL's drift is (1−p) − (1−p)^G, whose mean over a Beta has a
    closed form."""
    right = np.array([0, 3, 6, 13]) + 0.5
    wrong = 65 - right
    shares = {}
    for size in (8, 10_000):
        expected = (special.beta(right, wrong + 1) - special.beta(right, wrong + size)) / special.beta(right, wrong)
        weights = expected_gradient(right, wrong, Grouping(size, 0.0, 1.0))
        assert weights == pytest.approx(expected)
        shares[size] = (weights / weights.sum()).round(2).tolist()
    assert shares == {8: [0.03, 0.21, 0.32, 0.44], 10_000: [0.26, 0.27, 0.25, 0.22]}


def test_a_higher_exponent_asks_hard_prompts_more_and_maxrl_most():
    def share(exponent, mean_exponent=0.0):
        dials = {"exponent": exponent, "mean_exponent": mean_exponent}
        asked = order("weighted", prior_samples=64, block=800, **dials).indices(0, 4000)
        return float(np.mean(asked == 1))

    assert share(0.0) < share(1.0) < min(share(1.9), share(0.0, 1.0))


def test_a_block_asks_each_problem_in_proportion_to_its_weight_to_within_one():
    weights = np.array([1.0, 2.0, 4.0, 0.0])
    for block in range(20):
        counts = np.bincount(resampled(weights, 70, (0, block)), minlength=4)
        assert counts[3] == 0
        assert np.abs(counts - [10, 20, 40, 0]).max() <= 1


def test_weighted_prompts_are_those_that_promise_gradient():
    asked = Counter(order("weighted", prior_samples=64, block=800).indices(0, 8000).tolist())
    share = np.array([asked[index] / 8000 for index in range(8)])
    middle = slice(2, 6)
    gradient = drift(RATES[middle], 8, exponent=1.0)
    expected = gradient / gradient.sum() * share[middle].sum()
    assert share[middle] == pytest.approx(expected, rel=0.05)
    assert 0 < share[0] < 0.25 * share[3], "never solved of 64 is not never, but seldom"


def test_annealing_goes_from_easy_to_hard():
    asked = order("anneal", anneal_prompts=4000, block=400, width=0.1).indices(0, 8000)
    rates = np.array(RATES)[asked]
    first, middle, last = rates[:400].mean(), rates[2000:2400].mean(), rates[4000:].mean()
    assert first > 0.85 and 0.4 < middle < 0.6 and last < 0.15
    assert rates[4000:4400].mean() == pytest.approx(rates[7600:].mean(), abs=0.02)


def test_annealing_asks_the_nearest_problems_where_none_is_near():
    rates = [0.1, 0.1005, 0.2, 0.2005]
    asked = Counter(order("anneal", rates=rates, easy=0.9, block=400, width=0.01).indices(0, 400).tolist())
    # exp(−(0.7² − 0.6995²)/(2·0.01²)) = exp(−3.4987): the second nearest comes 12 times of 400.
    assert asked[3] == pytest.approx(388, abs=1) and asked[2] == pytest.approx(12, abs=1)


@pytest.mark.parametrize("name", ["uniform", "weighted", "anneal"])
def test_an_order_depends_on_seed_and_position_only(name):
    whole = order(name, block=50).indices(0, 300)
    pieces = [order(name, block=50).indices(start, 30) for start in range(0, 300, 30)]
    assert np.concatenate(pieces).tolist() == whole.tolist()
    assert order(name, block=50, seed=1).indices(0, 300).tolist() != whole.tolist()


def online(**settings):
    return order("online", **{"rest": 8, "rest_silent": 40, "half_life": 1000} | settings)


def test_online_asks_different_problems_until_it_has_learned_of_them():
    stream = online()
    assert sorted(stream.indices(0, 4).tolist() + stream.indices(4, 4).tolist()) == list(range(8))


def test_a_look_at_the_first_prompts_changes_no_online_stream():
    looked, untouched = online(), online()
    looked.indices(0, 3)
    # The run compares sampler and learner on the first prompts, and then sets the stream back.
    assert looked.indices(0, 5).tolist() == untouched.indices(0, 5).tolist()
    assert looked.indices(5, 5).tolist() == untouched.indices(5, 5).tolist()


@pytest.mark.parametrize("pieces", [[2, 2, 2, 2], [2, 3, 11], [8, 4, 8]])
def test_online_asks_the_same_problems_however_many_are_taken_at_a_time(pieces):
    """Dynamic sampling takes a round's prompts in several waves, and an audit takes them at once."""
    whole, in_pieces = online(), online()
    for stream in (whole, in_pieces):
        stream.record_outcomes([(7, 4, 8)], 4)
    asked = whole.indices(4, sum(pieces)).tolist()
    starts = [4 + sum(pieces[:index]) for index in range(len(pieces))]
    drawn = [in_pieces.indices(start, piece) for start, piece in zip(starts, pieces, strict=True)]
    assert np.concatenate(drawn).tolist() == asked


def test_online_follows_what_was_measured():
    stream = online(rates=[0.5] * 8, rest=1, rest_silent=1, half_life=10**9, prior_samples=1)
    stream.record_outcomes([(index, 4 if index == 2 else 8 * (index % 2), 8) for index in range(8)], 8)
    weights = stream.weights(9)
    assert weights.argmax() == 2
    assert weights[2] > 1.5 * np.delete(weights, 2).max()
    asked = Counter()
    for cursor in range(9, 3009):
        asked.update(stream.indices(cursor, 1).tolist())
        stream.record_outcomes([], cursor + 1)
    assert asked[2] == pytest.approx(3000 * weights[2] / weights.sum(), rel=0.25)


def test_silent_prompts_rest_longer_and_are_tried_again():
    stream = online()
    stream.record_outcomes([(index, 8 if index < 4 else 4, 8) for index in range(8)], 8)
    assert sorted(stream.indices(20, 4).tolist()) == [4, 5, 6, 7], "8 prompts of rest are over, 40 are not"
    stream.record_outcomes([], 24)
    assert sorted(stream.indices(60, 8).tolist()) == list(range(8))


def test_a_prompt_that_could_not_be_graded_keeps_its_weight_and_is_asked_again_as_soon_as_others():
    stream, untouched = online(), online()
    stream.record_outcomes([(index, 0, 8 if index < 4 else 0) for index in range(8)], 8)
    assert stream.weights(8)[4:].tolist() == untouched.weights(8)[4:].tolist()
    assert sorted(stream.indices(20, 4).tolist()) == [4, 5, 6, 7], "the others were silent, and rest longer"


def test_measured_rates_fade():
    stream = online(rates=[0.5] * 8, half_life=100)
    fresh = stream.weights(8)[0]
    stream.record_outcomes([(0, 0, 8)], 8)
    after, later, much_later = (stream.weights(cursor)[0] for cursor in (8, 108, 5000))
    assert after < later < much_later == pytest.approx(fresh, rel=1e-3)


def test_when_all_rest_those_that_rested_longest_are_asked():
    stream = online()
    stream.record_outcomes([(index, 4, 8) for index in range(4)], 4)
    stream.record_outcomes([(index, 4, 8) for index in range(4, 8)], 8)
    assert sorted(stream.indices(8, 4).tolist()) == [0, 1, 2, 3]


def test_more_prompts_than_problems_ask_some_twice():
    assert Counter(online().indices(0, 20).tolist()).most_common()[-1][1] == 2


def test_a_resumed_online_order_goes_on_as_it_would_have():
    def run(stream, rounds):
        asked = []
        for index in rounds:
            chosen = stream.indices(4 * index, 4).tolist()
            asked.append(chosen)
            stream.record_outcomes(outcomes(chosen, index), 4 * index + 4)
        return asked

    def outcomes(chosen, index):
        return [(problem, (problem * 7 + index) % 9, 8) for problem in chosen]

    whole = run(online(), range(12))
    resumed = online()
    for index, chosen in enumerate(whole[:5]):
        resumed.record_outcomes(outcomes(chosen, index), 4 * index + 4)
    assert run(resumed, range(5, 12)) == whole[5:]


def test_two_ranks_share_the_online_stream():
    def stream(rank, world_size):
        return PromptStream(problems(), lambda problem: (), online(), rank=rank, world_size=world_size)

    one, two = stream(0, 1), [stream(rank, 2) for rank in range(2)]
    for _ in range(3):
        expected = [prompt.prompt_id for prompt in one.next_prompts(4)]
        shares = [[prompt.prompt_id for prompt in rank_stream.next_prompts(4)] for rank_stream in two]
        assert [shares[0][0], shares[1][0], shares[0][1], shares[1][1]] == expected
        outcome = {name.rpartition("@")[0]: (3, 8) for name in expected}
        for prompt_stream in (one, *two):
            prompt_stream.record_outcomes(outcome, prompt_stream.cursor)


@pytest.mark.parametrize("name", ["weighted", "anneal"])
def test_a_curriculum_by_pass_rates_that_no_problem_has_is_refused(name):
    rated, unrated = Problem("p", "q", "a", {"solve": 0.5}), Problem("p", "q", "a", {"solve": None})
    config = CurriculumConfig(name=name, solve_rate_column="solve")
    check_rates([unrated, rated], config)
    with pytest.raises(UserError, match=f"curriculum.name={name} goes by pass rates, and no problem has one"):
        check_rates([unrated], config)
    for other in ("uniform", "online"):
        check_rates([unrated], CurriculumConfig(name=other, solve_rate_column="solve"))
