"""This module holds the inputs on which other frameworks were run: four completions of five tokens in two groups."""

import torch

OLD = [
    [-1.0, -0.5, -2.0, -0.3, -0.7],
    [-0.2, -1.5, -0.9, -1.1, -0.4],
    [-0.6, -0.6, -1.2, -2.2, -0.1],
    [-1.3, -0.8, -0.5, -0.9, -1.6],
]
NEW = [
    [-0.9, -0.9, -1.5, -0.3, -0.7],
    [-0.5, -1.2, -0.9, -1.6, -0.4],
    [-0.2, -0.6, -1.9, -2.0, -0.1],
    [-1.8, -0.3, -0.5, -0.9, -1.2],
]
REFERENCE = [
    [-1.1, -0.7, -1.8, -0.2, -0.9],
    [-0.4, -1.0, -1.3, -1.2, -0.6],
    [-0.5, -0.9, -1.4, -1.7, -0.3],
    [-1.0, -0.6, -0.7, -1.3, -1.5],
]
OLD_MINUS_SAMPLER = [
    [0.1, -0.2, 0.05, 0.0, 0.3],
    [-0.4, 0.2, 0.1, 0.0, 0.0],
    [0.9, -0.1, 0.0, 0.2, 0.0],
    [-1.0, 0.3, 0.0, 0.0, 0.0],
]
LENGTHS = [5, 3, 4, 2]
GROUP_TOKENS = [8, 8, 6, 6]
ADVANTAGES = [1.5, -0.5, 0.8, -1.2]


def flat(rows):
    """Returns the real tokens of all completions, one after another, [targets] float64."""
    return torch.tensor(
        [value for row, length in zip(rows, LENGTHS, strict=True) for value in row[:length]], dtype=torch.float64
    )


SEQUENCE_INDEX = torch.arange(4).repeat_interleave(torch.tensor(LENGTHS))
