"""This script counts what a micro-batch computes, reads and writes on a GPU, and how long that takes at least.

    python benchmarks/roofline.py [SIZE] [TREES] [checkpointing]

SIZE is 1.5b or 7b, a shape of `grpo prove`. A row holds TREES prompts of 192 tokens with 8 completions of 1,000 each.
Nothing is measured, and no GPU is needed: the tensors have no data. Each operation takes the longest of three times:
its arithmetic at 70 % of an H100's dense bfloat16 peak, its bytes at 3 TB/s, and 4 µs for each kernel. An H100 does not
reach them everywhere, so this is a lower bound that shows where time goes. Prints the sum, and the costliest lines.
"""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

import grpo
from grpo.algorithm.logprobs import LogitRule
from grpo.algorithm.loss import policy_loss
from grpo.algorithm.packing import Branch, LooseTree, pack
from grpo.config import ObjectiveConfig
from grpo.learner import attention, varlen
from grpo.learner.flops import attended_pairs, flop_count
from grpo.learner.policy import Policy
from grpo.prove.bench import config_of
from grpo.prove.sizes import SIZES
from grpo.types import Completion

PEAK, ATTAINED, BANDWIDTH, LAUNCH = 989e12, 0.7, 3e12, 4e-6
PROMPT, COMPLETIONS, LENGTH = 192, 8, 1000
PACKAGE = f"{Path(grpo.__file__).parent}/"
# These read one row of their first tensor for each row that they write.
LOOKUPS = ("embedding", "gather", "index", "index_select")
PRODUCTS = ("mm", "addmm", "bmm")
# A GPU has a kernel for this norm; without data torch would compute it step by step.
FUSED = torch.library.Library("aten", "IMPL")
FUSED.m.impl(
    "_fused_rms_norm",
    "Meta",
    lambda hidden, shape, weight, epsilon: (torch.empty_like(hidden), hidden.new_empty(*hidden.shape[:-1], 1).float()),
    False,
)


def size_of(tensor):
    """Returns the bytes of a tensor's different numbers. An expanded tensor repeats some."""
    count = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= length if stride else 1
    return count * tensor.element_size()


def line_of():
    """Returns the line of grpo or transformers that asked for an operation, or whose gradient it computes."""
    node, frame = torch._C._current_autograd_node(), sys._getframe(2)
    if node is not None:
        places = [text.split('"')[1:3] for text in reversed(node.metadata.get("traceback_", []))]
        lines = [(name, int(rest.split("line ")[1].split(",")[0])) for name, rest in places]
    else:
        lines = []
        while frame:
            lines.append((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
    ours = [(name, line) for name, line in lines if name.startswith(PACKAGE) or "/transformers/" in name]
    if not ours:
        return "other"
    name, line = ours[0]
    return f"{'/'.join(name.split('/')[-2:])}:{line}" + (", backward" if node is not None else "")


class Counted(TorchDispatchMode):
    """Adds up seconds by line, and bytes, operations and kernels of all lines."""

    def __init__(self, pairs):
        """`pairs` are the pairs of tokens that a layer's attention computes."""
        super().__init__()
        self.pairs, self.seconds = pairs, Counter()
        self.flops = self.bytes = self.kernels = 0

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        made = operation(*arguments, **(named or {}))
        name = operation._schema.name.partition("::")[2]
        if not operation.is_view and name not in ("detach", "empty_like", "new_empty", "_unsafe_view"):
            self._add(name, arguments, made)
        return made

    def _add(self, name, arguments, made):
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
            flops = self.pairs * query[0].numel() * (10.0 if backward else 4.0)
        self.flops, self.bytes, self.kernels = self.flops + flops, self.bytes + size, self.kernels + 1
        self.seconds[line_of()] += max(flops / (ATTAINED * PEAK), size / BANDWIDTH, LAUNCH)


def row_of(trees):
    """Returns a micro-batch without data, but for the places that the host reads."""
    completion = Completion((5,) * (LENGTH + 1), (-5.0,) * (LENGTH + 1), "", False)
    branches = (Branch(completion, 0.5, 0.001, torch.zeros(LENGTH + 1)),) * COMPLETIONS
    micro = pack([LooseTree((number, *[3] * (PROMPT - 1)), branches) for number in range(trees)])
    tensors = {name: getattr(micro, name) for name in micro.__dataclass_fields__ if name != "predictors"}
    return replace(micro, **{name: part.to("meta") for name, part in tensors.items() if torch.is_tensor(part)})


def policy_of(size, checkpointing):
    with torch.device("meta"):
        config = config_of(SIZES[size].shape, tie_word_embeddings=size == "1.5b")
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attention.NAME)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return Policy(model.train(), 4096, LogitRule(float32=True))


def main(size="1.5b", trees="2", way=""):
    policy, micro = policy_of(size, way == "checkpointing"), row_of(int(trees))
    counted = Counted(sum(map(attended_pairs, micro.trees)))
    # A GPU chooses these: its kernel of attention, and products of bfloat16 that are kept in float32.
    product = patch.object(
        LogitRule, "_product", lambda rule, left, right: torch.mm(left, right.T, out_dtype=torch.float32)
    )
    kernel = patch.object(varlen, "takes", lambda query, value: True)
    with product, kernel, torch.autograd.set_detect_anomaly(True, check_nan=False), counted:
        loss, _ = policy_loss(*policy(micro, 1.0), micro, ObjectiveConfig())
        loss.backward()
    seconds, useful = counted.seconds.total(), flop_count(policy.language_model, policy.head.weight).of(micro)
    table = Table("line", "ms", "share")
    for line, own in counted.seconds.most_common(15):
        table.add_row(line, f"{own * 1e3:.1f}", f"{own / seconds:.1%}")
    Console().print(table)
    print(
        f"{len(micro.token_ids):,} tokens: {seconds * 1e3:.0f} ms at least, MFU {useful / PEAK / seconds:.3f} at most, "
        f"{counted.flops / 1e12:.0f} TFLOP, {counted.bytes / 1e9:.0f} GB, {counted.kernels:,} kernels"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
