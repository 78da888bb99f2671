"""A learner's states leave a GPU while an engine samples there, and come back byte by byte."""

import subprocess
import sys

import pytest
import torch

from tests.gpu.test_engines import SMALL, trained

GPU = torch.device("cuda", 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]


def offloaded(learner):
    """Returns copies, as bytes, of all tensors that leave the device."""
    from grpo.learner.offloading import _tensors, _weights

    learner.engine.empty_partition_cache()
    sharded = learner.engine.optimizer
    tensors = [*_weights(learner.engine.module), *_tensors(vars(sharded)), *_tensors(sharded.optimizer.state)]
    on_device = [tensor for tensor in tensors if tensor.device.type == GPU.type and tensor.numel() and tensor.dim()]
    return [tensor.contiguous().view(torch.uint8).cpu() for tensor in on_device]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_states_come_back_byte_by_byte_between_steps(stage, tmp_path, alone):
    from grpo.config.parts import LearnerSettings
    from grpo.learner.learner import DeepSpeedLearner
    from tests.learner.learner_worker import config_for, take_step, weights
    from tests.learner.models import files_of, tiny_llama

    config = config_for(stage, "bfloat16", objective__kl__coefficient=0.1)
    before = torch.cuda.memory_allocated(GPU)
    learner = DeepSpeedLearner(
        LearnerSettings.of(config), files_of(tiny_llama(tmp_path, vocabulary=4096, layers=4)), GPU
    )
    states = learner.states()
    numbers = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in learner.policy.parameters())
    for _ in range(3):
        report = take_step(learner, config)
        assert 0 < report.gradient_norm < float("inf")
        there, allocated = offloaded(learner), torch.cuda.memory_allocated(GPU) - before
        sent = weights(learner).cpu()
        states.offload(keep_weights=True)
        assert torch.equal(weights(learner).cpu(), sent)
        states.offload()
        freed = allocated - (torch.cuda.memory_allocated(GPU) - before)
        # Weights and the reference's in two bytes, masters and moments in twelve.
        assert freed >= 16 * numbers
        states.reload()
        back = offloaded(learner)
        assert len(there) == len(back) and all(map(torch.equal, there, back))
        assert torch.equal(weights(learner).cpu(), sent)
    learner.engine.destroy()


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
