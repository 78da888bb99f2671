"""These tests run whole engines on a GPU: colocated, asleep and woken, after a refresh, and under every ZeRO stage."""

import subprocess
import sys

import pytest
import torch

from benchmarks.runs import rows

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

SMALL = [
    *("experiment=tiny", "device=cuda", "num_steps=3", "evaluation.num_problems=0", "checkpoint.export=false"),
    *("learner.precision=bfloat16", "rollout.precision=bfloat16", "rollout.gpu_memory_fraction=0.2"),
]


def trained(output, *words):
    """Trains for three steps and returns the rows of the run's metrics."""
    command = [sys.executable, "-m", "grpo.cli", "train", *SMALL, *words, f"output_dir={output}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return rows(output / "metrics.jsonl")


@pytest.mark.parametrize("graphs", ["rollout.enforce_eager=true", "rollout.enforce_eager=false"])
def test_a_colocated_run_samples_from_the_policy_that_learns_also_after_updates(graphs, tmp_path):
    """Sampler and learner would disagree if an engine still ran its old CUDA graphs after sleep and a refresh."""
    measured = trained(tmp_path / "run", graphs, "learner.learning_rate=3e-3")
    assert [row["step"] for row in measured] == [1, 2, 3]
    assert max(row["mismatch/mean_abs"] for row in measured) < 0.05


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("offload", [False, True])
def test_every_stage_learns_in_bfloat16_with_checkpointing_and_the_optimizer_in_main_memory(stage, offload, tmp_path):
    words = [f"learner.zero_stage={stage}", f"learner.offload_optimizer={str(offload).lower()}"]
    measured = trained(tmp_path / "run", *words, "learner.gradient_checkpointing=true", "rollout=transformers")
    assert all(row["learner/skipped_steps"] == 0 and row["learner/gradient_norm"] > 0 for row in measured)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_a_server_on_another_gpu_is_given_weights_over_nccl(tmp_path):
    measured = trained(tmp_path / "run", "rollout=vllm_server", "rollout.servers.first_gpu=1")
    assert max(row["mismatch/mean_abs"] for row in measured) < 0.05
