"""Estimators of KL(π ‖ π_ref) from the tokens that π sampled (Schulman, "Approximating KL divergence", 2020).

All take log-probabilities [targets] of both policies. As a loss term only k2 has the KL's gradient
on-policy: k1's is zero on average, k3's is that of the reversed divergence. In the reward, k1 is unbiased.
"""

from __future__ import annotations

from torch import Tensor


def k1(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """log π − log π_ref."""
    return logprobs - reference_logprobs


def k2(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """½ (log π − log π_ref)²."""
    return (logprobs - reference_logprobs).square() / 2


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """π_ref/π − log(π_ref/π) − 1: never negative, low variance (GRPO's choice)."""
    difference = (reference_logprobs - logprobs).clamp(-20.0, 20.0)
    return difference.exp() - difference - 1


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
