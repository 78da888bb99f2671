"""This module builds the configured scheduler, which chooses each round's plan and decides whether the run goes on.

`LimitedScheduler` wraps every scheduler, and ends a run that reaches its limit of samples, tokens or seconds. It also
adapts the coefficient of the entropy bonus, so that the policy's entropy does not fall below a target. Its rule is that
of Skywork-OR1 (arXiv:2505.22312): the coefficient c grows by Δ while the entropy is at most the target and shrinks by Δ
above it, and the bonus is applied in the first case only. TRL 1.16 has the same rule once a step. Here it acts once a
round, on the mean entropy of the round's tokens over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from grpo.dynamics.adaptive import FARTHEST_RATE, AdaptiveScheduler, Setting, StopRule, facts_of
from grpo.dynamics.gates import GatedScheduler, Numbers, ungated
from grpo.dynamics.group_size import BatchRule
from grpo.dynamics.guard import GuardRule, GuardState, watch
from grpo.dynamics.refresh_interval import RefreshRule
from grpo.dynamics.step import BatchSetting
from grpo.types import Decision, Progress, RoundPlan, RoundStatistics, State, Verdict
from grpo.types import metrics as m
from grpo.types.plain import rebuilt
from grpo.types.rounds import ROUND

if TYPE_CHECKING:
    from grpo.config import TrainConfig
    from grpo.interfaces import Scheduler


# These curricula change how hard the prompts are while a run goes on.
CHANGING = ("anneal", "online")
LARGEST = 1.0
"""The coefficient never grows above this."""


class FixedScheduler:
    """This scheduler keeps the configured group size and refresh interval in every round (`dynamics=fixed`)."""

    def __init__(self, plan: RoundPlan):
        self._plan = plan

    def init(self) -> tuple[RoundPlan, None]:
        return self._plan, None

    def next(self, plan: RoundPlan, statistics: RoundStatistics, state: None) -> Decision[None]:
        return Decision(plan, Verdict(), None)

    def judge(self, step: int, state: None) -> Verdict:
        return Verdict()

    def restore(self, values: Mapping[str, Any]) -> None:
        """Returns None, since this scheduler has no state."""


class GuardedScheduler:
    """This scheduler keeps the configured sizes and has the guard watch the run (`dynamics.guard`).

    The guard halves the learning rate and goes back to the best policy, and at last stops the run. It never shortens
    the refresh interval, which stays as configured.
    """

    def __init__(self, plan: RoundPlan, rule: GuardRule):
        self._plan, self._rule = plan, rule

    def init(self) -> tuple[RoundPlan, GuardState]:
        return self._plan, GuardState()

    def next(self, plan: RoundPlan, statistics: RoundStatistics, state: GuardState) -> Decision[GuardState]:
        if not statistics.unbiased_counts:
            reason = "as before, since no completion could be graded"
            return Decision(plan, Verdict(good_step=state.best_step, reason=reason), state)
        action, after = watch(self._rule, state, replace(facts_of(statistics, plan), interval=1))
        if action is None:
            return Decision(plan, Verdict(good_step=after.best_step), after)
        verdict = Verdict(action.stop, action.go_back, after.best_step, action.reason)
        return Decision(replace(plan, learning_rate_factor=action.rate_factor), verdict, after)

    def judge(self, step: int, state: GuardState) -> Verdict:
        return Verdict(good_step=state.best_step)

    def restore(self, values: Mapping[str, Any]) -> GuardState:
        return rebuilt(GuardState, values or {}, "scheduler.guard")


def first_plan(config: TrainConfig) -> RoundPlan:
    """Returns the plan of the first round, as configured."""
    dynamics = config.dynamics
    plan = RoundPlan(dynamics.group_size, dynamics.refresh_interval, dynamics.prompts_per_step, passes=dynamics.passes)
    if config.objective.entropy_target:
        # The first round has no entropy yet that could be compared with the target.
        return replace(plan, entropy_coefficient=config.objective.entropy_coefficient, entropy_bonus=False)
    return plan


def replanned(
    progress: Progress[Mapping[str, Any]],
    old: TrainConfig,
    new: TrainConfig,
    scheduler: Scheduler[State],
    world_size: int = 1,
) -> Progress[State]:
    """Returns the progress from which a run with the config `old` continues when it is resumed with `new`.

    `progress` holds the scheduler's state as it was saved. The plan is kept unless the new config has another first
    plan or scheduler, or could not come to this plan. Its prompts are adjusted to `world_size` ranks. The run's past
    spending still counts against its limits. Raises ValueError for a plan that `old` could not have come to, and for a
    state that is none of the scheduler's.
    """
    if not may_plan(old, progress.plan):
        raise ValueError(f"progress.plan is none that its configuration allows: {progress.plan}")
    plan, saved = progress.plan, progress.scheduler
    if old.dynamics.name != new.dynamics.name:
        # Spending and gates go on. Only the scheduler inside of them is another one.
        inner = saved.get("inner")
        gates = {**inner, "inner": {}} if isinstance(inner, Mapping) and "gates" in inner else {}
        saved = {"spent": saved.get("spent", {}), "inner": gates}
    same = (old.dynamics.name, first_plan(old)) == (new.dynamics.name, first_plan(new))
    if not (same and may_plan(new, plan)):
        plan = first_plan(new)
    state = scheduler.restore(saved)
    return Progress(progress.round_index, progress.step, progress.cursor, divisible(plan, world_size), state)


def may_plan(config: TrainConfig, plan: RoundPlan) -> bool:
    """Tells whether a run with this configuration may come to this plan, on any number of ranks."""
    first, rules, adaptive = first_plan(config), config.dynamics.adaptive, config.dynamics.name == "adaptive"
    largest, longest, most = (
        (config.largest_group, rules.longest_interval, rules.most_prompts) if adaptive else (0,) * 3
    )
    limits = (
        (plan.group_size, max(first.group_size, largest)),
        (plan.refresh_interval, max(first.refresh_interval, longest)),
        # Ranks may have rounded these up. There are no more ranks than first prompts.
        (plan.prompts_per_step, max(first.prompts_per_step, most) + first.prompts_per_step),
        (plan.passes, first.passes),
    )
    highest = FARTHEST_RATE if adaptive and rules.learning_rate else 1
    return all(1 <= value <= limit for value, limit in limits) and 0 < plan.learning_rate_factor <= highest


def divisible(plan: RoundPlan, world_size: int) -> RoundPlan:
    """Rounds the prompts per step up to a multiple of the number of ranks, so that every rank gets equally many."""
    return replace(plan, prompts_per_step=-(-plan.prompts_per_step // world_size) * world_size)


def may_go_back(config: TrainConfig) -> bool:
    """Tells whether the scheduler may send the run back to a checkpoint. If so, a checkpoint is needed at the start."""
    guarded = config.dynamics.name == "adaptive" or config.dynamics.guard
    may = guarded or any(gate.then == "back" for gate in config.gates)
    return may and config.checkpoint.every_rounds > 0


def guard_rule(config: TrainConfig) -> GuardRule:
    """Returns when the guard acts on a run of this configuration."""
    return GuardRule(may_go_back=may_go_back(config), changing_prompts=changes_prompts(config))


def changes_prompts(config: TrainConfig) -> bool:
    """Tells whether the curriculum makes the prompts harder or easier during the run."""
    return config.task.curriculum.name in CHANGING


def batch_setting(config: TrainConfig) -> BatchSetting:
    """Returns how a configuration samples a step and weighs its groups."""
    dynamics = config.dynamics
    exponent, mean_exponent = config.normalization.dials
    return BatchSetting(
        group_size=dynamics.group_size,
        prompts_per_step=dynamics.prompts_per_step,
        refresh_interval=dynamics.refresh_interval,
        exponent=exponent,
        mean_exponent=mean_exponent,
        refilled=config.rollout.refill.enabled,
        passes=dynamics.passes,
    )


def fixed(config: TrainConfig, world_size: int) -> Scheduler:
    """Builds the scheduler of `dynamics=fixed`, with the guard if it is asked for."""
    if config.dynamics.guard:
        return GuardedScheduler(first_plan(config), guard_rule(config))
    return FixedScheduler(first_plan(config))


def adaptive(config: TrainConfig, world_size: int) -> AdaptiveScheduler:
    """Builds the scheduler of `dynamics=adaptive`."""
    rules, first = config.dynamics.adaptive, first_plan(config)
    prompts = first.prompts_per_step
    setting = Setting(
        first=first,
        batch=batch_setting(config),
        batch_rule=BatchRule(
            smallest=rules.smallest_group,
            largest=config.largest_group,
            fewest=-(-(rules.fewest_prompts or prompts) // world_size) * world_size,
            most=(rules.most_prompts or prompts) // world_size * world_size,
            multiple=world_size,
            changes_rate=rules.learning_rate,
        ),
        refresh=RefreshRule(
            longest=rules.longest_interval,
            least_ess=rules.min_ess,
            most_clipped=rules.max_clip_fraction,
            least_saving=rules.min_saving,
        ),
        guard=guard_rule(config),
        stop=StopRule(rules.stop_gain, rules.stop_patience, rules.stop_min_steps),
        momentum=config.learner.betas[0],
        num_steps=config.num_steps,
        decide_every=rules.decide_every,
        by_seconds=rules.cost == "seconds",
    )
    return AdaptiveScheduler(setting)


SCHEDULERS: dict[str, Callable[[TrainConfig, int], Scheduler]] = {"fixed": fixed, "adaptive": adaptive}


def means_of(statistics: RoundStatistics) -> Mapping[str, float]:
    """Returns the means of a round that have a value."""
    return {name: mean.value for name, mean in statistics.means.items() if mean.count}


def build_scheduler(config: TrainConfig, world_size: int, numbers: Numbers = means_of) -> Scheduler:
    """Builds the configured scheduler, wrapped to keep the run within its gates, to follow an entropy target, if set,
    and to end the run at its limits. `numbers` returns the metrics of a round, which gates compare."""
    scheduler = SCHEDULERS[config.dynamics.name](config, world_size)
    if config.gates:
        scheduler = GatedScheduler(scheduler, config.gates, numbers)
    limits = {unit: limit for unit, limit in asdict(config.limits).items() if limit}
    objective = config.objective
    with_bonus = partial(with_entropy_bonus, target=objective.entropy_target, step=objective.entropy_step)
    return LimitedScheduler(scheduler, limits, with_bonus, bool(config.gates))


def with_entropy_bonus(plan: RoundPlan, statistics: RoundStatistics, target: float, step: float) -> RoundPlan:
    """Returns a plan whose entropy bonus is adapted to the entropy of a round, if there is a `target`.

    The target is in nats per token. The coefficient moves by `step`. After a round that learned from no token the plan
    is unchanged.
    """
    entropy = statistics.means.get(m.ENTROPY)
    if not target or entropy is None or not entropy.count:
        return plan
    low = entropy.value <= target
    coefficient = (plan.entropy_coefficient or 0.0) + (step if low else -step)
    return replace(plan, entropy_coefficient=min(max(coefficient, 0.0), LARGEST), entropy_bonus=low)


@dataclass(frozen=True, slots=True)
class LimitedState(Generic[State]):
    """The limited state holds the amounts that the run has spent, by unit, and the state of the wrapped scheduler."""

    spent: Mapping[str, float]
    inner: State


class LimitedScheduler(Generic[State]):
    """This scheduler decides as `scheduler` does until one of `limits` is reached, and then stops the run. It adapts
    the entropy bonus of each plan.

    `limits` maps a unit (samples, tokens, seconds) to the amount that the run may spend. Units without a limit are
    counted too, so that a limit set on resume includes what was spent before. Seconds are wall-clock seconds of rounds.
    """

    def __init__(
        self,
        scheduler: Scheduler[State],
        limits: Mapping[str, float],
        with_bonus: Callable[[RoundPlan, RoundStatistics], RoundPlan],
        gated: bool,
    ):
        """`with_bonus` adapts the entropy bonus of a plan to a round. `gated` says whether a `GatedScheduler` is
        within, which a resumed run may have lost."""
        self._scheduler, self._with_bonus = scheduler, with_bonus
        self._limits, self._gated = limits, gated

    def init(self) -> tuple[RoundPlan, LimitedState[State]]:
        plan, inner = self._scheduler.init()
        return plan, LimitedState({}, inner)

    def next(
        self, plan: RoundPlan, statistics: RoundStatistics, state: LimitedState[State]
    ) -> Decision[LimitedState[State]]:
        decision = self._scheduler.next(plan, statistics, state.inner)
        spent = {unit: state.spent.get(unit, 0.0) + amount for unit, amount in _spent_in(statistics).items()}
        next_plan = self._with_bonus(decision.plan, statistics)
        return Decision(next_plan, self._within(decision.verdict, spent), LimitedState(spent, decision.state))

    def judge(self, step: int, state: LimitedState[State]) -> Verdict:
        return self._within(self._scheduler.judge(step, state.inner), state.spent)

    def restore(self, values: Mapping[str, Any]) -> LimitedState[State]:
        spent = rebuilt(Mapping[str, float], values.get("spent"), "scheduler.spent")
        saved = rebuilt(Mapping[str, Any], values.get("inner") or {}, "scheduler.inner")
        return LimitedState(spent, self._scheduler.restore(saved if self._gated else ungated(saved)))

    def _within(self, verdict: Verdict, spent: Mapping[str, float]) -> Verdict:
        for unit, limit in self._limits.items():
            if spent.get(unit, 0.0) >= limit:
                reached = f"the limit of {limit:,.0f} {unit} is reached"
                reason = f"{verdict.reason}; {reached}" if verdict.stop or verdict.go_back else reached
                verdict = replace(verdict, stop=True, reason=reason)
        return verdict


def _spent_in(statistics: RoundStatistics) -> dict[str, float]:
    """Returns the samples, completion tokens and seconds of one round, by unit."""
    length = statistics.means[m.LENGTH]
    return {
        "samples": length.count,
        "tokens": length.total,
        "seconds": statistics.seconds[ROUND],
    }
