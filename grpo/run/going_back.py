"""This module returns a run to an earlier policy when the scheduler decides so (`Verdict.go_back`)."""

from __future__ import annotations

from pathlib import Path

from grpo.interfaces import Collector, Learner, Sampler, WeightSync


class GoingBack:
    """This object returns learner and sampler to a checkpoint. The count of optimizer steps does not go back."""

    def __init__(self, collector: Collector, learner: Learner, sampler: Sampler, weight_sync: WeightSync):
        self._collector = collector
        self._learner, self._sampler, self._weight_sync = learner, sampler, weight_sync

    def __call__(self, checkpoint: Path) -> None:
        """Goes back to `checkpoint`, which is undamaged. Collective."""
        # Groups sampled ahead come from the policy that is given up, so nothing is learned from them.
        self._collector.forget()
        self._learner.rewind(str(checkpoint))
        self._weight_sync.refresh(self._learner, self._sampler)
