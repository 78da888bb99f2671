"""These tests forecast what a run may still gain, by the hour and by its price."""

from dataclasses import replace

import pytest

from grpo.config import GateConfig
from grpo.dynamics.gates import GatedScheduler, Watched, watched
from grpo.dynamics.scheduler import FixedScheduler
from grpo.run.gates import RoundNumbers
from grpo.run.outlook import Outlook
from grpo.telemetry.metrics import flatten
from grpo.types import Mean, RoundPlan, RoundStatistics
from grpo.types import metrics as m

PLAN = RoundPlan(8, 2, 16)
STEPS = 60


def round_of(number: int, seconds: float = 30.0, rises_until: int = 30) -> RoundStatistics:
    """Returns a round of two steps, of whose 16 groups of 8 one more is right every other round."""
    right = min(number, rises_until) // 2
    return RoundStatistics(
        number, 2 * number + 2, PLAN, {}, {(8, 8): right, (0, 8): 16 - right}, {"round": seconds}, ()
    )


def rows(count: int) -> list[dict]:
    return [
        flatten(one) | {"step": one.step, m.COUNTS: [[*pair, n] for pair, n in one.reward_counts.items()]}
        for one in map(round_of, range(count))
    ]


def test_gain_per_hour_is_the_forecast_gain_by_the_hours_that_are_left():
    outlook = Outlook(STEPS, per_hour=4.0)
    early = [outlook(round_of(number)) for number in range(5)]
    assert early == [{m.ROUND_COST: pytest.approx(4 * 30 / 3600)}] * 5
    for number in range(5, 10):
        values = outlook(round_of(number))
        hours = (STEPS - 2 * number - 2) * 15 / 3600
        assert values[m.EXPECTED_GAIN] > 0.02
        assert values[m.GAIN_PER_HOUR] == pytest.approx(values[m.EXPECTED_GAIN] / hours)
        assert values[m.GAIN_PER_MONEY] == pytest.approx(values[m.GAIN_PER_HOUR] / 4)
    assert outlook(round_of(9)) == values
    # No step is left.
    assert [*outlook(round_of(29))] == [m.ROUND_COST]


def test_the_noise_scale_is_that_of_the_last_rounds_where_their_signal_is_sure():
    def noise_scales(shares, outlook=None):
        asked, found = outlook or Outlook(STEPS), []
        for number, share in enumerate(shares, start=100 if outlook else 0):
            means = {m.SIGNAL: Mean(share * 3.0, 3.0)}
            found.append(asked(replace(round_of(number), means=means)).get(m.NOISE_SCALE))
        return asked, found

    # Steps of 8 × 16 completions: a tenth of signal asks for nine times as many. It is known from the tenth round on.
    asked, found = noise_scales([0.05, 0.15] * 30)
    assert found[:9] == [None] * 9 and [found[9], found[-1]] == pytest.approx([9 * 8 * 16] * 2)
    assert noise_scales([0.2] * 50, asked)[1][-1] == pytest.approx(4 * 8 * 16)
    # Shares of 0.1 ± 1 are luck, and a share of 1 leaves no noise.
    assert noise_scales([-0.9, 1.1] * 30)[1] == [None] * 60 and noise_scales([1.0] * 20)[1] == [None] * 20
    # Gradients that are almost 0 have any share.
    asked, _ = noise_scales([0.1] * 40)
    assert noise_scales([-252938.0], asked)[1] == [pytest.approx((41 / (40 * 0.1 - 1) - 1) * 8 * 16)]
    earlier = [row | {m.SIGNAL: 0.1} for row in rows(9)]
    assert noise_scales([0.1], Outlook(STEPS, rows=earlier))[1] == [pytest.approx(9 * 8 * 16)]


def test_rounds_of_half_a_minute_lie_between_two_forecasts():
    outlook = Outlook(100)
    known = [bool(outlook(round_of(number, seconds=12.0))) for number in range(14)]
    # The sixth round has the first one, since earlier rounds took long enough.
    assert [number for number, value in enumerate(known) if value] == [5, 8, 11]


def test_a_resumed_run_forecasts_as_an_uninterrupted_one():
    whole, resumed = Outlook(STEPS), Outlook(STEPS, rows=rows(9))
    for number in range(9):
        whole(round_of(number))
    assert resumed(round_of(9)) == whole(round_of(9))


def test_a_curve_begins_anew_where_the_run_went_back():
    outlook = Outlook(STEPS, rows=rows(12))
    outlook.begin_anew()
    assert [bool(outlook(round_of(number))) for number in range(12, 18)] == [False] * 5 + [True]
    went_back = Outlook(STEPS, rows=[row | {m.WENT_BACK: float(at == 11)} for at, row in enumerate(rows(14))])
    assert [bool(went_back(round_of(number))) for number in range(14, 18)] == [False] * 3 + [True]
    just_now = Outlook(STEPS, rows=[row | {m.WENT_BACK: float(at == 11)} for at, row in enumerate(rows(12))])
    assert [bool(just_now(round_of(number))) for number in range(12, 18)] == [False] * 5 + [True]


def test_a_gate_stops_a_run_whose_hours_gain_too_little():
    """The curve is flat from the tenth round on: hours gain ever less."""
    gates = [GateConfig(metric=m.GAIN_PER_HOUR, below=0.2, rounds=2, then="stop")]

    def stops(rises_until: int) -> list[int]:
        numbers, state, broken = RoundNumbers(), Watched(), []
        numbers.outlook = Outlook(200)
        for number in range(30):
            found, state = watched(gates, state, numbers(round_of(number, rises_until=rises_until)))
            broken += [number] * bool(found)
        return broken

    assert stops(rises_until=30) == []
    assert 12 < stops(rises_until=10)[0] < 25


def test_a_reward_that_judges_nothing_has_no_forecast_and_breaks_no_gate_of_pass_rates():
    numbers = RoundNumbers()
    numbers.outlook = Outlook(200)
    for number in range(7):
        values = numbers(round_of(number))
    assert {m.PASS_RATE, m.EXPECTED_GAIN} <= values.keys()
    assert m.PASS_RATE in flatten(round_of(7)) and m.PASS_RATE not in flatten(replace(round_of(7), judged=False))
    pass_rates = {m.PASS_RATE, m.EXPECTED_GAIN, m.GAIN_PER_HOUR}
    assert not pass_rates & numbers(replace(round_of(7), judged=False)).keys()
    assert not pass_rates & numbers(round_of(8)).keys()


def test_a_gate_of_pass_rates_does_nothing_from_the_first_round_that_nothing_judges():
    gate, numbers = GateConfig(metric="pass_rate", below=0.9), RoundNumbers()
    scheduler = GatedScheduler(FixedScheduler(RoundPlan(2, 1, 1)), [gate], numbers)
    plan, state = scheduler.init()
    assert scheduler.next(plan, round_of(0), state).verdict.stop
    numbers.outlook.begin_anew()
    assert not scheduler.next(plan, replace(round_of(0), judged=False), state).verdict.stop
