"""These tests check when rewards count as equal."""

import pytest

from grpo.types import Grade, Problem, Prompt, RolloutGroup, ScoredGroup, alike


@pytest.mark.parametrize(
    ("values", "equal"),
    [
        ([], True),
        ([0.7], True),
        ([0.0, -0.0], True),
        ([0.3, 0.1 + 0.2], True),
        ([0.3e12, (0.1 + 0.2) * 1e12], True),
        ([1e6 + 0.3, 1e6 + (0.1 + 0.2)], True),
        ([-0.3, -(0.1 + 0.2)], True),
        ([1e-12, 2e-12], False),
        ([0.0, 1e-300], False),
        ([1e6, 1e6 + 1e-7], False),
        ([1.0, 1.0, 1.0 + 1e-13], False),
    ],
)
def test_equal_but_for_rounding_is_relative(values, equal):
    assert alike(values) is equal


def test_where_large_parts_cancel_what_was_added_up_decides():
    # On paper both are .1: the first was added up of parts of 1e6.
    cancelled = (1e6 + 0.1) - 1e6
    assert cancelled != 0.1
    assert not alike([0.1, cancelled])
    assert alike([0.1, cancelled], magnitude=2e6)


def scored(*grades):
    group = RolloutGroup(Prompt(Problem("p", "q", "a"), (1,)), (), 0, 0)
    return ScoredGroup(group, grades, (True,) * len(grades))


def test_a_group_is_silent_by_the_same_rule():
    cancelled = (1e6 + 0.1) - 1e6
    assert scored(Grade(0.3, False, {}), Grade(0.1 + 0.2, False, {})).silent
    assert not scored(Grade(1e-12, False, {}), Grade(2e-12, False, {})).silent
    assert not scored(Grade(0.1, False, {}), Grade(cancelled, False, {})).silent
    assert scored(Grade(0.1, False, {}), Grade(cancelled, False, {}, magnitude=2e6)).silent
