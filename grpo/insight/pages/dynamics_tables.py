"""This module describes the dynamics of a run in words and tables."""

from collections.abc import Sequence

import numpy as np

from grpo.dynamics.forecast import Forecast, forecast_held_out
from grpo.dynamics.replay import Proposal
from grpo.insight.diagnosis.evidence import FEWEST_ROUNDS, paired
from grpo.insight.logs.run_log import RunLog, Series
from grpo.insight.pages.dynamics_panels import Dynamics
from grpo.insight.pages.glossary import signed
from grpo.insight.pages.page import Number
from grpo.insight.pages.verdict import guess
from grpo.types.rounds import is_news

# A gain of pass rate for which it is worth training on.
WORTHWHILE = 0.02


def forecast_line(ahead: Forecast) -> str:
    """Says in a sentence where the curve goes."""
    return (
        f"forecast for step {ahead.steps[-1]:.0f}: pass rate {ahead.value[-1]:.2f} "
        f"[{ahead.low[-1]:.2f}, {ahead.high[-1]:.2f}], gain from now {ahead.gain.value:+.2f} "
        f"[{ahead.gain.low:+.2f}, {ahead.gain.high:+.2f}] (90 %), more than {WORTHWHILE:g} with probability "
        f"{ahead.chance(WORTHWHILE):.0%}{guess(ahead)}"
    )


def forecast_numbers(ahead: Forecast) -> list[Number]:
    """Returns the two numbers on top of the page: the forecast, and the gain until then."""
    gain = ahead.gain
    return [
        Number(
            f"forecast for step {ahead.steps[-1]:,.0f}",
            f"{ahead.value[-1]:.1%}",
            f"90 % interval {ahead.low[-1]:.1%} to {ahead.high[-1]:.1%}",
        ),
        Number(
            "gain from now, in percentage points",
            signed(100 * gain.value),
            f"90 % interval {signed(100 * gain.low)} to {signed(100 * gain.high)}; above {100 * WORTHWHILE:g} with "
            f"probability {ahead.chance(WORTHWHILE):.0%}",
        ),
    ]


def held_out_lines(log: RunLog, last_step: float) -> list[str]:
    """Forecasts held-out evaluations in words, and says how far the pass rate in training is above or below them.

    The list is empty for fewer than three evaluations or too few rounds.
    """
    curve = log.held_out_history()
    if curve is None or len(log.history) < FEWEST_ROUNDS:
        return []
    ahead = forecast_held_out(curve, log.history, last_step)
    lines = [
        f"held out at step {ahead.steps[-1]:.0f}: pass rate {ahead.value[-1]:.2f} [{ahead.low[-1]:.2f}, "
        f"{ahead.high[-1]:.2f}], "
        f"gain from the trend of the last evaluations {ahead.gain.value:+.2f} "
        f"[{ahead.gain.low:+.2f}, {ahead.gain.high:+.2f}] (90 %)"
    ]
    training = paired(Series(log.history.steps, log.history.values), log.held_out.steps)
    is_shared_step = np.isin(log.held_out.steps, training.steps)
    gaps = training.values - log.held_out.values[is_shared_step]
    tail = gaps[len(gaps) // 2 :]
    if len(tail) > 1:
        # The same problems are asked each time, so their luck does not go with the number of evaluations.
        error = float(np.hypot(tail.std(ddof=1) / np.sqrt(len(tail)), log.held_out_error))
        side = "above" if tail.mean() >= 0 else "below"
        lines.append(
            f"training was {abs(tail.mean()):.2f} ± {error:.2f} {side} held out over the last {len(tail)} evaluations "
            f"(± one standard error; {gaps[0]:+.2f} at the first)"
        )
    return lines


def way_rows(ahead: Forecast) -> list[tuple[str, str, str]]:
    """Returns a table of the forecast pass rate at up to five evenly spread whole steps."""
    rows = [("step", "pass rate", "interval")]
    for step in np.unique(np.linspace(ahead.steps[0], ahead.steps[-1], 5).round()):
        at = np.abs(ahead.steps - step).argmin()
        rows.append((f"{step:.0f}", f"{ahead.value[at]:.2f}", f"[{ahead.low[at]:.2f}, {ahead.high[at]:.2f}]"))
    return rows


def law_rows(analysis: Dynamics) -> list[tuple[str, ...]]:
    """Returns a table of the laws that a person named, the one that fits best first, beside the forecast."""
    if not analysis.laws:
        return []
    ahead, last = analysis.ahead, analysis.policy_steps[-1:]
    rows = [("law", "parameters", "χ²", "freedom", "AICc", f"at step {ahead.steps[-1]:.0f}")]
    for fit in analysis.laws:
        numbers = zip(fit.law.first, fit.values, fit.errors, strict=True)
        parameters = ", ".join(f"{name} {value:.3g} ± {error:.2g}" for name, value, error in numbers)
        [rate], [low], [high] = fit.band(last)
        quality = f"{fit.chi_square:.1f}", str(fit.freedom), f"{fit.aicc:.1f}"
        rows.append((fit.law.name, parameters, *quality, f"{rate:.2f} [{low:.2f}, {high:.2f}]"))
    forecast = f"{ahead.value[-1]:.2f} [{ahead.low[-1]:.2f}, {ahead.high[-1]:.2f}]"
    return [*rows, ("forecast", "needs no law", "", "", "", forecast)]


def decisions_rows(proposals: Sequence[Proposal]) -> list[tuple[str, ...]]:
    """Returns a table of the rounds after which the scheduler proposed another plan, with old and new values, or had
    something to say."""
    return [
        ("after step", "G", "τ", "prompts", "rate ×", "why"),
        *(
            (
                str(proposal.step),
                _arrow(proposal.done.group_size, proposal.proposed.group_size),
                _arrow(proposal.done.refresh_interval, proposal.proposed.refresh_interval),
                _arrow(proposal.done.prompts_per_step, proposal.proposed.prompts_per_step),
                _arrow(proposal.done.learning_rate_factor, proposal.proposed.learning_rate_factor),
                proposal.verdict.reason,
            )
            for proposal in proposals
            if proposal.changes or is_news(proposal.verdict.reason)
        ),
    ]


def _arrow(before: float, after: float) -> str:
    return f"{before:g}" if before == after else f"{before:g}→{after:g}"
