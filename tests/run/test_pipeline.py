"""These tests check which parts of a run each value of `pipeline` puts together."""

from dataclasses import replace

import pytest

from grpo.config import NormalizationConfig, TrainConfig, UserError
from grpo.config.hydra import compose_config
from grpo.config.validate import validate
from grpo.run.assembly import PROBED_PROMPTS, PROBED_TOKENS, build_pipeline, part_weights
from grpo.run.clocks import Clocks
from grpo.telemetry.phases import Phases
from grpo.types import RoundPlan
from tests.fakes import ScriptedSampler, ScriptedTask, SingleRank, ids


class Alone(SingleRank):
    deadline = None

    def apart(self, seconds):
        self.deadline = seconds
        return self


@pytest.mark.parametrize("pipeline", ["off", "one_round", "continuous"])
def test_sampler_and_learner_are_compared_first_and_where_rounds_are_sampled_ahead_after_every_refresh(pipeline):
    config, task = TrainConfig(pipeline=pipeline), ScriptedTask([(1, 0)] * 4)
    config.rollout.sampling.max_tokens = 1000
    config.rollout.deadline_seconds, alone = 7200.0, Alone()
    _, sync = build_pipeline(config, task, ScriptedSampler(), alone, Clocks(config, Phases()))
    assert alone.deadline == (7200.0 if pipeline == "one_round" else None)
    # The probe does not consume prompts of the training stream.
    assert task.cursor == 0
    assert sync._max_mismatch == 0.5
    assert len(sync._probe.prompts) == PROBED_PROMPTS and sync._probe.sampling.max_tokens == PROBED_TOKENS
    assert sync._after_each == (pipeline != "off")


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, ["p0", "p1", "p2"]),
        # Every pair of p0 has a right one, so its best is 1 whichever it is.
        ({"name": "pass_at_k", "k": 2}, ["p1", "p2", "p4"]),
        ({"name": "pass_at_k", "k": 3}, ["p2", "p5", "p7"]),
        ({"min_std": 0.45}, ["p1", "p4", "p6"]),
        ({"scope": "batch", "min_std": 0.45}, ["p0", "p1", "p2"]),
    ],
)
def test_refill_replaces_the_groups_that_the_normalization_makes_nothing_of(settings, kept):
    groups = [
        (1, 1, 1, 0),
        (1, 1, 0, 0),
        (1, 0, 0, 0),
        (1, 1, 1, 1),
        (1, 1, 0, 0),
        (0, 0, 1, 0),
        (0, 1, 0, 1),
        (0, 0, 0, 1),
    ]
    config = TrainConfig()
    config.normalization = NormalizationConfig(**settings)
    config.rollout.refill.enabled, config.rollout.refill.max_waves = True, 9
    task = ScriptedTask(groups)
    collector, _ = build_pipeline(config, task, ScriptedSampler(), Alone(), Clocks(config, Phases()))
    plan = RoundPlan(group_size=4, refresh_interval=1, prompts_per_step=3)
    assert ids(collector.collect(plan, 9).groups) == kept


class CutTask(ScriptedTask):
    """This task leaves out of the loss, in every group, the completions whose number is in `cut` of the prompt."""

    def __init__(self, rewards, cut):
        super().__init__(rewards)
        self.cut = cut

    def _scored(self, group):
        cut = self.cut.get(group.prompt.problem.problem_id, ())
        return replace(
            super()._scored(group), included=tuple(number not in cut for number in range(len(group.completions)))
        )


@pytest.mark.parametrize(
    ("normalization", "cut", "kept"),
    [
        # All completions of p1, and one of p2, were too long and are masked.
        ("dial", {"p1": range(4), "p2": [0]}, ["p0", "p2", "p3"]),
        ("own.py:normalize", {"p1": range(4), "p2": [0]}, ["p0", "p2", "p3"]),
        # The completions of p0 that are left have the mean reward, so their advantage is 0.
        ("dial", {"p0": [0, 1]}, ["p1", "p2", "p3"]),
    ],
)
def test_refill_replaces_the_groups_of_which_no_completion_is_learned_from(normalization, cut, kept):
    task = CutTask([(1, 0, 0.5, 0.5), *[(1, 1, 0, 0)] * 7], cut)
    config = TrainConfig()
    config.normalization = NormalizationConfig(name=normalization)
    config.rollout.refill.enabled = True
    collector, _ = build_pipeline(config, task, ScriptedSampler(), Alone(), Clocks(config, Phases()))
    collected = collector.collect(RoundPlan(group_size=4, refresh_interval=1, prompts_per_step=3), 9)
    assert ids(collected.groups) == kept
    assert ids(collected.sampled) == ["p0", "p1", "p2", "p3"]


@pytest.mark.parametrize("settings", [{"pipeline": "continuous"}, {"budget": True}])
def test_a_reward_of_all_groups_of_a_round_is_refused_where_they_are_not_graded_together(settings):
    config, task = TrainConfig(pipeline=settings.get("pipeline", "off")), ScriptedTask([(1, 0)] * 4)
    config.rollout.budget.enabled = settings.get("budget", False)
    task.grades_together = True
    with pytest.raises(UserError, match=r"f\(groups\) takes all groups of a round, and (pipeline|rollout\.budget)"):
        build_pipeline(config, task, ScriptedSampler(), Alone(), Clocks(config, Phases()))


def test_a_penalty_of_any_set_is_a_part_of_the_reward():
    alike = ["task=mixed", "+task@task.sets.a=arithmetic", "+task@task.sets.b=arithmetic", "normalization=gdpo"]
    config = compose_config([*alike, "task.sets.b.reward.overlong=soft", "task.sets.b.reward.overlong_buffer=8"])
    validate(config)
    # With normalization.parts=each only the parts that are named here become advantages.
    weights = part_weights(compose_config(alike).task)
    assert "overlong" not in weights and part_weights(config.task) == weights | {"overlong": 1.0}
