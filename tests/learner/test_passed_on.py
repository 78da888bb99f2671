"""DeepSpeed itself reads the settings that are passed on to it, so none of them is ignored or refused late."""

import pytest
import torch
from deepspeed.runtime.config import DeepSpeedConfig

from grpo.config import LearnerConfig, UserError
from grpo.learner.engine import check_passed_on, deepspeed_config

KNOWN = {
    "zero_optimization": {"reduce_bucket_size": 12_345, "overlap_comm": True},
    "communication_data_type": "fp32",
    "wall_clock_breakdown": True,
    "flops_profiler": {"enabled": False},
    "wandb": {"enabled": False},
    "activation_checkpointing": {"profile": False},
    "comms_logger": {"enabled": False},
    "optimizer": {"type": "NAdam"},
}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_settings_that_deepspeed_knows_reach_it(stage):
    learner = LearnerConfig(zero_stage=stage, precision="float32", deepspeed=KNOWN)
    check_passed_on(learner)
    read = DeepSpeedConfig(deepspeed_config(learner))
    assert (read.zero_config.reduce_bucket_size, read.zero_config.overlap_comm) == (12_345, True)
    assert (read.communication_data_type, read.wall_clock_breakdown) == (torch.float32, True)


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        ({"zero_optimisation": {"stage": 2}}, "learner.deepspeed.zero_optimisation is no setting of DeepSpeed"),
        ({"zero_optimization": {"overlap_com": True}}, "overlap_com Extra inputs are not permitted"),
        ({"zero_optimization": {"overlap_comm": "perhaps"}}, "overlap_comm Input should be a valid boolean"),
    ],
)
def test_settings_that_deepspeed_does_not_know_or_refuses_are_one_line(passed, expected):
    with pytest.raises(UserError) as refused:
        check_passed_on(LearnerConfig(precision="float32", deepspeed=passed))
    assert expected in str(refused.value) and "\n" not in str(refused.value)
