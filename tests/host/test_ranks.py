"""These tests show ranks a machine with four GPUs."""

import os

import pytest
import torch

from grpo.config import UserError
from grpo.host import ranks


@pytest.fixture
def chosen(monkeypatch):
    """Makes torch see four GPUs, and returns a list of those that are chosen."""
    devices = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return devices


def test_each_rank_of_a_machine_has_the_gpu_of_its_number(chosen, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert ranks.device("auto") == torch.device("cuda", 3)
    assert chosen == [torch.device("cuda", 3)]


def test_a_rank_without_a_gpu_is_refused_before_torch_looks_for_one(chosen, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(UserError, match=r"no GPU for learner rank 4 .* torch sees 4: set hardware.ranks_per_node=4"):
        ranks.device("auto")
    assert chosen == []


def test_a_rank_with_a_gpu_that_is_too_old_is_refused(chosen, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    with pytest.raises(
        UserError, match=r"GPU 0 cannot be used, since its compute capability 7.0 is too old .* need 7.5"
    ):
        ranks.device("auto")


def test_a_machine_of_a_job_that_numbers_machines_is_no_rank(monkeypatch):
    """PyTorchJob, PAI and AIHC set these, where DeepSpeed would end in a traceback after the model is loaded."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "23456"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"RANK=1 and WORLD_SIZE=2 are set without LOCAL_RANK.*`grpo launch … hardware"):
        ranks.check_environment("runs/x")


@pytest.mark.parametrize(("local_rank", "here"), [("0", "4"), ("2", "2")])
def test_variables_that_contradict_one_another_are_refused(local_rank, here, monkeypatch):
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": here}
    for name, value in {**variables, "MASTER_ADDR": "a", "MASTER_PORT": "23456"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        UserError, match=rf"LOCAL_RANK={local_rank}, LOCAL_WORLD_SIZE={here} and WORLD_SIZE=2 contradict"
    ):
        ranks.check_environment("runs/x")


def test_the_one_machine_of_such_a_job_is_the_only_rank(monkeypatch):
    for name in ("LOCAL_RANK", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "23456"}.items():
        monkeypatch.setenv(name, value)
    ranks.check_environment("runs/x")
    assert ranks.set_alone()
    assert (os.environ["LOCAL_RANK"], os.environ["MASTER_ADDR"]) == ("0", "127.0.0.1")


@pytest.mark.parametrize(
    ("number", "count", "launcher"),
    [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun")],
)
def test_a_process_of_a_launcher_that_is_no_rank_is_refused(monkeypatch, number, count, launcher):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv(count, "8")
    monkeypatch.setenv(number, "0")
    ranks.refuse_unranked()
    monkeypatch.setenv(number, "3")
    with pytest.raises(
        UserError, match=rf"process 3 of 8 that {launcher} has started, .*shell=each`.* or unset {number}"
    ):
        ranks.refuse_unranked()
    monkeypatch.setenv("RANK", "3")
    ranks.refuse_unranked()


def test_a_launcher_s_variables_are_forgotten_before_ranks_are_started(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "PET_NNODES", "PET_RDZV_ENDPOINT"):
        monkeypatch.setenv(name, "2")
    ranks.forget_launcher()
    assert not {"RANK", "WORLD_SIZE", "PET_NNODES", "PET_RDZV_ENDPOINT"} & os.environ.keys()
