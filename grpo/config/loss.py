"""The loss as a composition: normalization × ratio × objective × aggregation × KL × correction."""

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class NormalizationConfig:
    """The dial: Â = (r − r̄) · σ^(−exponent), see `grpo.algorithm.normalization` and arXiv:2607.00152."""

    # α. 1 divides by the group's standard deviation (GRPO), 0 leaves it (Dr. GRPO); any real number.
    exponent: float = 1.0
    # Groups whose σ is not above this get advantage 0. 0 silences only rewards that are equal but for rounding.
    min_std: float = 0.0
    # ε, kept off zero division in peers' formulas. Not needed here (silent groups are never divided).
    epsilon: float = 0.0
    # Where ε enters: "std" gives (σ+ε)^(−α), "variance" gives (σ²+ε)^(−α/2).
    epsilon_in: str = "std"
    # 0: population σ (the identity of arXiv:2607.00152 holds exactly). 1: sample σ (verl, TRL).
    ddof: int = 0
    # Whose σ divides: each "group"'s own, or that of the whole "batch" of one optimizer step.
    scope: str = "group"
    # Center by the mean of the *other* completions (RLOO): (r − r̄) · G/(G−1).
    leave_one_out: bool = False


@dataclass(kw_only=True)
class AggregationConfig:
    """How token losses become one number, see `grpo.algorithm.aggregation`."""

    # token_mean (DAPO) | sequence_mean (GRPO) | constant (Dr. GRPO) | prompt_mean.
    level: str = "token_mean"
    # Only for "constant": each completion's token sum is divided by this; the maximum completion length.
    constant_length: int = 0


@dataclass(kw_only=True)
class KlConfig:
    """Distance to a reference policy, see `grpo.algorithm.kl`. With coefficient 0 there is no reference."""

    # β. 0: no KL term and no reference model.
    coefficient: float = 0.0
    # k1 | k2 | k3. As a loss term k1 does nothing on average; in the reward it is the unbiased one.
    estimator: str = "k3"
    # "loss" adds β·KL to the loss; "reward" subtracts β·ΣKL, of the learner's policy at the start of the round, from
    # each completion's reward. Groups whose own rewards are equal stay silent.
    place: str = "loss"
    # Optimizer steps between two copies of the policy into the reference; 0 keeps the first one for ever.
    refresh_every: int = 0
    # How far a refresh moves the reference: 1 copies, 0.1 moves a tenth of the way (moving average).
    refresh_rate: float = 1.0

    @property
    def in_loss(self) -> bool:
        return bool(self.coefficient) and self.place == "loss"

    @property
    def in_reward(self) -> bool:
        return bool(self.coefficient) and self.place == "reward"


@dataclass(kw_only=True)
class CorrectionConfig:
    """Importance weights from the sampler's to the learner's distribution, within bounds, see
    `grpo.algorithm.correction`."""

    # none | token | sequence (the product over a completion) | sequence_mean (its geometric mean).
    level: str = "token"
    # Largest weight. 2 is customary.
    cap: float = 2.0
    # Smallest weight; 0: none. With mode=mask and 0.5 this is IcePop's.
    floor: float = 0.0
    # "truncate": weights outside [floor, cap] are moved to its ends. "mask": their tokens (completions) are left out.
    mode: str = "truncate"
    # A completion is left out, whatever its weight, when the learner finds one of its tokens so much less probable than
    # the sampler did: 1e-4 for a ten-thousandth. 0: none.
    veto: float = 0.0


@dataclass(kw_only=True)
class ObjectiveConfig:
    """The surrogate and what surrounds it."""

    # clip (PPO's) | cispo | unclipped, see `grpo.algorithm.objective`.
    name: str = "clip"
    # Probability ratio per "token", or per "sequence" (geometric mean over its tokens, GSPO).
    ratio: str = "token"
    # The ratio is clipped to [1 − clip_low, 1 + clip_high].
    clip_low: float = 0.2
    clip_high: float = 0.2
    # Dual clip: for negative advantages the loss is at most dual_clip · |Â|. 0: off; 3 is customary.
    dual_clip: float = 0.0
    # Denominator of the ratio: the "learner"'s log-probabilities at the start of the round, or the
    # "sampler"'s (no extra forward pass; the correction is then part of the ratio, and how far sampler and learner
    # disagree is measured in the round's first step only).
    old_logprobs: str = "learner"
    # Coefficient of an entropy bonus, added to the reward of the loss; 0: none.
    entropy_coefficient: float = 0.0
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    kl: KlConfig = field(default_factory=KlConfig)
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
