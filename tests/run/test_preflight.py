"""What is told before anything starts, of models that name their sizes differently."""

import pytest
from transformers import GPT2Config, LlamaConfig

from grpo.config import TrainConfig
from grpo.run.preflight import model_shape, print_tables

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}


@pytest.mark.parametrize(
    ("config", "inner"),
    [
        (GPT2Config(**SMALL), 128),
        (GPT2Config(**SMALL, n_inner=96), 96),
        (LlamaConfig(**SMALL, intermediate_size=48), 48),
    ],
)
def test_the_tables_are_printed_whatever_a_model_calls_its_widths(config, inner, tmp_path, capsys):
    config.save_pretrained(tmp_path)
    shape = model_shape(tmp_path)
    assert (shape.layers, shape.width, shape.inner_width, shape.vocabulary) == (2, 32, inner, 64)
    settings = TrainConfig(device="cpu")
    settings.learner.precision = settings.rollout.precision = "float32"
    print_tables(settings, tmp_path)
    assert "M parameters, float32" in " ".join(capsys.readouterr().out.split())
