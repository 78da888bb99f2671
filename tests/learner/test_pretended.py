"""The learner computes on a pretended GPU (tests/pretend_gpu.py) what it computes on the CPU, without an operation that
mixes devices, and its host does not wait for the device in a micro-batch."""

import json
from collections import Counter

import pytest

from tests import warm
from tests.learner.family_worker import MEMBERS
from tests.learner.models import tiny_llama

PARTS = ("family", "rounds", "proofs", "steps/2/float32", "steps/3/bfloat16")
pytestmark = pytest.mark.slow
IMPORTS = (*warm.LEARNER, "grpo.rollout.transformers_sampler", "tests.learner.test_attention")


def run_on_pretended_gpu(folder, *parts, ranks=1):
    model = tiny_llama(folder / "model")
    worker = ["-m", "tests.learner.pretended_worker", model, folder / "facts.json", *parts]
    done = warm.run(worker, IMPORTS) if ranks == 1 else warm.ranks(ranks, worker, IMPORTS)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads((folder / "facts.json").read_text())


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return run_on_pretended_gpu(tmp_path_factory.mktemp("quick"), "errors", "kernels", "alone", "steps/1/bfloat16")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run_on_pretended_gpu(tmp_path_factory.mktemp("whole"), *PARTS)


def test_operations_that_mix_devices_are_refused(quick):
    mixed = ("sum", "product", "chosen", "joined", "written", "onto the CPU", "index on the GPU", "placed")
    assert all(quick["errors"][name].startswith("Expected all tensors to be on the same device") for name in mixed)
    assert quick["errors"]["a number"] == "cuda:0"


def test_every_wait_of_the_host_is_seen(quick):
    waiting = ("item", "compared", "by numbers", "to the CPU", "written to the CPU", "index on the CPU", "mask")
    assert [quick["errors"][name] for name in (*waiting, "places", "from numbers", "from the CPU")] == [1] * 10
    assert [quick["errors"][name] for name in ("from pages that move", "from pinned pages")] == [1] * 2
    assert [quick["errors"][name] for name in ("without waiting", "index there", "where")] == [0] * 3


def test_attention_of_every_kind_is_the_cpus_and_never_waits(quick):
    bounds = {"float32": 1e-5, "bfloat16": 1e-2}
    for kind, attended in quick["kernels"].items():
        assert attended["off"] < bounds[kind.partition("/")[2]] and attended["waits"] == [], kind
    assert len(quick["kernels"]) == 14


def test_completions_computed_one_a_row_are_placed_without_waiting(quick):
    """Mamba 2 adds up its layers in float32. In LFM2 transformers itself asks whether positions follow each other."""
    assert all(computed["off"] < 1e-2 for computed in quick["alone"].values())
    assert quick["alone"]["Mamba 2"]["waits"] == []
    assert len(quick["alone"]["LFM2"]["waits"]) == 1


def assert_no_micro_batch_waits(facts, at_most=10):
    """DeepSpeed and the report read a few numbers at the end of a step, however many rows it has."""
    assert Counter(facts["many rows"]) == Counter(facts["one row"])
    assert 0 < len(facts["one row"]) <= at_most, facts["one row"]
    assert all(0 < norm < 100 for norm in facts["norms"])


def test_no_micro_batch_waits(quick):
    assert_no_micro_batch_waits(quick["steps/1/bfloat16"])
    # The first step's norm on a CPU.
    assert quick["steps/1/bfloat16"]["norms"][0] == pytest.approx(2.8540, rel=1e-2)


def test_parts_of_layers_are_one_kernel_each(quick):
    """There are two layers, and queries and keys are rotated each."""
    operations = quick["steps/1/bfloat16"]["operations in one row"]
    assert [operations[f"grpo::{name}"] for name in ("gated_product", "gated_product_slopes")] == [2, 2]
    assert [operations[f"grpo::{name}"] for name in ("rotation", "rotation_slopes")] == [4, 4]
    assert "silu" not in operations


def test_norms_of_a_micro_batch_are_one_kernel_each(quick):
    """Two layers have two norms each, and one comes last."""
    operations = quick["steps/1/bfloat16"]["operations in one row"]
    assert operations["_fused_rms_norm"] == operations["_fused_rms_norm_backward"] == 5
    assert "rsqrt" not in operations


def test_gradients_of_a_micro_batch_are_written_and_not_added_to_zeros(quick):
    step = quick["steps/1/bfloat16"]
    assert "_foreach_zero_" not in {*step["operations in many rows"], *step["operations in one row"]}


@pytest.mark.parametrize("case", ["2/float32", "3/bfloat16"])
def test_no_micro_batch_waits_under_another_stage(whole, case):
    """With a selection of tokens and adapters, and with a sharded reference."""
    assert_no_micro_batch_waits(whole[f"steps/{case}"])


@pytest.mark.parametrize("member", MEMBERS)
def test_every_loss_moves_the_weights_as_on_the_cpu(whole, member):
    assert whole["family"][member] < 1e-5


def test_a_round_goes_on_as_on_the_cpu_after_offloading_and_from_a_checkpoint(whole):
    ours, exact = whole["rounds"]["norms"]
    assert ours[0] == ours[1] == pytest.approx(exact[0], rel=1e-2) and exact[0] == exact[1]


def test_a_refresh_waits_once_for_all_weights_of_a_bucket_on_each_side(whole):
    [line] = Counter(whole["rounds"]["waits"])
    assert "weight_sync/checksum.py" in line
    # All weights of this model fit into one bucket.
    assert len(whole["rounds"]["waits"]) == 2 and whole["rounds"]["tensors"] == 20


def test_comparisons_of_a_gpu_with_float64_have_run_here(whole):
    assert max(whole["proofs"]["torch.float32"]) < 1e-5 and max(whole["proofs"]["torch.bfloat16"]) < 1e-2


def test_ranks_that_compute_rows_together_wait_no_more_often_for_many_rows(tmp_path):
    """Each exchange of numbers between the ranks waits twice."""
    assert_no_micro_batch_waits(
        run_on_pretended_gpu(tmp_path, "steps/1/bfloat16", ranks=2)["steps/1/bfloat16"], at_most=30
    )
