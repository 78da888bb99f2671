"""This module computes the attention of a whole packed row in one call of torch's flash kernel for many lengths.

Every run of a row, which is a prompt or a completion, is one sequence of queries. Its keys are its prompt's and its
own, gathered into a sequence that ends where the run does. A prompt's keys include the beginning of the row that it
shares. So the kernel's causal mask and window are right for a tree, whatever the number of trees and completions. A
call for each run would cost the host more time than a GPU needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from grpo.config.errors import first_line
from grpo.host import ranks
from grpo.host.terminal import say
from grpo.learner.group_logprobs import sent

# torch 2.11 takes fewer heads of keys than of queries without a flag.
GROUPED = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
# Widest heads that the kernel computes gradients of: on data-centre GPUs, and on others.
WIDEST, WIDEST_ELSEWHERE = 256, 192


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans say which keys belong to each run of queries. A query attends the keys up to its own place.

    keys          [keys] int64 places in the row, run after run; None: every run attends itself alone
    query_ends    [runs + 1] int32 where the runs, which fill the row, begin and end
    key_ends      [runs + 1] int32 the same for `keys`
    longest       numbers of queries and of keys in the longest runs
    """

    keys: Tensor | None
    query_ends: Tensor
    key_ends: Tensor
    longest: tuple[int, int]


def spans_of(trees: Sequence[Sequence[int]], shared: Sequence[int], device: torch.device) -> Spans:
    """Returns the spans of a row. `trees` holds, for each tree, the input lengths of its prompt and its completions.
    `shared` says how many tokens of the row's beginning each tree attends besides.

    >>> spans = spans_of([(2, 1, 0, 3), (4,)], [0, 1], torch.device("cpu"))
    >>> spans.keys.tolist()
    [0, 1, 0, 1, 2, 0, 1, 3, 4, 5, 0, 6, 7, 8, 9]
    >>> spans.query_ends.tolist(), spans.key_ends.tolist(), spans.longest
    ([0, 2, 3, 6, 10], [0, 2, 5, 10, 15], (4, 5))
    """
    # The places of each run's keys: of the row's beginning, of the tree's prompt, and its own, which are its queries'.
    runs: list[tuple[range, range, range]] = []
    first = 0
    for (length, *completions), attended in zip(trees, shared, strict=True):
        beginning, prompt = range(attended), range(first, first + length)
        runs.append((beginning, range(0), prompt))
        first = prompt.stop
        # A completion of one token has no inputs.
        for length in filter(None, completions):
            runs.append((beginning, prompt, range(first, first + length)))
            first += length
    queries, keys = [len(run[-1]) for run in runs], [sum(map(len, run)) for run in runs]
    places = None
    if sum(keys) > sum(queries):
        pieces = [torch.arange(part.start, part.stop) for run in runs for part in run]
        places = sent(torch.cat(pieces), device)
    return Spans(places, _ends(queries, device), _ends(keys, device), (max(queries), max(keys)))


def _ends(lengths: Sequence[int], device: torch.device) -> Tensor:
    return sent(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), device)


def takes(query: Tensor, value: Tensor) -> bool:
    """Says whether the kernel computes attention of this type and width on this device."""
    width = query.shape[-1]
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and width == value.shape[-1]
        and width % 8 == 0
        and width <= _widest(query.device)
    )


@cache
def _widest(device: torch.device) -> int:
    """Returns the widest heads for which this GPU has the kernel; 0 where it has none."""
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return 0
    return WIDEST if capability in ((8, 0), (9, 0), (10, 0)) else WIDEST_ELSEWHERE


@cache
def choose_kernel(device: torch.device) -> None:
    """Replaces torch's kernel, FlashAttention 2, by FlashAttention 3 on Hopper, if that is installed and computes the
    same. Says which one is used."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return
    own = _tried(device)
    why = ""
    try:
        torch.nn.attention.activate_flash_attention_impl("FA3")
        if not all(
            torch.allclose(new, old, rtol=0.02, atol=0.02) for new, old in zip(_tried(device), own, strict=True)
        ):
            why = "it computes other numbers"
    except Exception as error:
        # Its package is built on many machines, and fails in as many ways.
        why = f"{type(error).__name__}: {first_line(error)}"
    if why and torch.nn.attention.current_flash_attention_impl():
        torch.nn.attention.restore_flash_attention_impl()
    if not ranks.rank():
        say(f"grpo: attention is computed by FlashAttention {f'2, without FlashAttention 3 ({why})' if why else '3'}")


def _tried(device: torch.device) -> list[Tensor]:
    """Returns the attention of a small row, and its gradients."""
    spans = spans_of([(24, 16, 8)], [0], device)
    numbers = torch.arange(4 * 48 * 128, device=device).view(1, 4, 48, 128)
    inputs = [(numbers * step).sin().bfloat16().requires_grad_() for step in (0.3, 0.7, 1.1)]
    output = attend(*inputs, spans, None, None)
    return [output, *torch.autograd.grad(output.float().square().sum(), inputs)]


def attend(query: Tensor, key: Tensor, value: Tensor, spans: Spans, scale: float | None, window: int | None) -> Tensor:
    """Computes the causal attention of a whole row, with the shape of `query`, [1, heads, tokens, width]. `scale` and
    `window` mean the same as in `grpo.learner.attention`."""
    # The backward pass of `tensor[0]` would copy the gradient into zeros.
    queries, keys, values = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    if spans.keys is not None:
        keys, values = _Gathered.apply(keys, spans.keys), _Gathered.apply(values, spans.keys)
    longest_queries, longest_keys = spans.longest
    left_window = -1 if window is None or window >= longest_keys else window - 1
    ends = spans.query_ends, spans.key_ends, longest_queries, longest_keys
    output = varlen_attn(queries, keys, values, *ends, scale=scale, window_size=(left_window, 0), **GROUPED)
    return output.transpose(0, 1)[None]


class _Gathered(torch.autograd.Function):
    """Returns the rows of a tensor at `places`, [places, ...]. Its backward pass sums the gradients that several
    completions send to one row of their prompt in float32 at least."""

    @staticmethod
    def forward(context: Any, rows: Tensor, places: Tensor) -> Tensor:
        context.save_for_backward(places)
        context.count = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = context.saved_tensors
        wide = torch.promote_types(gradient.dtype, torch.float32)
        total = gradient.new_zeros(context.count, *gradient.shape[1:], dtype=wide)
        return total.index_add_(0, places, gradient.to(wide)).to(gradient.dtype), None
