"""This part of `grpo.config.validate` checks the loss, whether it can learn from the samples, and whether sampling
and learning can overlap as configured.
"""

import math
import re
from urllib.parse import urlsplit

from grpo.config.errors import require
from grpo.config.loss import ObjectiveConfig
from grpo.config.run import TrainConfig
from grpo.config.task import RewardConfig, RewardPartConfig, remote_kind


def check_loss(config: TrainConfig) -> None:
    """Raises UserError for the first setting of the loss that cannot be trained with."""
    objective, kl = config.objective, config.objective.kl
    require(
        objective.dual_clip == 0 or objective.dual_clip > 1,
        f"objective.dual_clip={objective.dual_clip} must be 0 (off) or above 1",
    )
    require(
        objective.clip_low or objective.clip_high or objective.name not in ("clip", "dppo", "gmpo"),
        "objective.clip_low=0 and clip_high=0 clip every token that has moved: raise one of them, as objective="
        "clip does",
    )
    _check_objective(objective)
    _check_normalization(config)
    _check_passes(config)
    require(
        objective.aggregation.level != "constant" or objective.aggregation.constant_length > 0,
        "objective.aggregation.level=constant needs objective.aggregation.constant_length, the length to divide by: "
        f"set it to rollout.sampling.max_tokens={config.rollout.sampling.max_tokens}",
    )
    require(
        not (kl.refresh_every and config.model.lora.rank),
        f"objective.kl.refresh_every={kl.refresh_every} needs a copy of the reference, which LoRA training does not "
        "keep: set it to 0",
    )
    on_policy = config.dynamics.name == "fixed" and config.dynamics.refresh_interval == 1
    require(
        not (kl.coefficient and on_policy and kl.refresh_every == kl.refresh_rate == 1),
        "objective.kl.refresh_every=1 copies the policy into the reference after each step, so the KL of the next one "
        "is 0: raise it, or lower objective.kl.refresh_rate",
    )
    require(0 < kl.refresh_rate <= 1, f"objective.kl.refresh_rate={kl.refresh_rate} must lie in (0, 1]")
    _check_correction(config)
    sampling = config.rollout.sampling
    require(
        sampling.top_p == 1 and sampling.top_k == 0,
        f"rollout.sampling.top_p={sampling.top_p} and top_k={sampling.top_k} leave out tokens, and the learner scores "
        "all of them: train with top_p=1 and top_k=0; `grpo eval` takes both",
    )


def _check_objective(objective: ObjectiveConfig) -> None:
    name = objective.name
    require(
        not objective.dual_clip or name == "clip" or ":" in name,
        f"objective.dual_clip={objective.dual_clip} is not read by objective.name={name}: set it to 0",
    )
    require(
        objective.ratio == "token" or name not in ("dppo", "gmpo"),
        f"objective.ratio={objective.ratio} does not fit objective.name={name}, which bounds each token by itself: set "
        "objective.ratio=token",
    )
    kl, selection = objective.kl, objective.selection
    require(
        not kl.by_ratio or (kl.place == "loss" and objective.ratio == "token"),
        "objective.kl.by_ratio=true weighs each token of a KL in the loss: set objective.kl.place=loss and "
        "objective.ratio=token, or by_ratio=false",
    )
    require(0 < selection.share <= 1, f"objective.selection.share={selection.share} must lie in (0, 1]")
    require(
        selection.name != "clip_cov" or name == "clip",
        f"objective.selection.name=clip_cov chooses among tokens that the clip leaves, and {name} has another "
        "bound: set objective.name=clip",
    )
    require(
        selection.name != "kl_cov" or objective.old_logprobs == "learner",
        "objective.selection.name=kl_cov penalizes |log π − log π_old|, and with objective.old_logprobs=sampler "
        "rounding alone decides its gradient where the two are equal: set objective.old_logprobs=learner",
    )
    require(
        selection.low < selection.high,
        f"objective.selection.low={selection.low} must be below objective.selection.high={selection.high}",
    )


def _check_normalization(config: TrainConfig) -> None:
    settings = config.normalization
    require(settings.ddof in (0, 1), f"normalization.ddof={settings.ddof} must be 0 (population σ) or 1 (sample σ)")
    if settings.name != "dial":
        plain = not settings.leave_one_out and not settings.mean_exponent and settings.scope == "group"
        require(
            plain,
            f"normalization.leave_one_out, mean_exponent and scope belong to normalization.name=dial, and name is "
            f"{settings.name}: leave them as they are by default",
        )
    if not settings.dialled:
        _check_uses_of_the_dial(config)
    require(
        not (settings.leave_one_out and config.rollout.budget.enabled),
        "rollout.budget.enabled=true makes groups of several sizes, and normalization.leave_one_out=true weighs each "
        "by G/(G − 1), which the budget does not take into account: set leave_one_out=false",
    )
    if settings.name == "pass_at_k":
        _check_pass_at_k(config)
    if settings.name == "reinforce_plus_plus":
        require(
            settings.parts == "sum" and not config.rollout.refill.enabled,
            "normalization.name=reinforce_plus_plus compares with the whole step and learns from silent groups: set "
            "normalization.parts=sum and rollout.refill.enabled=false",
        )
    _check_least_std(config)
    kl_in_reward = config.objective.kl.in_reward
    require(
        settings.parts == "sum" or not kl_in_reward,
        "normalization.parts=each normalizes the parts of the reward, and the KL is not one of them: set "
        "objective.kl.place=loss",
    )
    require(
        settings.parts == "sum" or not config.rollout.refill.enabled,
        "normalization.parts=each learns from groups whose rewards are equal and whose parts differ, and "
        "rollout.refill.enabled=true replaces them: set it to false",
    )
    negative = kl_in_reward or any(map(_may_be_negative, config.task.rewards))
    require(
        not settings.mean_exponent or not negative,
        f"normalization.mean_exponent={settings.mean_exponent} divides by the mean reward, which has to be positive: "
        "set task.reward.signed=false, task.reward.overlong=keep, zero or mask, weights that are not negative (in "
        "every set and source), and objective.kl.place=loss",
    )


def _check_least_std(config: TrainConfig) -> None:
    """Refuses a normalization.min_std that no group can exceed, where the reward's own parts bound every reward."""
    settings = config.normalization
    names = [part.name for reward in config.task.rewards for part in _parts(reward)]
    if config.objective.kl.in_reward or any(":" in name or remote_kind(name) for name in names):
        return
    # Two rewards at the ends of the range have the largest σ, that of a sample.
    largest = max(map(_range, config.task.rewards), default=0.0) / math.sqrt(2 if settings.ddof else 4)
    largest = max(largest, 1.0) if settings.parts == "each" else largest
    require(
        settings.min_std < largest,
        f"normalization.min_std={settings.min_std:g} silences every group, since rewards of these parts have a σ of at "
        f"most {largest:.3g}: lower it",
    )


def _range(reward: RewardConfig) -> float:
    """Returns by how much two rewards may differ, for some source, if the value of every part is in [0, 1]."""
    sums = [sum(abs(part.weight) for part in parts) for parts in _alternatives(reward)]
    return max(sums) * (2 if reward.signed else 1) + (reward.overlong == "soft")


def _may_be_negative(reward: RewardConfig) -> bool:
    """Says whether a reward may be negative, for some source, although the value of every part is in [0, 1]."""
    return reward.signed or reward.overlong == "soft" or any(part.weight < 0 for part in _parts(reward))


def _alternatives(reward: RewardConfig) -> list[list[RewardPartConfig]]:
    """Returns the parts of the reward, and those of each source that has its own."""
    return [reward.parts, *(source_reward.parts for source_reward in reward.by_source.values())]


def _parts(reward: RewardConfig) -> list[RewardPartConfig]:
    return [part for parts in _alternatives(reward) for part in parts]


def _check_uses_of_the_dial(config: TrainConfig) -> None:
    """Refuses settings that predict a group's gradient from the dials α and β, under a normalization without them.

    With parts=each a group's gradient depends on the σ of every part, and a number of right answers does not determine
    those σ.
    """
    uses = {
        "dynamics.name=adaptive": config.dynamics.name == "adaptive",
        "rollout.budget.enabled=true": config.rollout.budget.enabled,
        f"task.curriculum.name={config.task.curriculum.name}": config.task.curriculum.name in ("weighted", "online"),
    }
    refused = next((use for use, on in uses.items() if on), None)
    settings = config.normalization
    key, dialled = ("name", "dial") if settings.name != "dial" else ("parts", "sum")
    require(
        refused is None,
        f"{refused} assumes the gradient of normalization.{key}={dialled}, and {key} is {getattr(settings, key)}: "
        "change one of the two",
    )


def _check_passes(config: TrainConfig) -> None:
    dynamics = config.dynamics
    passes, interval = dynamics.passes, dynamics.refresh_interval
    if passes == 1:
        return
    require(
        interval % passes == 0 and config.num_steps % interval == 0,
        f"dynamics.passes={passes} must divide dynamics.refresh_interval={interval}, which must divide num_steps="
        f"{config.num_steps}: change one of the three",
    )
    require(
        dynamics.name == "fixed" and config.pipeline == "off",
        f"dynamics.passes={passes} needs rounds of fixed length that are sampled before they are learned from: "
        "set dynamics=fixed and pipeline=off",
    )


def _check_pass_at_k(config: TrainConfig) -> None:
    k, size = config.normalization.k, config.dynamics.group_size
    require(
        2 <= k < size,
        f"normalization.k={k} must be at least 2 and below dynamics.group_size={size}: change one of the two",
    )
    require(
        config.normalization.ddof == 0,
        "normalization.ddof=1 has no meaning for normalization.name=pass_at_k, whose σ is over all subsets: set it "
        "to 0",
    )


def _check_correction(config: TrainConfig) -> None:
    correction = config.objective.correction
    require(
        0 <= correction.floor <= correction.cap,
        f"objective.correction.floor={correction.floor} must lie between 0 and objective.correction.cap="
        f"{correction.cap}",
    )
    require(
        correction.floor <= 1 <= correction.cap,
        f"objective.correction.floor={correction.floor} and objective.correction.cap={correction.cap} must lie below "
        "and above 1, the weight of a token to which learner and sampler give the same probability",
    )
    require(0 <= correction.veto < 1, f"objective.correction.veto={correction.veto} must lie in [0, 1)")
    corrects = correction.level != "none" and config.objective.old_logprobs == "learner"
    require(
        corrects or not (correction.floor or correction.veto),
        "objective.correction.floor and veto need the weights of a correction: set objective.correction.level=token "
        "and objective.old_logprobs=learner, or both floor and veto to 0",
    )


def check_pipeline(config: TrainConfig) -> None:
    """Raises UserError for the first setting that rules out how `pipeline` lets sampling and learning overlap."""
    require(
        not config.learner.offload_states or config.rollout.engine == "vllm",
        "learner.offload_states=true makes room for vLLM in the learner's process: leave it out, or use rollout=vllm",
    )
    require(
        not config.learner.offload_states or config.rollout.sleep in ("auto", "all"),
        f"rollout.sleep={config.rollout.sleep} keeps memory that learner.offload_states=true gives to the learner: "
        "leave one of them out",
    )
    urls = config.rollout.servers.urls
    for url in urls:
        require(
            urls.count(url) == 1, f"rollout.servers.urls names {url} twice, and a server has one address: name it once"
        )
        require(
            bool(re.fullmatch(r"https?://[^/\s]+/?", url)) and _has_port(url),
            f"rollout.servers.urls: {url!r} is no address of a server, such as http://10.0.0.5:8000",
        )
    if config.pipeline == "off":
        return
    require(
        config.rollout.engine == "vllm_server",
        f"pipeline={config.pipeline} samples while the learner works, which only servers can: add rollout=vllm_server",
    )
    require(
        config.objective.correction.level != "none",
        f"pipeline={config.pipeline} learns from an older policy's samples, which need importance weights: set "
        "objective.correction.level=token",
    )
    require(
        config.task.curriculum.name != "online",
        f"task.curriculum.name=online needs the last round's results, and pipeline={config.pipeline} does not wait for "
        "them: choose another curriculum or pipeline=off",
    )
    if config.pipeline == "continuous":
        _check_staleness(config)


def _check_staleness(config: TrainConfig) -> None:
    dynamics, bound = config.dynamics, config.rollout.max_staleness
    adaptive = dynamics.name == "adaptive"
    longest = max(dynamics.refresh_interval, dynamics.adaptive.longest_interval if adaptive else 0)
    require(
        bound >= longest - 1,
        f"rollout.max_staleness={bound} is too low for rounds of {longest} optimizer steps, which need {longest - 1}: "
        f"set it to {2 * longest - 1} to sample one round ahead, or lower dynamics."
        + ("adaptive.longest_interval" if longest > dynamics.refresh_interval else "refresh_interval"),
    )
    require(
        not config.rollout.budget.enabled,
        "rollout.budget.enabled=true asks each prompt twice, and pipeline=continuous asks once: use pipeline=one_round",
    )


def _has_port(url: str) -> bool:
    """Tells whether the port in an address is one, or is left out."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False
