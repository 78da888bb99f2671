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


@pytest.mark.parametrize(("workers", "own"), [(1, True), (2, False), (None, True)])
def test_a_server_compares_its_model_unless_that_is_spread_over_workers(receiver, workers, own):
    layer = nn.ModuleDict({"router": nn.Linear(2, 2, bias=False)})
    adapters = receiver.Adapters(layer)
    assert adapters.take([("router.weight", torch.ones(2, 2))]) and not adapters
    arrival = SimpleNamespace(adapters=adapters)
    transfer = SimpleNamespace(arrival=arrival, received={"received": 7}) if workers else None
    # vLLM widens some layers, which are compared in the type that they were sent in.
    torch.nn.init.constant_(layer["router"].weight, 0.5)
    taken = SimpleNamespace(
        weight_transfer_engine=transfer,
        _arrival=arrival,
        parallel_config=SimpleNamespace(tensor_parallel_size=workers or 1),
        model_config=SimpleNamespace(dtype=torch.bfloat16),
        model_runner=SimpleNamespace(model=layer),
    )
    sums = receiver.WeightReceiver.weight_checksums(taken)
    sent = checksums([("router.weight", layer["router"].weight.detach().bfloat16())])
    assert sums == (sent if own else {"received": 7})
    assert receiver.WeightReceiver.weight_checksums(taken, whole=True) == sent


def test_an_adapter_of_a_layer_beside_which_vllm_adds_none_is_refused(receiver):
    layers = {"model.layers.0.attn.kv_b_proj": None, "model.layers.0.attn.o_proj": None}
    model = nn.Linear(2, 2)
    model.lora_manager = SimpleNamespace(modules=layers, packed_modules={})
    adapters, half = receiver.Adapters(model), torch.ones(1, 2)
    assert adapters.take([("model.layers.0.attn.o_proj.weight.lora_A", half), ("model.norm.weight", half)]) == [
        ("model.norm.weight", half)
    ]
    # Latent attention reads the first matrix in parts; the second is not there.
    for name in ("attn.kv_b_proj", "mlp.experts.0.w1"):
        with pytest.raises(LookupError, match=f"no adapter to model.layers.0.{name}.weight; rollout.merge_adapters=t"):
            adapters.take([(f"model.layers.0.{name}.weight.lora_A", half)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_adapter_is_added_to_the_outputs_of_fused_layers_piece_by_piece(receiver, dtype):
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    generator = torch.Generator().manual_seed(0)
    inputs, outputs = torch.randn(5, 8, generator=generator).to(dtype), torch.zeros(5, 7, dtype=dtype)
    downs = [torch.randn(1, 1, 4, 8, generator=generator).to(dtype) for _ in range(2)]
    ups = [torch.randn(1, 1, width, 4, generator=generator).to(dtype) for width in (3, 4)]
    PunicaWrapperCPU.add_lora_linear(SimpleNamespace(no_lora=True), outputs, inputs, downs, ups, 1.0, (3, 4))
    assert not outputs.any()
    PunicaWrapperCPU.add_lora_linear(SimpleNamespace(no_lora=False), outputs, inputs, downs, ups, 1.0, (3, 4))
    changes = [
        inputs.double() @ down[0, 0].double().T @ up[0, 0].double().T for down, up in zip(downs, ups, strict=True)
    ]
    close = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(outputs.double(), torch.cat(changes, 1), rtol=close, atol=close)
