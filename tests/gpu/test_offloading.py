"""A learner's states leave a GPU while an engine samples there, and come back bit by bit."""

import subprocess
import sys

import pytest
import torch

from tests.gpu.test_engines import SMALL, trained

GPU = torch.device("cuda", 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]


@pytest.fixture
def in_order():
    """Kernels that add up in no fixed order, of flash attention and of sums by index, would make two runs differ."""
    # cuBLAS would want a variable that is read before this process's first product.
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_three_steps_with_states_away_between_them_are_those_without(stage, tmp_path, in_order):
    from grpo.learner.engine import init_distributed
    from grpo.learner.learner import DeepSpeedLearner
    from tests.learner.learner_worker import config_for, take_step, weights
    from tests.learner.models import tiny_llama

    init_distributed(GPU, 300)
    model = tiny_llama(tmp_path, vocabulary=4096, layers=4)
    results = []
    for away in (False, True):
        config = config_for(stage, "bfloat16", objective__kl__coefficient=0.1)
        before = torch.cuda.memory_allocated(GPU)
        learner = DeepSpeedLearner(config, model, GPU)
        states, norms = learner.states(), []
        for _ in range(3):
            norms.append(take_step(learner, config).gradient_norm)
            if away:
                held = torch.cuda.memory_allocated(GPU) - before
                states.offload(keep_weights=True)
                weights(learner)
                states.offload()
                freed = held - (torch.cuda.memory_allocated(GPU) - before)
                numbers = sum(getattr(each, "ds_numel", each.numel()) for each in learner.policy.parameters())
                # Weights and the reference's in two bytes, masters and moments in twelve.
                assert freed >= 16 * numbers
                states.reload()
        results.append((norms, weights(learner).cpu()))
        learner.engine.destroy()
        del learner, states
    (norms, plain), (others, back) = results
    assert norms == others and torch.equal(plain, back)


@pytest.mark.parametrize("stage", [1, 3])
def test_engine_and_learner_have_nearly_all_of_a_gpu_in_turn(stage, tmp_path):
    words = [f"learner.zero_stage={stage}", "learner.offload_states=true", "rollout.gpu_memory_fraction=0.85"]
    measured = trained(tmp_path / "run", *words, "checkpoint.every_rounds=1", "rollout.enforce_eager=true")
    assert all(row["time/offload_seconds"] > 0 and row["mismatch/mean_abs"] < 0.05 for row in measured)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_two_ranks_are_one_engine(tmp_path):
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "grpo.cli"]
    words = [*SMALL, "rollout.tensor_parallel=2", "learner.offload_states=true", f"output_dir={tmp_path / 'run'}"]
    done = subprocess.run([*ranks, "train", *words], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
