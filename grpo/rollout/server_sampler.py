"""vLLM servers as the sampler: token ids out, token ids and log-probabilities back.

Every learner rank draws its own prompts from all servers. The first rank starts the servers, when they are ours, and
sends them the weights. A server that is lost rejoins at the next refresh, once it has been given weights again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from grpo.config import SamplingConfig, TrainConfig
from grpo.config.errors import NOBODY_LEFT, SamplerLost, UserError
from grpo.config.placement import KEY_VARIABLE
from grpo.host.terminal import say
from grpo.interfaces import ADAPTERS, BASE, MERGED, Bucket, Collective
from grpo.rollout.dispatch import Answers, Dispatcher
from grpo.rollout.engine_arguments import sampling_arguments
from grpo.rollout.file_names import FileForm
from grpo.rollout.replica import Replica
from grpo.rollout.seeds import sample_numbers, sample_seed
from grpo.rollout.servers import MODEL, start_servers
from grpo.rollout.stopping import stop_token_ids
from grpo.types import Completion, Prompt, RolloutGroup
from grpo.weight_sync.channel import manifest_of, packed
from grpo.weight_sync.server_link import Post, ServerLink


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt's completions, on their way: `interfaces.Pending`."""

    prompt: Prompt
    answers: Answers
    completion: Callable[[Mapping[str, Any]], Completion]

    def result(self) -> RolloutGroup:
        found = self.answers.result()
        completions = tuple(self.completion(found[sample]) for sample in sorted(found))
        versions = [version for completion in completions for version, _ in completion.versions]
        return RolloutGroup(self.prompt, completions, min(versions), max(versions))

    def cancel(self) -> None:
        self.answers.cancel()


def wait_for(asked: Sequence[Asked]) -> tuple[list[RolloutGroup], SamplerLost | None]:
    """What has come, and why not all has: with no server left, what is still under way is waited for nevertheless."""
    groups, lost = [], None
    for each in asked:
        try:
            groups.append(each.result())
        except SamplerLost as error:
            lost = error
    return groups, lost


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
        self._config, self._tokenizer, self._collective, self._device = config, tokenizer, collective, device
        self._stop_token_ids = stop_token_ids(model_path, tokenizer)
        self._file_form = FileForm(str(model_path), config.model.trust_remote_code)
        self.policy_version = 0
        servers = config.rollout.servers
        # Drawing may go on in another thread, beside the learner's collectives.
        self._drawing = collective.apart(config.rollout.deadline_seconds)
        self._first = collective.rank == 0
        processes = start_servers(config, str(model_path), device) if self._first and not servers.urls else {}
        key = os.environ.get(KEY_VARIABLE, "")
        urls, key = collective.gather((list(processes) or list(servers.urls), key))[0]
        self._replicas = [
            Replica(index, url, key, servers.request_seconds, processes.get(url)) for index, url in enumerate(urls)
        ]
        # A server that hangs while it is given weights is given up before the others, paused, or the run time out.
        self._update_seconds = min(config.weight_sync.deadline_seconds, servers.request_seconds) / 4
        self._links = [ServerLink(servers.tensor_parallel, device, self._update_seconds, servers.host) for _ in urls]
        self._linked: set[int] = set()
        self._dispatcher = Dispatcher(self._replicas, config.rollout.max_concurrent)
        # Requests that are under way at a refresh go on after it, their prefixes computed anew.
        self._pauses = config.pipeline == "continuous"
        self._with_base: set[int] = set()
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
        asked = self.ask(prompts, group_size, sampling, first_sample)
        groups, lost = wait_for(asked)
        # All ranks give up together, or none.
        if self._drawing.maximum(lost is not None):
            raise lost or SamplerLost(NOBODY_LEFT)
        self._restart_lost()
        return groups

    def ask(
        self,
        prompts: Sequence[Prompt],
        group_size: int | Sequence[int],
        sampling: SamplingConfig | None = None,
        first_sample: int = 0,
    ) -> list[Asked]:
        """As `generate`, without waiting. Not collective."""
        sampling = sampling or self._config.rollout.sampling
        drawn = sample_numbers(group_size, first_sample, len(prompts))
        requests = [
            {sample: self._request(prompt, sample, sampling) for sample in samples}
            for prompt, samples in zip(prompts, drawn, strict=True)
        ]
        answers = self._dispatcher.ask(requests)
        return [Asked(prompt, each, self._completion) for prompt, each in zip(prompts, answers, strict=True)]

    def _request(self, prompt: Prompt, sample: int, sampling: SamplingConfig) -> dict[str, Any]:
        seed = sample_seed(self._config.seed, prompt.prompt_id, sample, self.policy_version)
        return {
            "model": MODEL,
            "token_ids": list(prompt.token_ids),
            "sampling_params": sampling_arguments(sampling, self._stop_token_ids, seed),
        }

    def _completion(self, choice: Mapping[str, Any]) -> Completion:
        try:
            token_ids = tuple(choice["token_ids"])
            logprobs = tuple(token["logprob"] for token in choice["logprobs"]["content"])
            versions = tuple((int(span["version"]), span["end"] - span["start"]) for span in choice["weight_versions"])
        except (LookupError, TypeError, ValueError) as error:
            raise UserError(
                f"a vLLM server answered with a completion that lacks something ({error!r}): servers must be of the "
                "vLLM that `grpo doctor` approves of"
            ) from error
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return Completion(token_ids, logprobs, text, choice["finish_reason"] == "length", versions)

    # --- weights -------------------------------------------------------------------------------

    def begin_refresh(self) -> str:
        self._begin_update()
        if not self._config.model.lora.rank:
            return MERGED
        lacking = any(each.alive and each.index not in self._with_base for each in self._replicas)
        return self._collective.gather(BASE if lacking else ADAPTERS)[0]

    def load_weights(self, bucket: Bucket) -> None:
        if self._first:
            bucket = self._file_form.of(bucket)
            manifest, buffer = manifest_of(bucket), packed(bucket, self._device)

            def send(replica: Replica, post: Post) -> Awaitable[None]:
                return self._links[replica.index].send(post, manifest, buffer)

            self._on_all(send)

    def _begin_update(self) -> None:
        """Servers that came back are taken in; a server that any rank has lost is lost to all."""
        lost = set().union(*self._collective.gather([each.index for each in self._replicas if not each.alive]))
        for index in lost:
            self._replicas[index].alive = False
        self._restart_lost()
        if self._first:
            asyncio.run(self._take_back())
        # Who joins is waited for by every rank, should it lose the others meanwhile.
        joining = self._collective.gather([each.joining for each in self._replicas])[0]
        for replica, joins in zip(self._replicas, joining, strict=True):
            replica.joining = joins
            replica.alive = replica.alive or joins
        if self._first:
            self._on_all(self._start)

    async def _take_back(self) -> None:
        """Lost servers that answer again."""
        lost = [each for each in self._replicas if not each.alive]
        for replica, healthy in zip(lost, await asyncio.gather(*(each.healthy() for each in lost)), strict=True):
            # In this order: requests are handed out in another thread.
            replica.joining = healthy
            replica.alive = healthy
            if healthy:
                say(f"grpo: the vLLM server at {replica.url} is back")

    async def _start(self, replica: Replica, post: Post) -> None:
        link = self._links[replica.index]
        if replica.index not in self._linked:
            if self._arrange:
                await post("/collective_rpc", {"method": "arrange_weights"})
            await post("/collective_rpc", {"method": "end_broken_transfer"})
            await link.open(post)
            self._linked.add(replica.index)
        if self._pauses:
            await post("/pause?mode=keep", {})
        await link.start(post)

    def finish_weights(self, policy_version: int) -> None:
        if self._first:
            self._on_all(lambda replica, post: self._finish(replica, post, policy_version))
        alive = self._collective.gather([each.alive for each in self._replicas])[0]
        for replica, holds_weights in zip(self._replicas, alive, strict=True):
            replica.alive, replica.joining = holds_weights, False
        self._with_base = {each.index for each in self._replicas if each.alive}
        self.policy_version = policy_version
        # With no server left the round ends as it is: who asks for samples next is told.
        self._dispatcher.look_again()

    async def _finish(self, replica: Replica, post: Post, policy_version: int) -> None:
        await self._links[replica.index].finish(post, policy_version)
        await post("/reset_prefix_cache", {})
        # Also where another run has left it paused.
        await post("/resume", {})

    def checksums(self) -> Sequence[Mapping[str, int]]:
        found = None
        if self._first:
            found = [worker for workers in self._on_all(self._checksums) for worker in workers]
        return self._collective.gather(found)[0]

    async def _checksums(self, replica: Replica, post: Post) -> list[Mapping[str, int]]:
        return [dict(worker) for worker in (await post("/collective_rpc", {"method": "weight_checksums"}))["results"]]

    # --- servers -------------------------------------------------------------------------------

    def _on_all(self, action: Callable[[Replica, Post], Awaitable[Any]]) -> list[Any]:
        """`action` on every living server at once; the results of those that are living after it."""

        async def on_one(replica: Replica) -> Any:
            async with replica.session(self._update_seconds) as session:
                return await action(replica, lambda route, payload: replica.post(session, route, payload))

        async def on_every() -> list[tuple[Replica, Any]]:
            living = [each for each in self._replicas if each.alive]
            outcomes = await asyncio.gather(*(on_one(each) for each in living), return_exceptions=True)
            return list(zip(living, outcomes, strict=True))

        results = []
        for replica, outcome in asyncio.run(on_every()):
            # Whatever went wrong went wrong with one server: the others still serve the run.
            if isinstance(outcome, Exception):
                replica.alive = False
                say(f"grpo: the vLLM server at {replica.url} was lost: {str(outcome) or repr(outcome)}")
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
        """Once for each loss, and again where it ended while it started: the memory of the one before may not have
        been free yet. On the first rank, of servers that are ours."""
        for replica in self._replicas:
            if replica.alive:
                continue
            lost, process = replica.index in self._linked, replica.process
            self._linked.discard(replica.index)
            self._with_base.discard(replica.index)
            if process is not None and (lost or process.ended):
                process.restart()

    def sleep(self) -> None:
        """Servers have devices of their own."""

    def wake(self) -> None:
        """They never sleep."""
