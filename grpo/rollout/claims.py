"""This module claims a run's vLLM servers, keeps the claims until the run ends, and compares what the servers run with
what the run needs. The servers' side is `server_middleware`.
"""

import asyncio
import atexit
import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import grpo
from grpo.config.errors import UserError, require
from grpo.config.parts import SamplerSettings
from grpo.host.terminal import say
from grpo.rollout.engine_arguments import vllm_version
from grpo.rollout.replica import HEALTH_SECONDS, Replica, ReplicaLost, RequestRefused
from grpo.rollout.server_middleware import CLAIM_ROUTE, CONFLICT, LEASE_SECONDS, RELEASE_ROUTE

BEAT_SECONDS, ANSWER_SECONDS = LEASE_SECONDS / 5, 2.0
READ_ROUTE = "/is_paused"
# Servers are reached without a proxy, as by `Replica`.
DIRECT = build_opener(ProxyHandler({}))
WAIT_SECONDS = 1.0
# These entries of a model's config.json say nothing of what it computes.
UNIMPORTANT = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")
# These entries say for which adapters a server has room beside the model's own weights.
ROOM = "model.lora."
VERSION, ENGINE, LENGTH = "the version of grpo", "the version of vLLM", "model.max_length"
# "auto" stands for different values on different machines.
BY_MACHINE = ("rollout.precision", "model.head_precision")
# These arguments of vLLM may differ between machines. They choose how memory and time are spent, how a server is
# reached and what it may download, but not what is computed. All others have to be those of the run.
OWN_TO_A_MACHINE = {
    *("max_num_batched_tokens", "num_gpu_blocks_override", "cpu_offload_gb", "kv_offloading_size"),
    *("cudagraph_capture_sizes", "max_cudagraph_capture_size", "async_scheduling", "stream_interval"),
    *("numa_bind", "numa_bind_cpus", "numa_bind_nodes", "disable_custom_all_reduce", "distributed_timeout_seconds"),
    *("api_server_count", "uvicorn_log_level", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs"),
    *("download_dir", "hf_token", "max_parallel_loading_workers", "otlp_traces_endpoint"),
}


class Claimed(UserError):
    """This error says that another run has claimed the server at `url`."""

    def __init__(self, url: str, answer: str):
        super().__init__(
            f"the vLLM server at {url} is in use: {answer}; wait until that run ends, stop it, or give this run "
            "servers of its own"
        )
        self.url = url


def name_of(output_dir: str) -> str:
    """Returns the name by which servers know the run in a folder."""
    return f"{Path(output_dir).absolute()} (process {os.getpid()} on {socket.gethostname()})"


async def claim(replica: Replica, ours: Mapping[str, Any]) -> Mapping[str, Any]:
    """Claims a server that runs `ours` (see `served`). Returns what the server says that it runs. Raises UserError when
    it serves another run or runs something else, and ReplicaLost when it does not answer."""
    try:
        async with replica.session(HEALTH_SECONDS) as session:
            theirs = await replica.post(session, CLAIM_ROUTE, {})
    except RequestRefused as refused:
        if refused.status == CONFLICT:
            raise Claimed(replica.url, refused.answer) from refused
        raise UserError(
            f"the vLLM server at {replica.url} knows no claims ({refused.status}): start it by the `grpo serve` of "
            f"grpo {grpo.__version__}"
        ) from refused
    require_same(replica.url, theirs, ours)
    return theirs


async def claim_all(replicas: Sequence[Replica], ours: Mapping[str, Any]) -> None:
    """Claims all servers at a run's start. Waits until the claim of a run that was killed has ended.

    A run that cannot have all servers keeps none while it waits. If two runs start at once, one of them gets all: both
    claim in the order of the URLs, and both wait for random times, which helps if they know the servers by different
    URLs. If it raises an error, no server stays claimed.
    """
    deadline = asyncio.get_running_loop().time() + LEASE_SECONDS + BEAT_SECONDS
    announced = False
    while True:
        try:
            theirs = await _claim_in_order(replicas, ours)
            break
        except Claimed as taken:
            if asyncio.get_running_loop().time() > deadline:
                raise
            if not announced:
                announced = True
                say(f"grpo: the vLLM server at {taken.url} is another run's; waiting to see whether that run has ended")
        # The generator is not the run's, whose random numbers would depend on how often it waited.
        await asyncio.sleep(WAIT_SECONDS * Random().uniform(0.5, 1.5))
    if remark := remark_on_versions(ours, theirs):
        say(f"grpo: {remark}")


async def _claim_in_order(replicas: Sequence[Replica], ours: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Claims servers in the order of their URLs. Returns what they answer, by URL. If it raises an error, it gives all
    back."""
    theirs = {}
    try:
        for replica in sorted(replicas, key=lambda replica: replica.url):
            theirs[replica.url] = await claim(replica, ours)
    except UserError:
        await _give_back(replicas)
        raise
    except ReplicaLost as lost:
        await _give_back(replicas)
        raise UserError(f"the vLLM server at {replica.url} was lost before the first round: {lost}") from lost
    return theirs


async def _give_back(replicas: Sequence[Replica]) -> None:
    async def release(replica: Replica) -> None:
        async with replica.session(HEALTH_SECONDS) as session:
            await replica.post(session, RELEASE_ROUTE, {})

    # A server that does not answer serves nobody.
    await asyncio.gather(*map(release, replicas), return_exceptions=True)


class Claims:
    """Keeps a run's claims alive, and releases them when the process ends. Each server has a thread of the first rank,
    so that slow ones do not outlast the claims on others."""

    def __init__(self, replicas: Sequence[Replica]):
        self._replicas, self._over = replicas, threading.Event()
        self._threads = [threading.Thread(target=self._beat, args=(replica,), daemon=True) for replica in replicas]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Releases the servers that still answer."""
        atexit.unregister(self.close)
        self._over.set()
        for thread in self._threads:
            thread.join(ANSWER_SECONDS)
        # Python starts no more threads when it ends.
        for replica in self._replicas:
            _ask(replica, RELEASE_ROUTE, "POST")

    def _beat(self, replica: Replica) -> None:
        while not self._over.wait(BEAT_SECONDS):
            _ask(replica, READ_ROUTE, "GET")


def _ask(replica: Replica, route: str, method: str) -> None:
    """Asks a server if it lives, whatever it answers. Needs no event loop: none looks up names when Python ends."""
    request = Request(f"{replica.url}{route}", headers=dict(replica.headers), method=method)
    if replica.alive:
        with suppress(OSError, HTTPException), DIRECT.open(request, timeout=ANSWER_SECONDS):
            pass


def served(settings: SamplerSettings, model_path: str | Path) -> dict[str, Any]:
    """Returns what a server with these settings runs: what it has in common with the run that may use it."""
    described = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
    model = {f"{name} of the model": value for name, value in described.items() if name not in UNIMPORTANT}
    # Servers take names with hyphens too, as flags.
    passed_on = {name.replace("-", "_"): value for name, value in settings.rollout.engine_args.items()}
    lora = settings.model.lora
    adapters = (("rank", lora.rank), ("target_modules", lora.target_modules))
    return (
        model
        | {
            VERSION: grpo.__version__,
            ENGINE: vllm_version(),
            LENGTH: settings.model.max_length,
            "model.head_precision": settings.model.head_precision,
            "rollout.precision": settings.rollout.precision,
            "rollout.servers.tensor_parallel": settings.rollout.servers.tensor_parallel,
        }
        | ({f"{ROOM}{name}": value for name, value in adapters} if settings.adapters else {})
        | {f"rollout.engine_args.{name}": passed_on[name] for name in sorted({*passed_on} - OWN_TO_A_MACHINE)}
    )


def require_same(url: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raises UserError when the server at `url` runs another model or version of grpo than this run, in another
    precision or with other arguments of vLLM, or takes shorter sequences.

    Another vLLM is no reason (see `remark_on_versions`).
    """
    names = [name for name in dict.fromkeys([*ours, *theirs]) if theirs.get(name) != ours.get(name) and name != ENGINE]
    # A server with room for adapters also serves a run without any.
    names = [name for name in names if name in ours or not name.startswith(ROOM)]
    if theirs.get(LENGTH, 0) >= ours[LENGTH]:
        names = [name for name in names if name != LENGTH]
    differences = ", ".join(f"{name} is {theirs.get(name)!r} there and {ours.get(name)!r} here" for name in names[:3])
    chosen = [name for name in names if name in BY_MACHINE]
    also = f", and name {' and '.join(chosen)} there and here, since auto depends on the machine" if chosen else ""
    require(
        not names,
        f"the vLLM server at {url} does not run what this run needs: {differences}: start `grpo serve` there with the "
        f"words of this run{also}, or correct rollout.servers.urls",
    )


def remark_on_versions(ours: Mapping[str, Any], theirs: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a remark where the servers, whose answers are given by URL, and this run have several versions of vLLM,
    or else "".

    They are not refused. `grpo serve` starts no vLLM that is too old, a learner with running servers uses no vLLM, and
    whatever they compute differently shows where sampler and learner are compared.
    """
    versions = {url: answer.get(ENGINE) for url, answer in theirs.items()} | {"this machine": ours[ENGINE]}
    known = {place: version for place, version in versions.items() if version}
    if len(set(known.values())) < 2:
        return ""
    places = ", ".join(f"{version} at {place}" for place, version in known.items())
    return (
        f"the versions of vLLM differ ({places}): if sampler and learner disagree, install the same one on all machines"
    )
