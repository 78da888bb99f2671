"""This module has compiled functions read the logits on a GPU, if they compute there what single steps compute."""

from dataclasses import replace

import torch
from torch import Tensor

from grpo.algorithm.logprobs import LogitRule, token_logprobs
from grpo.config.errors import first_line
from grpo.host.terminal import say
from grpo.interfaces import Collective
from grpo.learner.policy import LogprobHead

# The trial reads this many targets, which need two chunks of this length, from states of this width.
TARGETS, CHUNK, WIDTH = 48, 32, 64
# The largest differences allowed: between values in nats, and between gradients relatively, by the weights' precision.
VALUES = 1e-4
GRADIENTS = {torch.float32: 1e-4, torch.bfloat16: 0.02}


def choose_head(
    heads: tuple[LogprobHead, ...], device: torch.device, fused: str, vocabulary: int, collective: Collective
) -> None:
    """Has compiled functions read the logits of all heads on a GPU, unless `learner.fused` is "never" or they compute
    something else on some rank. Says which way is taken. Collective."""
    if device.type != "cuda" or fused == "never":
        return
    why = deviation(heads[0].rule, device, heads[0].weight.dtype, vocabulary)
    why = why or "the trial failed on another rank" * collective.maximum(bool(why))
    for head in heads if not why else ():
        head.rule = replace(head.rule, compiled=True)
    if not collective.rank:
        say(f"grpo: logits are read {f'step by step ({why})' if why else 'by compiled functions'}")


def deviation(rule: LogitRule, device: torch.device, dtype: torch.dtype, vocabulary: int) -> str:
    """Returns why compiled functions are not used, or "". Both ways read random logits, in one chunk and in two, with
    a loss of log-probabilities and with one of entropies too."""
    try:
        for chunk in (CHUNK, TARGETS):
            for entropies in (0.0, 0.3):
                ways = [
                    _tried(replace(rule, compiled=compiled), device, dtype, vocabulary, chunk, entropies)
                    for compiled in (False, True)
                ]
                for number, (plain, own) in enumerate(zip(*ways, strict=True)):
                    off = (plain.float() - own.float()).abs().max().item()
                    limit = VALUES if number < 2 else GRADIENTS[dtype] * plain.float().abs().max().item()
                    if not off <= limit:
                        what = ("log-probabilities", "entropies", "gradients", "gradients")[number]
                        return f"compiled functions compute other {what}, by {off:.1g}"
    except Exception as error:
        # A compiler fails in many ways.
        return f"{type(error).__name__}: {first_line(error)[:200]}"
    return ""


def _tried(
    rule: LogitRule, device: torch.device, dtype: torch.dtype, vocabulary: int, chunk: int, entropies: float
) -> list[Tensor]:
    """Returns log-probabilities, entropies, and the gradients of states and weights."""
    numbers = torch.Generator().manual_seed(0)
    hidden, weight = (
        torch.randn(rows, WIDTH, generator=numbers).mul_(0.5).to(device, dtype).requires_grad_()
        for rows in (TARGETS, vocabulary)
    )
    targets = torch.randint(vocabulary, (TARGETS,), generator=numbers).to(device)
    values = token_logprobs(hidden, weight, targets, 0.9, chunk, rule=rule)
    upstream = torch.randn(TARGETS, generator=numbers).to(device)
    loss = (upstream * values[0]).sum()
    (loss + entropies * (upstream * values[1]).sum() if entropies else loss).backward()
    return [*(value.detach() for value in values), hidden.grad, weight.grad]
