"""What happens at once when a run loses its damping: τ down, then the learning rate, then stop; and back to the
policy that did best, where the present one has lost what was learned.

The fitted damping ratio needs many rounds to notice; the guard looks at what one round shows. A round is bad when
its pass rate has fallen from the recent best by more than noise explains, when the optimizer skipped steps, or when
importance weights have collapsed. After an action the run gets some rounds to recover before the next; one that
went back has nothing to recover from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class GuardRule:
    """When the guard acts.

    fall            standard errors that the pass rate must have lost against the recent best
    least_fall      and at least this much pass rate
    least_share     and at least this share of the best: a policy swings a little by itself
    least_ess       effective share of samples below which importance weights have collapsed
    rounds          bad rounds in a row before it acts
    recovery        rounds after an action in which it does not act again
    rate_cuts       halvings of the learning rate before it stops the run
    may_go_back     a fallen run goes back to the best policy: there are checkpoints
    """

    fall: float = 4.0
    least_fall: float = 0.1
    least_share: float = 0.3
    least_ess: float = 0.3
    rounds: int = 2
    recovery: int = 5
    rate_cuts: int = 3
    may_go_back: bool = False


@dataclass(frozen=True, slots=True)
class GuardAction:
    """What to do now: the refresh interval and the learning rate's factor from here on, whether to stop, and whether
    to go back to the best policy first."""

    interval: int
    rate_factor: float
    stop: bool
    go_back: bool
    reason: str


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """What the guard looks at: pass rate and its standard error, ESS of the importance weights, optimizer steps
    skipped, and the settings that the round ran under. `step` counts the optimizer steps of the policy sampled from."""

    step: int
    pass_rate: float
    error: float
    ess: float
    skipped_steps: int
    interval: int
    rate_factor: float


@dataclass(frozen=True, slots=True)
class GuardState:
    """What the guard remembers.

    best        highest smoothed pass rate so far, with its standard `error` and its `best_step`
    smooth      smoothed pass rate now
    bad         bad rounds in a row
    since       rounds since the last action
    cuts        halvings of the learning rate so far
    """

    best: float | None = None
    error: float = 0.0
    best_step: int = 0
    smooth: float | None = None
    bad: int = 0
    since: int | None = None
    cuts: int = 0


def look(rule: GuardRule, state: GuardState, facts: RoundFacts) -> tuple[GuardAction | None, GuardState]:
    """Returns an action where one is due, and the next state."""
    smooth = facts.pass_rate if state.smooth is None else 0.5 * (state.smooth + facts.pass_rate)
    best, best_error, best_step = state.best, state.error, state.best_step
    noise = (facts.error**2 + best_error**2) ** 0.5
    fallen = best is not None and best - smooth > max(rule.fall * noise, rule.least_fall, rule.least_share * best)
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
    after = GuardState(best, best_error, best_step, smooth, bad, since, state.cuts)
    if bad < rule.rounds or (since is not None and since <= rule.recovery):
        return None, after
    # A new start for the count; what was best stays the measure.
    go_back = rule.may_go_back and fallen
    after = replace(after, bad=0, smooth=None, since=None) if go_back else replace(after, bad=0, since=0)
    lost, back = f"damping lost ({'; '.join(causes)})", f", back to step {best_step}" if go_back else ""
    interval, factor = facts.interval, facts.rate_factor
    if interval > 1:
        shorter = interval // 2
        return GuardAction(shorter, factor, False, go_back, f"{lost}: τ {interval}→{shorter}{back}"), after
    if state.cuts < rule.rate_cuts:
        action = GuardAction(1, factor / 2, False, go_back, f"{lost}: learning rate halved{back}")
        return action, replace(after, cuts=state.cuts + 1)
    return GuardAction(1, factor, True, go_back, f"{lost} at τ 1 and {factor:g} of the rate: stop{back}"), after
