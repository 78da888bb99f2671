"""This script counts what a micro-batch computes, reads and writes on a GPU, and how long that takes at least.

    python benchmarks/roofline.py [SIZE] [TREES] [WORD...]

SIZE is 1.5b or 7b, a shape of `grpo prove`. A row holds TREES prompts of 192 tokens with 8 completions of 1,000 each.
WORDs are checkpointing, never (`learner.fused`), and a number (`learner.logit_chunk_tokens`, a whole row without one).
`grpo.prove.roofline` counts, with the speeds of an H100: 989 TFLOP/s and 3 TB/s. No GPU is needed. Prints the sum, and
the costliest lines.
"""

import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import grpo
from grpo.algorithm.packing import Branch, LooseTree, pack
from grpo.config import LearnerConfig
from grpo.prove.bench import config_of
from grpo.prove.roofline import Speeds, count, policy_of
from grpo.prove.sizes import SIZES
from grpo.types import Completion

H100 = Speeds(flops=989e12, bytes=3e12)
PROMPT, COMPLETIONS, LENGTH = 192, 8, 1000
PACKAGES = tuple(f"{Path(grpo.__file__).parent}/{room}/" for room in ("algorithm", "learner"))


def line_of():
    """Returns the line of grpo or transformers that asked for an operation, or whose gradient it computes."""
    node, frame = torch._C._current_autograd_node(), sys._getframe(3)
    if node is not None:
        places = [text.split('"')[1:3] for text in reversed(node.metadata.get("traceback_", []))]
        lines = [(name, int(rest.split("line ")[1].split(",")[0])) for name, rest in places]
    else:
        lines = []
        while frame:
            lines.append((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
    ours = [(name, line) for name, line in lines if name.startswith(PACKAGES) or "/transformers/" in name]
    if not ours:
        return "other"
    name, line = ours[0]
    return f"{'/'.join(name.split('/')[-2:])}:{line}" + (", backward" if node is not None else "")


def row_of(trees):
    completion = Completion((5,) * (LENGTH + 1), (-5.0,) * (LENGTH + 1), "", False)
    branches = (Branch(completion, 0.5, 0.001, torch.zeros(LENGTH + 1)),) * COMPLETIONS
    return pack([LooseTree((number, *[3] * (PROMPT - 1)), branches) for number in range(trees)])


def main(size="1.5b", trees="2", *words):
    config = config_of(SIZES[size].shape, tie_word_embeddings=size == "1.5b")
    chunk, fused = next(map(int, filter(str.isdigit, words)), 1 << 20), "never" if "never" in words else "auto"
    checkpointing = "checkpointing" in words
    settings = LearnerConfig(gradient_checkpointing=checkpointing, logit_chunk_tokens=chunk, fused=fused)
    policy, micro = policy_of(config, settings), row_of(int(trees))
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        counted = count(policy, micro, H100, line_of)
    seconds = counted.seconds.total()
    table = Table("line", "ms", "share")
    for line, own in counted.seconds.most_common(15):
        table.add_row(line, f"{own * 1e3:.1f}", f"{own / seconds:.1%}")
    Console().print(table)
    print(
        f"{len(micro.token_ids):,} tokens: {seconds * 1e3:.0f} ms at least, MFU {counted.mfu:.3f} at most, "
        f"{counted.flops / 1e12:.0f} TFLOP, {counted.bytes / 1e9:.0f} GB, {counted.kernels:,} kernels"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
