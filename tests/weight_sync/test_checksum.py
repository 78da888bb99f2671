"""These tests hold that checksums change when numbers of a model's weights change places, and stay when the same
weights are stored in another way."""

from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

from grpo.weight_sync.checksum import both_sums, checksums, column_weights, differing
from grpo.weight_sync.engine_weights import (
    ExpertOrder,
    OwnParameters,
    as_sent,
    lost_by_sleep,
    named_weights,
    prepare_attention,
)

LAYER = "model.layers.1."


def weights(dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    return {
        "model.embed_tokens.weight": draw(48, 16),
        LAYER + "self_attn.q_proj.weight": draw(16, 16),
        LAYER + "self_attn.k_proj.weight": draw(8, 16),
        LAYER + "self_attn.v_proj.weight": draw(8, 16),
        LAYER + "self_attn.o_proj.weight": draw(16, 16),
        LAYER + "mlp.gate_proj.weight": draw(24, 16),
        LAYER + "mlp.up_proj.weight": draw(24, 16),
        LAYER + "input_layernorm.weight": draw(16),
        LAYER + "post_attention_layernorm.weight": draw(16),
    }


def swapped(one, other):
    def swap(tensors):
        one_name, other_name = LAYER + one, LAYER + other
        tensors[one_name], tensors[other_name] = tensors[other_name], tensors[one_name]

    return swap


def changed(name, change):
    def apply(tensors):
        tensors[LAYER + name] = change(tensors[LAYER + name].clone())

    return apply


def flipped_in_pairs(tensor):
    """Flips the signs of four numbers in a rectangle, so that sums of all, of rows and of columns stay."""
    signs = tensor.sign()
    for a in range(len(tensor)):
        for b in range(a):
            for c in range(tensor.shape[1]):
                for d in range(c):
                    if signs[a, c] == signs[b, d] == -signs[a, d] == -signs[b, c]:
                        tensor[[a, a, b, b], [c, d, c, d]] *= -1
                        return tensor
    raise AssertionError("no such rectangle")


Q, GENERATOR = "self_attn.q_proj.weight", torch.Generator().manual_seed(3)
CHANGES = {
    "rows permuted": changed(Q, lambda t: t[torch.randperm(16, generator=GENERATOR)]),
    "columns permuted": changed(Q, lambda t: t[:, torch.randperm(16, generator=GENERATOR)]),
    "elements permuted": changed(Q, lambda t: t.flatten()[torch.randperm(256, generator=GENERATOR)].view(16, 16)),
    "transposed": changed(Q, lambda t: t.t().contiguous()),
    "q with o": swapped(Q, "self_attn.o_proj.weight"),
    "k with v": swapped("self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "gate with up": swapped("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "norms": swapped("input_layernorm.weight", "post_attention_layernorm.weight"),
    "signs in pairs": changed(Q, flipped_in_pairs),
    "two elements of a vector": changed("input_layernorm.weight", lambda t: t[[1, 0, *range(2, 16)]]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_that_change_places_are_seen(change, dtype):
    sent, present = weights(dtype), weights(dtype)
    CHANGES[change](present)
    assert differing(checksums(sent.items()), checksums(sent.items())) == []
    assert differing(checksums(sent.items()), checksums(present.items()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_sum_of_all_bits_is_that_of_plain_integers(dtype):
    tensor = torch.randn(300, 700, generator=torch.Generator().manual_seed(0)).to(dtype)
    integers = tensor.view(torch.int16 if dtype == torch.bfloat16 else torch.int32)
    plain, placed = both_sums(tensor)
    assert plain == integers.long().sum().item()
    assert both_sums(tensor.t().contiguous().t()) == (plain, placed)
    assert both_sums(tensor.t())[1] != placed
    assert both_sums(torch.zeros(0, 3))[1] == 0


@pytest.mark.parametrize(
    ("width", "one", "other"),
    # An earlier choice of weights had one weight for the first two.
    [(256, 31, 132), (14_336, 0, 14_335), (200_000, 5, 5 + 65_535), (200_000, 65_534, 65_535)],
)
def test_two_columns_that_change_places_are_seen_at_any_width(width, one, other):
    tensor = torch.ones(2, width, dtype=torch.bfloat16)
    tensor[:, one] = 2
    swapped = torch.ones(2, width, dtype=torch.bfloat16)
    swapped[:, other] = 2
    for row in (slice(None), 0):
        (plain, placed), (swapped_plain, swapped_placed) = both_sums(tensor[row]), both_sums(swapped[row])
        assert plain == swapped_plain
        assert placed != swapped_placed


def test_no_two_columns_have_one_weight():
    weights = column_weights(65_535, torch.zeros(0))
    assert weights.unique().tolist() == [*range(1, 65_536)]
    assert weights[:4].tolist() == column_weights(4, torch.zeros(0)).tolist() == [40785, 26135, 8429, 21304]


@pytest.mark.parametrize(("dtype", "pattern"), [(torch.bfloat16, -(2**15)), (torch.float32, -(2**31))])
def test_the_largest_pattern_times_the_largest_weight_is_summed_exactly(dtype, pattern):
    # Minus zero is a sign and nothing else.
    tensor = torch.full((3, 65_535), -0.0, dtype=dtype)
    of_a_row, rows = pattern * sum(range(65_536)), (1790095780746711601, 7796372880487179079, 1186369762576455295)
    plain, placed = both_sums(tensor)
    assert plain == 3 * 65_535 * pattern
    assert placed % 2**64 == of_a_row * sum(rows) % 2**64


class Fused(nn.Module):
    """This is a linear layer as vLLM stores it: several of the model's layers, one below the other."""

    def __init__(self, sizes, width):
        super().__init__()
        self.output_partition_sizes = sizes
        self.weight = nn.Parameter(torch.zeros(sum(sizes), width, dtype=torch.bfloat16))


class Engine(nn.Module):
    """This holds the weights above as a vLLM model does: fused, and with rows that fill up the vocabulary."""

    packed_modules_mapping: ClassVar = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, tensors):
        super().__init__()
        norm, linear = nn.RMSNorm, nn.Linear
        self.model = nn.ModuleDict({"embed_tokens": nn.Embedding(64, 16, dtype=torch.bfloat16)})
        self.model.embed_tokens.org_vocab_size = 48
        attention = nn.ModuleDict({"qkv_proj": Fused([16, 8, 8], 16), "o_proj": linear(16, 16, bias=False)})
        layer = {"self_attn": attention, "mlp": nn.ModuleDict({"gate_up_proj": Fused([24, 24], 16)})}
        layer |= {"input_layernorm": norm(16), "post_attention_layernorm": norm(16)}
        self.model["layers"] = nn.ModuleList([nn.Identity(), nn.ModuleDict(layer)])
        self.bfloat16()
        with torch.no_grad():
            self.model.embed_tokens.weight.zero_()[:48] = tensors["model.embed_tokens.weight"]
            for fused, parts in (("self_attn.qkv_proj", "qkv"), ("mlp.gate_up_proj", ("gate", "up"))):
                prefix = LAYER + fused.rpartition(".")[0] + "."
                whole = torch.cat([tensors[f"{prefix}{part}_proj.weight"] for part in parts])
                self.get_submodule(LAYER + fused).weight.copy_(whole)
            for name in ("self_attn.o_proj", "input_layernorm", "post_attention_layernorm"):
                self.get_submodule(LAYER + name).weight.copy_(tensors[f"{LAYER}{name}.weight"])


def test_fused_and_padded_weights_have_the_checksums_of_those_that_were_sent():
    tensors = weights()
    ours, theirs = checksums(tensors.items()), checksums(named_weights(Engine(tensors)))
    assert ours == theirs
    CHANGES["k with v"](tensors)
    assert differing(ours, checksums(named_weights(Engine(tensors)))) == [
        "layers.1.attn.k_proj.weight [8, 16]",
        "layers.1.attn.v_proj.weight [8, 16]",
    ]


def test_a_tensor_that_is_stored_otherwise_is_compared_by_its_groups_sum():
    sent = {"model.layers.0.attn.c_attn.weight": torch.randn(4, 12)}
    stored = {"model.layers.0.attn.c_attn.weight": sent["model.layers.0.attn.c_attn.weight"].t().contiguous()}
    assert differing(checksums(sent.items()), checksums(stored.items())) == []
    stored["model.layers.0.attn.c_attn.weight"][0, 0] += 1
    assert differing(checksums(sent.items()), checksums(stored.items())) == ["layer 0"]


def test_queries_keys_and_values_of_each_head_are_found_where_vllm_keeps_all_queries_first():
    """There are two key heads of three numbers, each shared by two query heads. Files hold them as q q k v, q q k v."""
    engine = nn.Module()
    engine.query_key_value = Fused([12, 6, 6], 5)
    engine.query_key_value.total_num_kv_heads = 2
    sent = torch.randn(24, 5).bfloat16()
    first, second = sent[:12], sent[12:]
    parts = [first[:6], second[:6], first[6:9], second[6:9], first[9:], second[9:]]
    engine.query_key_value.weight.data = torch.cat(parts)
    name = "transformer.query_key_value.weight"
    theirs = checksums(named_weights(nn.ModuleDict({"transformer": engine})))
    assert checksums([(name, sent)]) == theirs
    # As vLLM keeps them it would be another tensor.
    assert differing(checksums([(name, torch.cat(parts))]), theirs) == ["query_key_value.weight [24, 5]"]


def test_the_matrices_of_gpt2_lie_the_other_way_round_in_vllm():
    engine = nn.Module()
    engine.config, engine.h = SimpleNamespace(model_type="gpt2"), nn.ModuleDict({"c_proj": nn.Linear(4, 4)})
    sent = {"transformer.h.c_proj.weight": engine.h.c_proj.weight.detach().t().contiguous()}
    sent["transformer.h.c_proj.bias"] = engine.h.c_proj.bias.detach()
    assert checksums(sent.items()) == checksums(named_weights(engine))
    engine.config.model_type = "starcoder2"
    assert differing(checksums(sent.items()), checksums(named_weights(engine))) == ["h.c_proj.weight [4, 4]"]


class Experts(nn.Module):
    """These are two experts. If `arranges`, their kernel reverses the inner width and pads it to four."""

    width = 3

    def __init__(self, arranges: bool = True):
        super().__init__()
        self.w13_weight = nn.Parameter(torch.arange(1.0, 25.0).view(2, 2 * self.width, 2))
        self.w2_weight = nn.Parameter(torch.arange(31.0, 43.0).view(2, 2, self.width))
        self.moe_config = SimpleNamespace(intermediate_size_per_partition=self.width)
        kernel = SimpleNamespace(process_weights_after_loading=arrange if arranges else lambda layer: None)
        self.quant_method = SimpleNamespace(
            process_weights_after_loading=lambda layer: None, moe_kernel=SimpleNamespace(fused_experts=kernel)
        )

    def load(self, sent):
        """Copies weights as vLLM's loader does, into tensors of the same width as the weights."""
        for parameter, weights in zip((self.w13_weight, self.w2_weight), sent, strict=True):
            parameter.data.copy_(weights)


def arrange(layer):
    gate, up = layer.w13_weight.data.split(layer.width, dim=1)
    filled = [nn.functional.pad(half.flip(1), (0, 0, 0, 1)) for half in (gate, up)]
    layer.w13_weight = nn.Parameter(torch.cat(filled, dim=1))
    layer.w2_weight = nn.Parameter(nn.functional.pad(layer.w2_weight.data.flip(2), (0, 1)))


def weights_of(layer):
    return [parameter.data.clone() for parameter in layer.parameters()]


def equal(ours, others):
    return all(torch.equal(one, other) for one, other in zip(ours, others, strict=True))


@pytest.mark.parametrize("arranges", [True, False])
def test_experts_lie_after_a_refresh_where_the_engine_put_them_at_its_start_or_it_is_refused(arranges):
    layer = Experts(arranges)
    sent = weights_of(layer)
    arrange(layer)
    started = weights_of(layer)
    assert started[0].shape == (2, 8, 2) and started[1].shape == (2, 2, 4)
    order = ExpertOrder(nn.ModuleList([layer]))
    order.begin()
    layer.load(sent)
    if arranges:
        order.finish()
        assert equal(weights_of(layer), started)
    else:
        with pytest.raises(RuntimeError, match="experts in another order"):
            order.finish()
    # Other weights may lie anywhere.
    order.begin()
    layer.load([weights + 100 for weights in sent])
    order.finish()
    expected = Experts()
    expected.load([weights + 100 for weights in sent])
    arrange(expected) if arranges else None
    assert equal(weights_of(layer), weights_of(expected))


@pytest.mark.parametrize("width", [3, 4])
def test_experts_that_are_not_sent_stay_as_they_are(width):
    layer = Experts()
    arrange(layer)
    # Of width 4, what is stored is as wide as what is sent.
    layer.moe_config.intermediate_size_per_partition = width
    before = weights_of(layer)
    order = ExpertOrder(nn.ModuleList([layer]))
    order.begin()
    order.finish()
    assert equal(weights_of(layer), before)


class Fixed(Experts):
    """These are experts as vLLM keeps them on a GPU: vLLM's method arranges them in place, and the kernel leaves them
    alone."""

    def __init__(self):
        super().__init__(arranges=False)
        self.quant_method.process_weights_after_loading = reverse


def reverse(layer):
    layer.w13_weight.data.copy_(layer.w13_weight.data.flip(1))
    layer.w2_weight.data.copy_(layer.w2_weight.data.flip(2))


def test_experts_that_vllms_own_method_arranges_lie_after_a_refresh_where_it_put_them_at_its_start():
    layer = Fixed()
    sent = weights_of(layer)
    reverse(layer)
    order = ExpertOrder(nn.ModuleList([layer]))
    order.begin()
    layer.load([weights + 100 for weights in sent])
    order.finish()
    assert layer.w2_weight[0].tolist() == [[133, 132, 131], [136, 135, 134]]
    assert layer.w13_weight[0, :, 0].tolist() == [111, 109, 107, 105, 103, 101]


def test_a_router_has_one_place_in_order_under_the_names_of_transformers_and_of_the_files():
    weights = torch.randn(4, 8)
    ours = {"model.layers.0.mlp.gate.weight": weights}
    theirs = {"model.layers.0.block_sparse_moe.gate.weight": weights.flip(0)}
    assert differing(checksums(ours.items()), checksums(theirs.items())) == ["layers.0.mlp.gate.weight [4, 8]"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_decay_of_a_state_space_is_compared_as_vllm_stores_it(dtype):
    logarithm = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=dtype)
    mixer, rest = "backbone.layers.0.mixer.", {"backbone.layers.0.mixer.D": torch.ones(4, dtype=dtype)}
    ours = checksums({mixer + "A_log": logarithm, **rest}.items())
    stored = {mixer + "A": -torch.exp(logarithm.float()), **rest}
    # Qwen3-Next's stays a logarithm there, in float32 whatever is sent.
    kept = {mixer + "A_log": logarithm.float(), **rest}
    assert ours == checksums(stored.items()) == checksums(kept.items())
    stored[mixer + "A"][1] *= 1.001
    assert differing(ours, checksums(stored.items())) == ["layers.0.mixer.A [4]", "layer 0"]


def test_a_bias_of_the_router_that_learners_do_not_send_is_no_difference():
    bias = LAYER + "mlp.gate.e_score_correction_bias"
    sent = weights(torch.float32)
    stored = sent | {bias: torch.tensor([0.5, -0.5])}
    assert differing(checksums(sent.items()), checksums(stored.items())) == []
    others = sent | {bias: torch.tensor([-0.5, 0.5])}
    assert differing(checksums(others.items()), checksums(stored.items())) == [
        "layers.1.mlp.gate.e_score_correction_bias [2]"
    ]


def test_a_router_that_vllm_widens_to_float32_is_compared_in_the_type_that_it_was_sent_in():
    """vLLM keeps the routers of GLM-4.5 and MiniMax-M2 in float32, whatever the model computes in."""
    name = LAYER + "mlp.gate.weight"
    sent = {name: torch.randn(4, 8).bfloat16(), LAYER + "mixer.A_log": torch.tensor([0.0, 1.0]).bfloat16()}
    decay = -sent[LAYER + "mixer.A_log"].float().exp()
    # -exp(0) is a number of bfloat16, and is compared in float32 nevertheless.
    narrow = LAYER.replace("1", "2")
    sent[narrow + "mixer.A_log"] = torch.zeros(2).bfloat16()
    stored = {name: sent[name].float(), LAYER + "mixer.A": decay, narrow + "mixer.A": -torch.ones(2)}

    def compared():
        return differing(checksums(sent.items()), checksums(as_sent(stored.items(), torch.bfloat16)))

    assert compared() == []
    stored[name][1, 2] = stored[name][1, 2].nextafter(torch.tensor(9.0))
    assert compared() == ["layers.1.mlp.gate.weight [4, 8]", "layer 1"]
    stored[name] = sent[name].float().flip(0)
    assert compared() == ["layers.1.mlp.gate.weight [4, 8]"]


class Router(nn.Module):
    """This is a router like vLLM's, whose `load_weights` tells which parameters it has loaded."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.tensor([0.5, -0.5]))

    def load_weights(self, bucket):
        for name, tensor in bucket:
            getattr(self, name).data.copy_(tensor)
        return {name for name, _ in bucket}


def test_weights_that_learners_do_not_send_survive_the_sleep_of_an_engine():
    engine = Router()
    own = OwnParameters(engine)
    for number in (1.0, 2.0, 3.0):
        own.restore()
        own.load([("weight", torch.full((2, 2), number))])
        own.keep()
        assert engine.weight.tolist() == [[number] * 2] * 2 and engine.bias.tolist() == [0.5, -0.5]
        # A sleep of level 2 leaves anything at all.
        for parameter in engine.parameters():
            parameter.data.fill_(torch.nan)


def test_a_sleep_loses_what_is_neither_a_parameter_nor_a_buffer():
    engine = nn.ModuleDict({"attention": nn.Linear(2, 2), "norm": nn.Module()})
    attention, weight = engine["attention"], engine["attention"].weight
    attention.register_buffer("positions", torch.ones(2))
    # A cache is made anew after each sleep, and the engine's own sinks are a parameter here.
    attention.kv_cache, attention.impl = torch.ones(2), SimpleNamespace(sinks=weight, width=3, empty=torch.zeros(0))
    attention.part_of_the_weight = weight.detach()[:1]
    engine["norm"].has_weight, engine["norm"].weight = False, torch.ones(2)
    # Sleep frees the memory of the engine's own device only.
    attention.elsewhere = torch.ones(2, device="meta")
    assert lost_by_sleep(engine) == []
    attention.impl.alibi_slopes = torch.tensor([0.5, 0.25])
    assert lost_by_sleep(engine) == ["attention.alibi_slopes"]


class Latent(nn.Module):
    """This is like vLLM's multi-head latent attention, which decodes with a transposed part of its weight."""

    def __init__(self):
        super().__init__()
        self.kv_b_proj = nn.Linear(4, 6, bias=False)
        self.W_UV = nn.Parameter(torch.empty(4, 3), requires_grad=False)
        self.process_weights_after_loading(torch.float32)

    def get_attn_backend(self):
        """Exists because every attention of vLLM has this method."""

    def process_weights_after_loading(self, dtype):
        self.W_UV.data.copy_(self.kv_b_proj.weight[:3].t().to(dtype))


class LatentModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Latent()

    def load_weights(self, bucket):
        for name, tensor in bucket:
            self.get_parameter(name).data.copy_(tensor)
        return {name for name, _ in bucket}


def test_tensors_that_attention_derives_from_its_weights_are_computed_anew_and_not_compared():
    engine, sent = LatentModel(), "attention.kv_b_proj.weight"
    own, computed = OwnParameters(engine), engine.attention.W_UV
    place = computed.data_ptr()
    assert [name for name, _ in named_weights(engine)] == [sent]
    for number in (1.0, 2.0, 3.0):
        own.restore()
        own.load([(sent, torch.full((6, 4), number))])
        prepare_attention(engine, torch.float32)
        own.keep()
        assert computed.tolist() == [[number] * 3] * 4
        # A sleep of level 2 leaves anything at all.
        for parameter in engine.parameters():
            parameter.data.fill_(torch.nan)
    assert engine.attention.W_UV.data_ptr() == place, "a CUDA graph reads it there"


@pytest.mark.slow
def test_shards_of_a_matrix_that_is_trained_fused_are_put_together_part_by_part(monkeypatch):
    # Phi-3 is trained with q, k and v in one matrix. Each of two ranks has a half of each of the three.
    from vllm.model_executor.layers.linear import ColumnParallelLinear

    class Shard(ColumnParallelLinear):
        def __init__(self, rows):
            nn.Module.__init__(self)
            self.weight, self.tp_size, self.output_partition_sizes = nn.Parameter(whole[rows]), 2, [2, 1, 1]

    whole = torch.arange(16.0).reshape(8, 2)
    engine, others = nn.ModuleDict({"qkv_proj": Shard([0, 1, 4, 6])}), whole[[2, 3, 5, 7]].split([2, 1, 1])
    parts = iter(others)
    gather = lambda own, dimension: torch.cat([own, next(parts)], dimension)  # noqa: E731
    monkeypatch.setattr("vllm.distributed.tensor_model_parallel_all_gather", gather)
    [(name, weight)] = named_weights(engine)
    assert name == "qkv_proj.weight" and torch.equal(weight, whole)
