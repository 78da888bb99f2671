"""Ranks that compute rows together wait for each other as long as the run allows."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from grpo.config import TrainConfig
from grpo.config.parts import LearnerSettings
from grpo.learner import learner
from grpo.learner.sequence_parallel import SequenceGroup
from tests.learner.models import files_of


def test_a_rank_waits_for_the_others_of_its_group_until_the_learners_deadline(monkeypatch):
    made = []
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "new_group", lambda members, timeout: made.append((members, timeout)))
    group = SequenceGroup(2, 1800.0)
    assert made == [([0, 1], timedelta(minutes=30)), ([2, 3], timedelta(minutes=30))]
    assert group.share(10) == slice(0, 5)


def test_ranks_of_a_group_wait_as_long_as_any_phase_may_take(monkeypatch):
    config, asked = TrainConfig(), []
    config.learner.sequence_parallel = 2
    config.rollout.deadline_seconds, config.weight_sync.deadline_seconds = 7200.0, 300.0

    def group(size, deadline_seconds):
        asked.append((size, deadline_seconds))
        raise InterruptedError

    monkeypatch.setattr(learner, "SequenceGroup", group)
    with pytest.raises(InterruptedError):
        learner.DeepSpeedLearner(LearnerSettings.of(config), files_of("model"), torch.device("cpu"))
    assert asked == [(2, 7200.0 + 1800.0 + 300.0)]
