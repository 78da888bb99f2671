"""This module computes probability ratios between the current and the old policy."""

from grpo.algorithm.shapes import Targets

# Log ratios are cut at ±20. A larger ratio says nothing more than "far away" and could overflow later products.
LOG_RATIO_LIMIT = 20.0


def per_sequence_mean(values: Targets, sequence_index: Targets) -> Targets:
    """Averages `values` over each completion, and returns the mean at each of its tokens."""
    if not values.numel():
        return values
    # There is room for a sum per token. The number of completions would do, but only the device knows it, and the host
    # would wait.
    count = len(values)
    totals = values.new_zeros(count).index_add(0, sequence_index, values)
    lengths = values.new_zeros(count).index_add(0, sequence_index, values.detach().new_ones(values.shape))
    return (totals / lengths.clamp(min=1))[sequence_index]


def per_sequence_sum(values: Targets, sequence_index: Targets) -> Targets:
    """Sums `values` over each completion, and returns the sum at each of its tokens."""
    if not values.numel():
        return values
    totals = values.new_zeros(len(values)).index_add(0, sequence_index, values)
    return totals[sequence_index]


def log_ratio(logprobs: Targets, old_logprobs: Targets, level: str, sequence_index: Targets) -> Targets:
    """Returns log ρ, per token or per completion. For a completion, ρ is the geometric mean over its tokens.

    "token"     π(o_t) / π_old(o_t)                                   (PPO, GRPO)
    "sequence"  (π(o) / π_old(o))^(1/|o|) at every token of o         (GSPO, arXiv:2507.18071)

    "sequence_token" has the value of "sequence", and at every token the gradient of log π of that token alone
    (GSPO-token, the same paper). Summed over a completion, its gradient equals that of "sequence" if all tokens have
    the same weight. The two differ if tokens have weights of their own, such as a correction per token.
    """
    difference = logprobs - old_logprobs
    if level == "sequence":
        difference = per_sequence_mean(difference, sequence_index)
    elif level == "sequence_token":
        mean = per_sequence_mean(difference.detach(), sequence_index)
        return mean.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT) + (logprobs - logprobs.detach())
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
