from dataclasses import replace

import numpy as np

from grpo.dynamics import guard, losses

RULE = guard.GuardRule(least_ess=0.3, rounds=2, recovery=3, rate_cuts=1)


def watch(rounds, interval=4, rule=RULE):
    """Returns the guard's actions over rounds of (pass rate, ESS, skipped steps). The run obeys each action."""
    state, factor, actions, step = guard.GuardState(), 1.0, [], 0
    for rate, ess, skipped in rounds:
        action, state = guard.watch(rule, state, guard.RoundFacts(step, rate, 0.01, ess, skipped, interval, factor))
        actions.append(action)
        step += interval
        if action:
            interval, factor = action.interval, action.rate_factor
    return actions


def test_a_healthy_run_with_noise_is_left_alone():
    rates = [0.2, 0.25, 0.22, 0.3, 0.27, 0.35, 0.33, 0.4, 0.38, 0.41]
    assert watch([(rate, 0.95, 0) for rate in rates]) == [None] * 10


def test_a_policy_that_swings_by_itself_is_left_alone_however_well_it_is_measured():
    swinging = [0.8, 0.85, 0.83, 0.7, 0.66, 0.64, 0.63, 0.75, 0.8, 0.65, 0.62, 0.62]
    assert watch([(rate, 0.95, 0) for rate in swinging]) == [None] * 12


def test_a_collapse_lowers_the_interval_then_the_rate_then_stops():
    fallen = [(0.1, 0.9, 0)] * 30
    actions = [action for action in watch([(0.5, 0.9, 0)] * 3 + fallen) if action]
    assert [(action.interval, action.rate_factor, action.stop) for action in actions[:4]] == [
        (2, 1.0, False),
        (1, 1.0, False),
        (1, 0.5, False),
        (1, 0.5, True),
    ]
    assert actions[0].reason == "training is unstable (pass rate fell from 0.50 to 0.20): τ 4→2"


def test_one_bad_round_is_not_enough_and_recovery_is_waited_for():
    acted = watch([(0.5, 0.9, 0), (0.5, 0.1, 0), (0.5, 0.9, 0), (0.5, 0.1, 0), (0.5, 0.1, 0), (0.5, 0.1, 0)])
    assert [bool(action) for action in acted] == [False, False, False, False, True, False]
    assert "ESS 0.10" in acted[4].reason


def test_steps_that_were_skipped_are_a_reason():
    acted = watch([(0.5, 0.9, 2), (0.5, 0.9, 1)])
    assert "NaN or Inf" in acted[1].reason


BACK = replace(RULE, may_go_back=True)


def test_a_fallen_run_goes_back_to_its_best_policy_and_needs_no_recovery():
    # Best after rounds at steps 0, 4 and 8; what the third round measured is the policy of step 8.
    # The first round after it went back measures the best policy again.
    rates = [0.3, 0.5, 0.7, 0.05, 0.05, 0.7, 0.05, 0.05]
    actions = watch([(rate, 0.9, 0) for rate in rates], rule=BACK)
    acted = {index: action for index, action in enumerate(actions) if action}
    assert {index: (action.interval, action.go_back) for index, action in acted.items()} == {
        4: (2, True),
        7: (1, True),
    }
    assert acted[4].reason.endswith("τ 4→2, back to step 8")


def test_only_what_was_lost_is_gone_back_for():
    acted = [action for action in watch([(0.5, 0.9, 0), (0.5, 0.1, 0), (0.5, 0.1, 0)], rule=BACK) if action]
    assert [action.go_back for action in acted] == [False]


def test_a_run_that_is_given_up_ends_with_its_best_policy():
    rounds = [(rate, 0.9, 0) for rate in [0.5] * 3 + [0.1] * 2 + [0.5] + [0.1] * 4]
    last = [action for action in watch(rounds, interval=1, rule=BACK) if action][1]
    assert last.stop and last.go_back and last.reason.endswith("stop, back to step 0")


def test_harder_prompts_are_no_loss_when_the_best_policy_does_no_better():
    """The guard goes back once, sees the same pass rate there, and takes that as the new best: it does not halve the
    learning rate again."""
    back = replace(RULE, may_go_back=True)
    rates = [(0.7, 0.95, 0)] * 10 + [(0.25, 0.95, 0)] * 40
    actions = [action for action in watch(rates, rule=back) if action]
    assert [(action.go_back, action.rate_factor, action.stop) for action in actions] == [(True, 1.0, False)]


def test_under_a_changing_curriculum_only_gradients_and_weights_are_judged():
    changing = replace(RULE, changing_prompts=True)
    rates = [(0.7, 0.95, 0)] * 10 + [(0.25, 0.95, 0)] * 10
    assert watch(rates, rule=changing) == [None] * 20
    assert any(watch([(0.7, 0.1, 0)] * 5, rule=changing))


def test_the_best_pass_rate_fades():
    """A policy that wanders down slowly over a hundred rounds is not sent back to its first checkpoint."""
    slow = [(0.7 - 0.0025 * index, 0.95, 0) for index in range(100)]
    assert watch(slow) == [None] * 100
    assert any(watch(slow, rule=replace(RULE, forgetting=0.0)))


def with_cosines(rates, cosines, rule=BACK):
    """Returns the rounds after which the guard acts on these pass rates and cosines."""
    state, acted = guard.GuardState(), []
    for index, (rate, cosine) in enumerate(zip(rates, cosines, strict=True)):
        facts = guard.RoundFacts(index, float(rate), 0.02, 0.95, 0, 1, 1.0, float(cosine))
        action, state = guard.watch(rule, state, facts)
        acted += [index] if action else []
    return acted


def luck(mean, rounds=160):
    return 0.035 * (mean + np.random.default_rng(0).standard_normal(rounds))


# A pass rate that falls by more than a third and comes back, as where the topics of the data wander.
FALLEN_AND_BACK = np.interp(np.arange(160), [0, 80, 100, 120, 159], [0.3, 0.7, 0.4, 0.7, 0.7])


def test_a_fall_of_the_pass_rate_while_steps_help_or_do_no_harm_is_left_alone():
    assert with_cosines(FALLEN_AND_BACK, luck(0.4)) == []
    assert with_cosines(FALLEN_AND_BACK, luck(0.0)) == []
    assert watch([(rate, 0.95, 0) for rate in FALLEN_AND_BACK]).count(None) < 160


def test_a_fall_of_the_pass_rate_while_steps_harm_is_a_loss():
    cosines = np.where(np.arange(160) < 70, luck(0.4), luck(-0.6))
    rates = np.interp(np.arange(160), [0, 80, 100, 159], [0.3, 0.7, 0.4, 0.4])
    [first, *_] = with_cosines(rates, cosines)
    assert 84 <= first <= 115


def test_a_slow_decline_is_acted_on_earlier_where_steps_surely_harm():
    rates = np.interp(np.arange(220), [0, 100, 219], [0.4, 0.6, 0.35])
    assert not any(watch([(rate, 0.95, 0) for rate in rates]))
    [first, *_] = with_cosines(rates, luck(-0.5, 220))
    assert rates.max() - rates[first] < 0.1


def test_the_guard_acts_on_a_nearly_whole_loss_whatever_the_steps_gain():
    rates = np.where(np.arange(160) < 80, 0.6, 0.05)
    assert with_cosines(rates, luck(0.4))[0] == 82


def test_the_decline_of_a_hard_task_is_no_longer_silent():
    """The pass rate goes from .12 to .07, which is no fall of .1."""
    rates = np.interp(np.arange(160), [0, 159], [0.12, 0.06])
    assert with_cosines(rates, luck(-0.4), RULE)
    assert not any(watch([(rate, 0.95, 0) for rate in rates]))


def test_after_an_action_the_signs_of_steps_are_counted_anew():
    state = guard.GuardState(best=0.6, error=0.01, smooth=0.2, bad=1, rates=(0.6,) * 160, cosines=tuple(luck(-0.6)))
    action, state = guard.watch(RULE, state, guard.RoundFacts(160, 0.2, 0.02, 0.95, 0, 1, 1.0, -0.02))
    assert action and (state.rates, state.cosines) == ((), ())


def test_a_slow_decline_is_a_loss_where_the_curve_did_not_wander_before_and_none_where_it_did():
    rounds, generator = np.arange(200), np.random.default_rng(0)
    slow = np.interp(rounds, [0, 120, 199], [0.4, 0.6, 0.45]) + 0.03 * generator.standard_normal(200)
    wandering = 0.5 + 0.12 * np.sin(rounds / 12) + 0.03 * generator.standard_normal(200)
    cosines = 0.035 * (generator.standard_normal(200) - 0.5 * (rounds > 120))
    [first, *_] = with_cosines(slow, cosines)
    assert 150 <= first < 190
    fall = losses.fall_of_means(losses.Course(wandering[:140], cosines[:140]))
    assert fall.size > 0.2 and fall.weight < losses.LossRule().sure
    assert losses.fall_of_means(losses.Course(slow[:49], cosines[:49]))[:2] == (0.0, 0.0)
