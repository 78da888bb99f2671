"""Each launcher's environment variables give every machine its place, and wrong ones are one line."""

import pytest

from grpo.config import UserError
from grpo.config.run import HardwareConfig
from grpo.launch.membership import Place, place_of

IPS = "10.0.0.1\n10.0.0.2"
POD = "train-node-0-1.train.default.svc.cluster.local"
# The environment of the second of two machines, as each launcher's documentation has it.
SECOND = {
    "SkyPilot": {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": IPS},
    "dstack": {
        **{"DSTACK_NODE_RANK": "1", "DSTACK_NODES_NUM": "2", "DSTACK_NODES_IPS": IPS},
        "DSTACK_MASTER_NODE_IP": "10.0.0.1",
    },
    "TrainJob": {
        **{"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "8", "JOB_COMPLETION_INDEX": "1"},
        **{"PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29400"},
    },
    "PyTorchJob": {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456"},
    "Ray Train": {
        **{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "1"},
        **{"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "41277"},
    },
    "torchrun in a job of Slurm": {
        **{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "gpu3", "MASTER_PORT": "29400"},
        **{"SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "gpu4"},
    },
    "Open MPI": {
        **{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
        "MASTER_ADDR": "gpu3",
    },
    "JobSet": {"JOB_COMPLETION_INDEX": "1"},
    "Slurm": {
        **{"SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[03,07]"},
        **{"SLURM_LOCALID": "0", "SLURM_JOB_NODELIST": "gpu[03,07-09]", "SLURM_NNODES": "4"},
    },
}
FIRST = {
    "SkyPilot": ("10.0.0.1", 29500),
    "dstack": ("10.0.0.1", 29500),
    "TrainJob": ("train-node-0-0.train", 29400),
    "PyTorchJob": ("train-master-0", 23456),
    "Ray Train": ("10.0.0.1", 41277),
    "torchrun in a job of Slurm": ("gpu3", 29400),
    "Open MPI": ("gpu3", 29500),
    "JobSet": ("train-node-0-0.train.default.svc.cluster.local", 29500),
    "Slurm": ("gpu03", 29500),
}
TWO = HardwareConfig(learner_nodes=1, server_nodes=1, shell="each")


@pytest.mark.parametrize("launcher", SECOND)
def test_a_machine_finds_its_number_and_the_first_one_in_what_its_launcher_has_set(launcher):
    assert place_of(SECOND[launcher], POD, TWO) == Place(1, *FIRST[launcher])


def test_a_machine_alone_needs_no_address():
    assert place_of({"JOB_COMPLETION_INDEX": "0"}, "box", HardwareConfig()) == Place(0, "127.0.0.1", 29500)


def test_the_first_machine_may_be_named_where_no_launcher_names_it():
    mpi = {name: value for name, value in SECOND["Open MPI"].items() if name != "MASTER_ADDR"}
    with pytest.raises(
        UserError, match=r"Open MPI does not tell .*: name it by hardware.hosts=\[ADDRESS\], or set MAS"
    ):
        place_of(mpi, "box", TWO)
    assert place_of(mpi, "box", HardwareConfig(learner_nodes=2, hosts=["gpu9"])).first == "gpu9"
    with pytest.raises(UserError, match=r"Kubernetes does not tell the first machine's address: name it by .*=\[ADD"):
        place_of({"JOB_COMPLETION_INDEX": "1"}, "box", TWO)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"WORLD_SIZE": "3"}, "need 2 machines, but the launcher has started 3: change these numbers"),
        (
            {"RANK": "2"},
            "has started 2 machines, and this one has the number 2, though they are counted from 0: correct RANK",
        ),
        ({"RANK": "one"}, "the environment variable RANK='one' is no whole number: correct it"),
        ({"MASTER_PORT": "99999"}, "the environment variable MASTER_PORT=99999 is no port: give one from 1 to 65535"),
        ({"LOCAL_RANK": "1"}, "starts it several times here (LOCAL_RANK=1): ask for one process a machine"),
    ],
)
def test_a_number_of_machines_that_does_not_fit_is_one_line(changed, said):
    with pytest.raises(UserError) as caught:
        place_of(SECOND["PyTorchJob"] | changed, "box", TWO)
    assert said in str(caught.value)


def test_a_range_of_machines_is_refused():
    with pytest.raises(UserError, match="the environment variable PET_NNODES='1:4' is no whole number"):
        place_of(SECOND["TrainJob"] | {"PET_NNODES": "1:4"}, POD, TWO)


@pytest.mark.parametrize("environment", [{}, {"SLURM_NODEID": "0", "SLURM_NNODES": "2"}])
def test_without_a_launcher_and_in_the_script_of_a_job_the_ways_to_start_it_are_named(environment):
    with pytest.raises(UserError, match="finds no launcher's number .* under Slurm start it by srun --ntasks-per-node"):
        place_of(environment, "box", TWO)
