"""The guard acts at once when a run loses its damping, that is when training becomes unstable.

It first shortens τ, then lowers the learning rate, then stops the run. If the pass rate has fallen and checkpoints
exist, the guard also sends the run back to its best policy. If the best policy then does no better than the abandoned
one, the prompts have become harder, and the guard takes the present pass rate as the new best. For the same reason its
best pass rate fades with time, and under a curriculum that changes difficulty no fall of the pass rate counts.

A round is bad when its pass rate is lost by the judgement of `losses`, when the optimizer skipped steps, or when
importance weights have collapsed. After an action the run gets some rounds to recover before the next action, unless
the action was to go back.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from grpo.dynamics.losses import Course, LossRule, is_lost


@dataclass(frozen=True, slots=True)
class GuardRule:
    """A guard rule says when the guard acts.

    losses          which falls of the pass rate against the recent best are losses
    least_ess       effective share of samples below which importance weights have collapsed
    rounds          number of bad rounds in a row before the guard acts
    recovery        number of rounds after an action in which the guard does not act again
    rate_cuts       number of halvings of the learning rate before the guard stops the run
    may_go_back     whether a fallen run goes back to the best policy; this needs checkpoints
    changing_prompts  whether a curriculum changes how hard the prompts are; then no fall of the pass rate counts
    forgetting      share of the distance between best and present pass rate by which the best one fades each round
    """

    losses: LossRule = field(default_factory=LossRule)
    least_ess: float = 0.3
    rounds: int = 2
    recovery: int = 5
    rate_cuts: int = 3
    may_go_back: bool = False
    changing_prompts: bool = False
    forgetting: float = 0.02


@dataclass(frozen=True, slots=True)
class GuardAction:
    """An action says what the run does next.

    It holds the new refresh interval and learning-rate factor, whether the run stops, and whether it first goes back
    to the best policy.
    """

    interval: int
    rate_factor: float
    stop: bool
    go_back: bool
    reason: str


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """Round facts are the measurements of one round that the guard looks at.

    step                    optimizer steps taken by the policy that sampled the round
    pass_rate, error        pass rate and its standard error
    ess                     effective share of samples under the importance weights
    skipped_steps           optimizer steps that were skipped
    interval, rate_factor   refresh interval and learning-rate factor of the round
    cosine                  mean `step/cosine` of the round, or None if there is none
    """

    step: int
    pass_rate: float
    error: float
    ess: float
    skipped_steps: int
    interval: int
    rate_factor: float
    cosine: float | None = None


@dataclass(frozen=True, slots=True)
class GuardState:
    """The guard state is what the guard remembers between rounds.

    best        highest smoothed pass rate so far, faded towards later ones
    error       standard error of `best`: at first that of the round which set it, then fading as `best` does
    best_step   optimizer steps taken by the policy that reached `best`
    smooth      smoothed pass rate now
    bad         number of bad rounds in a row
    since       number of rounds since the guard last acted, or None before its first action and after going back
    cuts        number of halvings of the learning rate so far
    returned    whether the run has just gone back to its best policy
    rates       pass rates of the rounds since the run began, or the guard last acted
    cosines     `step/cosine` of these rounds, 0 where a round has none
    """

    best: float | None = None
    error: float = 0.0
    best_step: int = 0
    smooth: float | None = None
    bad: int = 0
    since: int | None = None
    cuts: int = 0
    returned: bool = False
    rates: tuple[float, ...] = ()
    cosines: tuple[float, ...] = ()


def watch(rule: GuardRule, state: GuardState, facts: RoundFacts) -> tuple[GuardAction | None, GuardState]:
    """Watches one round. Returns the action that is due (None if there is none) and the guard's next state."""
    smooth = facts.pass_rate if state.smooth is None else 0.5 * (state.smooth + facts.pass_rate)
    best, best_error, best_step = state.best, state.error, state.best_step
    noise = (facts.error**2 + best_error**2) ** 0.5
    rates, cosines = (*state.rates, facts.pass_rate), (*state.cosines, facts.cosine or 0.0)
    course = Course(np.array(rates), np.array(cosines))
    fallen = best is not None and is_lost(rule.losses, best, smooth, noise, course)
    if fallen and (state.returned or rule.changing_prompts):
        # The best policy itself is measured here and does worse, or a curriculum is at work: the prompts are harder.
        best, best_error, best_step, fallen = smooth, facts.error, facts.step, False
    causes = []
    if fallen:
        causes.append(f"pass rate fell from {best:.2f} to {smooth:.2f}")
    if facts.skipped_steps:
        causes.append(f"{facts.skipped_steps} steps had gradients that were NaN or Inf")
    if facts.ess < rule.least_ess:
        causes.append(f"ESS {facts.ess:.2f}")
    bad = state.bad + 1 if causes else 0
    since = None if state.since is None else state.since + 1
    if best is None or smooth > best:
        best, best_error, best_step = smooth, facts.error, facts.step
    elif not causes:
        # A best that fades towards the mean of many rounds becomes as certain as that mean.
        best += rule.forgetting * (smooth - best)
        best_error -= rule.forgetting * best_error
    after = GuardState(best, best_error, best_step, smooth, bad, since, state.cuts, False, rates, cosines)
    if bad < rule.rounds or (since is not None and since <= rule.recovery):
        return None, after
    # The counts start anew after an action, while the best pass rate stays the reference.
    after = replace(after, rates=(), cosines=())
    go_back = rule.may_go_back and fallen
    after = replace(after, bad=0, smooth=None, since=None, returned=True) if go_back else replace(after, bad=0, since=0)
    cause, back = f"training is unstable ({'; '.join(causes)})", f", back to step {best_step}" if go_back else ""
    interval, factor = facts.interval, facts.rate_factor
    if interval > 1:
        shorter = interval // 2
        return GuardAction(shorter, factor, False, go_back, f"{cause}: τ {interval}→{shorter}{back}"), after
    if state.cuts < rule.rate_cuts:
        action = GuardAction(1, factor / 2, False, go_back, f"{cause}: learning rate halved{back}")
        return action, replace(after, cuts=state.cuts + 1)
    return GuardAction(1, factor, True, go_back, f"{cause} at {factor:g} of the rate: stop{back}"), after
