"""This program is the first process inside a sandbox. It forks a process for each piece of code that it has to run.

    python -sSm grpo.sandbox.program SETTINGS

It reads requests as JSON lines and answers each by a line:

    {"run": program, "given": text, "last_value": bool}   {"out": …, "error_out": …, "ended": …}
    {"load": [prelude, program]}                           {"error": …}, or "" once the program's functions are there
    {"test": source}                                       {"error": …, "unreadable": bool}; "" if they have passed

`ended` is "", "seconds", "output" or an exit status. The process of a program never has the tests in its memory: it is
forked before they come. Their process alone can say that they have passed.
"""

from __future__ import annotations

import builtins
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

from grpo.sandbox.peers import OPERATIONS, Channel, Peer
from grpo.sandbox.row_tests import examine
from grpo.sandbox.walls import confine, enclose, end_first, end_with_parent

# Every sandbox pays for what is imported here. Only some programs need the rest.
Action = Callable[[], None]
CHUNK, FLOOD = 2**16, 2**20


def main(settings: Mapping[str, Any]) -> None:
    # Programs that run here see nothing of the way in which this one was started.
    os.environ.clear()
    os.environ.update(HOME="/tmp", PATH="/usr/bin:/bin", LANG="C.UTF-8", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    sys.path[:] = [path for path in sys.path if path not in settings["hidden"]] + settings["packages"]
    sys.set_int_max_str_digits(0)
    builtins.exit = builtins.quit = sys.exit
    # A program may send signals to this process, which has no handler but this one of Python's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        end_first()
        if settings["closed"]:
            enclose([*(os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.exec_prefix)), *settings["packages"]])
        else:
            end_with_parent(settings["parent"])
    except OSError as error:
        _say({"error": error.strerror or str(error)})
        return
    _say({"error": ""})
    action = Supervisor(settings).serve()
    action()


def _say(values: Mapping[str, Any]) -> None:
    line = json.dumps(values).encode() + b"\n"
    while line:
        line = line[os.write(1, line) :]


class Supervisor:
    """The supervisor starts and watches the processes that run code, and ends with the one who has asked for them."""

    def __init__(self, settings: Mapping[str, Any]):
        self._seconds_left, self._memory = settings["seconds"], settings["memory"]
        self._characters = settings["characters"]
        self._requests = b""
        self._program: Channel | None = None

    def serve(self) -> Action:
        """Answers requests until there are no more. In a child, returns what that has to do."""
        while request := self._next():
            if "run" in request:
                action = self._run(request)
            elif "load" in request:
                action = self._load(request["load"])
            else:
                action = self._test(request["test"])
            if action:
                return action
        os._exit(0)

    def _next(self) -> Mapping[str, Any] | None:
        while b"\n" not in self._requests:
            chunk = os.read(0, CHUNK)
            if not chunk:
                return None
            self._requests += chunk
        line, _, self._requests = self._requests.partition(b"\n")
        return json.loads(line)

    def _run(self, request: Mapping[str, Any]) -> Action | None:
        given = os.memfd_create("given")
        with open(os.dup(given), "wb") as file:
            file.write(request["given"].encode("utf-8", "surrogatepass"))
        os.lseek(given, 0, os.SEEK_SET)
        (out, out_end), (error, error_end) = os.pipe(), os.pipe()
        child = os.fork()
        if not child:
            self._become(given, out_end, error_end)
            return lambda: run_main(request["run"], request["last_value"])
        for end in (given, out_end, error_end):
            os.close(end)
        texts, ended = self._watch(child, [out, error])
        _say({"out": texts[0], "error_out": texts[1], "ended": ended})
        return None

    def _load(self, texts: Sequence[str]) -> Action | None:
        (questions, to_program), (answers, from_program) = os.pipe(), os.pipe()
        child = os.fork()
        if not child:
            null = os.open("/dev/null", os.O_RDWR)
            self._become(null, null, null, keep=(questions, from_program))
            return lambda: serve_functions(texts, (questions, from_program))
        os.close(questions)
        os.close(from_program)
        self._program = answers, to_program
        _say({"error": ""})
        return None

    def _test(self, source: str) -> Action | None:
        program = self._program
        assert program is not None, "a program is loaded before its tests"
        verdict, verdict_end = os.pipe()
        child = os.fork()
        if not child:
            null = os.open("/dev/null", os.O_RDWR)
            # The descriptor of the verdict is known to this process alone.
            self._become(null, null, null, keep=(*program, verdict_end))
            return lambda: examine(source, program, verdict_end)
        os.close(verdict_end)
        [text], ended = self._watch(child, [verdict])
        late = "the tests took too long" if ended == "seconds" else f"the process of the tests ended ({ended})"
        _say(json.loads(text) if text.endswith("\n") else {"error": late, "unreadable": False})
        return None

    def _become(self, given: int, out: int, error_out: int, keep: tuple[int, ...] = ()) -> None:
        """Makes this child what it is for life: its three streams, no other descriptors but `keep`, and its limits."""
        for number, descriptor in enumerate((given, out, error_out)):
            os.dup2(descriptor, number)
        kept = sorted({0, 1, 2, *keep})
        for before, after in zip(kept, [*kept[1:], 4096], strict=True):
            os.closerange(before + 1, after)
        self._requests = b""
        confine(self._seconds_left, self._memory)

    def _watch(self, child: int, pipes: list[int]) -> tuple[list[str], str]:
        """Reads what a child writes until it ends. Kills it when it writes or takes too much, and ends with the one who
        waits for it. Returns the texts, and how it ended."""
        written, ended, process = {pipe: b"" for pipe in pipes}, "", os.pidfd_open(child)
        deadline = time.monotonic() + self._seconds_left
        watched = [*pipes, process, 0]
        while not ended:
            ready = select.select(watched, [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                ended = "seconds"
            for pipe in written.keys() & {*ready}:
                chunk = os.read(pipe, CHUNK)
                written[pipe] += chunk
                if not chunk:
                    watched.remove(pipe)
                if len(written[pipe]) > 4 * self._characters + FLOOD:
                    ended = "output"
            if 0 in ready:
                # Nobody asks while an answer is due, so this is the end.
                os._exit(0)
            if ready == [process]:
                break
        self._seconds_left = max(0.0, deadline - time.monotonic())
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for descriptor in (*pipes, process):
            os.close(descriptor)
        texts = [content.decode(errors="replace")[: self._characters] for content in written.values()]
        return texts, ended or (str(code) if code else "")


# --- in a child ------------------------------------------------------------------------------------


def run_main(program: str, last_value: bool) -> None:
    """Runs a program as Python does, and then leaves as Python does. With `last_value` it prints the value of the last
    line, if that is an expression."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    name = "<program>"
    try:
        code, last = compile(program, name, "exec"), None
        if last_value:
            code, last = _without_last(program, name)
        exec(code, module.__dict__)
        if last:
            value = eval(last, module.__dict__)
            if value is not None:
                print(repr(value))
    except SystemExit:
        raise
    except BaseException as error:
        import linecache
        import traceback

        linecache.cache[name] = (len(program), None, program.splitlines(keepends=True), name)
        # The frames of this file are nobody's business.
        frames = error.__traceback__
        while frames and frames.tb_frame.f_code.co_filename != name:
            frames = frames.tb_next
        traceback.print_exception(type(error), error, frames)
        sys.exit(1)


def _without_last(program: str, name: str) -> tuple[CodeType, CodeType | None]:
    """Compiles a program without its last line, and that by itself, if it is an expression."""
    import ast

    tree = ast.parse(program, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = compile(ast.Expression(last.value), name, "eval") if isinstance(last, ast.Expr) else None
    return compile(tree, name, "exec"), value


def serve_functions(texts: Sequence[str], channel: Channel) -> None:
    """Runs a program, whose texts share their names, and then lets the tests call its functions."""
    module = ModuleType("program")
    sys.modules["program"] = module
    error = ""
    try:
        for text in texts:
            exec(compile(text, "<program>", "exec"), module.__dict__)
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
    operations = {
        "loaded": lambda: error or sorted(name for name in module.__dict__ if not name.startswith("__")),
        "global": lambda name: module.__dict__[name],
        **OPERATIONS,
    }
    Peer(os.fdopen(channel[0], "rb"), os.fdopen(channel[1], "wb"), operations).serve()
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
