"""Weights from a learner to a sampler, compared on both sides."""

from __future__ import annotations

from collections import Counter

from grpo.interfaces import Learner, Sampler
from grpo.types import StepReport
from grpo.weight_sync.checksum import checksums, differing


class WeightSyncError(RuntimeError):
    """The sampler does not hold the learner's weights: nothing it writes may be learned from."""


class CheckedSync:
    """`interfaces.WeightSync`: bucket by bucket, never through disk. How a bucket travels is the sampler's matter."""

    def __init__(self, max_mismatch: float):
        self._max_mismatch = max_mismatch

    def refresh(self, learner: Learner, sampler: Sampler) -> None:
        """Copies all weights and compares checksums of both sides. Collective.

        Raises WeightSyncError naming the tensor groups that differ.
        """
        sampler.wake()
        sent: Counter[str] = Counter()
        for bucket in learner.weight_buckets(sampler.weights_form()):
            sampler.load_weights(bucket)
            sent.update(checksums(bucket))
        sampler.finish_weights(learner.num_steps)
        for theirs in sampler.checksums():
            different = differing(sent, theirs)
            if different:
                raise WeightSyncError(
                    f"after the refresh at step {learner.num_steps} learner and sampler hold different weights "
                    f"in {len(different)} tensors or groups of them: {', '.join(different[:5])}"
                )

    def check(self, report: StepReport) -> None:
        """To be called on the first step after a refresh, where both sides scored the same tokens with
        the same weights. Raises WeightSyncError when their log-probabilities differ too much."""
        mismatch = report.means["mismatch/mean_abs"].value
        if mismatch > self._max_mismatch:
            raise WeightSyncError(
                f"step {report.step}: sampler and learner disagree by {mismatch:.3f} nats a token on the sampler's own "
                f"tokens (limit weight_sync.max_mismatch={self._max_mismatch}): it does not run the learner's policy"
            )
