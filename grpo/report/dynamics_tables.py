"""The dynamics of a run in words and tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from grpo.dynamics.findings import CRITICAL, NOTE, WARNING, Finding
from grpo.dynamics.forecast import Forecast, phases
from grpo.dynamics.identify import Identification, LawFit
from grpo.dynamics.planning import RunProposal
from grpo.dynamics.replay import Proposal

LAW_COLUMNS = ("law", "constants", "χ²/n", "R²", "misfit", "pattern", "weight")
"""Misfit and pattern are p values, of χ² and of the residuals' correlation; weight is Akaike's."""
COLORS = {CRITICAL: "bold red", WARNING: "yellow", NOTE: "cyan"}


def laws_table(found: Identification) -> Table:
    """One row a law, best first: its constants, how well it fits, how much it is supported."""
    table = Table(title="Laws of the reward curve", title_justify="left")
    for name in LAW_COLUMNS:
        words = name == "constants"
        left = words or name == "law"
        table.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=not words)
    for row in law_rows(found):
        table.add_row(*row)
    return table


def law_rows(found: Identification) -> list[tuple[str, ...]]:
    """The cells of `laws_table`."""
    return [(*_law_row(fit), f"{found.weights[fit.law.name]:.2f}") for fit in found.fits]


def _law_row(fit: LawFit) -> tuple[str, ...]:
    constants = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in fit.parameters.items())
    ratio = f"{fit.chi_square:.0f}/{len(fit.history)}"
    return fit.law.name, constants, ratio, f"{fit.r_squared:.2f}", f"{fit.misfit_p:.1g}", f"{fit.pattern_p:.1g}"


def summary_lines(found: Identification, ahead: Forecast) -> list[str]:
    """What it comes to, in words."""
    lines = [found.reason]
    if found.identified:
        lines.append(f"damping ratio ζ {found.damping_ratio}, stiffness κ {found.stiffness} per step (95 %)")
    lines.append(
        f"forecast for step {ahead.steps[-1]:.0f}: pass rate {ahead.value[-1]:.2f} "
        f"[{ahead.low[-1]:.2f}, {ahead.high[-1]:.2f}], gain from now {ahead.gain.value:+.2f} "
        f"[{ahead.gain.low:+.2f}, {ahead.gain.high:+.2f}] (90 %)"
    )
    parts = phases(found)
    lines.append(
        f"phases: slow start until step {parts.rise:.0f}, plateau from step {parts.plateau:.0f}"
        if parts
        else "phases not identified"
    )
    return lines


def findings_table(findings: Sequence[Finding]) -> Table:
    """One row a finding, the gravest first."""
    table = Table(title="Diagnosis", title_justify="left")
    for name in ("", "finding", "evidence", "what answers it"):
        table.add_column(name, overflow="fold")
    for each in findings:
        table.add_row(f"[{COLORS[each.severity]}]{each.severity}[/]", each.name, each.evidence, each.remedy)
    return table


def decisions_table(proposals: Sequence[Proposal]) -> Table:
    """The rounds after which a change is wanted."""
    table = Table(title="Decisions", title_justify="left")
    for name in ("after step", "G", "τ", "prompts", "rate ×", "why"):
        table.add_column(name, justify="left" if name == "why" else "right", overflow="fold")
    for proposal in proposals:
        if proposal.changes:
            done, new = proposal.done, proposal.proposed
            table.add_row(
                str(proposal.step),
                _arrow(done.group_size, new.group_size),
                _arrow(done.refresh_interval, new.refresh_interval),
                _arrow(done.prompts_per_step, new.prompts_per_step),
                _arrow(done.learning_rate_factor, new.learning_rate_factor),
                proposal.verdict.reason,
            )
    return table


def _arrow(before: float, after: float) -> str:
    return f"{before:g}" if before == after else f"{before:g}→{after:g}"


def size_table(proposal: RunProposal) -> Table:
    """What each group size costs and gives."""
    table = Table(title="Group size G", title_justify="left")
    for name in ("G", "silent", "fidelity", "tokens per non-silent group", "steps", "progress", ""):
        table.add_column(name, justify="right")
    for each in proposal.sizes:
        table.add_row(
            str(each.size),
            f"{each.silent:.0%}",
            f"{each.fidelity:.1%}",
            f"{each.group_tokens:,.0f}",
            f"{each.steps:,}",
            f"{each.progress:.0%}",
            "← proposed" if each == proposal.size else "",
        )
    return table


def interval_table(proposal: RunProposal) -> Table:
    """How far each refresh interval is from losing its damping."""
    table = Table(title="Refresh interval τ", title_justify="left")
    for name in ("τ", "c = κτ/(1−μ)", "threshold", "ζ", ""):
        table.add_column(name, justify="right")
    for each in proposal.intervals:
        mark = "← proposed" if each == proposal.interval else "" if each.allowed else "too close"
        table.add_row(
            str(each.interval), f"{each.gain:.2f}", f"{each.threshold:.2f}", f"{each.damping_ratio:.2f}", mark
        )
    return table
