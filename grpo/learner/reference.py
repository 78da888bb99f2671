"""A reference is the policy that a KL term measures the distance to."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from grpo.config import KlConfig, LearnerConfig
from grpo.learner.engine import start_frozen_engine
from grpo.learner.policy import Policy, base_model
from grpo.learner.weights import gathered
from grpo.types import MicroBatch


class AdapterReference:
    """This reference is the trained model with its LoRA adapters switched off, so it needs no second copy of the
    weights."""

    def __init__(self, policy: Policy):
        self._policy = policy

    @contextmanager
    def active(self) -> Iterator[Policy]:
        """Yields the reference policy, which can be used inside the context only."""
        with self._policy.language_model.disable_adapter():
            yield self._policy


class CopyReference:
    """Keeps a frozen copy of the policy, sharded as the policy is under ZeRO-3. The copy moves towards the policy every
    `refresh_every` steps, or never if that is 0.

    A moving average (`refresh_rate` < 1) is kept in float32: in bfloat16 small moves round to nothing.
    """

    def __init__(self, policy: Policy, learner: LearnerConfig, kl: KlConfig, device: torch.device):
        self._kl = kl
        self._moved = False
        policy.requires_grad_(False).eval()
        self.policy = policy.to(device) if learner.zero_stage < 3 else policy
        self._forward = start_frozen_engine(policy, learner) if learner.zero_stage == 3 else policy

    @contextmanager
    def active(self) -> Iterator[Policy]:
        """Yields the reference policy, which can be used inside the context only."""
        yield self._forward

    def due(self, step: int) -> bool:
        """Says whether a refresh is due after optimizer step `step`."""
        return bool(self._kl.refresh_every) and step % self._kl.refresh_every == 0

    @property
    def differs(self) -> bool:
        """Says whether the reference may differ from the model that the run began with, so that a checkpoint needs
        it. One that has moved stays where it is when a resumed run moves it no further."""
        return self._moved or bool(self._kl.refresh_every)

    @torch.no_grad()
    def refresh(self, buckets: Iterator[list[tuple[str, torch.Tensor]]]) -> None:
        """Moves the reference towards the policy, bucket by bucket: θ_ref ← θ_ref + rate·(θ − θ_ref)."""
        parameters = dict(base_model(self.policy.language_model).named_parameters())
        for bucket in buckets:
            with gathered([parameters[name] for name, _ in bucket], modifier_rank=0):
                for name, tensor in bucket:
                    parameters[name].lerp_(tensor.to(parameters[name]), self._kl.refresh_rate)

    def state(self) -> dict[str, torch.Tensor]:
        """Returns the weights by name, whole, on the CPU, for a checkpoint. Collective."""
        parameters = dict(base_model(self.policy.language_model).named_parameters())
        with gathered(list(parameters.values())):
            return {name: parameter.detach().cpu().clone() for name, parameter in parameters.items()}

    @torch.no_grad()
    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores the weights that `state` returned. Collective."""
        self._moved = True
        parameters = dict(base_model(self.policy.language_model).named_parameters())
        with gathered(list(parameters.values()), modifier_rank=0):
            for name, tensor in state.items():
                parameters[name].copy_(tensor)


def reference_logprobs(
    reference: AdapterReference | CopyReference, micro: MicroBatch, temperature: float
) -> torch.Tensor:
    """Returns log π_ref of a micro-batch's targets at `temperature`, [targets] float32, without a gradient."""
    with torch.no_grad(), reference.active() as policy:
        return policy(micro, temperature, entropies=False)[0]
