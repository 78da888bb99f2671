"""These tests check when rewards count as equal, and that dataclasses come back from JSON as they were."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Generic, NamedTuple, TypeVar

import pytest

from grpo.types import Grade, Problem, Prompt, RolloutGroup, ScoredGroup, alike
from grpo.types.plain import rebuilt


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


Inner = TypeVar("Inner")


@dataclass(frozen=True)
class Point:
    step: int
    value: float
    note: str | None = None


@dataclass(frozen=True)
class Curve(Generic[Inner]):
    points: tuple[Point, ...]
    pair: tuple[int, bool]
    spent: Mapping[str, float]
    state: Inner


POINT = {"step": 1, "value": 1}
CURVE = Curve((Point(1, 0.5), Point(2, 1.0, "best")), (3, True), {"tokens": 8.0}, None)


def test_the_json_of_a_dataclass_becomes_the_dataclass_again():
    assert rebuilt(Curve, json.loads(json.dumps(asdict(CURVE))), "curve") == CURVE
    # A whole number is a number too, and a default stands in for what an older version did not write.
    assert rebuilt(Point, {"step": 1, "value": 2}, "point") == Point(1, 2.0)


class Ending(NamedTuple):
    state: str
    step: int
    why: str = ""


def test_named_tuples_are_rebuilt_as_dataclasses_are():
    assert rebuilt(Ending, {"state": "failed", "step": 3}, "end.json") == Ending("failed", 3)
    for values, said in (
        ({"state": 5, "step": 3}, "state must be a text, not 5"),
        ({"state": "x"}, "end.json lacks step"),
    ):
        with pytest.raises(ValueError, match=said):
            rebuilt(Ending, values, "end.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"points": [POINT, {**POINT, "step": 1.5}]}, "curve.points[1].step must be a whole number, not 1.5"),
        ({"points": [{"step": 1}]}, "curve.points[0] lacks value"),
        ({"points": {}}, "curve.points must be a list, not {}"),
        ({"points": "ab"}, "curve.points must be a list, not 'ab'"),
        ({"points": [{**POINT, "value": True}]}, "curve.points[0].value must be a number, not True"),
        ({"points": [{**POINT, "note": 7}]}, "curve.points[0].note must be a text, not 7"),
        ({"pair": [1]}, "curve.pair must be a list of 2, not [1]"),
        ({"pair": [1, 1]}, "curve.pair[1] must be true or false, not 1"),
        ({"spent": [1]}, "curve.spent must be keys and values, not [1]"),
        ({"spent": {"tokens": "8"}}, "curve.spent.tokens must be a number, not '8'"),
        ({"state": 5}, "curve.state must be keys and values, not 5"),
        ({"more": 5}, "curve has 'more', which this version does not know"),
    ],
)
def test_a_value_of_another_kind_is_named_by_its_place(changes, said):
    values = json.loads(json.dumps(asdict(CURVE))) | {"state": {}} | changes
    with pytest.raises(ValueError) as refusal:
        rebuilt(Curve[Mapping[str, float]], values, "curve")
    assert str(refusal.value) == said
