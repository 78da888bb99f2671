"""This module describes what `grpo dynamics plan` proposes, in words and a table."""

from __future__ import annotations

from rich.table import Table

from grpo.dynamics.planning import RunProposal
from grpo.types import MachineConstants


def size_table(proposal: RunProposal) -> Table:
    """Returns a table of what each group size costs and gains."""
    timed = proposal.size.seconds is not None
    table = Table(title="Group size G", title_justify="left")
    for name in ("G", "silent", "fidelity", "steps", *(["seconds a step"] if timed else []), "progress", ""):
        table.add_column(name, justify="right")
    for candidate in proposal.sizes:
        table.add_row(
            str(candidate.size),
            f"{candidate.silent:.0%}",
            f"{candidate.fidelity:.1%}",
            f"{candidate.steps:,}",
            *([f"{candidate.seconds:.3g}"] if candidate.seconds is not None else []),
            f"{candidate.progress:.0%}",
            "← proposed" if candidate == proposal.size else "",
        )
    return table


def plan_lines(proposal: RunProposal, machine: MachineConstants | None) -> list[str]:
    """Says why group size and refresh interval are proposed, and where the numbers come from."""
    unit = "seconds" if machine else "tokens"
    lines = [
        f"G = {proposal.size.size}: progress costs fewest {unit}. Progress is the gradient's signal over its noise; "
        "fidelity is a common factor, which Adam divides away"
    ]
    if machine is None or proposal.overhead is None:
        return [
            *lines,
            "τ = 1: how far a longer interval is stable and on-policy is measured while training (dynamics=adaptive). "
            "machine=prove.json counts seconds, and the time that a longer interval saves",
        ]
    return [
        *lines,
        f"τ = {proposal.interval}: refresh and overhead then take {proposal.overhead:.0%} of a round. Whether ratios "
        "stay close to 1 over so many steps is measured while training (dynamics=adaptive)",
        f"seconds are those of one {machine.device} with a model of {machine.parameters:,} parameters, as `grpo prove` "
        "measured it; several devices share the prompts",
    ]
