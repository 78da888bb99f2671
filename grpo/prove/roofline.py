"""This module counts what a micro-batch computes, reads and writes on a GPU, and how long that takes at least.

Nothing is measured, and no GPU is needed, since the tensors have no data. Each operation takes the longest of three
times: its arithmetic at `ATTAINED` of the GPU's peak, its bytes at the GPU's bandwidth, and `LAUNCH_SECONDS` for each
kernel. A GPU does not reach them everywhere, so their sum is a lower bound.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, PretrainedConfig

from grpo.algorithm.logprobs import LogitRule
from grpo.algorithm.loss import policy_loss
from grpo.config import LearnerConfig, ObjectiveConfig
from grpo.learner import attention, varlen
from grpo.learner.flops import attended_pairs, flop_count
from grpo.learner.fused_layers import fuse_all
from grpo.learner.policy import Policy
from grpo.types import MicroBatch

ATTAINED, LAUNCH_SECONDS = 0.7, 4e-6
# A GPU is expected to reach this share of the best that is counted for it.
ENOUGH = 0.7
# These read one row of their first tensor for each row that they write.
LOOKUPS = ("embedding", "gather", "index", "index_select")
PRODUCTS = ("mm", "addmm", "bmm")


@dataclass(frozen=True, slots=True)
class Speeds:
    """A GPU's dense bfloat16 operations and its memory's bytes per second."""

    flops: float
    bytes: float


class OnGpu(LogitRule):
    """This rule multiplies tensors without data as a GPU does: bfloat16 inputs have a float32 product."""

    def _product(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)


def policy_of(config: PretrainedConfig, learner: LearnerConfig) -> Policy:
    """Returns a policy in bfloat16 whose weights have no data."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attention.NAME)
    if learner.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if learner.fused == "auto":
        fuse_all(model)
    return Policy(model.train(), learner.logit_chunk_tokens, OnGpu(float32=True, compiled=learner.fused == "auto"))


class Count(TorchDispatchMode):
    """Adds up seconds by `place`, and bytes, operations and kernels of all places. `useful` are the operations that MFU
    counts."""

    def __init__(self, speeds: Speeds, useful: float, pairs: int, place: Callable[[], str]):
        """`pairs` are the pairs of tokens that a layer's attention computes. `place` names the line that asked for an
        operation."""
        super().__init__()
        self._speeds, self._pairs, self._place = speeds, pairs, place
        self.useful, self.seconds = useful, Counter[str]()
        self.flops = self.bytes = self.kernels = 0

    @property
    def mfu(self) -> float:
        return self.useful / self._speeds.flops / self.seconds.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if not func.is_view and name not in ("detach", "empty_like", "new_empty", "_unsafe_view"):
            self._add(name, args, made)
        return made

    def _add(self, name: str, arguments: Any, made: Any) -> None:
        read, written = ([leaf for leaf in tree_leaves(part) if torch.is_tensor(leaf)] for part in (arguments, made))
        if name in LOOKUPS:
            read = [*written, *(tensor for tensor in read[1:] if tensor.dtype == torch.long)]
        size, flops = sum(map(size_of, read + written)), 0.0
        if name in PRODUCTS:
            left, right = read[-2:]
            flops = 2.0 * left.numel() * right.shape[-1]
        elif "_varlen_attn" in name:
            backward = "backward" in name
            query = read[1] if backward else read[0]
            # The backward kernel computes five products where the forward kernel computes two.
            flops = self._pairs * query[0].numel() * (10.0 if backward else 4.0)
        self.flops, self.bytes, self.kernels = self.flops + flops, self.bytes + size, self.kernels + 1
        seconds = flops / (ATTAINED * self._speeds.flops), size / self._speeds.bytes, LAUNCH_SECONDS
        self.seconds[self._place()] += max(seconds)


def size_of(tensor: Tensor) -> int:
    """Returns the bytes of a tensor's different numbers. An expanded tensor repeats some.

    >>> size_of(torch.zeros(3, 1).expand(3, 5))
    12
    """
    count = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= length if stride else 1
    return count * tensor.element_size()


def _norm(hidden: Tensor, shape: Any, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hidden), hidden.new_empty(*hidden.shape[:-1], 1).float()


def count(policy: Policy, micro: MicroBatch, speeds: Speeds, place: Callable[[], str] = str) -> Count:
    """Counts the forward and backward pass of a policy from `policy_of` over a micro-batch, whose data is not used but
    for the places that the host reads."""
    tensors = {name: getattr(micro, name) for name in micro.__dataclass_fields__ if name != "predictors"}
    micro = replace(micro, **{name: part.to("meta") for name, part in tensors.items() if torch.is_tensor(part)})
    useful = flop_count(policy.language_model, policy.head.weight).of(micro)
    counted = Count(speeds, useful, sum(map(attended_pairs, micro.trees)), place)
    # A GPU has a kernel for attention, and one for this norm, which torch would compute step by step without data.
    kernel = patch.object(varlen, "takes", lambda query, value: True)
    with torch.library._scoped_library("aten", "IMPL") as library, kernel, counted:
        library.m.impl("_fused_rms_norm", "Meta", _norm, False)
        loss, _ = policy_loss(*policy(micro, 1.0), micro, ObjectiveConfig())
        loss.backward()
    return counted
