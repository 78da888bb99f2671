"""These tests check when gates break, what the run does then, and that the guard watches a fixed schedule."""

import json
from dataclasses import asdict, replace

import pytest

from grpo.config import GateConfig, TrainConfig
from grpo.dynamics.gates import Watched, watched
from grpo.dynamics.scheduler import build_scheduler, may_go_back, replanned
from grpo.types import Mean, Progress, RoundStatistics, StepReport


def configured(*gates, **dynamics):
    config = TrainConfig(gates=[*gates])
    for name, value in dynamics.items():
        setattr(config.dynamics, name, value)
    return config


def rounds(config, values, name="completions/repetition_fraction", scheduler=None):
    """Returns the verdicts of rounds of one step each, in which a metric has these values."""
    scheduler = scheduler or build_scheduler(config, 1)
    plan, state = scheduler.init()
    verdicts = []
    for step, value in enumerate(values, 1):
        means = {"completions/length_mean": Mean(320.0, 32.0), "prompts/length_mean": Mean(40.0, 4.0)}
        means[name] = Mean(value, 1.0)
        counts = {(round(8 * value), 8): 64} if name == "pass_rate" else {(3, 8): 4}
        reports = (StepReport(step, True, 1.0, 1e-6, 1.0, {}),)
        statistics = RoundStatistics(step, step, plan, means, counts, {"round": 1.0}, reports)
        decision = scheduler.next(plan, statistics, state)
        plan, state = decision.plan, decision.state
        verdicts.append(decision.verdict)
        if decision.verdict.stop:
            break
    return verdicts, plan, state


REPETITION = GateConfig(metric="completions/repetition_fraction", above=0.2)


def test_a_run_stops_once_a_gate_is_broken():
    verdicts, *_ = rounds(configured(REPETITION), [0.0, 0.1, 0.3, 0.1])
    assert [verdict.stop for verdict in verdicts] == [False, False, True]
    assert verdicts[-1].reason == "a gate is broken: completions/repetition_fraction is 0.3, above 0.2: stop"


def test_a_gate_breaks_after_rounds_in_a_row():
    gate = replace(REPETITION, rounds=3)
    verdicts, *_ = rounds(configured(gate), [0.3, 0.3, 0.1, 0.3, 0.3, 0.3, 0.3])
    assert [verdict.stop for verdict in verdicts] == [False] * 5 + [True]


def test_a_curve_that_falls_slowly_breaks_a_gate_on_its_difference_to_the_start():
    gate = GateConfig(metric="pass_rate", below=-0.1, from_start=True)
    falling = [0.6 - 0.01 * step for step in range(40)]
    verdicts, *_ = rounds(configured(gate), falling, "pass_rate")
    assert len(verdicts) == 12 and verdicts[-1].reason.startswith(
        "a gate is broken: pass_rate since the start is -0.11, below -0.1"
    )


def test_a_gate_sends_a_run_back_to_the_last_policy_within_all_gates_three_times_and_then_stops_it():
    config = configured(replace(REPETITION, then="back"))
    verdicts, *_ = rounds(config, [0.0, 0.0, 0.0, 0.3, 0.3, 0.3, 0.3])
    # The third round measured the policy of step 2, and the fourth that of step 3.
    assert [(verdict.go_back, verdict.good_step, verdict.stop) for verdict in verdicts] == [
        *((False, step, False) for step in (0, 1, 2)),
        *[(True, 2, False)] * 3,
        (False, 2, True),
    ]
    assert verdicts[3].reason.endswith("above 0.2, back to step 2 (1 of 3 times)")
    assert verdicts[6].reason.endswith("above 0.2 after 3 returns: stop")
    assert may_go_back(config) and not may_go_back(configured(REPETITION))


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_gate_goes_back_to_a_policy_that_sampled_a_round_within_it_also_where_rounds_are_sampled_ahead(lag):
    """Every policy after step 5 is beyond the gate."""
    scheduler = build_scheduler(configured(replace(REPETITION, then="back")), 1)
    plan, state = scheduler.init()
    for step in range(12):
        sampled_at = max(0, step - lag)
        means = {"completions/length_mean": Mean(320.0, 32.0), "prompts/length_mean": Mean(40.0, 4.0)}
        means |= {"completions/repetition_fraction": Mean(0.1 if sampled_at <= 5 else 0.3, 1.0)}
        means |= {"staleness/mean": Mean(float(step - sampled_at), 1.0)}
        reports = (StepReport(step + 1, True, 1.0, 1e-6, 1.0, {}),)
        statistics = RoundStatistics(step, step + 1, plan, means, {(3, 8): 4}, {"round": 1.0}, reports)
        decision = scheduler.next(plan, statistics, state)
        plan, state = decision.plan, decision.state
        if decision.verdict.go_back:
            break
    assert (decision.verdict.go_back, decision.verdict.good_step, step) == (True, 5, 6 + lag)


def test_a_round_that_was_cut_short_was_sampled_by_the_policy_at_its_beginning():
    scheduler = build_scheduler(configured(guard=True, refresh_interval=8), 1)
    plan, state = scheduler.init()
    means = {"completions/length_mean": Mean(320.0, 32.0), "prompts/length_mean": Mean(40.0, 4.0)}
    means |= {"ratio/mean": Mean(1.0, 1.0), "staleness/mean": Mean(0.0, 4.0)}
    reports = (StepReport(17, True, 1.0, 1e-6, 1.0, {}),)
    statistics = RoundStatistics(2, 17, plan, means, {(3, 8): 4}, {"round": 1.0}, reports)
    assert statistics.sampled_at == scheduler.next(plan, statistics, state).verdict.good_step == 16


def test_gates_that_break_together_are_all_named():
    config = configured(replace(REPETITION, then="back"), replace(REPETITION, above=0.25, then="refuse_export"))
    [*_, verdict], *_ = rounds(config, [0.0, 0.3])
    assert verdict.go_back and verdict.reason == (
        "a gate is broken: completions/repetition_fraction is 0.3, above 0.2, back to step 0 (1 of 3 times); "
        "completions/repetition_fraction is 0.3, above 0.25: grpo export refuses this model"
    )


@pytest.mark.parametrize("order", [1, -1])
def test_a_gate_that_stops_the_run_does_so_beside_one_that_goes_back(order):
    gates = [replace(REPETITION, then="back"), replace(REPETITION, above=0.25, then="stop")][::order]
    [*_, verdict], *_ = rounds(configured(*gates), [0.0, 0.3])
    assert (verdict.stop, verdict.go_back) == (True, False)
    assert "above 0.2: stop" in verdict.reason and "above 0.25: stop" in verdict.reason


def test_a_value_that_touches_a_bound_is_within_also_where_a_difference_was_rounded():
    gate = GateConfig(metric="evaluation/pass@1", below=-0.02, from_start=True)
    assert 0.5 - 0.52 < -0.02
    for values, breaks in [((0.52, 0.5), False), ((0.52, 0.4999), True)]:
        state = Watched()
        for value in values:
            broken, state = watched([gate], state, {gate.metric: value})
        assert bool(broken) == breaks
    assert not watched([GateConfig(metric="loss", above=0.3)], Watched(), {"loss": 0.1 + 0.2})[0]


def test_a_fall_of_a_thousandth_a_round_breaks_a_gate_whose_metric_is_missing_in_every_other_round():
    gate, state, found = GateConfig(metric="evaluation/pass@1", below=-0.02, from_start=True, rounds=2), Watched(), []
    for number in range(60):
        values = {} if number % 2 else {gate.metric: 0.6 - 0.001 * number}
        broken, state = watched([gate], state, values)
        found += [number] * bool(broken)
    assert found == [24]


@pytest.mark.parametrize("then", ["stop", "back"])
def test_a_resumed_run_that_is_still_beyond_a_gate_breaks_it_again(then):
    """The run went on beyond the gate, which refused exports only. Other gates stand before it after the resumption."""
    before = configured(replace(REPETITION, rounds=2, then="refuse_export"))
    _, plan, state = rounds(before, [0.3, 0.3, 0.3, 0.3])
    after = configured(GateConfig(metric="pass_rate", below=0.1), replace(REPETITION, rounds=2, then=then))
    scheduler = build_scheduler(after, 1)
    saved = json.loads(json.dumps(asdict(Progress(4, 4, 16, plan, state))))
    resumed = replanned(Progress(4, 4, 16, plan, saved["scheduler"]), before, after, scheduler, 1).scheduler
    [verdict, *_], *_ = rounds(after, [0.3, 0.3], scheduler=Resumed(scheduler, plan, resumed))
    assert verdict.stop if then == "stop" else verdict.go_back


class Resumed:
    """This scheduler begins with a restored state."""

    def __init__(self, scheduler, plan, state):
        self.init, self.next = (lambda: (plan, state)), scheduler.next


def test_a_gate_that_refuses_exports_lets_the_run_go_on():
    verdicts, *_ = rounds(configured(replace(REPETITION, then="refuse_export")), [0.3, 0.3])
    assert [(verdict.stop, verdict.go_back) for verdict in verdicts] == [(False, False)] * 2
    assert (
        verdicts[0].reason.endswith("above 0.2: grpo export refuses this model")
        and verdicts[1].reason != verdicts[0].reason
    )


@pytest.mark.parametrize("dynamics", ["fixed", "adaptive"])
@pytest.mark.parametrize("then", ["gated", "ungated"])
def test_a_run_with_gates_is_resumed_with_them_and_without(dynamics, then):
    config = configured(replace(REPETITION, rounds=3), name=dynamics)
    _, plan, state = rounds(config, [0.3, 0.3])
    saved = json.loads(json.dumps(asdict(Progress(2, 2, 16, plan, state))))
    progress = Progress(2, 2, 16, plan, saved["scheduler"])
    again = config if then == "gated" else configured(name=dynamics)
    resumed = replanned(progress, config, again, build_scheduler(again, 1))
    assert resumed.scheduler.spent == state.spent
    inner = resumed.scheduler.inner
    assert ([*inner.gates.beyond.values()] == [2]) if then == "gated" else (inner == state.inner.inner)
    fresh = replanned(Progress(2, 2, 16, plan, asdict(resumed.scheduler)), again, config, build_scheduler(config, 1))
    assert fresh.scheduler.inner.returns == 0


@pytest.mark.parametrize(("then", "said"), [("back", "back to step 0 (1 of 3 times)"), ("stop", "above 0.2: stop")])
def test_a_run_that_breaks_a_gate_at_its_limit_says_both(then, said):
    config = configured(replace(REPETITION, then=then))
    config.limits.samples = 64
    verdicts, *_ = rounds(config, [0.1, 0.3])
    assert verdicts[1].stop and verdicts[1].go_back == (then == "back")
    assert verdicts[1].reason.endswith(f"{said}; the limit of 64 samples is reached")


def test_gates_remember_their_rounds_when_the_schedule_becomes_another_one():
    gate = replace(REPETITION, above=0.1, from_start=True, then="back")
    config, adaptive = configured(gate), configured(gate, name="adaptive")
    _, plan, state = rounds(config, [0.1, 0.1, 0.3, 0.1])
    saved = json.loads(json.dumps(asdict(state)))
    resumed = replanned(Progress(4, 4, 16, plan, saved), config, adaptive, build_scheduler(adaptive, 1)).scheduler.inner
    assert (resumed.gates, resumed.good_step, resumed.returns) == (state.inner.gates, 3, 1)
    assert resumed.inner == build_scheduler(adaptive, 1).init()[1].inner.inner


@pytest.mark.parametrize("dynamics", [{"guard": True}, {"name": "adaptive"}])
def test_the_guard_does_not_compare_with_a_policy_that_a_gate_gave_up(dynamics):
    gamed = GateConfig(metric="pass_rate", above=0.9, then="back", rounds=3)
    verdicts, plan, _ = rounds(configured(gamed, **dynamics), [0.375] * 6 + [1.0] * 3 + [0.375] * 12, "pass_rate")
    assert [verdict.go_back for verdict in verdicts] == [False] * 8 + [True] + [False] * 12
    assert plan.learning_rate_factor == 1.0


def test_the_guard_watches_a_fixed_schedule_and_keeps_its_sizes():
    config = configured(guard=True, refresh_interval=1)
    values = [0.75] * 6 + [0.0] * 60
    verdicts, plan, _ = rounds(config, values, "pass_rate")
    first = next(verdict for verdict in verdicts if verdict.go_back)
    assert (
        "training is unstable (pass rate fell from 0.75" in first.reason
        and "learning rate halved, back to step" in first.reason
    )
    assert (plan.group_size, plan.refresh_interval) == (8, 1) and plan.learning_rate_factor < 1
    assert may_go_back(config) and not any(verdict.go_back for verdict in rounds(configured(), values, "pass_rate")[0])
