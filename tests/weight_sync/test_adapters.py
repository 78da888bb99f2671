"""These tests compare the weights that LoRA gives at the receiving end with a computation by hand."""

import torch

from grpo.weight_sync.vllm_receiver import AdaptedWeights

BASE = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def test_the_base_comes_once_and_adapters_are_added_to_it_every_time():
    adapted = AdaptedWeights()
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


def test_adapters_keep_their_precision_over_a_coarser_base():
    adapted = AdaptedWeights()
    adapted.merge([("w.base", BASE.bfloat16())])
    ((_, whole),) = adapted.merge([("w.lora_A", torch.tensor([[1e-4, 0.0]])), ("w.lora_B", torch.tensor([[1.0], [0]]))])
    assert whole.dtype == torch.float32
    assert abs(whole[0, 0].item() - 1.0001) < 1e-7


def test_the_product_of_coarse_adapters_is_not_rounded_to_their_precision():
    adapted = AdaptedWeights()
    adapted.merge([("w.base", torch.zeros(1, 1))])
    # 1 + 2⁻⁷ in two adapters each: their product, 1 + 2⁻⁶ + 2⁻¹⁴, has no place in bfloat16.
    coarse = torch.tensor([[1 + 2**-7]], dtype=torch.bfloat16)
    ((_, whole),) = adapted.merge([("w.lora_A", coarse), ("w.lora_B", coarse)])
    assert whole.item() == (1 + 2**-7) ** 2
