"""These tests check which tokens end a completion."""

import json
from types import SimpleNamespace

import pytest

from grpo.rollout.engine_arguments import stop_token_ids


@pytest.mark.parametrize(
    ("generation", "config", "stops"),
    [
        ({"eos_token_id": [7, 9]}, {"eos_token_id": 5}, [2, 7, 9]),
        # Without a generation_config.json, transformers and vLLM read config.json too.
        (None, {"eos_token_id": [7, 9]}, [2, 7, 9]),
        (None, {"text_config": {"eos_token_id": 7}}, [2, 7]),
        (None, {"model_type": "llama"}, [2]),
        (None, None, [2]),
    ],
)
def test_a_completion_ends_at_the_tokenizers_and_the_models_own_tokens(tmp_path, generation, config, stops):
    for name, values in (("generation_config", generation), ("config", config)):
        if values is not None:
            (tmp_path / f"{name}.json").write_text(json.dumps(values))
    assert stop_token_ids(tmp_path, SimpleNamespace(eos_token_id=2)) == stops
