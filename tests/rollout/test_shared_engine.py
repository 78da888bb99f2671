"""Two ranks have one engine of vLLM's beside them: each worker has half of the model, and the engine writes the
completions of both ranks' prompts."""

import json

import pytest

from grpo.models.tiny import character_tokenizer
from tests import warm
from tests.learner.models import tiny_llama


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    model = tiny_llama(folder / "model", vocabulary=len(character_tokenizer()))
    character_tokenizer().save_pretrained(model)
    python = warm.interpreter(folder, warm.SERVE)
    worker = ["-m", "tests.rollout.shared_engine_worker", model, folder, python]
    done = warm.ranks(2, worker, warm.TRAIN, timeout=400)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "facts.json").read_text()), done.stderr


pytestmark = pytest.mark.slow


def test_an_engine_beside_two_ranks_runs_the_learners_policy_on_the_prompts_of_each(facts):
    for rank in facts[0]:
        # Before and after the weights have changed, and after the engine was killed.
        assert max(rank["gaps"]) < 1e-5 and len(rank["gaps"]) == 3 and rank["own"]
    assert facts[0][0]["workers"] == [True, True]
    # Its use is reported once.
    first, second = (rank["use"] for rank in facts[0])
    assert first["rollout/cache_peak_fraction"] > 0 and second == {}


def test_a_bit_that_flips_in_shared_memory_is_noticed_by_every_rank(facts):
    for rank in facts[0]:
        assert "learner and sampler hold different weights" in rank["refused"]
        assert rank["refused"].endswith("embedding, embed_tokens.weight [102, 64]")


def test_an_engine_that_is_killed_in_the_middle_of_a_refresh_comes_back_and_writes_the_same(facts):
    assert all(rank["same"] for rank in facts[0])
    assert facts[1].count("was lost") == facts[1].count("is back") == 1


def test_an_engine_beside_two_ranks_plays_the_episodes_of_each(facts):
    for rank, groups in zip(facts[0], (2, 1), strict=True):
        assert rank["turns"] == [2, 2] * groups
        assert rank["gap_of_episodes"] < 1e-5
