"""The loss is put together from normalization, ratio, objective, aggregation, KL and correction."""

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class NormalizationConfig:
    """The dials make advantages of a group's rewards: Â = (r − r̄) · σ^(−exponent) · r̄^(−mean_exponent).

    See `grpo.algorithm.normalization` and arXiv:2607.00152. GRPO, Dr. GRPO, MaxRL and what lies between differ in the
    two exponents only.
    """

    # dial is the formula above. pass_at_k rewards the best of k (arXiv:2508.10751). reinforce_plus_plus takes mean and
    # σ of the whole step (arXiv:2501.03262). package.module:function is one's own (grpo/algorithm/README.md).
    name: str = "dial"
    # The exponent α says how far σ is divided out. 1 divides by the group's standard deviation (GRPO), 0 leaves it
    # (Dr. GRPO; TRL: scale_rewards=none; verl: norm_adv_by_std_in_grpo=false). Any real number is allowed, e.g. 0.5.
    exponent: float = 1.0
    # The exponent β says how far the mean reward r̄ is divided out. 1 with exponent=0 is MaxRL (arXiv:2602.02710), 0
    # leaves it. It needs rewards that are not negative.
    mean_exponent: float = 0.0
    # With name=pass_at_k, a subset of this many completions gets the best of its rewards.
    k: int = 2
    # sum normalizes the weighted sum of the reward's parts. each normalizes every part by itself, and divides their
    # weighted sum by its σ over the step (GDPO, arXiv:2601.05242; TRL: multi_objective_aggregation).
    parts: str = "sum"
    # A group whose σ is not above this gets advantage 0. 0 silences only rewards that are equal but for rounding.
    min_std: float = 0.0
    # This ε is added to σ, as TRL and verl do against division by zero. Here 0 is safe: silent groups are never
    # divided. TRL adds 1e-4, verl 1e-6.
    epsilon: float = 0.0
    # std adds ε to σ, which gives (σ + ε)^(−α). variance adds it to σ², which gives (σ² + ε)^(−α/2).
    epsilon_in: str = "std"
    # σ divides by G − ddof. 0 is the population σ, with which the identity of arXiv:2607.00152 holds exactly; 1 is the
    # sample σ of verl and TRL.
    ddof: int = 0
    # group divides by each group's own σ, batch by that of all rewards in one optimizer step (TRL: scale_rewards).
    scope: str = "group"
    # True centers a reward by the mean of the other completions (RLOO): (r − r̄) · G/(G − 1). Groups of several sizes
    # (rollout.budget.enabled) are refused with it.
    leave_one_out: bool = False

    @property
    def dialled(self) -> bool:
        """Says whether a group's gradient is σ^(2−α)·r̄^(−β)·Δs, times a factor that all groups of a step share.

        With `leave_one_out` that factor is G/(G − 1), so groups of several sizes (rollout.budget) are refused there.
        """
        return self.name == "dial" and self.parts == "sum"

    @property
    def dials(self) -> tuple[float, float]:
        """Returns α and β, which weigh the groups of one step against each other. They mean nothing unless `dialled`.

        With scope=batch, σ^(−α) is the same number for all groups. So α is 0 here, whatever the exponent is.
        """
        return 0.0 if self.scope == "batch" else self.exponent, self.mean_exponent


@dataclass(kw_only=True)
class AggregationConfig:
    """Aggregation weighs token losses into one number, see `grpo.algorithm.aggregation`."""

    # token_mean weighs all tokens alike (DAPO), sequence_mean all completions (GRPO), prompt_mean all prompts. constant
    # divides token sums by constant_length (Dr. GRPO). This is TRL's loss_type and verl's loss_agg_mode. One's own is
    # named by package.module:function.
    level: str = "token_mean"
    # With level=constant, each completion's token sum is divided by this, usually rollout.sampling.max_tokens. Other
    # levels do not read it.
    constant_length: int = 0


@dataclass(kw_only=True)
class KlConfig:
    """The KL term keeps the policy near a reference policy, see `grpo.algorithm.kl`."""

    # β is the weight of the KL term, e.g. 0.04 (TRL: beta; verl: kl_loss_coef, or kl_coef for the reward). 0 means no
    # KL term and no reference model; 1000 is the most.
    coefficient: float = 0.0
    # k1, k2 and k3 are estimators of the KL. As a loss term k1 does nothing on average; in the reward only k1 is
    # unbiased. One's own is named by package.module:function.
    estimator: str = "k3"
    # loss adds β·KL to the loss. reward subtracts β·ΣKL from each completion's reward, with the learner's policy at the
    # start of the round; groups whose own rewards are equal stay silent.
    place: str = "loss"
    # True multiplies the KL in the loss by the token's ratio π/π_old, gradient included. This corrects it for samples
    # of an older policy (DeepSeek-V3.2, arXiv:2512.02556; TRL: use_bias_correction_kl).
    by_ratio: bool = False
    # The policy is copied into the reference every so many optimizer steps (TRL: ref_model_sync_steps). 0 keeps the
    # first reference.
    refresh_every: int = 0
    # A refresh moves the reference by this share of the way to the policy: 1 copies it, 0.1 moves a tenth of the way
    # (TRL: ref_model_mixup_alpha).
    refresh_rate: float = 1.0

    @property
    def in_loss(self) -> bool:
        return bool(self.coefficient) and self.place == "loss"

    @property
    def in_reward(self) -> bool:
        return bool(self.coefficient) and self.place == "reward"


@dataclass(kw_only=True)
class CorrectionConfig:
    """The correction weighs samples by learner probability over sampler probability, within bounds.

    Sampler and learner differ by kernels and precision, and by age when the sampler is ahead. See
    `grpo.algorithm.correction`.
    """

    # The weight is taken per token, per completion as the product over its tokens (sequence), or as their geometric
    # mean (sequence_mean). Each branch of an episode whose history was rewritten has its own. none leaves samples
    # unweighted (TRL: vllm_importance_sampling_correction=false).
    level: str = "token"
    # No weight is above this; 2 is customary (TRL: vllm_importance_sampling_clip_max;
    # verl: rollout_is_threshold).
    cap: float = 2.0
    # No weight is below this; 0 sets no lower bound. 0.5 with mode=mask is IcePop.
    floor: float = 0.0
    # Weights outside [floor, cap] are moved to the nearer bound (truncate), or their tokens or completions are left
    # out (mask).
    mode: str = "truncate"
    # A completion, or a branch of an episode, is left out when the learner gives one of its tokens less than this share
    # of the sampler's probability. 1e-4 means a ten-thousandth; 0 leaves none out.
    veto: float = 0.0


@dataclass(kw_only=True)
class TokenSelectionConfig:
    """The selection changes the loss of some tokens, which are chosen among all tokens of the optimizer step.

    The step's tokens are computed once more for it, without gradient. See `grpo.algorithm.token_selection`.
    """

    # clip_cov removes gradient of tokens whose log-probability and advantage vary together. kl_cov penalizes the change
    # of those that do so most (arXiv:2505.22617). top_entropy learns from the tokens with the highest entropy only
    # (arXiv:2506.01939; TRL: top_entropy_quantile). With learner.precision=bfloat16, rounding decides on tokens near
    # the limit, and another packing may choose others.
    name: str = "none"
    # This share of the step's tokens is chosen, rounded down, but at least one: 0.2 for top_entropy, 2e-4 for clip_cov
    # and kl_cov. Tokens that are equal at the limit, within 1e-5, count in part, so that rounding does not decide among
    # them.
    share: float = 0.2
    # clip_cov removes gradient of tokens whose covariance is above this (verl: clip_cov_lb).
    low: float = 1.0
    # clip_cov removes gradient of tokens whose covariance is below this (verl: clip_cov_ub).
    high: float = 5.0
    # kl_cov adds this times |log π − log π_old| to the loss of each token that it chose (verl: ppo_kl_coef), but
    # nothing below 1e-5, where rounding decides the sign. 1000 is the most.
    penalty: float = 1.0


@dataclass(kw_only=True)
class ObjectiveConfig:
    """The objective is the loss of one token, made of its probability ratio and its advantage."""

    # clip is PPO's clipped surrogate. cispo clips the weight but not the gradient. unclipped is −ratio · advantage.
    # sapo has a soft gate, dppo a bound on probabilities, gmpo a geometric mean of clipped ratios. One's own is named
    # by package.module:function. See grpo/algorithm/README.md.
    name: str = "clip"
    # The probability ratio is taken per token, or per completion as its tokens' geometric mean (sequence, GSPO; TRL:
    # importance_sampling_level). sequence_token has that value with each token's own gradient (GSPO-token; verl: gspo).
    ratio: str = "token"
    # The ratio is clipped from below at 1 − clip_low (TRL: epsilon; verl: clip_ratio_low).
    clip_low: float = 0.2
    # The ratio is clipped from above at 1 + clip_high; DAPO has 0.28 (TRL: epsilon_high; verl: clip_ratio_high). With
    # gmpo the two bound the ratio's logarithm, with dppo the change of the token's probability; with them and clip
    # one of the two is above 0. sapo and unclipped read neither, and log no clipped tokens.
    clip_high: float = 0.2
    # For a negative advantage the loss is at most dual_clip · |Â| (verl: clip_ratio_c). 0 turns it off; 3 is usual.
    dual_clip: float = 0.0
    # sapo's gate has this temperature for positive advantages (TRL: sapo_temperature_pos; verl: tau_pos).
    temperature_positive: float = 1.0
    # sapo's gate has this temperature for all others (TRL: sapo_temperature_neg; verl: tau_neg).
    temperature_negative: float = 1.05
    # The ratio divides by the learner's probabilities at the start of the round, or by the sampler's. sampler saves a
    # forward pass; the correction is then part of the ratio, and the mismatch of sampler and learner is measured in the
    # round's first step only.
    old_logprobs: str = "learner"
    # The entropy of the policy, times this, is subtracted from the loss as a bonus (verl: entropy_coeff). 0: no bonus;
    # 1000 is the most.
    entropy_coefficient: float = 0.0
    # Above 0, the coefficient follows the entropy. While the policy's entropy is at most this many nats, the
    # coefficient grows by entropy_step a round and is applied. Above that, it shrinks and is not applied (Skywork-OR1,
    # arXiv:2505.22312; TRL: entropy_target). 0 keeps it as it is.
    entropy_target: float = 0.0
    # The coefficient moves by this after each round, between 0 and 1 (TRL: entropy_coef_delta). 1 is the most.
    entropy_step: float = 0.005
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    selection: TokenSelectionConfig = field(default_factory=TokenSelectionConfig)
    kl: KlConfig = field(default_factory=KlConfig)
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
