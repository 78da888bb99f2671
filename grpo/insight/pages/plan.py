"""This module makes the page of what `grpo dynamics plan` proposes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.config import UserError
from grpo.config.folder import PLAN_PAGE_FILE
from grpo.dynamics.difficulty import fit_difficulty
from grpo.host.terminal import Terminal
from grpo.insight.pages.glossary import compact, duration
from grpo.insight.pages.page import Block, Kind, Number, Page, publish
from grpo.insight.pages.style import BLUE, ORANGE, in_percent, legend_below
from grpo.insight.pages.verdict import UNSURE
from grpo.insight.plans.planning import USUAL_SIZE, PlanRequest, RunProposal, propose
from grpo.types import MachineConstants

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Meaning of the columns of the table of group sizes.
COLUMNS = {
    "G": "The completions of each prompt.",
    "silent": "The share of groups whose completions are all right or all wrong, before training.",
    "fidelity": "A group's gradient against that of an endless group. Less costs nothing, since Adam scales it back.",
    "steps": "The optimizer steps that the budget pays for.",
    "seconds a step": "How long one step takes on the measured machine.",
    "progress": "The expected gain for the same cost, as a share of that at the best size.",
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

    The proposal is printed, and written as a page into `folder`. Each rate was measured with `tried`
    samples. `missing` counts the problems without a pass rate. `machine` holds the measurements of `grpo prove`, if
    any. Raises `UserError` when the tokens do not suffice for one step.
    """
    counts = Counter((round(rate * tried), tried) for rate in rates)
    difficulty = fit_difficulty(counts)
    proposal = propose(difficulty, request, machine)
    size = proposal.size
    if size.steps == 0:
        raise UserError(
            f"budget_tokens={request.budget_tokens:g} does not suffice for one step at G = {size.size}: give "
            "more tokens, or fewer prompts_per_step"
        )
    problems = f"{len(rates):,} problems, mean pass rate {sum(rates) / len(rates):.1%}, each from {tried} samples" + (
        f"; {missing:,} without a pass rate are left out" if missing else ""
    )
    settings = (
        f"dynamics.group_size={size.size} dynamics.refresh_interval={proposal.interval} "
        f"dynamics.prompts_per_step={request.prompts_per_step}"
        + (f" num_steps={size.steps}" if size.steps is not None else "")
    )
    rows = size_rows(proposal)
    legend = " ".join(f"{name}: {COLUMNS[name]}" for name in rows[0])
    folder.mkdir(parents=True, exist_ok=True)
    plan = Page(
        *("Plan of a run", f"{len(rates):,} problems"),
        verdict=[
            f"Proposed: G = {size.size} completions of each prompt, and τ = {_steps(proposal.interval)} on them.",
            f"Measured were {problems}.",
        ],
        mood=UNSURE,
        blocks=[
            Block(Kind.COMMAND, [settings], "Proposed settings", "Append them to the command of a run."),
            Block(Kind.LINES, plan_lines(proposal, machine)),
            Block(Kind.CHARTS, [partial(draw_sizes, proposal=proposal)], "Group sizes compared"),
            Block(Kind.TABLE, rows, "Group size G", legend=legend, texts=()),
        ],
        numbers=_numbers(proposal, request),
        words=("pass rate", "group", "silent group", "optimizer step", "round", "τ"),
    )
    publish(plan, folder / PLAN_PAGE_FILE, Terminal())


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
    ]
    return [
        names,
        *(
            [
                f"{option.size} (proposed)" if option == proposal.size else f"{option.size}",
                f"{option.silent:.0%}",
                f"{option.fidelity:.1%}",
                *([f"{option.steps:,}"] if option.steps is not None else []),
                *([f"{option.seconds:.3g}"] if option.seconds is not None else []),
                f"{option.progress:.0%}",
            ]
            for option in proposal.sizes
        ),
    ]


def _steps(number: int) -> str:
    return f"{number} step{'s' * (number > 1)}"


def plan_lines(proposal: RunProposal, machine: MachineConstants | None) -> list[str]:
    """Says why group size and refresh interval are proposed, and where the numbers come from."""
    unit = "seconds" if machine else "tokens"
    chosen, best = proposal.size.size, max(proposal.sizes, key=lambda option: option.progress).size
    smallest, largest = proposal.allowed
    expected = f"{unit} are expected to gain most, if the learning rate suits groups of {USUAL_SIZE}"
    why = f"here {expected}; training measures it (dynamics=adaptive)"
    if smallest == largest:
        only = "in real runs no choice of the size did better than 8" if chosen == 8 else "no other size is allowed"
        why = f"{only}. At G = {best} {expected}; smallest=2 largest=64 proposes by that"
    lines = [
        f"G = {chosen}: {why}",
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
