"""These tests lose the other end of an NCCL channel, with a stand-in group that behaves as torch's does on GPUs.

The stand-in does what torch documents of ProcessGroupNCCL: its watchdog takes the process down when it sees an error,
itself or through the process's first group, unless the group was made without one; the first collective makes the
communicator; and a shutdown waits for kernels.
"""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from grpo.weight_sync.channel import NO_WATCHDOG, open_end

CUDA = torch.device("cuda", 0)
SECONDS = 0.2


class Wire:
    """A wire is the state that the stand-ins of one channel share. In the stages named in `lost`, "connect" or
    "broadcast", the other end never takes part."""

    def __init__(self):
        self.lost, self.watchdogs, self.taken_down = set(), [], False
        self.never = threading.Event()


class NcclStandIn:
    """This stands in for torch's NCCL group. The test sets `wire`."""

    wire: Wire

    class Options:
        _timeout = timedelta(minutes=10)

    def __init__(self, store, rank, size, options):
        self.has_watchdog = os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0") != "1"
        self.wire.watchdogs.append(self.has_watchdog)
        # So that others come meanwhile.
        time.sleep(0.005)
        self.size, self.options, self.connected, self.aborted = size, options, False, False

    def eager_connect_single_device(self, device):
        self._wait_for("connect", None)
        self.connected = True

    def broadcast(self, tensors, options):
        if not self.connected:
            self.eager_connect_single_device(CUDA)
        return self

    def wait(self, timeout):
        self._wait_for("broadcast", timeout)

    def _wait_for(self, stage, timeout):
        """Waits until the others take part in a stage. A broadcast waits until its deadline, connecting waits for
        ever."""
        if stage not in self.wire.lost:
            return
        self.wire.never.wait(None if timeout is None else timeout.total_seconds())
        self.wire.taken_down |= self.has_watchdog
        raise dist.DistBackendError("a member is lost")

    def shutdown(self):
        if self.wire.lost:
            self.wire.never.wait()

    def abort(self):
        self.aborted = True


@pytest.fixture
def wire(monkeypatch):
    NcclStandIn.wire = wire = Wire()
    monkeypatch.setattr(dist, "ProcessGroupNCCL", NcclStandIn, raising=False)
    yield wire
    wire.never.set()


def opened(members=("member 1",)):
    store = dist.HashStore()
    for member in members:
        store.set(member, "here")
    return open_end(store, "127.0.0.1", 0, 2, CUDA, SECONDS)


def test_an_end_lost_in_a_broadcast_is_an_error_here_and_closing_does_not_wait_for_it(wire):
    channel = opened()
    channel.send(torch.zeros(4, dtype=torch.uint8))
    wire.lost.add("broadcast")
    with pytest.raises(RuntimeError, match="lost"):
        channel.send(torch.zeros(4, dtype=torch.uint8))
    assert not wire.taken_down
    closing = threading.Thread(target=channel.close, daemon=True)
    closing.start()
    closing.join(5)
    assert not closing.is_alive() and channel._group.aborted


def test_ends_are_connected_before_anything_is_sent_and_not_waited_for_for_ever(wire):
    assert opened()._group.connected
    wire.lost.add("connect")
    with pytest.raises(RuntimeError, match=r"not connected within 0.2 s"):
        opened()


def test_an_end_that_never_came_is_distinguished_from_one_that_does_not_connect(wire):
    with pytest.raises(RuntimeError, match=r"(?i)timeout"):
        opened(members=())
    assert wire.watchdogs == [False]


@pytest.mark.parametrize("before", [None, "0"])
def test_other_groups_keep_their_watchdog_however_many_channels_are_opened_at_once(wire, monkeypatch, before):
    monkeypatch.delenv(NO_WATCHDOG, raising=False)
    if before:
        monkeypatch.setenv(NO_WATCHDOG, before)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: opened(), range(32)))
    assert wire.watchdogs == [False] * 32
    assert os.environ.get(NO_WATCHDOG) == before
