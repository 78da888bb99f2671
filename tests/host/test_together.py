"""These tests check what the first rank does alone, on two real ranks."""

import os
import subprocess

import pytest

from grpo.host.network import free_port
from tests import warm

pytestmark = pytest.mark.slow

TWO = """
import sys
from datetime import timedelta
from types import SimpleNamespace
import torch
import torch.distributed as dist
from grpo import cli
from grpo.config import UserError
from grpo.learner.collective import TorchCollective
from grpo.host.together import from_first, on_first

dist.init_process_group("gloo", timeout=timedelta(seconds=7200))
collective = TorchCollective(torch.device("cpu"))

def write():
    raise UserError("the disk is full: make room")

def crash():
    raise ZeroDivisionError("of the first rank")

def fail(words):
    print(from_first(collective, lambda: f"from {collective.rank}"), on_first(collective, lambda: "alone"))
    apart = collective.apart(5400.0)
    print(apart._group._get_backend(torch.device("cpu")).options._timeout.total_seconds(), flush=True)
    on_first(collective, crash if words else write)
    print("never here")

sys.modules["grpo.commands.doctor"] = SimpleNamespace(run=fail)
try:
    code = cli.main(["doctor", *sys.argv[1:]])
finally:
    # Left to the end of the interpreter, gloo's threads abort it now and then.
    dist.destroy_process_group()
sys.exit(code)
"""


def two_ranks(folder, *words):
    """Runs two ranks and returns (exit code, standard output, standard error) of each."""
    script = folder / "two.py"
    script.write_text(TWO)
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        warm.Process(
            [script, *words],
            warm.LEARNER,
            os.environ | master | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    ended = [rank.communicate(timeout=120) for rank in ranks]
    return [(rank.returncode, *said) for rank, said in zip(ranks, ended, strict=True)]


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    return two_ranks(tmp_path_factory.mktemp("failed"))


def test_a_failure_on_the_first_rank_is_reported_once_and_ends_all(failed):
    (first_code, _, first_said), (second_code, _, second_said) = failed
    assert (first_code, second_code) == (2, 2)
    assert first_said.splitlines()[-1] == "grpo: the disk is full: make room"
    assert second_said.count("grpo:") == second_said.count("Error") == 0
    assert not any("never here" in printed for _, printed, _ in failed)


def test_a_crash_of_the_first_rank_has_one_traceback(tmp_path):
    (first_code, _, first_said), (second_code, _, second_said) = two_ranks(tmp_path, "crash")
    assert (first_code, second_code) == (1, 2)
    assert first_said.splitlines()[-1].endswith("ZeroDivisionError: of the first rank")
    assert "Traceback" not in second_said


def test_all_ranks_can_have_the_result_of_the_first(failed):
    assert [printed.splitlines()[0] for _, printed, _ in failed] == ["from 0 alone", "from 0 None"]


def test_ranks_wait_for_each_other_in_another_thread_until_their_deadline(failed):
    assert [printed.splitlines()[1] for _, printed, _ in failed] == ["5400.0"] * 2
