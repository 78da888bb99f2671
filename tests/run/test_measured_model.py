from grpo.config import TrainConfig
from grpo.run.measured_model import saved_learner


def test_a_checkpoint_says_how_its_weights_are_held_and_this_command_how_ranks_share_them():
    here, saved = TrainConfig().learner, TrainConfig().learner
    saved.precision, saved.zero_stage, saved.sequence_parallel, saved.hpz_partition_size = "bfloat16", 3, 4, 8
    learner = saved_learner(here, saved)
    assert (learner.precision, learner.zero_stage) == ("bfloat16", 3)
    assert (learner.sequence_parallel, learner.hpz_partition_size) == (1, 0)
    here.sequence_parallel = 2
    assert saved_learner(here, saved).sequence_parallel == 2
