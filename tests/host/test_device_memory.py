"""These tests check how much memory a device is said to have, and how much of it is said to be free."""

import torch

from grpo.config import TrainConfig
from grpo.host import device_memory, main_memory

GIB = 2**30


def test_a_gpu_has_what_is_free_and_what_it_has_in_all(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 * GIB, 80 * GIB))
    config = TrainConfig(device="cuda")
    assert (device_memory.available_gib(config.device), device_memory.device_gib(config.device)) == (70, 80)


def test_a_gpu_that_this_machine_lacks_is_one_of_80_gib(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = TrainConfig(device="cuda")
    assert (device_memory.available_gib(config.device), device_memory.device_gib(config.device)) == (80, 80)


def test_a_cpu_has_no_gpu_memory_and_the_main_memory_that_is_free(monkeypatch):
    monkeypatch.setattr(main_memory, "free_gib", lambda: 50.0)
    config = TrainConfig(device="cpu")
    assert (device_memory.available_gib(config.device), device_memory.device_gib(config.device)) == (50, 0)
