"""What a way of overlapping puts together."""

import pytest

from grpo.config import TrainConfig
from grpo.run.clocks import Clocks
from grpo.run.pipeline import PROBED_PROMPTS, PROBED_TOKENS, build_pipeline
from grpo.telemetry import Phases
from tests.fakes import ScriptedSampler, ScriptedTask, SingleRank


class Alone(SingleRank):
    def apart(self, seconds):
        return self


@pytest.mark.parametrize("pipeline", ["off", "one_round", "continuous"])
def test_where_rounds_are_sampled_ahead_sampler_and_learner_are_compared_after_every_refresh(pipeline):
    config, task = TrainConfig(pipeline=pipeline), ScriptedTask([(1, 0)] * 4)
    config.rollout.sampling.max_tokens = 1000
    _, sync = build_pipeline(config, task, ScriptedSampler(), Alone(), Clocks(config, Phases()))
    # What is asked to see it is asked of nobody's share of the stream.
    assert task.cursor == 0
    assert sync._max_mismatch == 0.5
    if pipeline == "off":
        assert sync._probe is None
    else:
        assert len(sync._probe.prompts) == PROBED_PROMPTS and sync._probe.sampling.max_tokens == PROBED_TOKENS
