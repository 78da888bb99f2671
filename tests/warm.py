"""This module starts programs fast: one process imports heavy packages once, and forks for each program.

A learner and vLLM take a quarter of a minute to import, ten times what a step of the tiny model takes. Each program
that it starts is the same program in a process of its own, with its arguments, environment, standard streams, signals
and exit code. A run in process, one on two ranks, servers and launchers are also started as a person does.

    python -m tests.warm serve SOCKET            started by conftest.py; ends with its standard input
    python tests/warm.py run IMPORTS COMMAND...  what torchrun starts for each rank (see `ranks`)
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import io
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

SOCKET = "GRPO_TESTS_WARM"
# DeepSpeed imports the second to see whether it is the optimizer's, and torch's compiler with it.
LEARNER = ("grpo.learner.learner", "deepspeed.runtime.zero.muon.muon_optimizer")
TRAIN = (*LEARNER, "grpo.run.session", "grpo.rollout.transformers_sampler", "grpo.rollout.vllm_sampler")
# Runs and engines import these only as they start.
TRAIN += ("grpo.commands.train", "grpo.run.early_checks", "pyarrow.parquet", "transformers.models.llama.modeling_llama")
TRAIN += ("vllm.v1.core.sched.scheduler", "vllm.v1.attention.backends.cpu_attn", "vllm.lora.punica_wrapper.punica_cpu")
TRAIN += ("vllm.distributed.elastic_ep.elastic_execute", "matplotlib.backends.backend_svg")
TRAIN += ("vllm.v1.worker.cpu_worker", "vllm.model_executor.models.llama", "torch._inductor.compile_fx", "pebble")
TRAIN += ("torch._dynamo.backends.inductor", "torch.export", "matplotlib.pyplot", "grpo.run.padding")
TRAIN += ("vllm.model_executor.layers.quantization.online.base", "vllm.plugins.lora_resolvers.hf_hub_resolver")
TRAIN += ("deepspeed.comm.mori", "deepspeed.ops.op_builder.all_ops", "deepspeed.module_inject.auto_ep_layer")
TRAIN += ("vllm.entrypoints.launchers.cli_args", "grpo.weight_sync.vllm_receiver", "torch.utils.tensorboard")
TRAIN += ("tests.undrawn", "tests.begun")
# A server's program and its engine's.
SERVER = "vllm.entrypoints.openai.api_server"
SERVE = (*TRAIN, "vllm.entrypoints.launchers.api_server.entry", "vllm.v1.engine.core", "vllm.v1.engine.async_llm")
SERVE += ("grpo.weight_sync.vllm_receiver", "grpo.rollout.server_middleware")
# Not `torch.distributed.run` itself, which Python would warn of.
TORCHRUN = ("torch.distributed.launcher.api",)
LONGEST = 1 << 18


class Process:
    """This is a `subprocess.Popen` of `python COMMAND`, as far as tests need it."""

    def __init__(
        self,
        command: Sequence[str],
        imports: Sequence[str] = TRAIN,
        env: Mapping[str, str] | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ):
        request = {
            "command": [str(word) for word in command],
            "imports": imports,
            "environment": dict(os.environ if env is None else env),
            "folder": os.getcwd(),
        }
        self.returncode: int | None = None
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.connect(os.environ[SOCKET])
        self.stdout, output = _pipe(stdout, 1)
        self.stderr, error = (None, os.dup(output)) if stderr == subprocess.STDOUT else _pipe(stderr, 2)
        nothing = os.open(os.devnull, os.O_RDONLY)
        socket.send_fds(self._server, [json.dumps(request).encode()], [nothing, output, error])
        for descriptor in (nothing, output, error):
            os.close(descriptor)
        self.pid = int(self._server.recv(LONGEST) or 0)
        assert self.pid, f"{request['command']} was not started"

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._server], [], [], seconds)[0]:
            self.returncode = int(self._server.recv(LONGEST) or -signal.SIGKILL)
            # Otherwise what is left open here would end with the garbage.
            self._server.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        texts: dict[int, str] = {}
        streams = [stream for stream in (self.stdout, self.stderr) if stream]
        readers = [threading.Thread(target=lambda s=stream: texts.update({id(s): s.read()})) for stream in streams]
        for reader in readers:
            reader.start()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        for reader in readers:
            reader.join(timeout)
        printed, said = (texts.get(id(stream)) for stream in (self.stdout, self.stderr))
        return printed, said

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _pipe(wanted: int | None, usual: int):
    if wanted != subprocess.PIPE:
        return None, os.dup(usual)
    ours, theirs = os.pipe()
    return os.fdopen(ours, encoding="utf-8", errors="replace"), theirs


def run(
    command: Sequence[str], imports: Sequence[str] = TRAIN, timeout: float = 300, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Runs `python COMMAND` as `subprocess.run` does, and returns what it printed as text."""
    process = Process(command, imports, env, subprocess.PIPE, subprocess.PIPE)
    printed, said = process.communicate(timeout)
    return subprocess.CompletedProcess(command, process.returncode, printed, said)


def ranks(
    count: int, command: Sequence[str], imports: Sequence[str] = TRAIN, timeout: float = 400
) -> subprocess.CompletedProcess:
    """Runs `torchrun --nproc-per-node=COUNT COMMAND`, with one thread for torchrun and for each rank."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "--no-python"]
    rank = [sys.executable, "-SP", __file__, "run", ",".join(imports), *map(str, command)]
    return run([*torchrun, *rank], (*TORCHRUN, *imports), timeout, os.environ | {"OMP_NUM_THREADS": "1"})


def interpreter(folder: Path, imports: Sequence[str] = TRAIN) -> str:
    """Writes a program that takes the place of Python where torchrun starts ranks (PYTHON_EXEC) or a run starts its
    servers. Returns the program's path."""
    path = folder / "python"
    leave_out = '[ "$1" != -u ] || shift\n[ "$1" != -W ] || shift 2'
    path.write_text(f'#!/bin/sh\n{leave_out}\nexec {sys.executable} -SP {__file__} run {",".join(imports)} "$@"\n')
    path.chmod(0o755)
    return str(path)


def start_server() -> subprocess.Popen:
    """Starts the process to fork from, which imports when a first request names packages. Puts the path of its socket
    into the environment."""
    folder = tempfile.mkdtemp(prefix="grpo-warm-")
    os.environ[SOCKET] = f"{folder}/socket"
    # The learner and vLLM keep the number of threads that they were imported with. vLLM compiles one function, which
    # counts ranks of tokens: the servers and the runs that start cold do that too.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    words = [sys.executable, "-m", "tests.warm", "serve", os.environ[SOCKET]]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    server.stdout.readline()
    return server


# --- the other side --------------------------------------------------------------------------------------------------


def _serve(path: str) -> dict:
    """Forks for each request until the tests end. Returns only in forked processes, with the request that the process
    has to run."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    os.write(1, b"ready\n")
    os.dup2(2, 1)
    while True:
        ready = select.select([listener, 0], [], [], 5)[0]
        _reap()
        if 0 in ready:
            Path(path).unlink()
            Path(path).parent.rmdir()
            os._exit(0)
        if not ready:
            continue
        client, _ = listener.accept()
        message, streams, _, _ = socket.recv_fds(client, LONGEST, 3)
        request = json.loads(message)
        for name in request["imports"]:
            import_module(name)
        # The collector skips present objects from here on, also in forked processes, and even where vLLM ends.
        gc.freeze()
        gc.unfreeze = lambda: None
        if os.fork() == 0:
            listener.close()
            _keep_or_become(client, streams)
            return request
        client.close()
        for descriptor in streams:
            os.close(descriptor)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _keep_or_become(client: socket.socket, streams: Sequence[int]) -> None:
    """Forks. The child returns, and becomes the program. The parent never returns: it sends the client the child's
    process id and exit code. If the client is gone, the parent kills the child and all processes below it."""
    child = os.fork()
    if child == 0:
        client.close()
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return
    for descriptor in (0, 1, 2, *streams):
        os.close(descriptor)
    client.send(str(child).encode())
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, client], [], [])[0]:
        _kill(child)
    _, status = os.waitpid(child, 0)
    try:
        client.send(str(os.waitstatus_to_exitcode(status)).encode())
    finally:
        os._exit(0)


def _kill(program: int) -> None:
    # Not there where a program stands for another (see `_rank`).
    import psutil

    process = psutil.Process(program)
    for one in (*process.children(recursive=True), process):
        with suppress(psutil.NoSuchProcess):
            one.kill()


def _become(request: dict) -> None:
    """Runs the program and ends this process as an interpreter does, but without the destruction of modules."""
    try:
        _run(request)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if code and code is not ended.code:
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(request: dict) -> None:
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), write_through=unbuffered)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), errors="backslashreplace", line_buffering=True)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    # A crash in a library's own code says where it was.
    faulthandler.enable(2)
    kind, *words = request["command"]
    if words[:1] == [SERVER]:
        # The engine is forked too: on a CPU vLLM would have it import everything again.
        fork = multiprocessing.get_context("fork")
        multiprocessing.get_context = lambda method=None: fork
    if kind == "-m":
        sys.path[0] = request["folder"]
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(kind).parent)
        sys.argv = [kind, *words]
        runpy.run_path(kind, run_name="__main__")


def _rank(imports: str, command: Sequence[str]) -> None:
    """Takes the place of a program that the server forks: passes signals on to it, and ends with its exit code or
    signal. Says when and how a program failed, since torchrun ends all others and shows the cause of one."""
    process, passed = Process(command, imports.split(",")), []

    def pass_on(number: int, _: object) -> None:
        passed.append(signal.Signals(number).name)
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    code = process.wait()
    if code:
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        after = f" after it was sent {', '.join(passed)}" if passed else ""
        rank = os.environ.get("RANK", "")
        print(f"rank {rank}, process {process.pid}, ended by {how}{after} at {time.time():.3f}", file=sys.stderr)
    if code < 0:
        with suppress(OSError):  # nobody can handle SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    _, what, *rest = sys.argv
    if what == "run":
        _rank(rest[0], rest[1:])
    else:
        from grpo.host import environment

        environment.prepare()
        _become(_serve(*rest))
