"""This part of `grpo.config.validate` checks the loss, and whether it can learn from the samples."""

from __future__ import annotations

from grpo.config.errors import require
from grpo.config.run import TrainConfig


def check_loss(config: TrainConfig) -> None:
    """Raises UserError for the first setting of the loss that cannot be trained with."""
    objective, kl = config.objective, config.objective.kl
    require(0 <= objective.clip_low <= 1, f"objective.clip_low={objective.clip_low} must lie in [0, 1]")
    require(objective.clip_high >= 0, f"objective.clip_high={objective.clip_high} must not be negative")
    require(
        objective.dual_clip == 0 or objective.dual_clip > 1,
        f"objective.dual_clip={objective.dual_clip} must be 0 (off) or above 1",
    )
    require(
        config.normalization.ddof in (0, 1),
        f"normalization.ddof={config.normalization.ddof} must be 0 (population σ) or 1 (sample σ)",
    )
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
    require(0 < kl.refresh_rate <= 1, f"objective.kl.refresh_rate={kl.refresh_rate} must lie in (0, 1]")
    _check_correction(config)
    sampling = config.rollout.sampling
    require(
        sampling.top_p == 1 and sampling.top_k == 0,
        f"rollout.sampling.top_p={sampling.top_p} and top_k={sampling.top_k} leave out tokens, and the learner scores "
        "all of them: train with top_p=1 and top_k=0; `grpo eval` takes both",
    )


def _check_correction(config: TrainConfig) -> None:
    correction = config.objective.correction
    require(
        0 <= correction.floor <= correction.cap,
        f"objective.correction.floor={correction.floor} must lie between 0 and objective.correction.cap="
        f"{correction.cap}",
    )
    require(0 <= correction.veto < 1, f"objective.correction.veto={correction.veto} must lie in [0, 1)")
    corrects = correction.level != "none" and config.objective.old_logprobs == "learner"
    require(
        corrects or not (correction.floor or correction.veto),
        "objective.correction.floor and veto need the weights of a correction: set objective.correction.level=token "
        "and objective.old_logprobs=learner, or both floor and veto to 0",
    )
