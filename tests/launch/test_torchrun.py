"""These tests start ranks by torchrun, which opens the port where they meet."""

import socket
import subprocess

from grpo.host.ports import ReservedPort
from tests import warm

RANK = """
import os, socket
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
socket.create_connection(address).close()
try:
    socket.create_connection(("127.0.0.2", address[1])).close()
except ConnectionRefusedError:
    print("refused")
"""


def torchrun(folder, *words):
    (folder / "rank.py").write_text(RANK)
    command = ["-m", "grpo.launch.torchrun", "--nproc-per-node=1", *words, folder / "rank.py"]
    process = warm.Process(command, warm.TORCHRUN, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return *process.communicate(timeout=60), process.returncode


def test_ranks_of_one_machine_meet_where_no_other_interface_leads(tmp_path):
    assert torchrun(tmp_path) == ("refused\n", "", 0)


def test_ranks_of_several_machines_meet_at_a_port_that_their_launcher_holds(tmp_path):
    reserved = ReservedPort("127.0.0.1")
    _, said, code = torchrun(tmp_path, "--master-addr=127.0.0.1", f"--master-port={reserved.port}")
    assert (said, code) == ("", 0)


def test_a_port_that_is_taken_when_several_machines_meet_is_one_line(tmp_path):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        _, said, code = torchrun(tmp_path, "--master-addr=127.0.0.1", f"--master-port={port}")
    assert code == 2
    assert said == f"grpo: port {port} is taken, perhaps by another run: change hardware.first_port\n"
