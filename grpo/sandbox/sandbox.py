"""This module starts sandboxes and asks them to run what a model has written."""

from __future__ import annotations

import functools
import json
import os
import select
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from grpo.config.errors import UserError

PLACE = Path(__file__).resolve().parents[2]
START_SECONDS, MARGIN_SECONDS = 60.0, 5.0
"""A sandbox starts within the first, and answers within the second after the limit of what it runs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """These are the limits of a sandbox: seconds for all that runs in it, GiB of memory of each program, and characters
    on each of its two streams."""

    seconds: float
    memory_gib: float
    characters: int


@dataclass(frozen=True, slots=True)
class Run:
    """A run is what a program wrote to its two streams, and how it ended: "", "seconds", "output", "sandbox" if it
    broke that, or an exit status."""

    out: str
    error_out: str
    ended: str


class Refused(Exception):
    """This error says why a sandbox cannot be made here."""


class Broken(Exception):
    """This error says that a sandbox has ended, or does not answer. The program in it may have done that."""


class UnreadableTests(ValueError):
    """This error says that tests cannot judge any program here."""


class Sandbox:
    """A sandbox is a process apart, without the machine's files, network and processes, that runs Python programs.

    With `closed=False` programs have the same limits, but see the files of this user. Raises Refused if there can be
    no sandbox here.
    """

    def __init__(self, limits: Limits, closed: bool = True):
        self._limits, self._said = limits, b""
        settings = {
            **{"closed": closed, "seconds": limits.seconds, "memory": int(limits.memory_gib * 2**30)},
            **{"characters": limits.characters, "hidden": [str(PLACE)], "packages": _packages(), "parent": os.getpid()},
        }
        words = [os.path.realpath(sys.executable), "-sSm", "grpo.sandbox.program", json.dumps(settings)]
        # Hashes that differ from run to run would make rewards differ.
        environment = {"PYTHONPATH": str(PLACE), "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1", "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd="/"
        )
        try:
            error = self._answer(START_SECONDS)["error"]
        except Broken as broken:
            error = str(broken)
        if error:
            self.close()
            raise Refused(error)

    def run(self, program: str, given: str = "", last_value: bool = False) -> Run:
        """Runs a program in a fresh process. `given` is its input. With `last_value`, it also prints the value of an
        expression in its last line."""
        try:
            return Run(**self._asked({"run": program, "given": given, "last_value": last_value}))
        except Broken as error:
            return Run("", str(error), "sandbox")

    def test(self, program: str, source: str, prelude: str = "") -> str:
        """Returns why a program fails tests that call its functions, or "" if it passes them. The program may use the
        names of `prelude`.

        Raises UnreadableTests if the tests are no Python, import what is not here, or run nothing."""
        try:
            self._asked({"load": [prelude, program]})
            verdict = self._asked({"test": source})
        except Broken as error:
            return str(error)
        if verdict["unreadable"]:
            raise UnreadableTests(verdict["error"])
        return verdict["error"]

    def _asked(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise Broken("its sandbox has ended") from error
        return self._answer(self._limits.seconds + MARGIN_SECONDS)

    def _answer(self, seconds: float) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._said:
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Broken(f"its sandbox did not answer within {seconds:g} s")
            chunk = os.read(self._process.stdout.fileno(), 2**16)
            if not chunk:
                raise Broken("its sandbox has ended")
            self._said += chunk
        line, _, self._said = self._said.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        """Ends the sandbox and all that runs in it."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _packages() -> list[str]:
    """Returns the folders of installed packages, which programs may import."""
    paths = {os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return sorted(path for path in paths if os.path.isdir(path))


@functools.cache
def unavailable(closed: bool = True) -> str:
    """Returns why this machine has no sandbox, or "" if one works."""
    try:
        with Sandbox(Limits(10.0, 1.0, 100), closed) as sandbox:
            run = sandbox.run("print(6 * 7)")
    except (Refused, OSError) as error:
        return str(error)
    return "" if run.out == "42\n" else f"a program in it ended with {run.ended}: {run.error_out or run.out}"


def require_sandbox(user: str, key: str, closed: bool) -> None:
    """Raises UserError if `user`, which runs what a model writes, cannot do so here. The setting `key` accepts that."""
    if why := unavailable(closed):
        raise UserError(
            f"{user} runs what the model writes, and this machine has no sandbox for it ({why})"
            + (f": {key}=none runs it with your own rights, and the model may then read your files" if closed else "")
        )
