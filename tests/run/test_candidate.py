from grpo.config import TrainConfig
from grpo.run.candidate import saved_parts


def test_a_checkpoint_says_what_the_model_is_and_this_command_how_it_is_run():
    here, saved = TrainConfig(), TrainConfig()
    saved.model.path, saved.model.lora.rank, saved.learner.zero_stage = "a/model", 8, 3
    saved.learner.sequence_parallel, saved.learner.hpz_partition_size = 4, 8
    # A checkpoint of somebody else's may ask for its own code to be run.
    saved.model.trust_remote_code = True
    model, learner = saved_parts(here, saved)
    assert (model.path, model.lora.rank, learner.zero_stage) == ("a/model", 8, 3)
    assert (learner.sequence_parallel, learner.hpz_partition_size, model.trust_remote_code) == (1, 0, False)
    here.learner.sequence_parallel, here.model.trust_remote_code = 2, True
    model, learner = saved_parts(here, saved)
    assert (learner.sequence_parallel, model.trust_remote_code) == (2, True)
