"""These tests send buckets through a channel between real processes, and lose its other end."""

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from grpo.host.network import own_address
from grpo.weight_sync.channel import NO_WATCHDOG, Host, Manifest, manifest_of, open_end, packed

CPU = torch.device("cpu")
BUCKETS = [
    [("odd", torch.arange(15, dtype=torch.bfloat16).view(3, 5)), ("float", torch.arange(7.0)), ("none", torch.ones(0))],
    [("one", torch.tensor([[2.5]]))],
]


def worker(meeting, rank, results):
    channel = open_end(meeting.join(30), meeting.host, rank, meeting.world_size, CPU, 30)
    for bucket in BUCKETS:
        received = channel.receive(manifest_of(bucket))
        same = all(
            name == sent and value.dtype == tensor.dtype and torch.equal(value, tensor)
            for (name, value), (sent, tensor) in zip(received, bucket, strict=True)
        )
        results.put((rank, same))
    channel.close()


def own_addresses():
    """Returns the loopback interface's address, and that of another one where this machine has one."""
    with suppress(OSError):
        return ["127.0.0.1", own_address("192.0.2.1")]
    return ["127.0.0.1"]


@pytest.mark.slow
@pytest.mark.parametrize("host", own_addresses())
def test_every_worker_gets_every_tensor_whatever_its_type_and_shape(host):
    # Both times the workers are forked from one process that has imported torch.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    place, results = Host(host, 3, 60), context.Queue()
    workers = [context.Process(target=worker, args=(place.meeting, rank, results)) for rank in (1, 2)]
    for process in workers:
        process.start()
    channel = open_end(place.store, host, 0, 3, CPU, 60)
    for bucket in BUCKETS:
        channel.send(packed(bucket, CPU))
    assert sorted(results.get(timeout=60) for _ in range(4)) == [(1, True), (1, True), (2, True), (2, True)]
    for process in workers:
        process.join(30)
        assert process.exitcode == 0
    channel.close()
    place.close()


def test_a_worker_that_does_not_come_is_not_waited_for_for_ever():
    place = Host("127.0.0.1", 2, 1)
    with pytest.raises(RuntimeError, match="timeout"):
        open_end(place.store, "127.0.0.1", 0, 2, CPU, 1)


def test_only_this_user_reaches_the_meeting_of_one_machine_and_it_goes():
    before = listening_ports()
    place = Host("127.0.0.1", 2, 1)
    assert listening_ports() == before
    folder = Path(place.meeting.path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    place.close()
    assert not folder.exists()


def test_who_reaches_the_port_of_a_meeting_does_not_know_its_name():
    host = own_addresses()[-1]
    if host == "127.0.0.1":
        pytest.skip("this machine has no other interface")
    place = Host(host, 2, 5)
    place.store.set("key", "value")
    assert place.meeting.join(5).get("key") == b"value"
    assert not replace(place.meeting, name="weights").join(1).check(["key"])
    assert Host(host, 2, 5).meeting.name != place.meeting.name


def listening_ports():
    return {
        connection.laddr for connection in psutil.Process().net_connections() if connection.status == psutil.CONN_LISTEN
    }


def test_a_manifest_is_plain_data():
    assert manifest_of(BUCKETS[0]) == Manifest(
        ["odd", "float", "none"], ["bfloat16", "float32", "float32"], [[3, 5], [7], [0]]
    )


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
