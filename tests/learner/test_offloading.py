"""These tests hold that what leaves a device comes back bit by bit, under every view of it. test_learner.py tries
DeepSpeed's own states."""

import pytest
import torch

from grpo.learner import offloading
from grpo.learner.offloading import MainMemory

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Makes chunks so small that no tensor of these tests fits into one chunk, so that each tensor is cut."""
    monkeypatch.setattr(offloading, "CHUNK", 64)


def tensors():
    torch.manual_seed(0)
    flat = torch.randn(100)
    flat[3] = torch.nan
    # Two views of one storage, as DeepSpeed's flat buffers have them; other types; nothing at all.
    views = [flat[:60].view(6, 10), flat[60:]]
    return [flat, *views, torch.randn(7, 5).bfloat16(), torch.arange(33), torch.zeros(0)]


def bits(values):
    return [value.clone().view(torch.uint8) for value in values]


def test_storages_are_empty_while_they_are_away_and_come_back_bit_by_bit():
    values, memory = tensors(), MainMemory(CPU)
    before = bits(values)
    memory.take(values)
    assert [value.untyped_storage().nbytes() for value in values] == [0] * 6
    memory.give_back()
    assert all(map(torch.equal, bits(values), before))
    values[0][70] = 5.0
    assert values[2][10] == 5.0, "views are of one storage again"


def test_states_that_leave_in_two_parts_come_back_at_once_and_the_memory_is_used_again():
    values, memory = tensors(), MainMemory(CPU)
    before = bits(values)
    for _ in range(3):
        memory.take(values[3:])
        assert torch.equal(bits(values[:1])[0], before[0])
        memory.take(values)
        memory.give_back()
        assert all(map(torch.equal, bits(values), before))
    # 400, 70 and 264 bytes in pieces of 64.
    assert len(memory._chunks) == 12


def test_states_that_changed_after_their_return_leave_changed():
    values, memory = tensors(), MainMemory(CPU)
    memory.take(values)
    memory.give_back()
    values[4] += 1
    memory.take(values)
    memory.give_back()
    assert values[4].tolist() == list(range(1, 34))


def test_tensors_of_another_device_stay():
    elsewhere, memory = torch.zeros(3, device="meta"), MainMemory(CPU)
    memory.take([elsewhere])
    assert elsewhere.untyped_storage().nbytes() == 12


def test_a_tensor_that_another_stream_still_writes_leaves_once_it_is_written():
    value = torch.zeros(100)

    class Streams(MainMemory):
        def _wait(self):
            if value.untyped_storage().nbytes():
                value.fill_(7.0)

    memory = Streams(CPU)
    memory.take([value])
    memory.give_back()
    assert memory._chunks[0].view(torch.float32)[0] == 7.0
