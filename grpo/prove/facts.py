"""A fact is one measured number beside what is expected of it, and a report is what one part has measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

FINE, WRONG, SLOW, UNKNOWN, MISSING = "fine", "wrong", "slow", "–", "not measured"


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact was measured by `part`. It is fine from `low` to `high`; where neither is given nothing is expected.

    `failing` says what it is otherwise: wrong, or merely slow. What cannot be measured here has no number, and `needs`
    says what it takes.
    """

    part: str
    what: str
    measured: float | None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    failing: str = WRONG
    needs: str = ""

    @property
    def verdict(self) -> str:
        """One of FINE, WRONG, SLOW, UNKNOWN and MISSING.

        >>> Fact("sync", "seconds", 2.0, "s", high=1.0, failing=SLOW).verdict
        'slow'
        >>> Fact("attention", "error", float("nan"), high=1e-5).verdict
        'wrong'
        >>> Fact("sync", "NCCL between GPUs", None, needs="needs two GPUs").verdict
        'not measured'
        """
        if self.measured is None:
            return MISSING
        if self.low is None and self.high is None:
            return UNKNOWN
        above = self.low is None or self.measured >= self.low
        return FINE if above and (self.high is None or self.measured <= self.high) else self.failing

    @property
    def expected(self) -> str:
        if self.measured is None:
            return self.needs
        bounds = [f"≥ {self.low:.4g}"] if self.low is not None else []
        return " and ".join(bounds + ([f"≤ {self.high:.4g}"] if self.high is not None else []))

    def row(self) -> tuple[str, str, str, str, str]:
        """Returns the cells of a table: part, what, measured, expected, verdict."""
        number = "" if self.measured is None else f"{self.measured:,.4g} {self.unit}".rstrip()
        return self.part, self.what, number, self.expected, self.verdict

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}


@dataclass(frozen=True, slots=True)
class Report:
    """A report holds the facts of one measurement, and those numbers among them that `prove.json` keeps by name.

    `constants` are fields of `grpo.types.MachineConstants`.
    """

    facts: Sequence[Fact]
    constants: Mapping[str, Any] = field(default_factory=dict)
