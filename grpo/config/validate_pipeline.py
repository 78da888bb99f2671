"""This part of `grpo.config.validate` checks whether sampling and learning can overlap as configured."""

from __future__ import annotations

import re

from grpo.config.errors import require
from grpo.config.run import TrainConfig


def check_pipeline(config: TrainConfig) -> None:
    """Raises UserError for the first setting that rules out how `pipeline` lets sampling and learning overlap."""
    require(
        not config.learner.offload_states or config.rollout.engine != "vllm_server",
        "learner.offload_states=true makes room for an engine in the learner's process, and servers have GPUs of their "
        "own: leave it out, or use rollout=vllm",
    )
    for url in config.rollout.servers.urls:
        require(
            bool(re.fullmatch(r"https?://[^/\s]+/?", url)),
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
