"""This module estimates KL(π ‖ π_ref) from the tokens that π sampled (Schulman, "Approximating KL divergence", 2020).

All estimators take log-probabilities of both policies. As a loss term, on-policy, only k2 has the KL's gradient: that
of k1 is zero on average, and that of k3 is the gradient of the reversed divergence KL(π_ref ‖ π). In the reward, k1 is
unbiased.
"""

from grpo.algorithm.ratio import LOG_RATIO_LIMIT
from grpo.algorithm.shapes import Targets


def k1(logprobs: Targets, reference_logprobs: Targets) -> Targets:
    """Returns k1 = log π − log π_ref."""
    return logprobs - reference_logprobs


def k2(logprobs: Targets, reference_logprobs: Targets) -> Targets:
    """Returns k2 = ½ (log π − log π_ref)²."""
    return (logprobs - reference_logprobs).square() / 2


def k3(logprobs: Targets, reference_logprobs: Targets) -> Targets:
    """Returns k3 = π_ref/π − log(π_ref/π) − 1, which is never negative and has low variance (GRPO's choice)."""
    difference = (reference_logprobs - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return difference.exp() - difference - 1


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
