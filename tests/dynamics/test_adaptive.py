"""These tests try the scheduler on a simulated run of Bernoulli-logit prompts, whose gradient is σ^(2−α)."""

import json
import re
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest

from benchmarks.high_rate import product_means
from grpo.config import TrainConfig
from grpo.dynamics.adaptive_state import AdaptiveState, PastRound
from grpo.dynamics.gain import Products
from grpo.dynamics.guard import GuardState
from grpo.dynamics.scheduler import SCHEDULERS, adaptive, changes_prompts, replanned
from grpo.types import Mean, Progress, RoundPlan, RoundStatistics, StepReport, Verdict


class SimulatedRun:
    """A simulated run has prompts with logits θ, moved by the group's gradient σ^(2−α) with momentum. Gradients are
    those of the round's first policy (sample and hold), and `rate` is the learning rate. Products of steps are those
    of steps with this `heat` over their signal, in a batch of 256 completions."""

    def __init__(self, rate=0.05, prompts=200, seed=0, start=-1.5, momentum=0.9, heat=0.2, noise=0.05):
        self.heat, self.noise = heat, noise
        self.generator = np.random.default_rng(seed)
        self.logits = start + self.generator.standard_normal(prompts)
        self.velocity, self.momentum, self.rate = np.zeros(prompts), momentum, rate
        self.step, self.samples = 0, 0

    def round(self, plan):
        reports, counts = [], Counter()
        rates = 1 / (1 + np.exp(-self.logits))
        for _ in range(plan.refresh_interval):
            asked = self.generator.choice(len(rates), plan.prompts_per_step, replace=False)
            correct = self.generator.binomial(plan.group_size, rates[asked])
            self.samples += plan.group_size * plan.prompts_per_step
            counts.update((int(k), plan.group_size) for k in correct)
            sigma = np.sqrt(correct * (plan.group_size - correct)) / plan.group_size
            # All prompts gain a part of what one teaches: the policy is one network.
            gradient = np.full(len(rates), sigma.mean())
            gradient[asked] += sigma
            self.velocity = self.momentum * self.velocity + self.rate * plan.learning_rate_factor * gradient
            self.logits = np.minimum(self.logits + self.velocity, 1.5)
            self.step += 1
            reports.append(StepReport(self.step, True, 1.0, 1e-3, 1e9, {}))
        means = {"policy/ratio": Mean(1.0, 1.0), "policy/ratio_squared": Mean(1.0, 1.0)}
        groups = sum(counts.values())
        tried = groups * plan.group_size
        means |= {
            "completions/length_mean": Mean(100.0 * tried, tried),
            "prompts/length_mean": Mean(50.0 * groups, groups),
        }
        aim = (plan.group_size * plan.prompts_per_step / 256) ** 0.5
        interval = plan.refresh_interval
        means |= product_means(1e-3, self.heat * 1e-3, self.generator, aim, self.noise, interval=interval)
        seconds = {"sample": 1.0 * plan.refresh_interval, "learn": 1.0 * plan.refresh_interval, "sync": 1.0}
        seconds["round"] = sum(seconds.values())
        return RoundStatistics(len(reports), self.step, plan, means, dict(counts), seconds, tuple(reports))


def test_the_time_of_a_round_is_its_own_clocks_whatever_its_phases_add_up_to():
    scheduler = SCHEDULERS["adaptive"](config(), 1)
    plan, state = scheduler.init()
    statistics = SimulatedRun().round(plan)
    beside = {"round": 7.0, "wait": 1.0, "learn": 5.5, "sync": 0.5, "sample": 6.0, "save": 30.0}
    [past] = scheduler.next(plan, replace(statistics, seconds=beside), state).state.rounds
    assert (past.seconds, past.fixed_seconds) == (7.0, 0.5)


@pytest.mark.parametrize(("cost", "budget", "size"), [("tokens", 0, 4), ("seconds", 0, 8), ("seconds", 6, 6)])
def test_where_a_step_costs_much_whatever_its_tokens_seconds_ask_for_larger_groups(cost, budget, size):
    """A round takes 30 s whatever it samples, and .1 s per token. A rollout budget that gives no prompt more than 6
    completions cannot spend the 8."""
    made = config(cost=cost, smallest_group=4, largest_group=16)
    made.rollout.budget = replace(made.rollout.budget, enabled=bool(budget), largest=budget)
    scheduler = SCHEDULERS["adaptive"](made, 1)
    plan, state = scheduler.init()
    generator, reasons = np.random.default_rng(0), []
    for step, group_size in enumerate([16, 4] * 6 + [8] * 4, start=1):
        asked = replace(plan, group_size=group_size, prompts_per_step=10)
        means = {"policy/ratio": Mean(1.0, 1.0), "policy/ratio_squared": Mean(1.0, 1.0)}
        tried = 10 * group_size
        means |= {"completions/length_mean": Mean(tried, tried), "prompts/length_mean": Mean(10.0, 10.0)}
        means |= product_means(1e-3, 0.4e-3, generator, (group_size / 16) ** 0.5, noise=0.001)
        tokens = 10 * (1 + group_size)
        seconds = {"round": 30.0 + 0.1 * tokens, "sync": 0.0}
        counts = {(group_size // 2, group_size): 10}
        reports = (StepReport(step, True, 1.0, 1e-3, 1e9, {}),)
        statistics = RoundStatistics(step, step, asked, means, counts, seconds, reports)
        decision = scheduler.next(asked, statistics, state)
        state = decision.state
        reasons.append(decision.verdict.reason)
    assert decision.plan.group_size == size
    assert {word for reason in reasons for word in re.findall("sure that a (.*) gains more", reason)} <= {cost[:-1]}
    assert budget or any("gains more" in reason for reason in reasons)


def config(**adaptive):
    made = TrainConfig()
    made.dynamics.name, made.num_steps = "adaptive", 200
    made.dynamics.group_size, made.dynamics.prompts_per_step = 16, 16
    made.dynamics.adaptive = replace(made.dynamics.adaptive, **{"smallest_group": 2, "largest_group": 64} | adaptive)
    return made


def trained(scheduler, rounds=40, **run):
    """Returns the run after `rounds` rounds, the plan of each round, and the scheduler's decision after each."""
    plan, state = scheduler.init()
    world, plans, decisions = SimulatedRun(**run), [], []
    for _ in range(rounds):
        plans.append(plan)
        decision = scheduler.next(plan, world.round(plan), state)
        plan, state = decision.plan, decision.state
        decisions.append(decision)
        if decision.verdict.stop:
            break
    return world, [*plans, plan], decisions


def changes(plans, decisions):
    """Returns (group size before, after, reason) of each change of the group size."""
    pairs = zip(plans, decisions, strict=False)
    return [
        (before.group_size, decision.plan.group_size, decision.verdict.reason)
        for before, decision in pairs
        if before.group_size != decision.plan.group_size
    ]


def test_groups_shrink_where_steps_are_cool_and_every_change_has_a_reason():
    _, plans, decisions = trained(SCHEDULERS["adaptive"](config(), 1), rounds=16)
    assert [plan.group_size for plan in plans[::4]] == [16, 8, 4, 4, 4]
    (_, _, first), _ = changes(plans, decisions)
    assert re.fullmatch(
        r"G 16→8 \(silent \d+% → \d+%\): \d+% sure that a token gains more, since the heat of a step is 0.\d+ of its "
        "signal",
        first,
    )


@pytest.mark.parametrize(("first", "sizes"), [(32, [32, 8, 8]), (8, [8, 8, 8]), (2, [2, 8, 8])])
def test_groups_have_8_completions_from_the_first_decision_on_where_nothing_else_is_allowed(first, sizes):
    made = config(smallest_group=8, largest_group=8)
    assert made.dynamics.adaptive == TrainConfig().dynamics.adaptive
    made.dynamics.group_size = first
    _, plans, decisions = trained(SCHEDULERS["adaptive"](made, 1), rounds=8)
    assert [plan.group_size for plan in plans[::4]] == sizes
    allowed = "dynamics.adaptive allows groups of 8 completions"
    assert decisions[3].verdict.reason.endswith(allowed) == (first != 8)
    made.dynamics.adaptive.learning_rate = True
    _, _, decisions = trained(SCHEDULERS["adaptive"](made, 1), rounds=4)
    assert (f"{allowed}; steps gain most at" in decisions[3].verdict.reason) == (first != 8)


def test_groups_grow_where_steps_are_hot_and_a_high_rate_is_reported_once():
    made = config()
    made.dynamics.group_size, made.dynamics.prompts_per_step = 4, 64
    _, plans, decisions = trained(SCHEDULERS["adaptive"](made, 1), rounds=24, heat=1.9)
    assert plans[-1].group_size > 4
    # Steps gain most at 1/heat of the rate, and half of that would be taken. The first to say so knows it roughly.
    for heat, number, least, most in ((0.5, 0, 0, 0), (1.9, 1, 0.2, 0.4), (8.0, 1, 0.05, 0.25)):
        _, plans, decisions = trained(SCHEDULERS["adaptive"](config(), 1), rounds=40, heat=heat)
        taken = r"the learning rate is high: dynamics.adaptive.learning_rate=true would take about (0\.\d+) of it"
        shares = re.findall(taken, "\n".join(decision.verdict.reason for decision in decisions))
        assert len(shares) == number and all(least <= float(share) <= most for share in shares)
    assert plans[-1].group_size == 16


def test_a_rate_that_may_change_comes_to_where_steps_gain_most():
    """With the heat over signal κ a step gains most at 1/κ of the rate. The facts stay those of the first rate."""
    for heat, low, high in ((4.0, 0.0, 0.5), (0.02, 1.4, 32.0)):
        _, plans, _ = trained(SCHEDULERS["adaptive"](config(learning_rate=True), 1), rounds=24, heat=heat, noise=0.01)
        assert low <= plans[-1].learning_rate_factor <= high
    _, plans, _ = trained(SCHEDULERS["adaptive"](config(), 1), rounds=12, heat=4.0)
    assert {plan.learning_rate_factor for plan in plans} == {1.0}


def test_a_rate_stays_as_it_is_where_nothing_is_measured_any_more():
    """All groups are silent from some round on. Gradients are 0 then, and momentum dies out."""
    scheduler, world = SCHEDULERS["adaptive"](config(learning_rate=True), 1), SimulatedRun(heat=0.2, noise=0.01)
    plan, state = scheduler.init()
    silent = dict.fromkeys(("step/gain", "step/cosine", "path/gain", "path/cosine"), Mean(0.0, 1.0))
    for number in range(40):
        statistics = world.round(plan)
        if number >= 12:
            means = {**statistics.means, **silent, "step/length": Mean(0.05 * 0.5 ** (number - 11), 1.0)}
            counts = {(plan.group_size, plan.group_size): plan.prompts_per_step}
            statistics = replace(statistics, means=means, reward_counts=counts)
        decision = scheduler.next(plan, statistics, state)
        plan, state = decision.plan, decision.state
        assert plan.learning_rate_factor == 1.0


def test_a_run_says_once_why_an_interval_holds_where_refreshes_are_dear_and_samples_do_not_keep():
    made = config(cost="seconds", smallest_group=16, largest_group=16)
    scheduler, world, reasons = SCHEDULERS["adaptive"](made, 1), SimulatedRun(), []
    plan, state = scheduler.init()
    for _ in range(20):
        statistics = world.round(plan)
        stale = {"policy/ratio_squared": Mean(1.1 if plan.refresh_interval > 1 else 1.0, 1.0)}
        seconds = statistics.seconds | {"sync": 9.0, "round": statistics.seconds["round"] + 8.0}
        decision = scheduler.next(plan, replace(statistics, means=statistics.means | stale, seconds=seconds), state)
        plan, state = decision.plan, decision.state
        reasons.append(decision.verdict.reason)
    assert plan.refresh_interval == 2
    assert ["τ stays at 2, since samples would not keep at 3" in reason for reason in reasons].count(True) == 1


@pytest.mark.slow
def test_the_same_facts_give_the_same_plans_also_after_a_resume():
    scheduler = SCHEDULERS["adaptive"](config(), 1)
    _, straight, _ = trained(scheduler, rounds=30)
    plan, state = scheduler.init()
    world, plans = SimulatedRun(), []
    for index in range(30):
        plans.append(plan)
        if index == 17:
            # A checkpoint is JSON; another scheduler goes on from it.
            scheduler = SCHEDULERS["adaptive"](config(), 1)
            restored = scheduler.restore(json.loads(json.dumps(asdict(state))))
            assert restored == state
            state = restored
        decision = scheduler.next(plan, world.round(plan), state)
        plan, state = decision.plan, decision.state
    assert [*plans, plan] == straight


def test_bounds_of_prompts_are_numbers_that_ranks_share_evenly():
    rule = SCHEDULERS["adaptive"](config(fewest_prompts=6, most_prompts=30), 4)._setting.batch_rule
    assert (rule.fewest, rule.most) == (8, 28)


def test_prompts_per_step_are_halved_within_their_bounds_at_the_same_learning_rate():
    made = config(fewest_prompts=4, most_prompts=32, smallest_group=16)
    _, plans, decisions = trained(SCHEDULERS["adaptive"](made, 2), rounds=12)
    assert [plan.prompts_per_step for plan in plans[::4]] == [16, 8, 4, 4]
    assert {plan.learning_rate_factor for plan in plans} == {1.0}
    assert decisions[3].verdict.reason.startswith("prompts 16→8: ")


def test_after_a_loss_the_configured_prompts_come_back_where_fewer_were_chosen():
    scheduler = SCHEDULERS["adaptive"](config(fewest_prompts=4, largest_group=4), 1)
    plan, state = scheduler.init()
    world, numbers, reasons = SimulatedRun(), [], []
    for index in range(10):
        statistics = world.round(plan)
        if index in (6, 7):
            statistics = replace(statistics, reports=(replace(statistics.reports[0], applied=False),))
        decision = scheduler.next(plan, statistics, state)
        plan, state = decision.plan, decision.state
        numbers.append(plan.prompts_per_step)
        reasons.append(decision.verdict.reason)
    assert numbers == [16] * 3 + [8] * 4 + [16] * 3 and state.fewest == 16
    assert plan.learning_rate_factor == 0.5 and "learning rate halved" in reasons[7]
    assert reasons[7].endswith("prompts 8→16")


@pytest.fixture(scope="module")
def stopped():
    """Returns a run that its forecast ends, and the scheduler's decisions."""
    world, _, decisions = trained(SCHEDULERS["adaptive"](config(stop_gain=0.1, stop_min_steps=30), 1), rounds=190)
    return world, decisions


@pytest.mark.slow
def test_a_run_with_nothing_left_to_gain_is_stopped_with_its_reason(stopped):
    _, decisions = stopped
    last = decisions[-1].verdict
    assert last.stop
    assert re.match(
        r"stop: with probability \d% the pass rate would gain more than 0.1 until step 200; exp", last.reason
    )
    assert 100 < len(decisions) < 190


@pytest.mark.slow
def test_the_scheduler_goes_back_after_a_loss_and_does_not_try_its_setting_again():
    made = config(longest_interval=8)
    made.dynamics.refresh_interval = 4
    scheduler = SCHEDULERS["adaptive"](made, 1)
    plan, state = scheduler.init()
    world, decisions = SimulatedRun(rate=0.02), []
    for index in range(60):
        statistics = world.round(plan)
        if index in (12, 13, 14):
            statistics = replace(statistics, reward_counts={(0, plan.group_size): plan.prompts_per_round})
        decision = scheduler.next(plan, statistics, replace(state, rounds_below=1))
        plan, state = decision.plan, decision.state
        assert state.rounds_below == 0 or not decision.verdict.go_back
        decisions.append(decision)
    plans = [decision.plan for decision in decisions]
    [back] = [index for index, decision in enumerate(decisions) if decision.verdict.go_back]
    assert back == 14
    assert decisions[back].verdict.good_step <= sum(plan.refresh_interval for plan in plans[:12]) + 4
    assert (plans[back - 1].refresh_interval, plans[back].refresh_interval) == (4, 2)
    # The curve is that of the policy gone back to, alone.
    assert len(state.rounds) == 60 - back - 1
    assert state.longest == max(plan.refresh_interval for plan in plans[back:]) == 2


def test_fixed_stays_as_configured():
    _, plans, decisions = trained(SCHEDULERS["fixed"](config(), 1), rounds=5)
    assert {(plan.group_size, plan.refresh_interval) for plan in plans} == {(16, 1)}
    assert {decision.verdict for decision in decisions} == {Verdict()}


def test_a_resumed_run_keeps_its_plan_unless_it_is_configured_with_another():
    made = config()
    scheduler = SCHEDULERS["adaptive"](made, 1)
    later = RoundPlan(group_size=5, refresh_interval=2, prompts_per_step=16)
    past = PastRound(38, 0.5, 0.1, 64, 2, 2, 3.0, 0.5, 96.0)
    state = AdaptiveState(32, (past,), ((3, 5, 1.6),), GuardState(0.5, 0.1, 38))
    state = replace(state, products=Products(1.0, 0.5, 0.3, 0.2, 0.1, 2.0, 8.0, 0.4), waited=2)
    progress = Progress(40, 40, 640, later, state)
    saved = replace(progress, scheduler=json.loads(json.dumps(asdict(state))))
    assert replanned(saved, config(), made, scheduler) == progress
    # Six prompts a step from now on, and what was measured is kept.
    fewer = config()
    fewer.dynamics.prompts_per_step = 6
    changed = replanned(saved, made, fewer, SCHEDULERS["adaptive"](fewer, 1))
    assert changed == replace(progress, plan=RoundPlan(16, 1, 6))
    # Another scheduler begins with its own state.
    fixed = config()
    fixed.dynamics.name = "fixed"
    assert replanned(saved, made, fixed, SCHEDULERS["fixed"](fixed, 1)) == replace(
        progress, plan=RoundPlan(16, 1, 16), scheduler=None
    )


@pytest.mark.slow
def test_a_run_that_its_forecast_ended_goes_on_when_there_is_more_to_reach_and_only_then(stopped):
    rules, (world, decisions) = config(stop_gain=0.1, stop_min_steps=30), stopped
    last = decisions[-1]
    assert SCHEDULERS["adaptive"](rules, 1).judge(world.step, last.state) == last.verdict
    # Nothing counts as little enough now.
    asking_more = config(stop_gain=1e-9, stop_min_steps=30)
    verdict = SCHEDULERS["adaptive"](asking_more, 1).judge(world.step, last.state)
    assert verdict == Verdict(good_step=last.verdict.good_step, reason="as before")


def test_a_saved_plan_is_rounded_up_to_what_the_ranks_can_share():
    made = config()
    plan = RoundPlan(group_size=64, refresh_interval=1, prompts_per_step=2)
    scheduler = SCHEDULERS["adaptive"](made, 4)
    progress = Progress(3, 3, 6, plan, asdict(scheduler.init()[1]))
    shared = {ranks: replanned(progress, made, made, scheduler, ranks).plan.prompts_per_step for ranks in (1, 2, 3, 4)}
    assert shared == {1: 2, 2: 2, 3: 3, 4: 4}


CHANGING = [("uniform", False), ("weighted", False), ("anneal", True), ("online", True)]


@pytest.mark.parametrize(("name", "changing"), CHANGING)
def test_the_guard_knows_a_curriculum_that_changes_how_hard_prompts_are(name, changing):
    made = config()
    made.task.curriculum.name = name
    assert changes_prompts(made) == changing
    # A fall from .7 to .1 that lasts: only under prompts that stay alike is it a loss.
    scheduler = SCHEDULERS["adaptive"](made, 1)
    plan, state = scheduler.init()
    world, reasons = SimulatedRun(), []
    for index in range(12):
        right = 11 if index < 6 else 1
        statistics = replace(world.round(plan), reward_counts={(right, 16): 16})
        decision = scheduler.next(plan, statistics, state)
        plan, state = replace(plan, learning_rate_factor=decision.plan.learning_rate_factor), decision.state
        reasons.append(decision.verdict.reason)
    assert any("pass rate fell" in reason for reason in reasons) == (not changing)


def test_a_sigma_of_the_whole_step_weighs_no_group():
    config = TrainConfig()
    config.normalization.exponent, config.normalization.scope = 0.7, "batch"
    assert adaptive(config, 1)._setting.batch.exponent == 0.0


def test_rounds_of_which_nothing_could_be_graded_change_nothing():
    """Two rounds without a right answer send this run back (see above). Two rounds of an outage do not."""
    made = config(longest_interval=8)
    made.dynamics.refresh_interval = 4
    scheduler = SCHEDULERS["adaptive"](made, 1)
    plan, state = scheduler.init()
    world = SimulatedRun(rate=0.02)
    for index in range(16):
        statistics = world.round(plan)
        if index in (12, 13):
            decision = scheduler.next(plan, replace(statistics, reward_counts={}), state)
            assert (decision.plan, decision.state) == (plan, state) and not decision.verdict.go_back
            assert decision.verdict.reason == "as before, since no completion could be graded"
            assert decision.verdict.good_step == state.guard.best_step
        else:
            decision = scheduler.next(plan, statistics, state)
            assert not decision.verdict.go_back
        plan, state = decision.plan, decision.state
    assert len(state.rounds) == 14
