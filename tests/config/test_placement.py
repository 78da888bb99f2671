import pytest

from grpo.config import TrainConfig, UserError
from grpo.config.placement import placement_table


def config(engine="vllm_server", replicas=2, first_gpu=4):
    made = TrainConfig()
    made.rollout.engine = engine
    servers = made.rollout.servers
    servers.replicas, servers.tensor_parallel, servers.first_gpu = replicas, 2, first_gpu
    return made


def test_learners_come_first_and_servers_after_them():
    assert placement_table(config(), 4, 8) == [
        ("learner rank 0", "GPU 0"),
        ("learner rank 1", "GPU 1"),
        ("learner rank 2", "GPU 2"),
        ("learner rank 3", "GPU 3"),
        ("vLLM server 0", "GPU 4, 5"),
        ("vLLM server 1", "GPU 6, 7"),
    ]


def test_engines_in_the_learners_processes_need_no_gpus_of_their_own():
    assert placement_table(config(engine="vllm"), 2, 2) == [("learner rank 0", "GPU 0"), ("learner rank 1", "GPU 1")]
    elsewhere = config()
    elsewhere.rollout.servers.urls = ["http://10.0.0.5:8000"]
    assert placement_table(elsewhere, 1, 1) == [("learner rank 0", "GPU 0")]
    elsewhere = config(replicas=8, first_gpu=0)
    elsewhere.hardware.server_nodes = 2
    assert placement_table(elsewhere, 1, 1)[1:] == [("vLLM servers, 2 × 8", "on machines of their own")]
    assert placement_table(config(), 2, 0) == [("learner ranks", "2 × CPU"), ("vLLM servers", "2 × CPU")]


def test_a_placement_that_does_not_fit_is_refused_with_the_remedy():
    with pytest.raises(UserError, match=r"need GPUs up to 7, and there are 6 \(0 to 5\): lower one of these numbers"):
        placement_table(config(), 4, 6)
    with pytest.raises(UserError, match=r"GPU of the 5 learner ranks \(0 to 4\): set it to 5"):
        placement_table(config(), 5, 16)
    with pytest.raises(UserError, match=r"8 learner ranks on this machine want a GPU each, and there are 4: set hardw"):
        placement_table(config(engine="vllm"), 8, 4)
