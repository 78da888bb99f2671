"""A run goes back to an earlier policy when it has lost what it learned."""

from __future__ import annotations

from grpo.host.terminal import say
from grpo.interfaces import Collector, Learner, Sampler, WeightSync
from grpo.run.checkpoints import CheckpointStore


class GoingBack:
    """Returns learner and sampler to a checkpoint, while the count of optimizer steps goes on."""

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
        """Goes back to the newest whole checkpoint of a step up to `good_step`. Collective."""
        # The policy that is left behind wrote these: nothing is learned from them.
        self._collector.forget()
        checkpoint = self._store.whole(good_step)
        if checkpoint is None:
            # Only where the run was resumed from one that kept none, or where all are damaged.
            say(f"grpo: no checkpoint up to step {good_step}: the policy stays")
            return
        self._learner.rewind(str(checkpoint))
        self._weight_sync.refresh(self._learner, self._sampler)
