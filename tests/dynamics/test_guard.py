from grpo.dynamics import guard

RULE = guard.GuardRule(fall=4.0, least_fall=0.1, least_ess=0.3, rounds=2, recovery=3, rate_cuts=1)


def watch(rounds, interval=4):
    """Actions over rounds of (pass rate, ESS, skipped steps), each obeyed."""
    state, factor, actions = guard.init(), 1.0, []
    for rate, ess, skipped in rounds:
        action, state = guard.look(RULE, state, guard.RoundFacts(rate, 0.01, ess, skipped, interval, factor))
        actions.append(action)
        if action:
            interval, factor = action.interval, action.rate_factor
    return actions


def test_a_healthy_run_with_noise_is_left_alone():
    rates = [0.2, 0.25, 0.22, 0.3, 0.27, 0.35, 0.33, 0.4, 0.38, 0.41]
    assert watch([(rate, 0.95, 0) for rate in rates]) == [None] * 10


def test_a_collapse_lowers_the_interval_then_the_rate_then_stops():
    fallen = [(0.1, 0.9, 0)] * 30
    actions = [action for action in watch([(0.5, 0.9, 0)] * 3 + fallen) if action]
    assert [(action.interval, action.rate_factor, action.stop) for action in actions[:4]] == [
        (2, 1.0, False),
        (1, 1.0, False),
        (1, 0.5, False),
        (1, 0.5, True),
    ]
    assert actions[0].reason == "damping lost (pass rate fell from 0.50 to 0.20): τ 4→2"


def test_one_bad_round_is_not_enough_and_recovery_is_waited_for():
    acted = watch([(0.5, 0.9, 0), (0.5, 0.1, 0), (0.5, 0.9, 0), (0.5, 0.1, 0), (0.5, 0.1, 0), (0.5, 0.1, 0)])
    assert [bool(action) for action in acted] == [False, False, False, False, True, False]
    assert "ESS 0.10" in acted[4].reason


def test_steps_that_were_skipped_are_a_reason():
    acted = watch([(0.5, 0.9, 2), (0.5, 0.9, 1)])
    assert "NaN or Inf" in acted[1].reason
