import pytest

from grpo.config import LearnerConfig
from grpo.config.optimizer import learning_rate_factor


def test_learning_rate_warms_up_and_decays():
    cosine = LearnerConfig(schedule="cosine", warmup_steps=4, min_lr_fraction=0.1)
    factors = [learning_rate_factor(step, cosine, 12) for step in (0, 3, 4, 8, 12, 99)]
    assert factors == pytest.approx([0.25, 1.0, 1.0, 0.55, 0.1, 0.1])
    linear = LearnerConfig(schedule="linear")
    assert [learning_rate_factor(step, linear, 4) for step in (0, 1, 4)] == [1.0, 0.75, 0.0]
