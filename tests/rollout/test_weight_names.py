"""Weights go to vLLM as the model's files have them, however transformers keeps them."""

import pytest
import torch
from transformers import AutoConfig

from benchmarks.small_models import EXPERTS, SMALL
from grpo.rollout.weight_names import FileForm
from grpo.weight_sync.checksum import checksums, differing
from tests.learner.models import files_of

LAYER = "model.layers.1."
ROUTER, GATE_UP, DOWN = LAYER + "mlp.gate.weight", LAYER + "mlp.experts.gate_up_proj", LAYER + "mlp.experts.down_proj"


def form_of(folder, model_type):
    AutoConfig.for_model(model_type, **{**SMALL, **EXPERTS}).save_pretrained(folder)
    return FileForm(files_of(folder))


@pytest.mark.parametrize(
    ("model_type", "names"),
    [
        ("llama", {LAYER + "mlp.up_proj.weight": LAYER + "mlp.up_proj.weight"}),
        ("qwen3_moe", {ROUTER: ROUTER}),
        (
            "granitemoe",
            {
                LAYER + "block_sparse_moe.router.weight": LAYER + "block_sparse_moe.router.layer.weight",
                LAYER + "block_sparse_moe.experts.down_proj": LAYER + "block_sparse_moe.output_linear.weight",
            },
        ),
        ("mixtral", {ROUTER: LAYER + "block_sparse_moe.gate.weight"}),
    ],
)
def test_weights_have_the_names_of_the_models_files(model_type, names, tmp_path):
    form, weights = form_of(tmp_path, model_type), torch.ones(4, 6, 3)
    names = {**names, LAYER + "self_attn.q_proj.weight": LAYER + "self_attn.q_proj.weight"}
    sent = form.of([(name, weights) for name in names])
    assert sorted(name for name, _ in sent) == sorted(names.values())
    assert all(tensor is weights for _, tensor in sent)


@pytest.mark.parametrize(
    ("model_type", "place", "gate", "up", "down_name"),
    [
        ("mixtral", "block_sparse_moe.experts.", "w1", "w3", "w2"),
        # DeepSeek's loader in vLLM finds none in one tensor.
        ("deepseek_v3", "mlp.experts.", "gate_proj", "up_proj", "down_proj"),
        ("qwen3_moe", "mlp.experts.", "gate_proj", "up_proj", "down_proj"),
    ],
)
def test_experts_are_sent_one_by_one_where_the_files_have_them_so(model_type, place, gate, up, down_name, tmp_path):
    gate_up, down = torch.arange(48.0).view(2, 8, 3), torch.arange(100.0, 124.0).view(2, 3, 4)
    bucket = [(GATE_UP, gate_up), (DOWN, down)]
    sent = dict(form_of(tmp_path, model_type).of(bucket))
    experts = LAYER + place
    assert len(sent) == 6
    assert sent[f"{experts}1.{gate}.weight"].tolist() == gate_up[1, :4].tolist()
    assert sent[f"{experts}1.{up}.weight"].tolist() == gate_up[1, 4:].tolist()
    assert sent[f"{experts}0.{down_name}.weight"].tolist() == down[0].tolist()
    together, single = checksums(bucket), checksums(sent.items())
    assert set(single) == {"layer 1"} and differing(together, single) == []
    sent[f"{experts}1.{up}.weight"][0, 0] += 1
    assert differing(together, checksums(sent.items())) == ["layer 1"]


@pytest.mark.parametrize("model_type", ["mixtral", "granitemoe", "llama"])
def test_the_end_of_the_name_of_an_adapted_weight_stays(model_type, tmp_path):
    form, name = form_of(tmp_path, model_type), LAYER + "self_attn.q_proj.weight"
    for kind in (".lora_A", ".lora_B"):
        assert [sent for sent, _ in form.of([(name + kind, torch.ones(2, 2))])] == [name + kind]


def test_all_linear_means_every_linear_layer_but_the_output_layer(tmp_path):
    form = form_of(tmp_path, "llama")
    layers = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert form.adapted_layers("all-linear") == layers
    assert form.adapted_layers("self_attn.q_proj, up_proj") == ["q_proj", "up_proj"]
