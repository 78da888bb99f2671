"""`dynamics=adaptive` chooses the next round's batch and refresh interval, by what the steps of this run gain.

The same statistics give the same decision on every rank, after a resume, and offline from metrics.jsonl. It also
stops a run that has little left to gain, if it may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grpo.dynamics import guard
from grpo.dynamics.adaptive_state import AdaptiveState, afresh, remember
from grpo.dynamics.difficulty import Difficulty, fit_difficulty
from grpo.dynamics.forecast import Forecast, forecast
from grpo.dynamics.gain import Gain, Products
from grpo.dynamics.group_size import CALM, BatchRule, choose_batch
from grpo.dynamics.history import FEWEST_POINTS, pass_rate
from grpo.dynamics.refresh_interval import (
    OffPolicyness,
    RefreshRule,
    StepTime,
    choose_refresh_interval,
    fit_step_time,
    fit_token_time,
)
from grpo.dynamics.sigma import silent_rate
from grpo.dynamics.step import BatchSetting, StepCost, progress_of_step
from grpo.types import Decision, Mean, RoundPlan, RoundStatistics, Verdict
from grpo.types import metrics as m
from grpo.types.plain import rebuilt

# The learning rate changes by at most this factor in all.
FARTHEST_RATE = 32.0
# Times are fitted to this many of the last rounds.
RECENT = 50
# A run has little left to gain when the probability of gaining more is below this.
UNLIKELY = 0.1


@dataclass(frozen=True, slots=True)
class Setting:
    """The setting describes the run and what the scheduler may do. `DynamicsConfig` explains the rules.

    The α and β in `batch` weigh the groups of one step against each other. If one σ divides all groups of a step, that
    α is 0.
    """

    first: RoundPlan
    batch: BatchSetting
    batch_rule: BatchRule
    refresh: RefreshRule
    guard: guard.GuardRule
    stop: StopRule
    momentum: float
    num_steps: int
    decide_every: int
    by_seconds: bool


class AdaptiveScheduler:
    """This scheduler adapts the batch and the refresh interval. It implements `grpo.interfaces.Scheduler`."""

    def __init__(self, setting: Setting):
        self._setting = setting

    def init(self) -> tuple[RoundPlan, AdaptiveState]:
        return self._setting.first, AdaptiveState(longest=self._setting.refresh.longest)

    def restore(self, values: Mapping[str, Any]) -> AdaptiveState:
        return rebuilt(AdaptiveState, values, "scheduler") if values else self.init()[1]

    def next(self, plan: RoundPlan, statistics: RoundStatistics, state: AdaptiveState) -> Decision[AdaptiveState]:
        """Asks the guard first. If it does not act, the model of the run decides, every `decide_every` rounds.

        A round of which no completion could be graded says nothing about the policy, so nothing is decided after it.
        """
        if not statistics.unbiased_counts:
            reason = "as before, since no completion could be graded"
            return Decision(plan, Verdict(good_step=state.guard.best_step, reason=reason), state)
        state = remember(state, statistics)
        action, guard_state = guard.watch(self._setting.guard, state.guard, facts_of(statistics, plan))
        state = replace(state, guard=guard_state)
        if action:
            return self._recovered(plan, action, state)
        products = self._measured(statistics, state)
        measured = state.measured or products.have_more(state.products, statistics.plan.refresh_interval)
        state = replace(state, products=products, waited=state.waited + 1, measured=measured)
        if state.waited < self._setting.decide_every or not state.products.number:
            return Decision(plan, Verdict(good_step=guard_state.best_step, reason="as before"), state)
        return self._decide(plan, statistics, replace(state, waited=0))

    def _measured(self, statistics: RoundStatistics, state: AdaptiveState) -> Products:
        """Adds the products of a round's steps to those of the rounds before."""
        difficulty = difficulty_of(state)
        done = replace(
            self._setting.batch,
            group_size=statistics.plan.group_size,
            prompts_per_step=statistics.plan.prompts_per_step,
        )
        first, aim = (float(progress_of_step(batch, difficulty)) for batch in (self._setting.batch, done))
        return state.products.after(statistics, aim / first if first else 1.0, self._setting.momentum)

    def _recovered(self, plan: RoundPlan, action: guard.GuardAction, state: AdaptiveState) -> Decision[AdaptiveState]:
        """Applies the guard's action. An interval at which the run became unstable is not tried again. If fewer prompts
        than configured were chosen, the configured number returns, and fewer are not chosen again."""
        first, before = self._setting.first.prompts_per_step, plan.prompts_per_step
        chosen_fewer = before < first
        prompts, fewest = (first, first) if chosen_fewer else (before, state.fewest)
        reason = f"{action.reason}; prompts {before}→{prompts}" if chosen_fewer else action.reason
        state = replace(state, longest=min(state.longest, action.interval), fewest=fewest)
        plan = replace(
            plan, refresh_interval=action.interval, learning_rate_factor=action.rate_factor, prompts_per_step=prompts
        )
        verdict = Verdict(action.stop, action.go_back, state.guard.best_step, reason)
        return Decision(plan, verdict, afresh(state) if action.go_back else state)

    def judge(self, step: int, state: AdaptiveState) -> Verdict:
        """Decides on resume whether the run stops at once, because its forecast had stopped it before.

        The forecast is made again up to the present `num_steps`, which may have been raised.
        """
        rule, going_on = self._setting.stop, Verdict(good_step=state.guard.best_step, reason="as before")
        if state.rounds_below < rule.patience:
            return going_on
        ahead = self._look_ahead(state)
        # The last decision is made again, so the count is the one before it.
        stop, _ = rule.next(ahead, step, state.rounds_below - 1)
        return self._stopped(going_on, ahead) if stop and ahead else going_on

    def _look_ahead(self, state: AdaptiveState) -> Forecast | None:
        """Forecasts the run's curve to the last step, if it has enough rounds."""
        if len(state.rounds) < FEWEST_POINTS:
            return None
        return forecast(state.curve, self._setting.num_steps)

    def _stopped(self, verdict: Verdict, ahead: Forecast) -> Verdict:
        """Returns `verdict`, changed to stop the run because little is left to gain."""
        least, last = self._setting.stop.least_gain, self._setting.num_steps
        reason = (
            f"stop: with probability {ahead.chance(least):.0%} the pass rate would gain more than {least:g} until step "
            f"{last}; expected {ahead.gain.value:+.3f} [{ahead.gain.low:+.3f}, {ahead.gain.high:+.3f}]"
        )
        return replace(verdict, stop=True, reason=reason)

    def _decide(self, plan: RoundPlan, statistics: RoundStatistics, state: AdaptiveState) -> Decision[AdaptiveState]:
        """Decides by the model of the run: whether to stop, and if not, the next batch, rate and refresh interval."""
        setting, verdict = self._setting, Verdict(good_step=state.guard.best_step)
        ahead = self._look_ahead(state)
        stop, rounds_below = setting.stop.next(ahead, statistics.step, state.rounds_below)
        state = replace(state, rounds_below=rounds_below)
        if stop and ahead:
            return Decision(plan, self._stopped(verdict, ahead), state)
        gain, difficulty = Gain(state.products), difficulty_of(state)
        whole = float(progress_of_step(setting.batch, difficulty))
        done = replace(setting.batch, group_size=plan.group_size, prompts_per_step=plan.prompts_per_step)
        gains = not whole or gain.of(float(progress_of_step(done, difficulty)) / whole) > 0
        interval, why_interval, state = self._interval(plan, statistics, gains, state)
        if interval < plan.refresh_interval and not gains:
            # The next rounds show whether fresher samples help, before the batch grows.
            plan, why_batch = replace(plan, refresh_interval=interval), ""
        else:
            plan, why_batch, state = self._batch(plan, statistics, gain, difficulty, state)
            plan = replace(plan, refresh_interval=interval)
        state = replace(state, measured=False)
        reason = "; ".join(filter(None, (why_batch, why_interval))) or "nothing asks for a change"
        return Decision(plan, replace(verdict, reason=reason), state)

    def _batch(
        self, plan: RoundPlan, statistics: RoundStatistics, gain: Gain, difficulty: Difficulty, state: AdaptiveState
    ) -> tuple[RoundPlan, str, AdaptiveState]:
        """Returns the plan with the next batch and rate, the reason for a change ("" without one), and the next
        state."""
        setting, rule = self._setting, self._setting.batch_rule
        rule = replace(rule, fewest=max(rule.fewest, state.fewest))
        now = replace(setting.batch, group_size=plan.group_size, prompts_per_step=plan.prompts_per_step)
        choice = choose_batch(difficulty, rule, setting.batch, now, self._cost(plan, statistics, state), gain)
        if not state.measured:
            # Measurements from before the last change of the rate would change it again.
            choice = replace(choice, rate=1.0)
        factor = min(max(plan.learning_rate_factor * choice.rate, 1 / FARTHEST_RATE), FARTHEST_RATE)
        batch = choice.chosen
        changed_plan = replace(
            plan, group_size=batch.group_size, prompts_per_step=batch.prompts_per_step, learning_rate_factor=factor
        )
        changes = changes_of_batch(plan, changed_plan, difficulty)
        reason = f"{', '.join(changes)}: {choice.reason}" if changes else ""
        is_high = choice.is_high and not rule.changes_rate
        if is_high and not state.told:
            better = f"dynamics.adaptive.learning_rate=true would take about {CALM * choice.best_rate:.2g} of it"
            rate = f"the learning rate is high: {better}"
            reason = f"{reason}; {rate}" if reason else rate
        return changed_plan, reason, replace(state, told=state.told or is_high)

    def _cost(self, plan: RoundPlan, statistics: RoundStatistics, state: AdaptiveState) -> StepCost:
        """Returns the costs of a prompt, a completion and a step, in tokens or in seconds."""
        prompt, completion = (statistics.means[f"{kind}/length_mean"].value for kind in ("prompts", "completions"))
        recent_rounds = [past for past in state.rounds[-RECENT:] if past.tokens]
        if not self._setting.by_seconds or not recent_rounds:
            return StepCost(prompt, completion)
        tokens = np.array([past.tokens / past.interval for past in recent_rounds])
        seconds = np.array([(past.seconds - past.fixed_seconds) / past.interval for past in recent_rounds])
        fixed, per_token = fit_token_time(tokens, seconds)
        refresh = float(np.median([past.fixed_seconds for past in recent_rounds])) / plan.refresh_interval
        return StepCost(per_token * prompt, per_token * completion, fixed + refresh, "second")

    def _interval(
        self, plan: RoundPlan, statistics: RoundStatistics, gains: bool, state: AdaptiveState
    ) -> tuple[int, str, AdaptiveState]:
        """Returns the next refresh interval, the reason for a change ("" without one), and the next state. An interval
        that was given up is not tried again."""
        recent_rounds = [past for past in state.rounds[-RECENT:] if past.tokens]
        # Where tokens are counted, a longer interval saves nothing.
        time = StepTime(1.0, 0.0)
        if self._setting.by_seconds and recent_rounds:
            time = fit_step_time(
                np.array([past.interval for past in recent_rounds], float),
                np.array([past.tokens for past in recent_rounds], float),
                np.array([past.seconds for past in recent_rounds], float),
                float(np.median([past.fixed_seconds for past in recent_rounds])),
            )
        rule, now = replace(self._setting.refresh, longest=state.longest), plan.refresh_interval
        choice = choose_refresh_interval(rule, off_policyness(statistics), time, now, gains)
        if choice.interval == now:
            # The first decision at an interval says why it holds.
            before = [past.interval for past in state.rounds[: -self._setting.decide_every]]
            return now, choice.reason if choice.stale and before[-1:] != [now] else "", state
        reason = f"τ {now}→{choice.interval}: {choice.reason}"
        return choice.interval, reason, replace(state, longest=choice.interval) if choice.interval < now else state


def facts_of(statistics: RoundStatistics, plan: RoundPlan) -> guard.RoundFacts:
    """Returns the facts of a round that the guard looks at. Some of its completions could be graded."""
    rate, error = pass_rate(statistics.unbiased_counts)
    return guard.RoundFacts(
        step=statistics.sampled_at,
        pass_rate=rate,
        error=error,
        ess=off_policyness(statistics).ess,
        skipped_steps=sum(not report.applied for report in statistics.reports),
        interval=plan.refresh_interval,
        rate_factor=plan.learning_rate_factor,
        cosine=cosine_of(statistics),
    )


def difficulty_of(state: AdaptiveState) -> Difficulty:
    """Returns the difficulty of the prompts for the present policy."""
    return fit_difficulty({(correct, size): number for correct, size, number in state.counts})


def cosine_of(statistics: RoundStatistics) -> float | None:
    """Returns the mean cosine of a round's steps and the gradients after them, or None if none was measured."""
    cosine = statistics.means.get(m.COSINE)
    return cosine.value if cosine and cosine.count else None


def changes_of_batch(before: RoundPlan, after: RoundPlan, difficulty: Difficulty) -> list[str]:
    """Returns the changes of a step's batch in words, with the shares of silent groups before and after."""
    changes = []
    if after.group_size != before.group_size:
        rates = difficulty.pass_rates
        now, then = (float(difficulty.weights @ silent_rate(rates, plan.group_size)) for plan in (before, after))
        changes.append(f"G {before.group_size}→{after.group_size} (silent {now:.0%} → {then:.0%})")
    if after.prompts_per_step != before.prompts_per_step:
        changes.append(f"prompts {before.prompts_per_step}→{after.prompts_per_step}")
    if after.learning_rate_factor != before.learning_rate_factor:
        changes.append(f"rate {before.learning_rate_factor:.3g}→{after.learning_rate_factor:.3g} of the configured one")
    return changes


def off_policyness(statistics: RoundStatistics) -> OffPolicyness:
    """Measures how far a round's steps moved from the policy that sampled it.

    The result holds the ESS of the ratios between the two policies and the clipped share of tokens, over the steps that
    were applied.
    """
    means, no_tokens = statistics.means, Mean(0.0, 0.0)
    squares = means.get(m.RATIO_SQUARED, no_tokens)
    ess = means[m.RATIO].effective_fraction(squares) if squares.total else 1.0
    by_side = [means.get(side, no_tokens) for side in (m.CLIP_LOW, m.CLIP_HIGH)]
    clip_fraction = sum(fraction.value for fraction in by_side if fraction.count)
    return OffPolicyness(statistics.plan.refresh_interval, min(ess, 1.0), clip_fraction, statistics.lag)


@dataclass(frozen=True, slots=True)
class StopRule:
    """A stop rule ends a run that has little left to gain.

    The run stops once a gain above `least_gain` was unlikely (`UNLIKELY`) for `patience` decisions in a row, but not
    before `fewest_steps` optimizer steps. With `least_gain` 0 the run never stops.
    """

    least_gain: float
    patience: int
    fewest_steps: int

    def next(self, ahead: Forecast | None, step: int, rounds_below: int) -> tuple[bool, int]:
        """Returns whether to stop now, and the number of decisions in a row with too small a gain (`rounds_below`).

        Without a forecast (`ahead` is None when there are too few rounds) the count starts anew.
        """
        below = self.least_gain > 0 and ahead is not None and ahead.chance(self.least_gain) < UNLIKELY
        count = rounds_below + 1 if below else 0
        return count >= self.patience and step >= self.fewest_steps, count
