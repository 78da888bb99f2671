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
        f"G = {proposal.size.size}: here the same progress costs fewest {unit}",
        "progress: what the budget buys, against the best group size; fidelity: the share of the gradient that silent "
        "groups leave, which costs nothing by itself, since Adam scales it back",
    ]
    if machine is None or proposal.overhead is None:
        return [
            *lines,
            "τ = 1: only training shows how much longer it may be (dynamics=adaptive measures it)",
            "machine=prove.json, the file that grpo prove writes, counts seconds instead of tokens",
        ]
    return [
        *lines,
        f"τ = {proposal.interval}: refreshes and overhead then take {proposal.overhead:.0%} of a round",
        "only training shows whether samples stay fresh enough over so many steps (dynamics=adaptive measures it)",
        f"seconds are those of one {machine.device} with a model of {machine.parameters:,} parameters, as `grpo prove` "
        "measured it; several devices share the prompts",
    ]
