"""Weights go to vLLM under the names of the model's files, whatever transformers calls them."""

import pytest
import torch
from transformers import AutoConfig

from grpo.rollout.file_names import file_names, renamed
from tests.learner.architectures import EXPERTS, SMALL

ROUTER, EXPERTS_OF = "model.layers.1.mlp.gate.weight", "model.layers.1.mlp.experts.gate_up_proj"
IN_MIXTRALS_FILES = {
    ROUTER: "model.layers.1.block_sparse_moe.gate.weight",
    EXPERTS_OF: "model.layers.1.block_sparse_moe.experts.gate_up_proj",
}


def rename_of(folder, model_type):
    AutoConfig.for_model(model_type, **{**SMALL, **EXPERTS}).save_pretrained(folder)
    return file_names(str(folder))


@pytest.mark.parametrize(
    ("model_type", "names"),
    [
        ("mixtral", IN_MIXTRALS_FILES),
        ("qwen3_moe", {ROUTER: ROUTER, EXPERTS_OF: EXPERTS_OF}),
        ("llama", {"model.layers.1.mlp.up_proj.weight": "model.layers.1.mlp.up_proj.weight"}),
        (
            "granitemoe",
            {
                "model.layers.1.block_sparse_moe.router.weight": "model.layers.1.block_sparse_moe.router.layer.weight",
                "model.layers.1.block_sparse_moe.experts.down_proj": (
                    "model.layers.1.block_sparse_moe.output_linear.weight"
                ),
            },
        ),
    ],
)
def test_weights_have_the_names_of_the_models_files(model_type, names, tmp_path):
    rename = rename_of(tmp_path, model_type)
    assert {name: rename(name) for name in names} == names
    assert rename("model.layers.1.self_attn.q_proj.weight") == "model.layers.1.self_attn.q_proj.weight"
    assert rename("lm_head.weight") == "lm_head.weight"


def test_what_follows_the_name_of_an_adapted_weight_stays(tmp_path):
    rename = rename_of(tmp_path, "mixtral")
    for kind in (".base", ".lora_A", ".lora_B"):
        assert rename(ROUTER + kind) == IN_MIXTRALS_FILES[ROUTER] + kind


def test_tensors_stay_as_they_are(tmp_path):
    weights = torch.ones(4, 96, 64)
    ((name, sent),) = renamed([(EXPERTS_OF, weights)], rename_of(tmp_path, "mixtral"))
    assert name == IN_MIXTRALS_FILES[EXPERTS_OF] and sent is weights
