"""This module returns a run to an earlier policy when the scheduler decides so (`Verdict.go_back`)."""

from __future__ import annotations

from grpo.host.terminal import say
from grpo.interfaces import Collector, Learner, Sampler, WeightSync
from grpo.run.checkpoints import CheckpointStore


class GoingBack:
    """This object returns learner and sampler to a checkpoint. The count of optimizer steps does not go back."""

    def __init__(
        self,
        store: CheckpointStore,
        collector: Collector,
        learner: Learner,
        sampler: Sampler,
        weight_sync: WeightSync,
    ):
        self._store, self._collector = store, collector
        self._learner, self._sampler, self._weight_sync = learner, sampler, weight_sync

    def __call__(self, good_step: int) -> None:
        """Goes back to the newest undamaged checkpoint that is not later than `good_step`. Collective."""
        # Groups sampled ahead come from the policy that is given up, so nothing is learned from them.
        self._collector.forget()
        checkpoint = self._store.whole(good_step)
        if checkpoint is None:
            # This happens only if the run was resumed and had kept no such checkpoint, or if all are damaged.
            say(f"grpo: there is no checkpoint up to step {good_step}: the run continues with the present policy")
            return
        self._learner.rewind(str(checkpoint))
        self._weight_sync.refresh(self._learner, self._sampler)
