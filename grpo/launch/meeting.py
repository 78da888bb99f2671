"""This module lets machines meet that all started the same command, and lets the first one lead them.

Machine 0 listens until every other machine has come with its number, and then tells all of them all addresses. Each
connection stays open for the run: the first machine orders `stop`, `hurry` or `kill` by it, is asked for `stop` or
`hurry` by a machine that serves, and learns the exit code of the other machine's part. At the end it tells the others
the run's exit code. Both sides send an empty line now and then. If a connection ends or is silent, the part ends,
as `grpo.host.tether` ends a part whose launcher is gone.

Lines that come from another machine are numbers, names and addresses only. A stranger who reaches the port can disturb
a run, as by torchrun's own port, but cannot make a machine run other words than its own.
"""

import hashlib
import ipaddress
import json
import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo.config.errors import UserError, require
from grpo.host.alive import working
from grpo.host.network import LOOPBACK
from grpo.host.output import unread
from grpo.host.signals import StopRequest
from grpo.host.terminal import clean
from grpo.launch.machines import Machine
from grpo.launch.membership import Place
from grpo.launch.seats import LEARNER, Seat
from grpo.launch.shells import BEAT_SECONDS, SILENT_SECONDS, RunningSeat
from grpo.launch.supervise import LOST, POLL_SECONDS, ask

MEETING_SECONDS = 1800.0
"""Machines wait this long for each other, since some of them may have to fetch an image first."""
GREETING_SECONDS, AGAIN_SECONDS = 10.0, 1.0
LONGEST_LINE = 1 << 20
STOP, HURRY, KILL = "stop", "hurry", "kill"
REQUESTS = {STOP: 1, HURRY: 2, KILL: 3}


class Line:
    """A line is a connection to another machine, which carries short lines of text both ways."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(SILENT_SECONDS)
        self._connection, self._file = connection, connection.makefile("rb")
        self._closed, self._writing = threading.Event(), threading.Lock()

    def keep(self) -> None:
        """Sends an empty line now and then from now on, which tells the other side that this process is alive."""
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            self.send("")

    def send(self, text: str) -> None:
        """Sends a line. A connection that has ended is ignored."""
        with suppress(OSError), self._writing:
            self._connection.sendall(text.encode() + b"\n")

    def read(self) -> Iterator[str]:
        """Yields the lines that come, without the empty ones, until the other side has ended or is silent."""
        with suppress(OSError, UnicodeDecodeError):
            while (line := self._file.readline(LONGEST_LINE)).endswith(b"\n"):
                if text := line.decode().strip():
                    yield text

    def close(self) -> None:
        """Ends the connection, also for a thread that reads from it."""
        self._closed.set()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Met:
    """The machines of a run in their order, and the start that names its folder."""

    machines: tuple[Machine, ...]
    start: str


def lead(place: Place, count: int, words: Sequence[str], start: str) -> tuple[Met, list[Line]]:
    """Waits for the other machines, on machine 0. Returns all machines, and the lines to the others in their order.

    Raises `UserError` when some do not come, and when one was started with other words.
    """
    lines: dict[int, Line] = {}
    machines = {0: Machine(socket.gethostname(), LOOPBACK)}
    if count == 1:
        # A machine alone opens no port to others.
        return Met((machines[0],), start), []
    end = time.monotonic() + MEETING_SECONDS
    with _listener(place.port) as listener, working(f"waiting for {count - 1} other machines at port {place.port}"):
        while len(machines) < count:
            absent = ", ".join(str(index) for index in range(count) if index not in machines)
            require(
                time.monotonic() < end,
                f"machine {absent} of {count} (counted from 0) has not come to port {place.port} of this one within "
                f"{MEETING_SECONDS:.0f} s: see what it says, and whether a firewall is between",
            )
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                greeted = None
                with suppress(OSError):  # a port scanner has ended it already
                    own, other = (_plain(name[0]) for name in (connection.getsockname(), connection.getpeername()))
                    greeted = _greeted(connection, range(1, count))
                if greeted is None:
                    connection.close()
                    continue
                index, name, digest = greeted
                if index in lines:  # it has been started again
                    lines[index].close()
                lines[index] = Line(connection)
                machines[index], machines[0] = Machine(name, other), Machine(machines[0].name, own)
                if digest != _digest(words):
                    _refuse(lines, f"machine {index} ({name}) was started with other words than machine 0")
    met = Met(tuple(machines[index] for index in range(count)), start)
    for _, line in sorted(lines.items()):
        line.send(json.dumps(asdict(met)))
        line.keep()
    return met, [lines[index] for index in range(1, count)]


def join(place: Place, words: Sequence[str]) -> tuple[Met, Line]:
    """Comes to machine 0 and waits for the others. Returns all machines, and the line to machine 0.

    Raises `UserError` when machine 0 is not found in time, or has refused this one.
    """
    end = time.monotonic() + MEETING_SECONDS
    with working(f"waiting for machine 0 at {place.first}, port {place.port}"):
        while True:
            try:
                connection = socket.create_connection((place.first, place.port), timeout=GREETING_SECONDS)
                break
            except OSError as error:
                # A name may be known, and a port open, only once the first machine has started.
                require(
                    time.monotonic() < end,
                    f"machine 0 is not found at {place.first}, port {place.port} ({error}): see what it says, and "
                    "whether a firewall is between",
                )
                time.sleep(AGAIN_SECONDS)
        line = Line(connection)
        hello = {"index": place.index, "name": socket.gethostname(), "words": _digest(words)}
        line.send(json.dumps(hello))
        connection.settimeout(max(1.0, end - time.monotonic()))
        answer = next(line.read(), "")
    met = _met(answer)
    if met is None:
        refused = _object(answer).get("refused")
        raise UserError(clean(str(refused)) if refused else "machine 0 has ended before all machines had come")
    connection.settimeout(SILENT_SECONDS)
    line.keep()
    return met, line


def _refuse(lines: Mapping[int, Line], reason: str) -> None:
    """Ends the start on all machines that have come, with the same `UserError`."""
    refusal = f"{reason}: give all of them the same"
    for line in lines.values():
        line.send(json.dumps({"refused": refusal}))
    raise UserError(refusal)


def _listener(port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        listener = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise UserError(
            f"port {port} of this machine is taken, perhaps by another run, or two machines have the number 0: change "
            "hardware.first_port, or the launcher's variable where that names the port"
        ) from error
    listener.settimeout(AGAIN_SECONDS)
    return listener


def _greeted(connection: socket.socket, indices: range) -> tuple[int, str, str] | None:
    """Returns what a machine says that has come: its number, name, and the digest of its words, or None for something
    else that has found the port."""
    connection.settimeout(GREETING_SECONDS)
    with suppress(OSError):
        hello = _object(connection.makefile("rb").readline(4096).decode(errors="replace"))
        index, name, digest = (hello.get(key) for key in ("index", "name", "words"))
        if index in indices and isinstance(name, str) and isinstance(digest, str):
            return int(index), clean(name)[:100], digest
    return None


def _met(answer: str) -> Met | None:
    """Reads machine 0's answer, or returns None where it is none."""
    values = _object(answer)
    with suppress(KeyError, TypeError, ValueError):
        machines = [
            Machine(clean(str(each["name"]))[:100], str(ipaddress.ip_address(each["address"])))
            for each in values["machines"]
        ]
        return Met(tuple(machines), str(values["start"]))
    return None


def _object(text: str) -> dict:
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        return value if isinstance(value, dict) else {}
    return {}


def _plain(address: str) -> str:
    """Returns an address of IPv4 as such, where a socket of IPv6 shows it.

    >>> _plain("::ffff:10.0.0.5"), _plain("fd00::1")
    ('10.0.0.5', 'fd00::1')
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


class FarSeat:
    """This is a seat that runs on another machine, started by that machine. `grpo.launch.supervise` treats it as it
    treats a `RunningSeat`."""

    def __init__(self, seat: Seat, line: Line, log: Path):
        self.seat, self.log = seat, log
        self.begin = log.stat().st_size if log.exists() else 0
        self._line, self._code, self.num_asked = line, None, 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for word in self._line.read():
            self.num_asked = max(self.num_asked, REQUESTS.get(word, 0))
            if word.isdecimal():
                self._code = int(word)
                return
        self._code = LOST

    def poll(self) -> int | None:
        """Returns the seat's exit code, or None while it runs."""
        return self._code

    def ask_to_stop(self) -> None:
        """Asks the seat to save and end."""
        self._line.send(STOP)

    def hurry(self) -> None:
        """Asks the seat to save without the rest of its round."""
        self._line.send(HURRY)

    def kill(self) -> None:
        """Ends the seat at once."""
        self._line.send(KILL)

    def tell(self, code: int) -> None:
        """Tells the other machine with which code the run ends."""
        self._line.send(str(code))

    def close(self) -> None:
        """Ends the line, and with it the seat."""
        self._line.close()

    def wait(self) -> int:
        """Waits for the seat, and returns its exit code."""
        self._thread.join()
        return LOST if self._code is None else self._code


class Orders:
    """Machine 0's orders arrive here. They are over when it has ended, or is silent."""

    def __init__(self, line: Line):
        self._words: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.over, self.code = threading.Event(), 0
        threading.Thread(target=self._read, args=(line,), daemon=True).start()

    def _read(self, line: Line) -> None:
        for word in line.read():
            if word.isdecimal():
                self.code = int(word)
            else:
                self._words.put(word)
        self.over.set()

    def next(self, seconds: float) -> str:
        """Waits at most `seconds` for an order, and returns it, or ""."""
        with suppress(queue.Empty):
            return self._words.get(timeout=seconds)
        return ""


def follow(seat: RunningSeat, line: Line, stop: StopRequest) -> int:
    """Runs this machine's part under the orders of machine 0, and tells it the exit code. Returns that, or the run's
    where the part itself has ended well.

    A request to stop that comes here stops a learner too. Learners then agree to stop, and all of them save. A server
    is needed until they have, so machine 0 is asked to stop them, and ends the server after that.
    """
    orders, num_asked, num_passed_on, is_closed = Orders(line), 0, 0, False
    serves = seat.seat.role != LEARNER
    while (code := seat.poll()) is None:
        order, here = orders.next(POLL_SECONDS), max(stop.count, int(unread()))
        if serves and num_passed_on < here < REQUESTS[KILL] and not orders.over.is_set():
            num_passed_on = here
            line.send(STOP if here == 1 else HURRY)
        own = 0 if serves and here < REQUESTS[KILL] else here
        if (asked := max(REQUESTS.get(order, 0), own)) > num_asked:
            num_asked = asked
            ask(seat, num_asked)
        if orders.over.is_set() and not is_closed:
            is_closed = True
            seat.close()
    line.send(str(code))
    line.close()
    return code or orders.code
