"""These tests send buckets through a channel between real processes."""

import multiprocessing
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from grpo.host.network import own_address
from grpo.weight_sync.channel import Host, Manifest, manifest_of, open_end, packed

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
