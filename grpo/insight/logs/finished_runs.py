"""This module loads finished runs for a comparison, with their cost so far and pass rates at each evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from grpo.config import UserError
from grpo.config.leaves import leaves
from grpo.evaluation.held_out import is_unjudged
from grpo.insight.logs.logs import Row, costs, read_evaluations, read_run, run_config
from grpo.insight.pages.summary import asked, comparable
from grpo.insight.pages.yardstick import MEAN_REWARD, PASS_RATE, Yardstick
from grpo.telemetry.ending import Resumption, read_resumptions
from grpo.types import metrics as m

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """This type holds a run of a variant. `rows` are its rounds, `evaluations` its two or more held-out evaluations.

    `resumptions` say where it was resumed. It is compared by its `yardstick`: pass@1, or the mean reward where rewards
    do not say which completions are right.
    """

    folder: Path
    variant: str
    seed: int
    config: Mapping[str, Any]
    rows: Sequence[Row]
    evaluations: Sequence[Mapping[str, Any]]
    resumptions: Sequence[Resumption] = ()
    yardstick: Yardstick = PASS_RATE

    @cached_property
    def spent(self) -> dict[str, Array]:
        """Returns the run's cost until each evaluation, by unit: "steps", and the units of `costs`."""
        steps = np.array([evaluation["step"] for evaluation in self.evaluations], float)
        ends = [0.0, *(row["step"] for row in self.rows)]
        return {"steps": steps} | {
            unit: np.interp(steps, ends, np.concatenate([[0.0], np.cumsum(values)]))
            for unit, values in costs(self.rows).items()
        }

    @cached_property
    def held_out(self) -> Array:
        """Returns the held-out pass@1, or the mean reward, at each evaluation."""
        if self.yardstick is MEAN_REWARD:
            return np.array([evaluation["mean_reward"] for evaluation in self.evaluations])
        return np.array([evaluation["pass@1"]["value"] for evaluation in self.evaluations])

    def asked(self, index: int) -> set[str]:
        """Returns the ids of the held-out problems that an evaluation asked (0 is the first, −1 the last)."""
        return {row["problem_id"] for row in asked(self.evaluations[index])}

    def rates(self, index: int) -> dict[str, float]:
        """Returns the pass rate, or the mean reward, of each held-out problem that was graded at an evaluation (see
        `asked`)."""
        rows = self.evaluations[index]["per_problem"]
        if self.yardstick is MEAN_REWARD:
            return {row["problem_id"]: row["reward"] for row in rows}
        return {row["problem_id"]: row["correct"] / row["total"] for row in rows}

    def late(self, name: str) -> float:
        """Returns the mean of a metric over the last quarter of the rounds, or NaN when it was not logged."""
        return _mean(self.rows[-max(1, len(self.rows) // 4) :], name)

    def mean(self, name: str) -> float:
        """Returns the mean of a metric over all rounds, or NaN when it was not logged."""
        return _mean(self.rows, name)

    def cost(self, level: float, unit: str) -> tuple[float, bool]:
        """Returns the run's cost, in `unit`, until its held-out result reached `level`, and whether it reached `level`.

        The curve is first made monotone (isotonic regression), and interpolated between evaluations. If it never
        reaches the level, the cost is that of the whole run.
        """
        smooth, amounts = isotonic_regression(self.held_out).x, self.spent[unit]
        if smooth[-1] < level:
            return float(amounts[-1]), False
        index = int(np.argmax(smooth >= level))
        if index == 0:
            return float(amounts[0]), True
        share = (level - smooth[index - 1]) / (smooth[index] - smooth[index - 1])
        return float(amounts[index - 1] + share * (amounts[index] - amounts[index - 1])), True


def _mean(rows: Sequence[Row], name: str) -> float:
    values = [row[name] for row in rows if name in row]
    return float(np.mean(values)) if values else float("nan")


def load(folder: Path, variant: str, seed: int | None = None) -> Run:
    """Loads the run in `folder` as a run of `variant`. Without `seed`, the seed is that of its configuration.

    Raises `UserError` when the folder holds no run, or a run with fewer than two evaluations, or without any round that
    could be graded.
    """
    config = run_config(folder)
    evaluations, left_out = comparable(read_evaluations(folder))
    if len(evaluations) < 2:
        why = f" ({left_out[0].rstrip('.')})" if left_out else ""
        raise UserError(
            f"{folder} has {len(evaluations)} held-out evaluations{why}; a comparison needs a first and a last"
        )
    seed = config["seed"] if seed is None else seed
    rows = read_run(folder)
    if not any(row[m.COUNTS] or m.REWARD in row for row in rows):
        raise UserError(f"no completion of {folder} could be graded, so there is nothing to compare")
    yardstick = MEAN_REWARD if any(map(is_unjudged, evaluations)) else PASS_RATE
    return Run(folder, variant, seed, config, rows, evaluations, read_resumptions(folder), yardstick)


OF_ONE_RUN = ("output_dir", "seed", "checkpoint.resume")
"""These keys are a run's own, so they may differ between runs of one variant."""


def differing_keys(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns the dotted keys in which configurations differ, with the values of all. Leaves out `OF_ONE_RUN`."""
    settings = [dict(leaves(config)) for config in configs.values()]
    keys = dict.fromkeys(key for values in settings for key in values)
    rows = {key: [values.get(key) for values in settings] for key in keys if key not in OF_ONE_RUN}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}
