"""vLLM servers as the sampler: token ids out, token ids and log-probabilities back.

Every learner rank draws its own prompts from all servers. The first rank starts the servers, when they are ours, and
sends them the weights. A server that is lost rejoins at the next refresh, once it has been given weights again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from grpo.config import SamplingConfig, TrainConfig, UserError
from grpo.config.errors import SamplerLost
from grpo.config.placement import KEY_VARIABLE, LOG_FOLDER, server_gpus
from grpo.interfaces import Bucket, Collective
from grpo.rollout.dispatch import draw
from grpo.rollout.engine_arguments import command_line, engine_arguments
from grpo.rollout.replica import Replica, ReplicaLost, ServerProcess, free_port
from grpo.rollout.seeds import sample_numbers, sample_seed
from grpo.rollout.stopping import stop_token_ids
from grpo.types import Completion, Prompt, RolloutGroup
from grpo.weight_sync.server_link import Post, ServerLink

MODEL = "policy"


class ServerSampler:
    """`interfaces.Sampler` on vLLM servers. `load_weights`, `finish_weights` and `checksums` are collective."""

    def __init__(
        self,
        config: TrainConfig,
        model_path: str | Path,
        tokenizer: PreTrainedTokenizerBase,
        device: torch.device,
        collective: Collective,
    ):
        self._config, self._tokenizer, self._collective = config, tokenizer, collective
        self._stop_token_ids = stop_token_ids(model_path, tokenizer)
        self.policy_version = 0
        servers = config.rollout.servers
        # Drawing may go on in another thread, beside the learner's collectives.
        self._drawing = collective.apart()
        self._first = collective.rank == 0
        processes = start_servers(config, str(model_path), device) if self._first and not servers.urls else {}
        key = os.environ.get(KEY_VARIABLE, "")
        urls, key = collective.gather((list(processes) or list(servers.urls), key))[0]
        self._replicas = [
            Replica(index, url, key, servers.request_seconds, processes.get(url)) for index, url in enumerate(urls)
        ]
        seconds = config.weight_sync.deadline_seconds
        self._links = [ServerLink(servers.tensor_parallel, device, seconds, servers.host) for _ in urls]
        self._linked: set[int] = set()
        self._updating = False
        self._arrange = device.type == "cpu"
        asyncio.run(self._wait_for(self._replicas))

    # --- sampling ------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Sequence[Prompt],
        group_size: int | Sequence[int],
        sampling: SamplingConfig | None = None,
        first_sample: int = 0,
    ) -> list[RolloutGroup]:
        sampling = sampling or self._config.rollout.sampling
        drawn = sample_numbers(group_size, first_sample, len(prompts))
        requests = [
            {(index, sample): self._request(prompt, sample, sampling) for sample in drawn[index]}
            for index, prompt in enumerate(prompts)
        ]
        answers = draw(requests, self._replicas, self._config.rollout.max_concurrent)
        # All ranks give up together, or none.
        if self._drawing.maximum(len(answers) < sum(map(len, requests))):
            raise SamplerLost(
                "no vLLM server is left: see logs/ in the run's folder, and continue with checkpoint.resume=true"
            )
        self._restart_lost()
        return [
            RolloutGroup(
                prompt,
                tuple(self._completion(answers[index, sample]) for sample in drawn[index]),
                self.policy_version,
            )
            for index, prompt in enumerate(prompts)
        ]

    def _request(self, prompt: Prompt, sample: int, sampling: SamplingConfig) -> dict[str, Any]:
        return {
            "model": MODEL,
            "prompt": list(prompt.token_ids),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_tokens": sampling.max_tokens,
            "stop": list(sampling.stop),
            "stop_token_ids": self._stop_token_ids,
            "seed": sample_seed(self._config.seed, prompt.prompt_id, sample, self.policy_version),
            "logprobs": 0,
            "return_token_ids": True,
        }

    def _completion(self, choice: Mapping[str, Any]) -> Completion:
        token_ids = tuple(choice["token_ids"])
        logprobs = tuple(choice["logprobs"]["token_logprobs"])
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return Completion(token_ids, logprobs, text, truncated=choice["finish_reason"] == "length")

    # --- weights -------------------------------------------------------------------------------

    def load_weights(self, bucket: Bucket) -> None:
        if not self._updating:
            self._begin_update()
        if self._first:
            self._on_all(lambda replica, post: self._links[replica.index].send(post, bucket))

    def _begin_update(self) -> None:
        """Servers that came back are taken in; a server that any rank has lost is lost to all."""
        lost = set().union(*self._collective.gather([each.index for each in self._replicas if not each.alive]))
        for index in lost:
            self._replicas[index].alive = False
        self._restart_lost()
        self._updating = True
        if self._first:
            asyncio.run(self._take_back())
            self._on_all(self._start)

    async def _take_back(self) -> None:
        """Lost servers that answer again; all of them are waited for when no other is left."""
        lost = [each for each in self._replicas if not each.alive]
        if len(lost) == len(self._replicas):
            await self._wait_for(lost)
        for replica, healthy in zip(lost, await asyncio.gather(*(each.healthy() for each in lost)), strict=True):
            replica.alive = healthy

    async def _start(self, replica: Replica, post: Post) -> None:
        link = self._links[replica.index]
        if replica.index not in self._linked:
            if self._arrange:
                await post("/collective_rpc", {"method": "arrange_weights"})
            await link.open(post)
            self._linked.add(replica.index)
        await link.start(post)

    def finish_weights(self, policy_version: int) -> None:
        if self._first:
            self._on_all(lambda replica, post: self._finish(replica, post, policy_version))
        alive = self._collective.gather([each.alive for each in self._replicas])[0]
        for replica, holds_weights in zip(self._replicas, alive, strict=True):
            replica.alive = holds_weights
        self._updating = False
        self.policy_version = policy_version
        if not any(alive):
            raise SamplerLost("no vLLM server could be given the weights: see logs/ in the run's folder")

    async def _finish(self, replica: Replica, post: Post, policy_version: int) -> None:
        await self._links[replica.index].finish(post, policy_version)
        await post("/reset_prefix_cache", {})

    def checksums(self) -> Sequence[Mapping[str, int]]:
        found = None
        if self._first:
            answers = self._on_all(lambda replica, post: post("/collective_rpc", {"method": "weight_checksums"}))
            found = [worker for answer in answers for worker in answer["results"]]
        return self._collective.gather(found)[0]

    # --- servers -------------------------------------------------------------------------------

    def _on_all(self, action: Callable[[Replica, Post], Awaitable[Any]]) -> list[Any]:
        """`action` on every living server at once; the results of those that are living after it."""

        async def on_one(replica: Replica) -> Any:
            async with replica.session() as session:
                return await action(replica, lambda route, payload: replica.post(session, route, payload))

        async def on_every() -> list[tuple[Replica, Any]]:
            living = [each for each in self._replicas if each.alive]
            outcomes = await asyncio.gather(*(on_one(each) for each in living), return_exceptions=True)
            return list(zip(living, outcomes, strict=True))

        results = []
        for replica, outcome in asyncio.run(on_every()):
            if isinstance(outcome, UserError):
                raise outcome
            # What a channel raises is a RuntimeError of torch's.
            if isinstance(outcome, ReplicaLost | RuntimeError):
                replica.alive = False
                print(f"grpo: the vLLM server at {replica.url} was lost: {outcome}", file=sys.stderr)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                results.append(outcome)
        self._restart_lost()
        return results

    async def _wait_for(self, replicas: Sequence[Replica]) -> None:
        seconds = self._config.rollout.servers.start_seconds
        await asyncio.gather(*(each.wait(seconds) for each in replicas))

    def _restart_lost(self) -> None:
        """Once for each loss; on the first rank, of servers that are ours."""
        for replica in self._replicas:
            if not replica.alive and replica.index in self._linked:
                self._linked.discard(replica.index)
                if replica.process is not None:
                    replica.process.restart()

    def sleep(self) -> None:
        """Servers have devices of their own."""

    def wake(self) -> None:
        """They never sleep."""


def start_servers(config: TrainConfig, model_path: str, device: torch.device) -> dict[str, ServerProcess]:
    """url → process, each on its own devices, with one key for the run."""
    servers, on_gpu = config.rollout.servers, device.type == "cuda"
    os.environ.setdefault(KEY_VARIABLE, secrets.token_urlsafe(24))
    arguments = engine_arguments(config, model_path, on_gpu) | {
        "served_model_name": MODEL,
        "host": servers.host,
        "tensor_parallel_size": servers.tensor_parallel,
        "weight_transfer_config": {"backend": "grpo"},
        "disable_uvicorn_access_log": True,
    }
    started = {}
    for index in range(servers.replicas):
        port = servers.port + index if servers.port else free_port(servers.host)
        environment = server_environment(config, index, on_gpu)
        log = Path(config.output_dir) / LOG_FOLDER / f"server-{servers.host}-{port}.log"
        process = ServerProcess(command_line(arguments | {"port": port}), environment, log)
        process.start()
        started[f"http://{servers.host}:{port}"] = process
    return started


def server_environment(config: TrainConfig, index: int, on_gpu: bool) -> dict[str, str]:
    """Variables of server `index`: its key, its devices, and what vLLM's weight requests need."""
    common = {
        "VLLM_API_KEY": os.environ[KEY_VARIABLE],
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    if not on_gpu:
        return common | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return common | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, server_gpus(config, index)))}
