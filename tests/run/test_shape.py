"""These tests check the sizes of models whose configs name them differently, or not at all."""

import pytest
from transformers import AutoConfig

from grpo.config import ModelConfig
from grpo.config.hydra import compose_config
from grpo.config.memory_estimate import memory_estimate, offloaded_bytes
from grpo.prove import bench
from grpo.prove.sizes import SIZES
from grpo.run.tables import model_shape, shape_of


def test_where_adapters_learn_they_alone_have_gradients_and_moments():
    """Adapters of rank 32 have 32 · (inputs + outputs) numbers on each of a block's seven linear layers."""
    model = ModelConfig()
    model.lora.rank = 32
    shape = shape_of(bench.config_of(SIZES["7b"].shape), adapted=model)
    by_hand = 28 * 32 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18_944))
    assert (shape.parameters, shape.adapters) == (7_615_616_512, by_hand)
    settings = compose_config(["experiment=bigmath_qwen2_5_7b", "model.lora.rank=32"])
    settings.learner.precision = settings.rollout.precision = "bfloat16"
    settings.learner.zero_stage = 1
    gib = {name: learning for name, _, learning in memory_estimate(settings, shape, 1, 78.0)}
    assert gib["learner weights"] == pytest.approx(14.3, abs=0.1)
    assert gib["learner gradients (float32)"] == pytest.approx(0.3, abs=0.01)
    assert gib["optimizer moments and masters"] == pytest.approx(0.9, abs=0.01)
    assert offloaded_bytes(settings, shape, 1) / 2**30 == pytest.approx(14.3 + 0.3 + 0.9, abs=0.1)


def test_sizes_are_found_where_layers_differ_and_where_there_is_no_attention(tmp_path):
    def shape(model_type, **settings):
        common = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
        AutoConfig.for_model(model_type, **common, **settings).save_pretrained(tmp_path / model_type)
        return model_shape(tmp_path / model_type)

    # Every other layer has wider heads than `head_dim` says.
    gemma = {
        "num_attention_heads": 2,
        "head_dim": 16,
        "num_key_value_heads": 1,
        "intermediate_size": 48,
        "hidden_size_per_layer_input": 8,
    }
    gemma |= {"layer_types": ["sliding_attention", "full_attention"]}
    mixed = shape("gemma4_text", **gemma)
    assert (mixed.query_width, mixed.key_value_width, mixed.inner_width) == (32, 16, 48)
    spaces = shape("mamba2", num_heads=8, head_dim=8, n_groups=2, state_size=8)
    assert (spaces.width, spaces.layers, spaces.query_width) == (32, 2, 64)
