"""Machines that start the same command meet at the first one, which then leads them. Here they are threads."""

import json
import socket
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from grpo.config import UserError
from grpo.host.network import free_port
from grpo.launch import meeting
from grpo.launch.machines import Machine
from grpo.launch.meeting import LOST, FarSeat, Met, Orders, follow, join, lead
from grpo.launch.membership import Place
from grpo.launch.seats import Seat
from grpo.launch.shells import RunningSeat

WORDS = ["experiment=tiny", "hardware.shell=each"]


@pytest.fixture
def place():
    port = free_port()
    return lambda index: Place(index, "127.0.0.1", port)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def met(place, pool, count=2):
    """Lets `count` machines meet. Returns the first one's lines, and the others' ones."""
    leading = pool.submit(lead, place(0), count, WORDS, "job-7")
    joining = [pool.submit(join, place(index), WORDS) for index in reversed(range(1, count))]
    own, lines = leading.result()
    assert all(other.result()[0] == own for other in joining)
    assert own == Met((Machine(socket.gethostname(), "127.0.0.1"),) * count, "job-7")
    return lines, [other.result()[1] for other in reversed(joining)]


def test_four_machines_learn_one_another_s_addresses_and_the_start_that_names_the_folder(place, pool):
    here, there = met(place, pool, 4)
    for number, (line, far) in enumerate(zip(here, there, strict=True)):
        line.send(f"order {number}")
        assert next(far.read()) == f"order {number}"


def test_a_machine_alone_meets_nobody_and_needs_no_port(place):
    with socket.create_server(("", place(0).port)):
        assert lead(place(0), 1, WORDS, "job-7")[0].machines == (Machine(socket.gethostname(), "127.0.0.1"),)


def test_a_connection_that_its_other_end_has_reset_is_nobody(place, pool):
    def reset():
        while True:
            with socket.socket() as scanner:
                # Closed so, it sends a reset.
                scanner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if not scanner.connect_ex(("127.0.0.1", place(0).port)):
                    return

    leading = pool.submit(lead, place(0), 2, WORDS, "job-7")
    reset()
    with socket.create_connection(("127.0.0.1", place(0).port)):
        # While this one is greeted, the others wait.
        reset()
        reset()
    joined = pool.submit(join, place(1), WORDS)
    assert leading.result()[0] == joined.result()[0]


def test_a_machine_that_was_started_again_has_the_place_of_the_first_start_and_a_stranger_has_none(place, pool):
    leading = pool.submit(lead, place(0), 3, WORDS, "job-7")

    def said(line):
        connection = socket.socket()
        while connection.connect_ex(("127.0.0.1", place(0).port)):
            connection = socket.socket()
        connection.sendall(line.encode() + b"\n")
        return connection

    with (
        said("GET / HTTP/1.1") as stranger,
        said(json.dumps({"index": 1, "name": "b", "words": meeting._digest(WORDS)})) as killed,
    ):
        assert stranger.recv(1) == b""
        again = pool.submit(join, place(1), WORDS)
        assert killed.recv(1) == b""
        other = pool.submit(join, place(2), WORDS)  # the last one, with which the meeting ends
        assert leading.result()[0] == again.result()[0] == other.result()[0]


def test_other_words_are_refused_on_both_machines(place, pool):
    leading = pool.submit(lead, place(0), 2, WORDS, "job-7")
    with pytest.raises(UserError, match=r"machine 1 \(.*\) was started with other words than machine 0: give all of"):
        join(place(1), [*WORDS, "seed=1"])
    with pytest.raises(UserError, match="was started with other words"):
        leading.result()


def test_a_machine_that_does_not_come_is_named(place, monkeypatch):
    monkeypatch.setattr(meeting, "MEETING_SECONDS", 0.0)
    with pytest.raises(UserError, match=r"machine 1, 2 of 3 \(counted from 0\) has not come to port \d+ of this one"):
        lead(place(0), 3, WORDS, "job-7")
    with pytest.raises(UserError, match=r"machine 0 is not found at 127\.0\.0\.1, port \d+ \(.*refused\): see what"):
        join(place(1), WORDS)


def test_the_first_machine_orders_the_others_and_learns_how_their_parts_have_ended(place, pool, tmp_path):
    [line], [far] = met(place, pool)
    seat = FarSeat(Seat("learner", 1, Machine("b", "10.0.0.2"), (), 5.0), line, tmp_path / "log")
    orders = Orders(far)
    seat.ask_to_stop()
    seat.hurry()
    seat.kill()
    assert [orders.next(9) for _ in range(3)] + [orders.next(0.01)] == ["stop", "hurry", "kill", ""]
    assert seat.poll() is None and not orders.over.is_set()
    far.send("3")
    assert seat.wait() == 3 == seat.poll()
    seat.close()
    assert orders.over.wait(9)


class Served:
    """This stands for a part that serves until it is closed, and for the request to stop that came to its machine."""

    count = 1

    def __init__(self):
        self.seat, self.code = Seat("server", 0, Machine("b", "10.0.0.2"), (), 5.0), None

    def poll(self):
        return self.code

    def close(self):
        self.code = 0


def test_a_server_that_is_asked_to_end_has_the_learners_stopped_first(place, pool, tmp_path):
    [line], [far] = met(place, pool)
    seat = FarSeat(Seat("server", 0, Machine("b", "10.0.0.2"), (), 5.0), line, tmp_path / "log")
    following = pool.submit(follow, Served(), far, Served())
    while not seat.num_asked:
        time.sleep(0.01)
    assert seat.num_asked == 1 and seat.poll() is None
    seat.tell(143)
    seat.close()
    assert following.result() == 143


def test_a_part_that_a_signal_has_ended_is_not_taken_for_a_lost_machine(place, pool, tmp_path):
    [line], [far] = met(place, pool)
    part = Seat("learner", 1, Machine("b", "10.0.0.2"), (sys.executable, "-c", "import time; time.sleep(99)"), 5.0)
    seat, own = FarSeat(part, line, tmp_path / "far"), RunningSeat(part, "each", {}, tmp_path / "own", False)
    own.process.kill()
    assert follow(own, far, SimpleNamespace(count=0)) == own.wait() == seat.wait() == 137
    own.close()


def test_a_part_whose_machine_is_lost_has_failed(place, pool, tmp_path):
    [line], [far] = met(place, pool)
    seat = FarSeat(Seat("learner", 1, Machine("b", "10.0.0.2"), (), 5.0), line, tmp_path / "log")
    far.close()
    assert seat.wait() == LOST
