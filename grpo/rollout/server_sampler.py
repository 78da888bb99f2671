"""This module samples on vLLM servers: it sends token ids, and gets token ids and log-probabilities back.

Every learner rank has all servers sample its own prompts. `fleet` knows the servers and gives them weights, and
`dispatch` hands requests out to them.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from typing import Any

import torch

from grpo.config import SamplingConfig
from grpo.config.errors import NOBODY_LEFT, Interrupted, SamplerLost, UserError
from grpo.config.parts import SamplerSettings
from grpo.host.signals import LOOK_SECONDS, leave_if_urgent
from grpo.interfaces import Bucket, Collective, Draw, OnGroup
from grpo.models.files import ModelFiles
from grpo.rollout.dispatch import Answers, Dispatcher
from grpo.rollout.engine_arguments import sample_seed, sampling_arguments
from grpo.rollout.fleet import Fleet
from grpo.rollout.replica import Replica
from grpo.rollout.servers import MODEL
from grpo.rollout.weight_names import FileForm
from grpo.types import Completion, Prompt, RolloutGroup
from grpo.types.weights import ADAPTER, ADAPTERS, BASE, MERGED

AS_STARTED = "default"
"""vLLM calls the weights so with which a server was started."""

AT_ITS_END = {"output_kind": 2, "flat_logprobs": True}
"""These settings of a request make a server answer once (`RequestOutputKind.FINAL_ONLY`), without objects for each
token's log-probability. Else vLLM 0.26 makes an answer with all tokens so far for every token."""


@dataclass(frozen=True, slots=True)
class PendingGroup:
    """Implements `interfaces.Pending`: one prompt's completions, which a server is still sampling."""

    prompt: Prompt
    samples: range
    answers: Answers
    completion: Callable[[Mapping[str, Any] | None], Completion]

    def result(self) -> RolloutGroup:
        choices = self.answers.result()
        completions = tuple(self.completion(choices.get(sample)) for sample in self.samples)
        versions = [version for completion in completions for version, _ in completion.versions]
        return RolloutGroup(self.prompt, completions, min(versions), max(versions))

    def cancel(self) -> None:
        self.answers.cancel()

    def add_done_callback(self, call: Callable[[object], None]) -> None:
        self.answers.add_done_callback(call)


def wait_for(
    pending_groups: Sequence[PendingGroup], on_group: OnGroup | None = None
) -> tuple[list[RolloutGroup], SamplerLost | Interrupted | None]:
    """Waits for all groups. Returns the groups that came, and the error if some did not because no server is left, or
    because the run has to save at once.

    `on_group` is called with each group's place and the group, as soon as the group is complete.
    """
    places = {pending.answers: place for place, pending in enumerate(pending_groups)}
    groups: dict[int, RolloutGroup] = {}
    last_error: SamplerLost | Interrupted | None = None
    waiting = set(places)
    while waiting and not isinstance(last_error, Interrupted):
        done, waiting = wait(waiting, LOOK_SECONDS, FIRST_COMPLETED)
        for place in (places[answers] for answers in done):
            try:
                groups[place] = pending_groups[place].result()
            except SamplerLost as error:
                last_error = error
                continue
            if on_group:
                on_group(place, groups[place])
        try:
            leave_if_urgent()
        except Interrupted as error:
            last_error = error
    return [groups[place] for place in sorted(groups)], last_error


class ServerSampler:
    """Implements `interfaces.Sampler` on vLLM servers.

    `generate`, `begin_refresh`, `finish_weights` and `checksums` are collective.
    """

    def __init__(
        self,
        settings: SamplerSettings,
        files: ModelFiles,
        device: torch.device,
        collective: Collective,
        fleet: Fleet | None = None,
    ):
        """`collective` spans all learner ranks. They share the configured servers, or have a `fleet` of their own."""
        self._settings, self._tokenizer, self._stop_token_ids = settings, files.tokenizer, files.stop_token_ids
        self._file_form = FileForm(files)
        self.policy_version, self._has_adapter = 0, False
        # Drawing may go on in another thread, beside the learner's collectives.
        self._drawing = collective.apart(settings.rollout.deadline_seconds)
        self._fleet = fleet or Fleet(settings, files, device, collective)
        deadline, at_once = settings.rollout.group_deadline_seconds, settings.rollout.max_concurrent
        if deadline:
            # A group's time runs once it is sent, so that no rank sends what would wait in a server's queue.
            at_once = max(1, at_once // self._fleet.num_askers)
        self._dispatcher = Dispatcher(self._fleet.replicas, at_once, deadline)

    @property
    def servers(self) -> Sequence[Replica]:
        """Returns the run's servers, as this rank knows them."""
        return self._fleet.replicas

    # --- sampling ------------------------------------------------------------------------------

    def generate(self, draw: Draw, on_group: OnGroup | None = None) -> list[RolloutGroup]:
        pending_groups = self.ask(draw)
        groups, error = wait_for(pending_groups, on_group)
        self.agree(error)
        return groups

    def agree(self, lost: SamplerLost | Interrupted | None) -> None:
        # All ranks give up together, or none.
        reason = self._drawing.maximum(0 if lost is None else 1 + isinstance(lost, Interrupted))
        if reason:
            raise Interrupted if reason > 1 else lost or SamplerLost(NOBODY_LEFT)
        self._fleet.restart_lost()

    def ask(self, draw: Draw) -> list[PendingGroup]:
        """Starts what `generate` does, without waiting. Not collective."""
        sampling = draw.sampling or self._settings.rollout.sampling
        requests = [
            {sample: self._request(prompt, sample, sampling) for sample in samples}
            for prompt, samples in zip(draw.prompts, draw.samples, strict=True)
        ]
        turns = [
            ((prompt.problem.problem_id, prompt.visit, samples.start), prompt.turn)
            for prompt, samples in zip(draw.prompts, draw.samples, strict=True)
        ]
        answers = zip(draw.prompts, draw.samples, self._dispatcher.ask(requests, turns), strict=True)
        return [PendingGroup(*of_prompt, self._completion) for of_prompt in answers]

    def _request(self, prompt: Prompt, sample: int, sampling: SamplingConfig) -> dict[str, Any]:
        seed = sample_seed(self._settings.seed, prompt.prompt_id, sample, self.policy_version)
        return {
            # The adapter comes with the first refresh.
            "model": ADAPTER if self._has_adapter else MODEL,
            "token_ids": list(prompt.token_ids),
            "sampling_params": sampling_arguments(sampling, self._stop_token_ids, seed) | AT_ITS_END,
        }

    def _completion(self, choice: Mapping[str, Any] | None) -> Completion:
        if choice is None:
            return Completion.given_up(self.policy_version)
        try:
            token_ids = tuple(choice["token_ids"])
            logprobs = tuple(token["logprob"] for token in choice["logprobs"]["content"])
            versions = self._versions(choice)
        except (LookupError, TypeError, ValueError) as error:
            raise UserError(
                f"a vLLM server answered with a completion that lacks something ({error!r}): servers must be of the "
                "vLLM that `grpo doctor` approves of"
            ) from error
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return Completion(token_ids, logprobs, text, choice["finish_reason"] == "length", versions)

    def _versions(self, choice: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
        """Returns which weights wrote how many tokens of a completion, one after another. A server that has been sent
        none has those of version 0, with which it was started."""
        return tuple(
            (0 if span["version"] == AS_STARTED else int(span["version"]), span["end"] - span["start"])
            for span in choice["weight_versions"]
        )

    # --- weights -------------------------------------------------------------------------------

    def begin_refresh(self) -> str:
        self._fleet.begin_refresh()
        if not self._settings.adapters:
            return MERGED
        return BASE if self._fleet.lacks_base() else ADAPTERS

    def load_weights(self, bucket: Bucket) -> None:
        self._fleet.send(self._file_form.of(bucket))

    def finish_weights(self, policy_version: int) -> None:
        self._fleet.finish_refresh(policy_version)
        self.policy_version, self._has_adapter = policy_version, self._settings.adapters
        # With no server left the round still ends. The next request for samples raises the error.
        self._dispatcher.look_again()

    def checksums(self) -> Sequence[Mapping[str, int]]:
        return self._fleet.checksums()

    def cache_usage(self) -> dict[str, float]:
        return self._fleet.cache_usage()

    def sleep(self) -> None:
        """Does nothing, because servers have devices of their own."""

    def wake(self) -> None:
        """Does nothing, because servers never sleep."""

    def close(self) -> None:
        self._dispatcher.close()
        self._fleet.close()
