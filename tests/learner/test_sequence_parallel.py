"""Ranks that compute rows together wait for each other as long as the run allows."""

from datetime import timedelta

import torch.distributed as dist

from grpo.learner.sequence_parallel import SequenceGroup


def test_a_rank_waits_for_the_others_of_its_group_until_the_learners_deadline(monkeypatch):
    made = []
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "new_group", lambda members, timeout: made.append((members, timeout)))
    group = SequenceGroup(2, 1800.0)
    assert made == [([0, 1], timedelta(minutes=30)), ([2, 3], timedelta(minutes=30))]
    assert group.share(10) == slice(0, 5)
