"""This module writes what `grpo dynamics plan` proposes, in the terminal, as a picture and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from grpo.config import UserError
from grpo.config.folder import PLAN_PAGE_FILE, PLAN_PLOT_FILE
from grpo.dynamics.difficulty import fit_difficulty
from grpo.host.terminal import Terminal
from grpo.insight.pages import page
from grpo.insight.pages.glossary import compact, duration, meanings
from grpo.insight.pages.style import BLUE, ORANGE, in_percent, legend_below, sheet
from grpo.insight.pages.verdict import UNSURE, Number
from grpo.insight.plans.planning import USUAL_SIZE, PlanRequest, RunProposal, propose
from grpo.types import MachineConstants

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHEET_INCHES = (8.0, 4.6)
# Meaning of the columns of the table of group sizes.
COLUMNS = {
    "G": "The completions of each prompt.",
    "silent": "The share of groups whose completions are all right or all wrong, before training.",
    "fidelity": "The share of the gradient that silent groups leave. It costs nothing, since Adam scales it back.",
    "steps": "The optimizer steps that the budget pays for.",
    "seconds a step": "How long one step takes on the measured machine.",
    "progress": "The expected gain of a token, as a share of that at the best size.",
}


def write_plan(
    rates: Sequence[float],
    missing: int,
    tried: int,
    request: PlanRequest,
    machine: MachineConstants | None,
    folder: Path,
) -> None:
    """Proposes group size, refresh interval and steps for problems with the pass rates `rates`.

    The proposal is printed, and written as a picture and a page into `folder`. Each rate was measured with `tried`
    samples. `missing` counts the problems without a pass rate. `machine` holds the measurements of `grpo prove`, if
    any. Raises `UserError` when the tokens do not suffice for one step.
    """
    console = Terminal()
    counts = Counter((round(rate * tried), tried) for rate in rates)
    difficulty = fit_difficulty(counts)
    proposal = propose(difficulty, request, machine)
    size = proposal.size
    if size.steps == 0:
        raise UserError(
            f"budget_tokens={request.budget_tokens:g} does not suffice for one step at G = {size.size}: give "
            "more tokens, or fewer prompts_per_step"
        )
    problems = f"{len(rates):,} problems, mean pass rate {difficulty.mean:.2f}, each from {tried} samples" + (
        f"; {missing:,} without a pass rate are left out" if missing else ""
    )
    settings = (
        f"dynamics.group_size={size.size} dynamics.refresh_interval={proposal.interval} "
        f"dynamics.prompts_per_step={request.prompts_per_step}"
        + (f" num_steps={size.steps}" if size.steps is not None else "")
    )
    reasons = plan_lines(proposal, machine)
    rows = size_rows(proposal)
    console.print(problems, soft_wrap=True)
    console.print(size_table(rows))
    for line in (f"proposed: {settings}", *reasons):
        console.print(line, soft_wrap=True)
    draw = partial(draw_sizes, proposal=proposal)
    folder.mkdir(parents=True, exist_ok=True)
    sheet([draw], folder / PLAN_PLOT_FILE, SHEET_INCHES, columns=1, first_wide=True)
    page.write_page(
        "plan.html",
        folder / PLAN_PAGE_FILE,
        name=f"{len(rates):,} problems",
        verdict=[
            f"Proposed: G = {size.size} completions of each prompt, and τ = {_steps(proposal.interval)} on them.",
            f"Measured were {problems}.",
        ],
        mood=UNSURE,
        numbers=_numbers(proposal, request),
        settings=settings,
        reasons=[f"{line}." for line in reasons if not line.startswith("progress: ")],
        rows=_page_rows(rows),
        columns={name: COLUMNS[name] for name in rows[0] if name},
        pictures=page.wide_picture(draw),
        meanings=meanings("pass rate", "group", "silent group", "optimizer step", "round", "τ"),
    )
    console.print(f"picture {folder / PLAN_PLOT_FILE}\npage    {folder / PLAN_PAGE_FILE}", soft_wrap=True)


def size_rows(proposal: RunProposal) -> list[list[str]]:
    """Returns a header row, and a row for each group size with its silent groups, fidelity, steps and progress."""
    timed, limited = proposal.size.seconds is not None, proposal.size.steps is not None
    names = [
        "G",
        "silent",
        "fidelity",
        *(["steps"] if limited else []),
        *(["seconds a step"] if timed else []),
        "progress",
        "",
    ]
    return [
        names,
        *(
            [
                str(option.size),
                f"{option.silent:.0%}",
                f"{option.fidelity:.1%}",
                *([f"{option.steps:,}"] if option.steps is not None else []),
                *([f"{option.seconds:.3g}"] if option.seconds is not None else []),
                f"{option.progress:.0%}",
                "← proposed" if option == proposal.size else "",
            ]
            for option in proposal.sizes
        ),
    ]


def _page_rows(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns the rows of `size_rows` without their last column. The first one names the proposed size instead."""
    return [[f"{first} (proposed)" if mark else first, *cells] for first, *cells, mark in rows]


def _steps(number: int) -> str:
    return f"{number} step{'s' * (number > 1)}"


def size_table(rows: Sequence[Sequence[str]]) -> Table:
    """Returns the rows of `size_rows` as a table for the terminal."""
    table = Table(title="Group size G", title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows[1:]:
        table.add_row(*row)
    return table


def plan_lines(proposal: RunProposal, machine: MachineConstants | None) -> list[str]:
    """Says why group size and refresh interval are proposed, and where the numbers come from."""
    unit = "seconds" if machine else "tokens"
    lines = [
        f"G = {proposal.size.size}: here {unit} are expected to gain most, if the learning rate suits groups of "
        f"{USUAL_SIZE}; training measures it (dynamics=adaptive)",
        f"progress: what {unit} gain, against the best group size; fidelity: the share of the gradient that silent "
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


def draw_sizes(axes: Axes, proposal: RunProposal) -> str:
    """Draws the progress and the silent groups of each group size."""
    sizes = [option.size for option in proposal.sizes]
    axes.plot(sizes, [option.progress for option in proposal.sizes], "o-", color=BLUE, label="progress")
    axes.plot(sizes, [option.silent for option in proposal.sizes], "o-", color=ORANGE, label="silent groups")
    axes.axvline(proposal.size.size, color="0.6", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("group size G")
    axes.set_ylabel("share")
    in_percent(axes, whole=True)
    axes.set_title("What each group size gains")
    legend_below(axes)
    return "Progress is for the same cost, as a share of that of the best size. The grey line is the proposed size."


def _numbers(proposal: RunProposal, request: PlanRequest) -> list[Number]:
    """Returns the numbers on top of the page: the proposed run's steps, silent groups, and time if it is known."""
    size = proposal.size
    steps = []
    if size.steps is not None:
        steps = [Number("optimizer steps", f"{size.steps:,}", f"for budget_tokens={compact(request.budget_tokens)}")]
    completions = size.size * request.prompts_per_step
    batch = Number("completions a step", f"{completions:,}", f"{request.prompts_per_step:,} prompts × {size.size}")
    silent = Number("silent groups", f"{size.silent:.0%}", "before training; they teach nothing")
    if size.seconds is None:
        return [*steps, batch, silent]
    if size.steps is None:
        time = Number("time of a step on one device", duration(size.seconds), "as measured at τ = 1")
    else:
        time = Number("time on one device", duration(size.seconds * size.steps), "as measured at τ = 1")
    return [*steps, batch, silent, time]
