"""Buckets through a channel between real processes."""

import multiprocessing

import pytest
import torch

from grpo.network import listen
from grpo.weight_sync.channel import Manifest, manifest_of, open_learner_end, open_sampler_end, packed

CPU = torch.device("cpu")
BUCKETS = [
    [("odd", torch.arange(15, dtype=torch.bfloat16).view(3, 5)), ("float", torch.arange(7.0)), ("none", torch.ones(0))],
    [("one", torch.tensor([[2.5]]))],
]


def worker(port, rank, results):
    channel = open_sampler_end("127.0.0.1", port, rank, 3, CPU, 30)
    for bucket in BUCKETS:
        received = channel.receive(manifest_of(bucket))
        same = all(
            name == sent and value.dtype == tensor.dtype and torch.equal(value, tensor)
            for (name, value), (sent, tensor) in zip(received, bucket, strict=True)
        )
        results.put((rank, same))
    channel.close()


def test_every_worker_gets_every_tensor_whatever_its_type_and_shape():
    context = multiprocessing.get_context("spawn")
    listening, results = listen(), context.Queue()
    port = listening.getsockname()[1]
    workers = [context.Process(target=worker, args=(port, rank, results)) for rank in (1, 2)]
    for each in workers:
        each.start()
    channel = open_learner_end(listening, 3, CPU, 60)
    for bucket in BUCKETS:
        channel.send(packed(bucket, CPU))
    assert sorted(results.get(timeout=60) for _ in range(4)) == [(1, True), (1, True), (2, True), (2, True)]
    for each in workers:
        each.join(30)
        assert each.exitcode == 0
    channel.close()


def test_a_worker_that_does_not_come_is_not_waited_for_for_ever():
    with pytest.raises(RuntimeError, match="timeout"):
        open_learner_end(listen(), 2, CPU, 1)


def test_only_this_machine_reaches_a_channel():
    listening = listen()
    assert listening.getsockname()[0] == "127.0.0.1"
    listening.close()


def test_a_manifest_is_plain_data():
    assert manifest_of(BUCKETS[0]) == Manifest(
        ["odd", "float", "none"], ["bfloat16", "float32", "float32"], [[3, 5], [7], [0]]
    )
