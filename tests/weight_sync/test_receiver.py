"""These tests refresh vLLM's layers on a CPU, run its workers between messages, and compare LoRA's weights."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from grpo.weight_sync.checksum import checksums

# It imports vLLM, which takes seconds.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def receiver():
    """Imports the module only where it is used, since every test run collects this file."""
    return pytest.importorskip("grpo.weight_sync.vllm_receiver")


def model(dtype):
    torch.manual_seed(0)
    layers = nn.ModuleDict(
        {"plain": nn.Linear(48, 32, bias=False, dtype=dtype), "biased": nn.Linear(48, 32, dtype=dtype)}
    )
    for layer in layers.values():
        layer.cpu_linear = linear
    return layers


def receiving(receiver, layers):
    taken = receiver.WeightReceiver()
    taken.model_runner = SimpleNamespace(model=layers)
    taken.take_onednn()


@pytest.mark.parametrize("rows", [(), (5,), (2, 5), (0,)])
def test_layers_in_float32_multiply_by_onednn_to_the_same_result(receiver, rows):
    layers, inputs = model(torch.float32), torch.randn(*rows, 96)[..., ::2]
    receiving(receiver, layers)
    for layer in layers.values():
        assert layer.cpu_linear is receiver.onednn_linear
        with torch.no_grad():
            product = layer.cpu_linear(inputs, layer.weight, layer.bias)
        torch.testing.assert_close(product, linear(inputs, layer.weight, layer.bias).detach(), rtol=1e-5, atol=1e-5)


def test_layers_in_bfloat16_stay_as_vllm_has_them(receiver):
    layers = model(torch.bfloat16)
    receiving(receiver, layers)
    assert all(layer.cpu_linear is linear for layer in layers.values())
    # A refresh copies into weights that lie as they are sent.
    assert all(layer.weight.is_contiguous() for layer in layers.values())


def test_layers_stay_as_they_are_where_torch_has_no_onednn(monkeypatch, receiver):
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    layers = model(torch.float32)
    receiving(receiver, layers)
    assert all(layer.cpu_linear is linear for layer in layers.values())


def test_a_worker_polls_for_a_moment_after_a_message_and_then_sleeps_until_the_next(receiver):
    if not receiver.current_platform.is_cpu():
        pytest.skip("on a GPU workers poll as vLLM has it")
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    writer = MessageQueue(1, 1)
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    assert reader._spin_condition.busy_loop_s == receiver.BUSY_SECONDS < 0.1
    answers = []
    listening = threading.Thread(target=lambda: answers.extend(reader.dequeue(timeout=60) for _ in range(2)))
    listening.start()
    for message in ("first", "after a rest"):
        time.sleep(10 * receiver.BUSY_SECONDS)
        writer.enqueue(message)
    listening.join(60)
    assert answers == ["first", "after a rest"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_activation_with_weights_has_those_of_its_models_type(receiver, dtype):
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.utils.torch_utils import set_default_torch_dtype

    with set_current_vllm_config(VllmConfig()), set_default_torch_dtype(dtype):
        activation = receiver.XIELU()
    assert {tensor.dtype for tensor in (*activation.parameters(), *activation.buffers())} == {dtype}


@pytest.mark.parametrize(
    ("workers", "adapted", "own"), [(1, False, True), (2, False, False), (1, True, False), (None, None, True)]
)
def test_a_server_compares_its_model_unless_that_is_spread_over_workers_or_merged(receiver, workers, adapted, own):
    transfer = SimpleNamespace(adapted=adapted, received={"received": 7}) if workers else None
    layer = nn.ModuleDict({"router": nn.Linear(2, 2, bias=False)})
    # vLLM widens some layers, which are compared in the type that they were sent in.
    torch.nn.init.constant_(layer["router"].weight, 0.5)
    taken = SimpleNamespace(
        weight_transfer_engine=transfer,
        parallel_config=SimpleNamespace(tensor_parallel_size=workers),
        model_config=SimpleNamespace(dtype=torch.bfloat16),
        model_runner=SimpleNamespace(model=layer),
    )
    sums = receiver.WeightReceiver.weight_checksums(taken)
    sent = checksums([("router.weight", layer["router"].weight.detach().bfloat16())])
    assert sums == (sent if own else {"received": 7})


BASE = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def test_the_base_comes_once_and_adapters_are_added_to_it_every_time(receiver):
    adapted = receiver.AdaptedWeights()
    assert not adapted
    head = torch.ones(2)
    assert adapted.merge([("head", head), ("w.base", BASE)]) == [("head", head)]
    assert adapted
    down, up = torch.tensor([[1.0, 0.0]]), torch.tensor([[10.0], [20.0]])
    # The halves may come in two buckets, of which the first one's memory is used again.
    reused = down.clone()
    assert adapted.merge([("w.lora_A", reused)]) == []
    reused.zero_()
    ((name, whole),) = adapted.merge([("w.lora_B", up)])
    assert name == "w" and whole.tolist() == [[11.0, 2.0], [23.0, 4.0]]
    # To the base, not to what was made of it.
    ((_, again),) = adapted.merge([("w.lora_A", down), ("w.lora_B", -up)])
    assert again.tolist() == [[-9.0, 2.0], [-17.0, 4.0]]


def test_adapters_keep_their_precision_over_a_coarser_base(receiver):
    adapted = receiver.AdaptedWeights()
    adapted.merge([("w.base", BASE.bfloat16())])
    ((_, whole),) = adapted.merge([("w.lora_A", torch.tensor([[1e-4, 0.0]])), ("w.lora_B", torch.tensor([[1.0], [0]]))])
    assert whole.dtype == torch.float32
    assert abs(whole[0, 0].item() - 1.0001) < 1e-7


def test_the_product_of_coarse_adapters_is_not_rounded_to_their_precision(receiver):
    adapted = receiver.AdaptedWeights()
    adapted.merge([("w.base", torch.zeros(1, 1))])
    # 1 + 2⁻⁷ in two adapters each: their product, 1 + 2⁻⁶ + 2⁻¹⁴, has no place in bfloat16.
    coarse = torch.tensor([[1 + 2**-7]], dtype=torch.bfloat16)
    ((_, whole),) = adapted.merge([("w.lora_A", coarse), ("w.lora_B", coarse)])
    assert whole.item() == (1 + 2**-7) ** 2
