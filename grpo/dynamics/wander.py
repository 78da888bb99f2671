"""This module asks whether a curve that only wanders about a level or a line explains the data as well as a law does.

Policies and the topics of prompts wander: what is above the curve in one round is above it in the next ones too. The
wander is an AR(1) series, of unknown memory and size, beside the known errors of measurement. A law is compared with a
level and a line under the best wander of each, so nothing is gained by following the wander.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# The memory of the wander, as the correlation of neighbouring rounds, and its variance over that of the errors. A
# longer memory than these could follow any curve.
MEMORIES, SIZES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98), (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
GRID: Array = np.array(list(product(MEMORIES, SIZES))).T
# The wander has two parameters.
NUM_PARAMETERS = 2
# Longer curves are averaged into as many blocks.
MOST_BLOCKS = 400


def deviances(values: Array, errors: Array, curves: Array) -> tuple[Array, Array]:
    """Returns −2·log-likelihood at the best wander: of each of `curves` [curves, points], and of the best level and the
    best line [2]. `values` and `errors` are [points]. A common constant is left out.
    """
    time = np.linspace(-1.0, 1.0, len(values))
    columns, errors = _blocks(np.vstack([values - curves, values, np.ones_like(time), time]), errors)
    white, log_variances = _whitened(columns, errors)
    of_curves = np.sum(white[:, :-3] ** 2, axis=2)
    value, line = white[:, -3], white[:, -2:]
    of_lines = np.array([_left(value, line[:, :1]), _left(value, line)]).T
    return np.min(of_curves + log_variances[:, None], axis=0), np.min(of_lines + log_variances[:, None], axis=0)


def _blocks(columns: Array, errors: Array) -> tuple[Array, Array]:
    """Averages neighbouring points, weighted by 1/error², into at most `MOST_BLOCKS`."""
    parts = np.array_split(np.arange(len(errors)), min(MOST_BLOCKS, len(errors)))
    weights = [errors[part] ** -2.0 for part in parts]
    means = [columns[:, part] @ weight / weight.sum() for part, weight in zip(parts, weights, strict=True)]
    return np.array(means).T, np.array([weight.sum() ** -0.5 for weight in weights])


def _whitened(columns: Array, errors: Array) -> tuple[Array, Array]:
    """Returns the columns' innovations over their standard deviations, [grid, columns, points], and the sum of the
    logarithms of the variances [grid]. This is the Kalman filter of an AR(1) series that is measured with errors."""
    memory, size = GRID
    stationary = size * float(np.mean(errors**2))
    mean, variance = np.zeros((len(memory), len(columns))), stationary.copy()
    white, log_variances = np.empty((len(memory), *columns.shape)), np.zeros(len(memory))
    for point, (column, error) in enumerate(zip(columns.T, errors, strict=True)):
        total = variance + error**2
        miss = column - mean
        white[:, :, point] = miss / np.sqrt(total)[:, None]
        log_variances += np.log(total)
        mean = memory[:, None] * (mean + (variance / total)[:, None] * miss)
        variance = memory**2 * (variance - variance**2 / total) + (1 - memory**2) * stationary
    return white, log_variances


def _left(value: Array, rows: Array) -> Array:
    """Returns the sum of squares [grid] that regression on `rows` [grid, rows, points] leaves of `value`."""
    information, right = rows @ rows.transpose(0, 2, 1), rows @ value[:, :, None]
    explained = right.transpose(0, 2, 1) @ np.linalg.solve(information, right)
    return np.sum(value**2, axis=1) - explained[:, 0, 0]
