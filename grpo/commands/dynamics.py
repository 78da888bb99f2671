"""This module implements `grpo dynamics`, which fits, forecasts, diagnoses, replays and plans runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.commands.words import count, degrees, dial, natural, paths_and_settings, positive, typed
from grpo.config import TrainConfig, UserError
from grpo.config.complaints import paths
from grpo.config.errors import require
from grpo.config.folder import is_run, refuse_several
from grpo.config.hints import hint
from grpo.config.hydra import config_directory
from grpo.config.rewording import free_key
from grpo.host.alive import working
from grpo.host.disk import require_writable
from grpo.insight.plans.request import UNITS, Budget, PlanRequest
from grpo.prove.record import read_constants

if TYPE_CHECKING:
    from grpo.tasks.solve_rates import PassRates

USAGE = """usage: grpo dynamics WHAT PATH [key=value ...]

  fit       writes forecast and diagnosis as a page, and prints them
  forecast  predicts the reward curve
  diagnose  says what is wrong with a run, by which evidence, and what helps
  replay    shows what dynamics=adaptive would have decided
            grpo dynamics replay runs/x dynamics.adaptive.smallest_group=8
  whatif    predicts the run under another group size, batch, refresh interval or dial
            grpo dynamics whatif runs/x dynamics.group_size=4,16 normalization=dr_grpo
  plan      proposes G and steps from pass rates, before a run, as a page and a table
            grpo dynamics plan rates.jsonl completion_tokens=600

PATH is a run's folder, TRL's trainer_state.json, verl's file log, what TRL, verl, OpenRLHF, slime or a loop of
your own print, TensorBoard's event files, what Weights & Biases exports, rlprobe's recording, or JSON Lines, JSON, CSV
or Parquet with one row per step. replay and whatif take a run's folder only. For plan, it is a file of pass rates.
fit and forecast take last_step=N, and law=FILE.py:FUNCTION, a law of your own: law(steps, start=0.2, ...) returns a
pass rate for each step, and its parameters are fitted from their defaults on. fit, forecast and diagnose take
column=NAME, the pass rate in other frameworks' logs, and scale=NUMBER, what that column holds for a right answer (1).
diagnose also reads logs without a pass rate.
whatif takes steps=N, tokens=N or seconds=N, which each alternative may spend (default: the tokens of the run), and
output=DIR for the page (default: the run's folder).
plan takes column=NAME of the pass rates (default: that of `grpo solve-rates`, or else Big-Math's), tried=N samples
behind each (default: what the file says, or else 64), machine=FILE, the prove.json that `grpo prove` has written,
output=DIR for the page (default: beside PATH), and the following. Where the file of `grpo solve-rates` says how
long prompts and completions are, these are the defaults.
""" + "\n".join(f"  {field.name}={field.default:g}" for field in fields(PlanRequest))


Analysis = Callable[[], None]
# No group, and no measured pass rate, has more completions.
MOST_SAMPLES = 16384


def run(words: Sequence[str]) -> int:
    """Runs the analysis in `COMMANDS` that the first word names. Returns the exit code.

    Its words are read before anything is imported that takes seconds.
    """
    name, *arguments = words
    if name not in COMMANDS:
        raise UserError(f"grpo dynamics has no {name!r}: choose one of {', '.join(COMMANDS)} (grpo dynamics help)")
    if not paths_and_settings(arguments[:1])[0]:
        raise UserError(f"grpo dynamics {name} needs a path (grpo dynamics help)")
    path = Path(arguments[0])
    for word in arguments[1:]:
        require("=" in word, f"grpo dynamics {name} reads one path, and {word!r} is no KEY=VALUE")
    analysis = COMMANDS[name](path, arguments[1:])
    # A path holds one of an address's two slashes.
    address = re.match(r"https?:/", str(path))
    require(not address, f"{path} is an address: export the run's history as CSV there, and give the file")
    require(path.exists(), f"there is no file or folder {path}")
    with working("analysing the log" if name != "plan" else "making the plan"):
        analysis()
    return 0


def _on_curve(name: str, path: Path, settings: list[str]) -> Analysis:
    """Returns the analysis `fit` or `forecast`."""
    options = typed(settings, last_step=count, column=str, scale=positive, law=str)

    def analysis() -> None:
        from grpo.insight.pages import dynamics

        write = dynamics.write_fit if name == "fit" else dynamics.write_forecast
        write(path, **_with_laws(options))

    return analysis


def _with_laws(options: dict[str, Any]) -> dict[str, Any]:
    """Imports the laws that a word names, with commas between them."""
    from grpo.insight.plans.own_law import own_law

    return options | {"law": [own_law(law) for law in options["law"].split(",")]} if "law" in options else options


def _diagnose(path: Path, settings: list[str]) -> Analysis:
    options = typed(settings, column=str, scale=positive)

    def analysis() -> None:
        from grpo.insight.pages.dynamics import write_diagnosis

        write_diagnosis(path, **options)

    return analysis


# The schedule reads these keys of a run's configuration.
SCHEDULED = ("dynamics", "normalization", "num_steps", "hardware", "rollout.refill", "learner.betas", "task.curriculum")


def _replay(path: Path, settings: list[str]) -> Analysis:
    _check_keys("replay", path, settings, ())
    for word in settings:
        key, _, value = word.partition("=")
        require(
            key not in ("dynamics", "dynamics.name") or value == "adaptive",
            f"{word} decides nothing, and replay shows what dynamics=adaptive would have decided: leave it out",
        )
        require(
            key.startswith(SCHEDULED),
            f"{word} is nothing that the schedule decides by: replay takes keys of {', '.join(SCHEDULED)}",
        )

    def analysis() -> None:
        from grpo.insight.pages.dynamics import write_replay

        write_replay(path, settings)

    return analysis


def _whatif(path: Path, settings: list[str]) -> Analysis:
    _check_keys("whatif", path, settings, (*UNITS, "output"))
    budgets = [word for word in settings if word.partition("=")[0] in UNITS]
    if len(budgets) > 1:
        raise UserError(f"give one budget, not {' and '.join(budgets)}")
    amounts = typed(budgets, steps=natural, tokens=natural, seconds=positive)
    budget = Budget(*next(iter(amounts.items()))) if amounts else None
    outputs = [word for word in settings if word.startswith("output=")]
    output = typed(outputs, output=Path).get("output")
    if output:
        require_writable(output, "output=")
    words = [word for word in settings if word not in (*budgets, *outputs)]
    keys = [word.partition("=")[0] for word in words]
    twice = next((key for key in keys if keys.count(key) > 1), "")
    require(not twice, f"{twice}= is given twice: put its values into one word, {twice}=A,B")

    def analysis() -> None:
        from grpo.insight.pages.whatif import write_whatif

        if output:
            output.mkdir(parents=True, exist_ok=True)
        write_whatif(path, words, budget, output)

    return analysis


def _check_keys(name: str, path: Path, settings: Sequence[str], own: Sequence[str]) -> None:
    """Raises `UserError` for a word that is neither a key or group of a run nor an own word, and for a foreign log."""
    keys = paths(TrainConfig())
    for key in (word.partition("=")[0].lstrip("+") for word in settings):
        is_group = bool(key) and "." not in key and (config_directory() / key).is_dir()
        has_own = f"; {name} takes {', '.join(f'{word}=' for word in own)} too" if own else ""
        require(key in (*keys, *own) or is_group or bool(free_key(key)), f"unknown key {key}{hint(key, keys)}{has_own}")
    require(
        not path.is_file(),
        f"{path} is no run's folder: {name} reads a run of grpo, whose settings it changes; fit, forecast and diagnose "
        "read logs of other frameworks",
    )


def _plan(path: Path, settings: list[str]) -> Analysis:
    kinds = {field.name: type(field.default) for field in fields(PlanRequest)}
    kinds |= dict.fromkeys(("prompt_tokens", "completion_tokens", "budget_tokens"), positive)
    kinds |= dict.fromkeys(("prompts_per_step", "smallest", "largest"), natural)
    kinds |= {"exponent": dial, "mean_exponent": dial, "ddof": degrees}
    options = typed(settings, column=str, tried=natural, machine=str, output=Path, **kinds)
    sizes = {field.name: options.get(field.name, field.default) for field in fields(PlanRequest)}
    for name in ("prompt_tokens", "completion_tokens"):
        require(sizes[name] >= 1, f"{name}={sizes[name]:g} is less than a token: give their mean number, such as 500")
    require(
        2 <= sizes["smallest"] <= sizes["largest"] <= MOST_SAMPLES,
        f"smallest={sizes['smallest']} and largest={sizes['largest']} are no range of group sizes: give at least 2, "
        f"and at most {MOST_SAMPLES:,}",
    )
    machine = read_constants(options.pop("machine")) if "machine" in options else None

    def analysis() -> None:
        from grpo.insight.pages.plan import write_plan

        pass_rates = _pass_rates(path, options.pop("column", ""))
        tried, output = options.pop("tried", pass_rates.tried), options.pop("output", path.parent)
        # A step has no more prompts than there are problems.
        most = len(pass_rates.rates)
        prompts = options.setdefault("prompts_per_step", min(PlanRequest().prompts_per_step, most))
        require(
            prompts <= most,
            f"prompts_per_step={prompts} is more than the {most:,} problems that have a pass rate: give fewer prompts",
        )
        request = PlanRequest(**pass_rates.tokens | options)
        write_plan(pass_rates.rates, pass_rates.missing, tried, request, machine, output)

    return analysis


def _pass_rates(path: Path, column: str) -> PassRates:
    """Reads the pass rates for a plan. Raises `UserError` for a run, or a folder of runs, with what reads them."""
    from grpo.tasks.solve_rates import read_solve_rates

    advice = "plan takes a file of pass rates, which `grpo solve-rates` writes"
    require(not is_run(path), f"{path} is a run, and {advice}: `grpo dynamics whatif {path}` predicts it otherwise set")
    try:
        pass_rates = read_solve_rates(path, column)
    except UserError:
        refuse_several(path, f"; `grpo dynamics whatif` reads a run, and {advice}")
        raise
    nothing = "so no group of any size teaches anything: choose other problems, or check the reward"
    require(max(pass_rates.rates) > 0, f"{path}: no problem is ever solved, {nothing}")
    require(min(pass_rates.rates) < 1, f"{path}: all problems are always solved, {nothing}")
    return pass_rates


# Reads the words of an analysis, and returns what does it.
COMMANDS: dict[str, Callable[[Path, list[str]], Analysis]] = {
    "fit": partial(_on_curve, "fit"),
    "forecast": partial(_on_curve, "forecast"),
    "diagnose": _diagnose,
    "replay": _replay,
    "whatif": _whatif,
    "plan": _plan,
}
