"""Under ZeRO-3 no rank ever holds the whole model: not while it is loaded, and not of the reference."""

import pytest

from tests.learner.models import facts_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    return facts_of(tmp_path_factory.mktemp("sharded"), "sharded_worker", timeout=300)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_holds_its_shard_and_one_weight_at_a_time(facts, rank, precision):
    allocated = facts[rank][precision]
    for name in ("policy", "reference"):
        assert allocated[name] == 0, "a whole weight is left in memory"
        # Half of the model, each weight filled up to an even number.
        assert allocated[f"{name}'s shard"] == pytest.approx(allocated["numbers"] / 2, rel=0.01)
    assert 0 < allocated["most at once"] <= allocated["largest"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_weights_loaded_in_shards_are_those_that_were_saved(facts, precision):
    allocated = facts[0][precision]
    assert allocated["numbers"] > 10_000
    assert allocated["weights differ"] == allocated["reference differs"] == []
    # Tables of positions are made in float32, whatever the weights are.
    assert allocated["buffers"] == allocated["buffers of a whole model"]
    assert {kind for kind, _ in allocated["buffers"].values()} == {"torch.float32"}


def test_linear_layers_keep_no_gathered_weight_and_torchs_function_is_its_own(facts):
    for allocated in facts[0]["float32"], facts[1]["bfloat16"]:
        assert (allocated["kept"], allocated["linear is torch's"]) == (0, True)


def test_operations_are_counted_of_the_whole_model(facts):
    assert facts[0]["float32"]["flops"] == facts[0]["flops of a whole model"] > 0
