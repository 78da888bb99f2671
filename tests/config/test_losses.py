"""Presets of losses have their papers' settings, and senseless combinations are refused in one line."""

from copy import deepcopy
from functools import cache

import pytest

from grpo.config import NormalizationConfig, UserError
from grpo.config.hydra import compose_config, compose_sweep, config_directory
from grpo.config.validate import validate, value_at


@cache
def composed(*words):
    return compose_config([*words] if words[:1] == ("experiment=tiny",) else ["task=arithmetic", *words])


def changed(*words, **values):
    """Returns a valid run's config with some values changed. The argument `a__b` stands for the key a.b."""
    config = deepcopy(composed(*words))
    for path, value in values.items():
        *rooms, name = path.split("__")
        setattr(value_at(config, ".".join(rooms)), name, value)
    return config


PRESETS = {
    "objective=sapo": {"objective.name": "sapo", "objective.temperature_negative": 1.05},
    "objective=dppo": {"objective.name": "dppo", "objective.clip_high": 0.15, "objective.old_logprobs": "sampler"},
    "objective=gmpo": {"objective.clip_low": 0.4, "objective.aggregation.level": "sequence_mean"},
    "objective=gspo_token": {"objective.ratio": "sequence_token", "objective.clip_low": 3e-4},
    "objective=luspo": {"objective.clip_high": 2.5e-3, "objective.aggregation.constant_length": 1},
    "objective=clip_cov": {"objective.selection.share": 2e-4, "objective.selection.high": 5.0},
    "objective=kl_cov": {"objective.name": "unclipped", "objective.selection.penalty": 1.0},
    "objective=top_entropy": {"objective.selection.share": 0.2, "objective.clip_high": 0.28},
    "objective=adaptive_entropy": {"objective.entropy_target": 0.2, "objective.entropy_step": 0.005},
    "normalization=maxrl": {"normalization.exponent": 0.0, "normalization.mean_exponent": 1.0},
    "normalization=pass_at_k": {"normalization.name": "pass_at_k", "normalization.k": 2},
    "normalization=gdpo": {"normalization.parts": "each", "normalization.exponent": 1.0},
    "normalization=reinforce_plus_plus": {"normalization.name": "reinforce_plus_plus"},
}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_its_papers_settings_and_is_valid(preset):
    config = composed(preset)
    validate(config)
    assert {path: value_at(config, path) for path in PRESETS[preset]} == PRESETS[preset]


@pytest.mark.slow
def test_the_sweep_of_objectives_runs_every_preset_at_equal_samples():
    sweep = compose_sweep("objectives", [])
    assert sweep.budget == "samples" and next(iter(sweep.variants)) == "clip"
    for words in sweep.variants.values():
        validate(composed("experiment=tiny", *words))
    presets = {path.stem for path in (config_directory() / "objective").glob("*.yaml")}
    # GRPO as printed has a KL, which is another comparison.
    assert presets - {"grpo"} == {name for name in sweep.variants if f"objective={name}" in sweep.variants[name]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"objective__name": "sapo", "objective__dual_clip": 3.0}, "dual_clip=3.0 is not read by objective.name=sapo"),
        ({"objective__name": "gmpo", "objective__ratio": "sequence"}, "bounds each token by itself"),
        ({"objective__temperature_positive": 0.0}, "objective.temperature_positive=0.0 must be above 0"),
        ({"objective__selection__share": 0.0}, "objective.selection.share=0.0 must lie in (0, 1]"),
        ({"objective__selection__low": 5.0}, "objective.selection.low=5.0 must be below objective.selection.high=5.0"),
        ({"objective__name": "cispo", "objective__selection__name": "clip_cov"}, "cispo has another bound: set"),
        ({"objective__selection__name": "kl_cov", "objective__old_logprobs": "sampler"}, "rounding alone decides its"),
        ({"objective__kl__by_ratio": True, "objective__kl__place": "reward"}, "set objective.kl.place=loss"),
        ({"objective__kl__by_ratio": True, "objective__ratio": "sequence"}, "objective.ratio=token, or by_ratio=false"),
        ({"normalization__parts": "each", "rollout__refill__enabled": True}, "rollout.refill.enabled=true replaces"),
        ({"objective__entropy_target": -1.0}, "objective.entropy_target=-1.0 must not be negative"),
        ({"dynamics__passes": 0}, "dynamics.passes=0 must be above 0"),
        ({"dynamics__passes": 2, "dynamics__refresh_interval": 3}, "must divide dynamics.refresh_interval=3"),
        ({"dynamics__passes": 2, "dynamics__refresh_interval": 8}, "which must divide num_steps=100"),
        ({"dynamics__passes": 2, "dynamics__refresh_interval": 2, "dynamics__name": "adaptive"}, "set dynamics=fixed"),
        ({"normalization__name": "pass_at_k", "normalization__k": 8}, "normalization.k=8 must be at least 2 and below"),
        ({"normalization__name": "pass_at_k", "normalization__k": 1}, "normalization.k=1 must be at least 2"),
        (
            {"normalization__name": "pass_at_k", "normalization__k": 4, "rollout__budget__enabled": True},
            "rollout.budget.enabled=true assumes the gradient of",
        ),
        ({"normalization__name": "a:b", "task__curriculum__name": "online"}, "task.curriculum.name=online assumes"),
        ({"normalization__parts": "each", "task__curriculum__name": "weighted"}, "task.curriculum.name=weighted"),
        ({"normalization__parts": "each", "dynamics__name": "adaptive"}, "dynamics.name=adaptive assumes the gradient"),
        ({"normalization__parts": "each", "rollout__budget__enabled": True}, "rollout.budget.enabled=true assumes"),
        ({"normalization__leave_one_out": True, "rollout__budget__enabled": True}, "which the budget does not take"),
        ({"normalization__name": "pass_at_k", "normalization__ddof": 1}, "whose σ is over all subsets: set it to 0"),
        ({"normalization__name": "pass_at_k", "normalization__mean_exponent": 1.0}, "belong to normalization.name"),
        ({"normalization__name": "reinforce_plus_plus", "normalization__parts": "each"}, "compares with the whole"),
        ({"normalization__name": "reinforce_plus_plus", "rollout__refill__enabled": True}, "learns from silent groups"),
        ({"normalization__mean_exponent": 1.0, "task__reward__signed": True}, "set task.reward.signed=false"),
        (
            {
                "normalization__parts": "each",
                "objective__kl__place": "reward",
                "objective__kl__coefficient": 0.1,
            },
            "set objective.kl.place=loss",
        ),
    ],
)  # fmt: skip
def test_senseless_combinations_are_refused(values, message):
    with pytest.raises(UserError) as refused:
        validate(changed(**values))
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("use", ["dynamics__name", "task__curriculum__name", "rollout__budget__enabled"])
def test_a_sigma_of_the_whole_step_weighs_its_groups_as_alpha_zero_does(use):
    value = {"dynamics__name": "adaptive", "task__curriculum__name": "weighted"}.get(use, True)
    config = changed(**{"normalization__scope": "batch", "normalization__mean_exponent": 0.5, use: value})
    validate(config)
    assert config.normalization.dials == (0.0, 0.5)
    assert NormalizationConfig(exponent=0.7).dials == (0.7, 0.0)
