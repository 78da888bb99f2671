"""This module implements DAPO's soft overlong penalty (arXiv:2503.14476, section 3.4)."""


def overlong_penalty(length: int, max_length: int, buffer: int) -> float:
    """Returns 0 up to `max_length` − `buffer` tokens, then falls linearly to −1 at `max_length`, and stays at −1.

    >>> [overlong_penalty(length, 20, 8) for length in (12, 14, 20, 21)]
    [0.0, -0.25, -1.0, -1.0]
    """
    return max(-1.0, min(0.0, (max_length - buffer - length) / buffer))
