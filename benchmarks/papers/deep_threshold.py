"""This script tests from which refresh interval the training of a deep network is unstable.

    python benchmarks/papers/deep_threshold.py FOLDER [rate=1e-3] [steps=96] [intervals=1,4,8,16,32] [seeds=0,1]
        [objective=clip] [warmup=0]

The paper (arXiv:2606.30789) predicts such a threshold, and leaves this test to future work. Here a small transformer is
trained by this framework's own loop, at refresh intervals τ on both sides of the predicted threshold. The threshold
follows from the stiffness, which is measured from the early curves at τ = 1. A warm-up step at a fraction of the
learning rate counts as that fraction of a step, since the stiffness is proportional to the rate. A run counts as lost
when it improves by less than half as much as the runs at τ = 1 do on average. Finished runs are kept and not repeated.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.progress import track

from benchmarks.papers.comparison import Comparison, Reproduction, Row, command
from benchmarks.papers.identify import Identification, identify
from benchmarks.papers.stability import sample_and_hold_radius
from grpo.commands.words import integers
from grpo.config import UserError
from grpo.dynamics.history import History
from grpo.insight.diagnosis.evidence import window_length
from grpo.insight.logs.logs import read_log
from grpo.insight.logs.run_log import RunLog
from grpo.types import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOMENTUM = 0.9
LARGEST_INTERVAL = 4096
KNOWN_TO = 10.0
DONE = "finished"
# The stiffness is measured from the first `EARLY_SHARE` of a run at τ = 1, but from at least `FEWEST_EARLY` steps.
EARLY_SHARE, FEWEST_EARLY = 0.25, 96


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep runs the tiny experiment at each refresh interval with each seed.

    `objective` is clip or unclipped, and `rate` is the learning rate, which rises over the first `warmup` steps.
    """

    output: Path
    intervals: tuple[int, ...] = (1, 4, 8, 16, 32)
    seeds: tuple[int, ...] = (0, 1)
    steps: int = 96
    rate: float = 1e-3
    objective: str = "clip"
    warmup: int = 0

    def folder(self, interval: int, seed: int) -> Path:
        """Returns the folder of the run at refresh interval `interval` with `seed`."""
        warmup = f"-warmup{self.warmup}" if self.warmup else ""
        name = f"deep-{self.objective}-{self.rate:g}-{self.steps}{warmup}"
        return self.output / name / f"tau{interval}-seed{seed}"


def reproduce(sweep: Sweep) -> Reproduction:
    """Trains all runs that have not finished, and compares the refresh intervals of lost runs with the prediction."""
    for interval in track(sweep.intervals, "refresh intervals", transient=True):
        for seed in sweep.seeds:
            _train(sweep, interval, seed)
    logs = {(tau, seed): read_log(sweep.folder(tau, seed)) for tau in sweep.intervals for seed in sweep.seeds}
    early_fits = [identify(early_curve(logs[1, seed], sweep.steps), MOMENTUM) for seed in sweep.seeds]
    usable = [fit for fit in early_fits if known(fit.stiffness)]
    ends = {key: _gain(log) for key, log in logs.items()}
    return Reproduction(
        name="deep-threshold",
        comparisons=(*([_predictions(usable)] if usable else []), _outcomes(sweep, ends)),
        remarks=_remarks(sweep, usable, ends),
        draw=lambda figure: _draw(figure, sweep, logs),
    )


def _train(sweep: Sweep, interval: int, seed: int) -> None:
    """Trains one run in a process of its own, unless it has already finished."""
    folder = sweep.folder(interval, seed)
    if (folder / DONE).exists():
        return
    overrides = [
        "experiment=tiny",
        f"output_dir={folder}",
        f"seed={seed}",
        f"num_steps={sweep.steps}",
        f"dynamics.refresh_interval={interval}",
        f"objective={sweep.objective}",
        f"learner.learning_rate={sweep.rate:g}",
        f"learner.warmup_steps={sweep.warmup}",
        "dynamics.diagnose_every=0",
        "evaluation.num_problems=0",
        "checkpoint.every_rounds=0",
        "checkpoint.export=false",
    ]
    command = [sys.executable, "-m", "grpo.cli", "train", *overrides]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise UserError(f"{' '.join(command[2:])} failed: {(process.stderr.strip().splitlines() or ['?'])[-1]}")
    (folder / DONE).touch()


def _gain(log: RunLog) -> tuple[float, float]:
    """Returns the pass rate of the first round, and the mean pass rate of the last quarter of the rounds."""
    values = log["pass_rate"].values
    return float(values[0]), float(values[-max(len(values) // 4, 1) :].mean())


def early_curve(log: RunLog, steps: int) -> History:
    """Returns the early part of a reward curve at τ = 1, with time in steps at the full learning rate."""
    rates = log["learner/learning_rate"].values
    full_rate_steps = np.concatenate([[0.0], np.cumsum(rates / rates.max())[:-1]])
    return replace(log.history, steps=full_rate_steps).until(max(EARLY_SHARE * steps, FEWEST_EARLY))


def known(stiffness: Interval) -> bool:
    """Tells whether the stiffness is known to a factor of `KNOWN_TO`. A curve may show its plateau but not its pace."""
    return 0 < stiffness.high <= KNOWN_TO * stiffness.low


def critical_interval(stiffness: float) -> int | None:
    """Returns the smallest refresh interval τ at which training is predicted to be unstable at this stiffness.

    Unstable means that deviations grow from round to round. Above τ = 28, intervals are tried in steps of about 4 %.
    Returns None when none up to `LARGEST_INTERVAL` is unstable.
    """
    ladder = np.unique(np.round(np.geomspace(1, LARGEST_INTERVAL, 200)).astype(int))
    return next((int(tau) for tau in ladder if sample_and_hold_radius(MOMENTUM, stiffness, int(tau)) > 1), None)


def _predictions(fits: Sequence[Identification]) -> Comparison:
    rows = []
    for index, fit in enumerate(fits):
        kappa = fit.stiffness
        printed_bounds = [(1 - MOMENTUM) / value for value in (kappa.value, kappa.high, kappa.low)]
        exact_bounds = [critical_interval(value) for value in (kappa.value, kappa.high, kappa.low)]
        rows.append(Row(f"seed {index}: stiffness κ", "measured", str(kappa)))
        rows.append(Row(f"seed {index}: printed bound τ = (1−μ)/κ", "derived from κ", _between(printed_bounds)))
        rows.append(
            Row(f"seed {index}: sample and hold loses stability at τ", "derived from κ", _between(exact_bounds))
        )
    return Comparison("Predicted from the early curve at τ = 1, 95 % interval of κ", "how", rows)


def _between(values: Sequence[float | None]) -> str:
    value, low, high = ("none" if number is None else f"{number:.0f}" for number in values)
    return f"{value} [{low}, {high}]"


def _outcomes(sweep: Sweep, ends: dict[tuple[int, int], tuple[float, float]]) -> Comparison:
    rows = []
    for tau in sweep.intervals:
        cells = [f"{start:.2f} → {end:.2f}" for start, end in (ends[tau, seed] for seed in sweep.seeds)]
        num_lost = sum(_lost(sweep, ends, tau, seed) for seed in sweep.seeds)
        rows.append(Row(f"τ = {tau}: pass rate, each seed", f"{num_lost} of {len(sweep.seeds)} lost", ", ".join(cells)))
    return Comparison(f"Runs of {sweep.steps} steps, {sweep.objective}, rate {sweep.rate:g}", "outcome", rows)


def _lost(sweep: Sweep, ends: dict[tuple[int, int], tuple[float, float]], tau: int, seed: int) -> bool:
    usual_gain = np.mean([ends[1, other][1] - ends[1, other][0] for other in sweep.seeds])
    start, end = ends[tau, seed]
    return bool(end - start < usual_gain / 2)


def _remarks(sweep: Sweep, fits: Sequence[Identification], ends: dict) -> tuple[str, ...]:
    lost_taus = [tau for tau in sweep.intervals if all(_lost(sweep, ends, tau, seed) for seed in sweep.seeds)]
    stable_taus = [tau for tau in sweep.intervals if not any(_lost(sweep, ends, tau, seed) for seed in sweep.seeds)]
    boundary = f"every seed learns up to τ = {max(stable_taus)}" if stable_taus else "no interval keeps every seed"
    boundary += f", every seed is lost from τ = {min(lost_taus)}" if lost_taus else "; no interval loses every seed"
    if not fits:
        return (boundary, "the curves at τ = 1 do not show a stiffness, so no threshold is predicted")
    lowest, highest = min(fit.stiffness.low for fit in fits), max(fit.stiffness.high for fit in fits)
    exact = [critical_interval(kappa) or LARGEST_INTERVAL for kappa in (highest, lowest)]
    printed_range = [(1 - MOMENTUM) / kappa for kappa in (highest, lowest)]
    return (
        boundary,
        f"the printed bound [{printed_range[0]:.0f}, {printed_range[1]:.0f}] is "
        f"{judged(stable_taus, lost_taus, *printed_range)} as the boundary",
        f"the loss of stability under sample and hold at [{exact[0]}, {exact[1]}] is "
        f"{judged(stable_taus, lost_taus, *exact)} as the boundary",
    )


def judged(stable_taus: Sequence[int], lost_taus: Sequence[int], low: float, high: float) -> str:
    """Says whether runs confirm or refute a stability boundary that is predicted in [low, high].

    `stable_taus` are the refresh intervals at which every seed learns, and `lost_taus` those at which every seed is
    lost. A lost interval below the boundary or a stable one above it refutes. Otherwise, a stable interval (above 1)
    below it and a lost one above it together confirm.

    >>> judged([1, 8], [16, 32], 10, 14), judged([1], [4, 8], 10, 14), judged([1, 8], [32], 10, 40)
    ('confirmed', 'refuted', 'neither confirmed nor refuted')
    """
    if any(tau < low for tau in lost_taus) or any(tau > high for tau in stable_taus):
        return "refuted"
    # The prediction itself comes from the curves at τ = 1, so these confirm nothing.
    below, above = [tau for tau in stable_taus if 1 < tau <= low], [tau for tau in lost_taus if tau >= high]
    return "confirmed" if below and above else "neither confirmed nor refuted"


def _draw(figure: Figure, sweep: Sweep, logs: dict[tuple[int, int], RunLog]) -> None:
    axes = figure.subplots()
    for index, tau in enumerate(sweep.intervals):
        for seed in sweep.seeds:
            curve = logs[tau, seed]["pass_rate"]
            width = min(window_length(0), max(len(curve) // 8, 1))
            smooth = np.convolve(curve.values, np.full(width, 1 / width), "valid")
            label = f"τ = {tau}" if seed == sweep.seeds[0] else None
            axes.plot(curve.steps[width - 1 :], smooth, color=f"C{index}", linewidth=1, label=label)
    axes.set_xlabel("optimizer step")
    axes.set_ylim(0, 1)
    axes.legend()
    axes.set_title(f"pass rate of a small transformer, {sweep.objective}, rate {sweep.rate:g}")


def main(folder: str, *words: str) -> None:
    kinds = {"rate": float, "steps": int, "intervals": integers, "seeds": integers, "objective": str, "warmup": int}

    def measured(**settings: Any) -> Reproduction:
        sweep = Sweep(Path(folder), **settings)
        if 1 not in sweep.intervals:
            raise UserError("intervals must contain 1: the stiffness is measured at τ = 1")
        return reproduce(sweep)

    command([folder, *words], measured, **kinds)


if __name__ == "__main__":
    main(*sys.argv[1:])
