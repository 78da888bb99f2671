"""A refresh copies weights from a learner to a sampler, and compares them on both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.config import LearnerConfig, RolloutConfig, SamplingConfig, UserError, WeightSyncConfig
from grpo.host import ranks
from grpo.host.terminal import say
from grpo.interfaces import Collective, Draw, Learner, Sampler
from grpo.types import Prompt, RolloutGroup, StepReport
from grpo.types import metrics as m
from grpo.weight_sync.checksum import checksums, differing

# Default limits of the mean mismatch, in nats a token. Rounding causes less than 1e-6 in float32, hundredths in
# bfloat16.
FLOAT32_MISMATCH, ROUNDED_MISMATCH = 0.02, 0.5
# A larger mismatch within the limit is reported once: coarser precisions cause it, and so do two versions of a model.
REPORTED_MISMATCH = 0.1
# Advice where the mismatch is too large.
IN_FLOAT32 = (
    "both compute in float32, so rounding is not why; use {engine}, or set weight_sync.max_mismatch to what may be "
    "learned from nevertheless"
)
WITH_ROUNDING = (
    "compare rollout.precision with learner.precision, leave out a kv_cache_dtype in rollout.engine_args, and try "
    "model.head_precision=float32 or {engine}; weight_sync.max_mismatch sets the limit"
)
WITH_MERGING = "rollout.merge_adapters=true rounds the adapters into the sampler's weights: set it to false; then "
# The engine that the run does not use, by the one that it uses.
OTHER_ENGINE = {
    True: "rollout.engine=transformers to see whether it is vLLM's version of this model",
    False: "rollout.engine=vllm to see whether it is how transformers samples this model",
}


def in_float32(learner: LearnerConfig, rollout: RolloutConfig) -> bool:
    """Says whether learner and sampler both compute in float32, the sampler's cache included."""
    cache = rollout.engine_args.get("kv_cache_dtype", "auto")
    return learner.precision == rollout.precision == "float32" and cache in ("auto", "float32")


class WeightSyncError(UserError):
    """This error says that the sampler does not hold the learner's weights, or computes something else with them.
    The sampler's completions must not be trained on."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe samples a few completions right after a refresh, so that sampler and learner score the same tokens with
    the same weights. `prompts` are this rank's. Both methods are collective."""

    prompts: Sequence[Prompt]
    sampling: SamplingConfig
    collective: Collective

    def groups(self, sampler: Sampler) -> list[RolloutGroup]:
        """Samples two completions of each prompt."""
        return sampler.generate(Draw(self.prompts, 2, self.sampling, single_turn=True))

    def mismatch(self, learner: Learner, groups: Sequence[RolloutGroup]) -> float:
        """Returns the mean |sampler − learner| over the tokens of all ranks' groups, in nats."""
        gaps = [
            abs(sampled - learned)
            for group, logprobs in zip(groups, learner.logprobs(groups), strict=True)
            for completion, learner_logprobs in zip(group.completions, logprobs, strict=True)
            for sampled, learned in zip(completion.sampler_logprobs, learner_logprobs.tolist(), strict=True)
        ]
        total, count = self.collective.sum([sum(gaps), len(gaps)])
        return total / max(count, 1)


class CheckedSync:
    """Implements `interfaces.WeightSync`, bucket by bucket, never through disk. The sampler decides how a bucket
    travels."""

    def __init__(
        self,
        max_mismatch: float,
        probe: Probe | None = None,
        float32: bool = False,
        after_each: bool = True,
        by_vllm: bool = True,
        merged: bool = False,
    ):
        """`max_mismatch` is the limit in nats a token. With `after_each` the `probe` is sampled after each refresh,
        and otherwise after the first only. Without a probe after a refresh, the first step that follows must be on
        samples of the refreshed weights. `float32` says that both sides compute in float32, `by_vllm` which engine
        samples, and `merged` whether adapters are rounded into its weights."""
        self._max_mismatch = max_mismatch
        self._probe = probe
        advice = IN_FLOAT32 if float32 else WITH_MERGING * merged + WITH_ROUNDING
        self._advice = advice.format(engine=OTHER_ENGINE[by_vllm])
        self._after_each = after_each and probe is not None
        self._reported = False

    @classmethod
    def of(
        cls,
        sync: WeightSyncConfig,
        learner: LearnerConfig,
        rollout: RolloutConfig,
        probe: Probe | None = None,
        ahead: bool = False,
    ) -> CheckedSync:
        """Builds a weight sync as configured. A `max_mismatch` of 0 means the default for the precisions. Rounds that
        are sampled `ahead` need a probe after each refresh, since their samples are of older weights."""
        float32 = in_float32(learner, rollout)
        allowed = FLOAT32_MISMATCH if float32 else ROUNDED_MISMATCH
        limit, by_vllm = sync.max_mismatch or allowed, rollout.engine != "transformers"
        return cls(limit, probe, float32, ahead, by_vllm, rollout.merge_adapters)

    def begin(self, learner: Learner, sampler: Sampler) -> None:
        """Refreshes the sampler for the first time, and probes it. So a model that sampler and learner compute
        differently is refused before anything is sampled for training.

        Collective. Raises WeightSyncError as `refresh` does, or where the probe's mismatch is too large."""
        self.refresh(learner, sampler)
        if self._probe is None or self._after_each:
            return
        groups = self._probe.groups(sampler)
        # The learner may need the whole device while it scores the completions.
        sampler.sleep()
        self._compare(learner.num_steps, self._probe.mismatch(learner, groups))
        self.refresh(learner, sampler)

    def refresh(self, learner: Learner, sampler: Sampler) -> None:
        """Copies all weights and compares checksums of both sides, and log-probabilities if each refresh is probed.

        Collective. Raises WeightSyncError with the names of weights that differ, or with the mismatch.
        """
        sampler.wake()
        sent_checksums: Counter[str] = Counter()
        for bucket in learner.weight_buckets(sampler.begin_refresh()):
            sampler.load_weights(bucket)
            sent_checksums.update(checksums(bucket))
            # The engine takes memory for its cache next.
            del bucket
        sampler.finish_weights(learner.num_steps)
        for sampler_checksums in sampler.checksums():
            different_names = differing(sent_checksums, sampler_checksums)
            if different_names:
                raise WeightSyncError(
                    f"after the refresh at step {learner.num_steps} learner and sampler hold different weights "
                    f"in {len(different_names)} tensors or groups of them: {', '.join(different_names[:5])}"
                )
        if self._after_each:
            self._compare(learner.num_steps, self._probe.mismatch(learner, self._probe.groups(sampler)))

    def check(self, report: StepReport) -> None:
        """Compares the log-probabilities of both sides after the first step that follows a refresh.

        Sampler and learner have then scored the same tokens with the same weights. With `after_each` the refresh itself
        has compared them, so this does nothing. Raises WeightSyncError when the log-probabilities differ too much."""
        mismatch = report.means[m.GAP]
        if not self._after_each and mismatch.count:
            self._compare(report.step, mismatch.value)

    def _compare(self, step: int, mismatch: float) -> None:
        if not mismatch <= self._max_mismatch:
            raise WeightSyncError(
                f"step {step}: sampler and learner disagree by {mismatch:.3g} nats a token on the sampler's own tokens "
                f"(limit {self._max_mismatch:g}): the sampler does not run the learner's policy; " + self._advice
            )
        if mismatch > REPORTED_MISMATCH and not self._reported and ranks.rank() == 0:
            self._reported = True
            say(
                f"grpo: step {step}: sampler and learner disagree by {mismatch:.3g} nats a token on the sampler's own "
                f"tokens, where rounding to bfloat16 makes hundredths: {self._advice}"
            )
