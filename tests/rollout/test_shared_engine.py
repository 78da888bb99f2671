"""Two ranks are one engine of vLLM's: each has half of the model and writes the completions of its own prompts."""

import json
from pathlib import Path

import pytest

from benchmarks.small_models import tiny_tokenizer
from tests import warm
from tests.learner.models import tiny_llama

# A run of the same kind leaves these files on this machine when it is killed (vLLM 0.32).
LEFT = [Path(f"/dev/shm/-tp:0-[0-1]-cpushm_{rank}") for rank in (0, 1)]


@pytest.mark.slow
def test_two_ranks_are_one_engine_that_runs_the_learners_policy(tmp_path):
    model = tiny_llama(tmp_path / "model")
    tiny_tokenizer().save_pretrained(model)
    for memory in LEFT:
        memory.touch()
    worker = ["-m", "tests.rollout.shared_engine_worker", model, tmp_path / "facts.json"]
    done = warm.ranks(2, worker, warm.TRAIN, timeout=400)
    for memory in LEFT:
        memory.unlink()
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "facts.json").read_text())
    for rank in facts["ranks"]:
        # Before and after the weights have changed, on every rank's own prompts.
        assert max(rank["gaps"]) < 1e-5 and rank["own"]
        assert 0.45 < rank["shard"] / facts["numbers"] < 0.6
        # A sign of one rank's shard.
        assert "layer 0" in rank["flipped"] and "layers.0.mlp.down_proj.weight [64, 96]" in rank["flipped"]
    # Its use is reported once.
    first, second = (rank["use"] for rank in facts["ranks"])
    assert first["rollout/cache_peak_fraction"] > 0 and second == {}
