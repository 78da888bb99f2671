"""This module implements `grpo dynamics`, which fits, forecasts, diagnoses, replays and plans runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from grpo.commands.words import count, natural, positive, typed
from grpo.config import UserError
from grpo.config.errors import require
from grpo.config.runs_within import is_run, refuse_several
from grpo.dynamics.planning import PlanRequest
from grpo.host.alive import working
from grpo.prove.record import read_constants
from grpo.report.dynamics import write_diagnosis, write_fit, write_forecast, write_replay
from grpo.report.plan import write_plan
from grpo.report.whatif import UNITS, Budget, write_whatif
from grpo.tasks.solve_rates import PassRates, read_solve_rates

USAGE = """usage: grpo dynamics WHAT PATH [key=value ...]

  fit       fits laws to the reward curve, and writes them with forecast and diagnosis as a table, picture and page
  forecast  predicts the reward curve
  diagnose  says what is wrong with a run, by which evidence, and what helps
  replay    shows what dynamics=adaptive would have decided
            grpo dynamics replay runs/x dynamics.adaptive.smallest_group=8
  whatif    predicts the run under another group size, batch, refresh interval or dial
            grpo dynamics whatif runs/x dynamics.group_size=4,16 normalization=dr_grpo
  plan      proposes G and steps from pass rates, before a run, as a table, picture and page
            grpo dynamics plan rates.jsonl completion_tokens=600

PATH is a run's folder, TRL's trainer_state.json, verl's file log, TensorBoard's event files, what Weights & Biases
exports, rlprobe's recording, or JSON Lines, JSON, CSV or Parquet with one row per step. replay and whatif take a run's
folder only. For plan, it is a file of pass rates.
fit and forecast take last_step=N. fit, forecast and diagnose take column=NAME, the pass rate in other frameworks' logs,
and scale=NUMBER, what that column holds for a right answer (1). diagnose also reads logs without a pass rate.
whatif takes steps=N, tokens=N or seconds=N, which each alternative may spend (default: the tokens of the run).
plan takes column=NAME of the pass rates (default: that of `grpo solve-rates`, or else Big-Math's), tried=N samples
behind each (default: what the file says, or else 64), machine=FILE, the prove.json that `grpo prove` has written,
output=DIR for picture and page (default: beside PATH), and the following. Where the file of `grpo solve-rates` says how
long prompts and completions are, these are the defaults.
""" + "\n".join(f"  {field.name}={field.default:g}" for field in fields(PlanRequest))


def run(words: Sequence[str]) -> int:
    """Runs the analysis in `COMMANDS` that the first word names. Returns the exit code."""
    name, *arguments = words
    if name not in COMMANDS:
        raise UserError(f"grpo dynamics has no {name!r}: choose one of {', '.join(COMMANDS)} (grpo dynamics help)")
    if not arguments or "=" in arguments[0]:
        raise UserError(f"grpo dynamics {name} needs a path (grpo dynamics help)")
    with working("analysing the log" if name != "plan" else "making the plan"):
        COMMANDS[name](Path(arguments[0]), arguments[1:])
    return 0


def _fit(path: Path, settings: list[str]) -> None:
    write_fit(path, **typed(settings, last_step=count, column=str, scale=positive))


def _forecast(path: Path, settings: list[str]) -> None:
    write_forecast(path, **typed(settings, last_step=count, column=str, scale=positive))


def _diagnose(path: Path, settings: list[str]) -> None:
    write_diagnosis(path, **typed(settings, column=str, scale=positive))


def _replay(path: Path, settings: list[str]) -> None:
    write_replay(path, settings)


def _whatif(path: Path, settings: list[str]) -> None:
    budgets = [word for word in settings if word.partition("=")[0] in UNITS]
    if len(budgets) > 1:
        raise UserError(f"give one budget, not {' and '.join(budgets)}")
    amounts = typed(budgets, **dict.fromkeys(UNITS, positive))
    budget = Budget(*next(iter(amounts.items()))) if amounts else None
    write_whatif(path, [word for word in settings if word not in budgets], budget)


def _plan(path: Path, settings: list[str]) -> None:
    kinds = {field.name: type(field.default) for field in fields(PlanRequest)}
    kinds |= dict.fromkeys(("prompt_tokens", "completion_tokens", "budget_tokens"), positive)
    kinds |= dict.fromkeys(("prompts_per_step", "smallest", "largest"), natural)
    options = typed(settings, column=str, tried=natural, machine=str, output=Path, **kinds)
    machine = read_constants(options.pop("machine")) if "machine" in options else None
    pass_rates = _pass_rates(path, options.pop("column", ""))
    tried, output = options.pop("tried", pass_rates.tried), options.pop("output", path.parent)
    write_plan(pass_rates.rates, pass_rates.missing, tried, PlanRequest(**pass_rates.tokens | options), machine, output)


def _pass_rates(path: Path, column: str) -> PassRates:
    """Reads the pass rates for a plan. Raises `UserError` for a run, or a folder of runs, with what reads them."""
    mend = "plan takes a file of pass rates, which `grpo solve-rates` writes"
    require(not is_run(path), f"{path} is a run, and {mend}: `grpo dynamics whatif {path}` predicts it otherwise set")
    try:
        return read_solve_rates(path, column)
    except UserError:
        refuse_several(path, f"; `grpo dynamics whatif` reads a run, and {mend}")
        raise


COMMANDS: dict[str, Callable[[Path, list[str]], None]] = {
    "fit": _fit,
    "forecast": _forecast,
    "diagnose": _diagnose,
    "replay": _replay,
    "whatif": _whatif,
    "plan": _plan,
}
