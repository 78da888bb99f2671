"""Every model that is accepted is computed exactly; the others are refused with the difference that was measured."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, PretrainedConfig

from benchmarks.small_models import ALONE, ARCHITECTURES, SMALL, SPARSE, TREES, config_of
from grpo.algorithm.logprobs import LogitRule
from grpo.algorithm.packing import ONE_A_ROW
from grpo.config import ModelConfig, UserError
from grpo.learner import attention, loading, proof, small_copy
from grpo.learner.learner import DeepSpeedLearner
from grpo.learner.policy import Policy
from tests import warm
from tests.learner.models import files_of
from tests.learner.test_partition import reference_step, relative_difference

TOLERANCE = 1e-5


def proven(config: PretrainedConfig) -> proof.Proof:
    return loading.prove_config("a model", config)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_is_computed_exactly_in_trees_or_one_completion_a_row(name):
    proved = proven(config_of(name))
    assert ("trees" if proved.in_trees else "alone") == ARCHITECTURES[name][2]
    # Computed wholly in float64, two right ways differ by far less than is allowed.
    assert proved.difference <= 1e-10 and proof.TOLERANCE == TOLERANCE


# As wide as their configs are by default, far too large to be computed: how many parameters the small copy has at most.
# A row is padded to whole chunks.
LARGE = {
    "mamba2": ({"chunk_size": 16}, 20e6),
    "bamba": ({"mamba_chunk_size": 16, "vocab_size": 512}, 60e6),
    "granitemoehybrid": ({"mamba_chunk_size": 16}, 20e6),
}
# Likewise, packed in trees: with keys shared between layers, or a width for each layer. Only their heads are small.
SHARING = {
    "gemma4_text": {"num_hidden_layers": 35, "num_kv_shared_layers": 20, "head_dim": 32, "global_head_dim": 64},
    "gemma3n_text": {"head_dim": 32},
}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", LARGE)
def test_a_model_whose_widths_depend_on_each_other_is_proven_on_one_with_all_of_them_divided(model_type, monkeypatch):
    sizes = []

    def build(config, implementation):
        model = loading.builder(False)(config, implementation)
        sizes.append(sum(parameter.numel() for parameter in model.parameters() if not parameter.is_meta))
        return model

    settings, largest = LARGE[model_type]
    proved = proof.prove("a model", AutoConfig.for_model(model_type, **settings), build, loading.logit_rule)
    assert not proved.in_trees and proved.difference <= TOLERANCE
    assert 0 < max(sizes) <= largest


@pytest.mark.slow
@pytest.mark.parametrize("model_type", SHARING)
def test_models_that_share_keys_between_layers_are_exact_in_trees_at_their_full_depth(model_type):
    proved = proven(AutoConfig.for_model(model_type, **SHARING[model_type]))
    assert proved.in_trees and proved.difference <= 1e-8


# Of its layers none has rotary positions. They scale queries by the row's index, from floor_scale tokens on.
LLAMA4 = {**SMALL, "intermediate_size_mlp": 96, "num_local_experts": 4, "no_rope_layers": [0, 0, 0, 0]}


def test_queries_scaled_by_their_place_in_a_row_are_computed_one_completion_a_row(monkeypatch):
    config = AutoConfig.for_model("llama4_text", **LLAMA4, floor_scale=8192)
    by_place = proven(config)
    assert by_place.way is None and by_place.difference <= 1e-8
    # Without scaling the same model is exact in trees, and so is its small copy where scaling begins too late.
    assert proven(AutoConfig.for_model("llama4_text", **LLAMA4, attn_temperature_tuning=False)).in_trees
    monkeypatch.setattr(small_copy, "_FROM", ())
    assert proven(config).in_trees


def test_logits_scaled_by_the_models_width_are_scaled_by_the_small_copys_own():
    config = AutoConfig.for_model("minicpm3")
    assert loading.logit_rule(config).scale == 0.1
    assert proven(config).difference <= 1e-8


def test_layers_that_differ_stay_as_they_are_in_a_small_copy():
    config = AutoConfig.for_model("gemma4_text")
    small = proof.small_config(config, 6)
    # Every sixth layer has wider heads.
    assert [layer.head_dim for layer in small.per_layer_config] == [256] * 5 + [512]
    assert (small.num_attention_heads, small.num_key_value_heads, small.hidden_size) == (4, 2, 1024)
    divided = proof.small_config(config, 6, heads=2)
    assert (divided.num_attention_heads, divided.num_key_value_heads, divided.hidden_size) == (4, 2, 1152)
    assert proof.small_config(config, 6, heads=1).num_key_value_heads == 1


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("Mistral, window", "sliding_window"),
        # Its third layer is the first with a window.
        ("Qwen2, windows on", "sliding_window"),
        ("Gemma 2", "softcap"),
        ("gpt-oss", "s_aux"),
    ],
)
def test_a_part_of_attention_that_is_left_out_is_noticed(name, lost, monkeypatch):

    def deaf(*arguments, **options):
        return attention.tree_attention(*arguments, **(options | {lost: None}))

    monkeypatch.setitem(attention.AttentionInterface._global_mapping, attention.NAME, deaf)
    without = proven(config_of(name))
    # The model's own code, one completion a row, has no need of ours; torch's fused attention has no softcap.
    assert without.way == ("eager" if lost == "softcap" else None)
    assert float(without.reason.removeprefix("packed in trees off by ")) > 1e-3


def test_a_change_that_a_model_makes_to_its_logits_is_noticed():
    config = config_of("Llama")
    with pytest.raises(UserError, match=r"packed in trees off by \d.*, one completion a row off by \d.*"):
        proof.prove("a model", config, loading.builder(False), lambda config: LogitRule(scale=1.1))


def test_an_output_layer_with_a_bias_is_computed_with_it(monkeypatch):
    config = config_of("Phi (output bias)")
    assert AutoModelForCausalLM.from_config(config).get_output_embeddings().bias is not None
    assert proven(config).in_trees


def test_a_model_that_looks_ahead_is_refused(monkeypatch):
    class LooksAhead(LlamaForCausalLM):
        """This model adds the mean of all tokens of a row, including those to come."""

        def __init__(self, config):
            super().__init__(config)
            layer = self.model.layers[0].mlp
            layer.register_forward_hook(lambda module, inputs, output: output + output.mean(1, keepdim=True))

    def build(config, implementation):
        torch.set_default_dtype(torch.float64)
        config._attn_implementation = implementation or "eager"
        try:
            return LooksAhead(config)
        finally:
            torch.set_default_dtype(torch.float32)

    with pytest.raises(UserError, match="is not computed exactly here, so it is not trained"):
        proof.prove("a model", config_of("Llama"), build, lambda config: LogitRule())


@pytest.mark.parametrize("name", SPARSE)
def test_a_model_that_chooses_what_it_attends_is_refused_where_it_would_choose(name):
    config = AutoConfig.for_model(name, **{**SMALL, **SPARSE[name]})
    assert proven(config).way is None
    loading.check_positions("a model", config, 64)
    with pytest.raises(UserError, match="above 64 tokens every token chooses .* set model.max_length=64 or less"):
        loading.check_positions("a model", config, 65)


def test_a_part_that_is_switched_off_for_learning_may_not_change_the_model():
    # Its noise is a threshold, too, by which experts are chosen when nothing is random.
    special = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_jitter_noise": 0.1}
    with pytest.raises(UserError, match="phimoe is not computed exactly here"):
        proven(AutoConfig.for_model("phimoe", **{**SMALL, **special}))


@pytest.mark.parametrize(
    ("rope", "length", "refused"),
    [("dynamic", 256, False), ("dynamic", 257, True), ("longrope", 64, False), ("longrope", 65, True)],
)
def test_positions_that_depend_on_the_length_of_a_row_are_refused_where_they_begin(rope, length, refused):
    table = {"rope_type": rope, "rope_theta": 1e4, "factor": 2.0}
    if rope == "longrope":
        table |= {"original_max_position_embeddings": 64, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = config_of("Llama")
    config.rope_parameters = table
    if refused:
        with pytest.raises(UserError, match=f"set model.max_length={length - 1} or less"):
            loading.check_positions("a model", config, length)
    else:
        loading.check_positions("a model", config, length)


def test_learned_positions_end_where_their_table_ends():
    loading.check_positions("gpt2", config_of("GPT-2"), 256)
    with pytest.raises(UserError, match="gpt2 has 256 positions: set model.max_length=256 or less, not 257"):
        loading.check_positions("gpt2", config_of("GPT-2"), 257)


def test_a_model_is_loaded_the_way_that_was_proved_or_not_at_all(tmp_path):
    for name in ("Llama", "LFM2", "GPT-2"):
        AutoModelForCausalLM.from_config(config_of(name)).save_pretrained(tmp_path / name)
    ways = [loading.load_policy(files_of(tmp_path / name), ModelConfig(max_length=256), "float32", 64).in_trees
            for name in ("Llama", "LFM2")]  # fmt: skip
    assert ways == [True, False]
    with pytest.raises(UserError, match="has 256 positions"):
        loading.load_policy(files_of(tmp_path / "GPT-2"), ModelConfig(max_length=257), "float32", 64)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("doge", **SMALL)).save_pretrained(tmp_path / "Doge")
    with pytest.raises(UserError, match="doge is not computed exactly here"):
        loading.load_policy(files_of(tmp_path / "Doge"), ModelConfig(max_length=256), "float32", 64)


def test_nothing_random_is_left_in_a_model_that_learns(tmp_path):
    AutoModelForCausalLM.from_config(config_of("Phi-3, window")).save_pretrained(tmp_path)
    policy = loading.load_policy(files_of(tmp_path), ModelConfig(max_length=64), "float32", 64).train()
    micro, _ = proof.example_row()
    first, second = (policy(micro, 1.0)[0] for _ in range(2))
    assert policy.training and torch.equal(first, second)
    assert all(module.p == 0 for module in policy.modules() if isinstance(module, nn.Dropout))


def test_a_vision_tower_is_not_trained(tmp_path):
    """A weight without a gradient would still shrink by learner.weight_decay."""
    torch.manual_seed(0)
    text = {**SMALL, "sliding_window": 8, "query_pre_attn_scalar": 16}
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=SMALL | {"image_size": 28})
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    files, model = files_of(tmp_path), ModelConfig(max_length=64)
    policy = loading.load_policy(files, model, "float32", 64, lora_seed=0).train()
    micro, _ = proof.example_row()
    policy(micro, 1.0)[0].sum().backward()
    reached = {name for name, parameter in policy.named_parameters() if parameter.grad is not None}
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert reached == trained and "language_model.lm_head.weight" not in trained
    left = {name.split(".")[2] for name, parameter in policy.named_parameters() if not parameter.requires_grad}
    assert left == {"vision_tower", "multi_modal_projector"}
    text_alone = {name for name, _ in policy.named_parameters() if ".language_model." in name}
    assert trained == text_alone
    # A checkpoint leaves the tower out. A reference begins with such a checkpoint too.
    shards = tmp_path / "checkpoint" / "learner"
    shards.mkdir(parents=True)
    torch.save({"module": policy.state_dict()}, shards / "mp_rank_00_model_states.pt")
    reference = loading.load_policy(files, replace(model, start=str(shards.parent)), "float32", 64)
    weights = dict(reference.named_parameters())
    assert all(torch.equal(parameter, weights[name]) for name, parameter in policy.named_parameters())


def test_adapters_on_fused_experts_are_refused(tmp_path):
    AutoModelForCausalLM.from_config(config_of("Qwen3-MoE")).save_pretrained(tmp_path)
    model = ModelConfig(max_length=64)
    model.lora.rank, model.lora.target_modules = 2, "q_proj,v_proj"
    loading.load_policy(files_of(tmp_path), model, "float32", 64, lora_seed=0)
    model.lora.target_modules = "all-linear"
    with pytest.raises(UserError, match="model.lora.target_modules adapts .*experts.* no linear layer"):
        loading.load_policy(files_of(tmp_path), model, "float32", 64, lora_seed=0)


def test_a_model_that_takes_the_place_of_another_is_proven_anew(tmp_path):
    layouts = []
    for name in ("Llama", "LFM2"):
        config_of(name).save_pretrained(tmp_path)
        layouts.append(loading.proven_layout(files_of(tmp_path), "shared"))
    assert layouts == ["shared", ONE_A_ROW]


def test_an_adapter_that_no_gradient_would_reach_is_refused(tmp_path):
    AutoModelForCausalLM.from_config(config_of("Llama")).save_pretrained(tmp_path)
    model = ModelConfig(max_length=64)
    model.lora.rank, model.lora.target_modules = 2, "q_proj,lm_head"
    with pytest.raises(UserError, match="model.lora.target_modules adapts the output layer"):
        loading.load_policy(files_of(tmp_path), model, "float32", 64, lora_seed=0)


def test_adapters_that_fit_no_layer_are_refused():
    build = loading.builder(False)
    way = loading.prove_config("a model", config_of("Llama")).way
    model = ModelConfig()
    model.lora.rank, model.lora.target_modules = 2, "nosuchlayer"
    with pytest.raises(UserError, match=r"=nosuchlayer fits no layer of this model: .* are down_proj,gate_proj,k_proj"):
        loading.with_lora(build(config_of("Llama"), way), model)
    for strange in ("v_porj", "layers.99.mlp.up_proj"):
        model.lora.target_modules = f"q_proj,{strange}"
        with pytest.raises(
            UserError, match=f"target_modules has {strange}, which this model has not: its linear layers are dow"
        ):
            loading.with_lora(build(config_of("Llama"), way), model)
    model.lora.rank, model.lora.target_modules = 100_000, "q_proj"
    with pytest.raises(UserError, match=r"model.lora.rank=100000 is above the model's width \d+, which no change"):
        loading.with_lora(build(config_of("Llama"), way), model)


def test_blanks_between_the_names_of_adapted_layers_mean_nothing():
    model = ModelConfig()
    model.lora.rank, model.lora.target_modules = 2, "q_proj, v_proj"
    way = loading.prove_config("a model", config_of("Llama")).way
    adapted = loading.with_lora(loading.builder(False)(config_of("Llama"), way), model)
    assert {name.split(".lora_")[0][-6:] for name, _ in adapted.named_parameters() if "lora_" in name} == {
        "q_proj",
        "v_proj",
    }


@pytest.mark.parametrize("name", ["Gemma 2", "gpt-oss", "LFM2"])
def test_adapters_have_the_gradient_of_the_models_own_forward_pass(name):
    config = proof.small_config(config_of(name), 4)
    build = loading.builder(False)
    way = loading.prove_config("a model", config_of(name)).way
    model = ModelConfig()
    model.lora.rank, model.lora.target_modules = 2, "q_proj,v_proj"
    own, ours = (loading.with_lora(build(config, way), model).double() for way in ("eager", way))
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ours.load_state_dict(own.state_dict())
    micro, sequences = proof.example_row()
    coefficients = torch.randn(len(micro.targets), dtype=torch.float64)
    policy = Policy(ours.train(), 64, loading.logit_rule(config), way == attention.NAME)
    packed = proof.packed_results(policy, micro, coefficients)
    expected = proof.own_results(own.eval(), sequences, coefficients)
    assert proof.difference(packed, expected) <= TOLERANCE
    assert packed[1] and all("lora_" in gradient for gradient in packed[1])


@pytest.mark.parametrize(
    ("in_trees", "configured", "layout"),
    [
        (True, "shared", "shared"),
        (False, "shared", ONE_A_ROW),
        (False, "packed", ONE_A_ROW),
        (False, "padded", "padded"),
    ],
)
def test_micro_batches_are_counted_as_the_model_computes_them(in_trees, configured, layout):
    config = SimpleNamespace(learner=SimpleNamespace(layout=configured))
    learner = SimpleNamespace(policy=SimpleNamespace(in_trees=in_trees), _settings=config)
    assert DeepSpeedLearner.layout.fget(learner) == layout


# --- the whole learner, on two ranks ---------------------------------------------------------------------------------

LEARNED = ("Llama", "Gemma 2", "gpt-oss", "Cohere 2", "Phi (output bias)", "Qwen3.5 (dense text)", "LFM2")


@pytest.fixture(scope="module")
def changes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("architectures")
    for name in LEARNED:
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config_of(name))
        for parameter in model.parameters():
            parameter.data.mul_(4) if parameter.dim() > 1 else parameter.data.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(folder / "models" / name)
    worker = ["-m", "tests.learner.architecture_worker", folder / "models", folder / "changes.pt"]
    done = warm.ranks(2, worker, warm.LEARNER, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder / "models", torch.load(folder / "changes.pt")


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNED)
def test_the_learners_gradient_is_that_of_the_models_own_eager_forward_pass(changes, name):
    models, learned = changes
    reference, _ = reference_step(str(models / name), "token_mean")
    cases = {case: change for case, change in learned.items() if case.startswith(f"{name}/")}
    assert len(cases) == 5
    for case, change in cases.items():
        if case.endswith("/2") and ARCHITECTURES[name][2] == ALONE:
            assert change.startswith("learner.sequence_parallel=2 shares out the tokens of a row")
        else:
            assert relative_difference(change, reference) <= TOLERANCE, case


def test_both_ways_are_tested():
    assert {ARCHITECTURES[name][2] for name in LEARNED} == {TREES, ALONE}
