"""These tests show ranks a machine with four GPUs."""

import pytest
import torch

from grpo.config import UserError
from grpo.host import ranks


@pytest.fixture
def chosen(monkeypatch):
    """Makes torch see four GPUs, and returns a list of those that are chosen."""
    devices = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    return devices


def test_each_rank_of_a_machine_has_the_gpu_of_its_number(chosen, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert ranks.device("auto") == torch.device("cuda", 3)
    assert chosen == [torch.device("cuda", 3)]


def test_a_rank_without_a_gpu_is_refused_before_torch_looks_for_one(chosen, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(UserError, match=r"no GPU for learner rank 4 .* torch sees 4: set hardware.ranks_per_node=4"):
        ranks.device("auto")
    assert chosen == []
