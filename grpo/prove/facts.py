"""A fact is one measured number with its expected bounds, and a report is what one part has measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

FINE, WRONG, SLOW, LOOK, UNKNOWN, MISSING = "fine", "wrong", "slow", "look", "–", "skipped"


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact is a number that `part` measured, expected from `low` to `high`; without either, nothing is expected.

    `failing` is the verdict on a number outside of these bounds: WRONG, SLOW, or LOOK where the bounds are a guess,
    because no machine has set them yet. If this machine cannot measure the number, `measured` is None and `needs` says
    what is missing. If measuring it failed, `error` says why.
    """

    part: str
    what: str
    measured: float | None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    failing: str = WRONG
    needs: str = ""
    error: str = ""

    @property
    def verdict(self) -> str:
        """Returns one of FINE, WRONG, SLOW, LOOK, UNKNOWN and MISSING.

        >>> Fact("sync", "seconds", 2.0, "s", high=1.0, failing=SLOW).verdict
        'slow'
        >>> Fact("attention", "error", float("nan"), high=1e-5).verdict
        'wrong'
        >>> Fact("sync", "channel by NCCL", None, needs="needs two GPUs").verdict
        'skipped'
        >>> Fact("sync", "refresh", None, error="WeightSyncError: other weights").verdict
        'wrong'
        """
        if self.measured is None:
            return WRONG if self.error else MISSING
        if self.low is None and self.high is None:
            return UNKNOWN
        above = self.low is None or self.measured >= self.low
        return FINE if above and (self.high is None or self.measured <= self.high) else self.failing

    @property
    def expected(self) -> str:
        """Returns what is expected, or why there is no number.

        >>> Fact("learner", "MFU", 0.2, low=0.3, failing=LOOK).expected
        '≥ 0.3 (a guess)'
        """
        if self.measured is None:
            return self.error or self.needs
        if self.low is not None and self.high is not None:
            return f"{self.low:.3g}" if self.low == self.high else f"{self.low:.3g} … {self.high:.3g}"
        bounds = [f"≥ {self.low:.3g}"] if self.low is not None else []
        bounds += [f"≤ {self.high:.3g}"] if self.high is not None else []
        return "".join(bounds + ([" (a guess)"] if bounds and self.failing == LOOK else []))

    def row(self) -> tuple[str, str, str, str]:
        """Returns the cells of a table: what, measured, expected, verdict."""
        number = "" if self.measured is None else f"{shown(self.measured)} {self.unit}".rstrip()
        return self.what, number, self.expected, self.verdict

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}


def shown(number: float) -> str:
    """Returns a number with three significant digits, or as a whole number from a thousand on.

    >>> [shown(number) for number in (4893.4, 0.18581, 27.04, 6, 1.7e-6)]
    ['4,893', '0.186', '27', '6', '1.7e-06']
    """
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


@dataclass(frozen=True, slots=True)
class Report:
    """A report holds the facts of one measurement, and the numbers that `prove.json` keeps by name.

    `constants` are fields of `grpo.types.MachineConstants`, and `basis` holds fields of `grpo.prove.settings.Basis`.
    """

    facts: Sequence[Fact]
    constants: Mapping[str, Any] = field(default_factory=dict)
    basis: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def joined(cls, reports: Iterable[Report]) -> Report:
        """Joins several reports into one. If several numbers have one name, the last one counts."""
        facts: list[Fact] = []
        constants: dict[str, Any] = {}
        basis: dict[str, Any] = {}
        for report in reports:
            facts += report.facts
            constants |= report.constants
            basis |= report.basis
        return cls(facts, constants, basis)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Report:
        """Rebuilds a report from what its method `plain` returned."""
        names = {field.name for field in fields(Fact)}
        facts = [Fact(**{name: row[name] for name in names}) for row in plain["facts"]]
        return cls(facts, plain["constants"], plain["basis"])

    def plain(self) -> dict[str, Any]:
        rows = [fact.plain() for fact in self.facts]
        return {"facts": rows, "constants": dict(self.constants), "basis": dict(self.basis)}
