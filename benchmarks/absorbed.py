"""This script measures what share of the optimizer's steps reaches the bfloat16 weights that a run computes with.

It trains as `grpo train WORDS` does, in this process, and watches the float32 masters. After each step it prints, for
this step and for all steps so far, the share x·y/y·y, where y is the change of the masters, and x the change of the
masters after rounding to bfloat16. 1 is all of it.

Usage: python -m benchmarks.absorbed WORDS …, such as experiment=quickstart learner.dither=false
"""

from __future__ import annotations

import sys

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from grpo.cli import main


class Watch:
    """This watch compares the masters of a run with their state before the last step, and before the first."""

    def __init__(self) -> None:
        self.first: dict[Tensor, Tensor] = {}
        self.last: dict[Tensor, Tensor] = {}
        self.steps = 0

    def before(self, optimizer: Optimizer, *_: object) -> None:
        self.last = {shard: shard.detach().clone() for group in optimizer.param_groups for shard in group["params"]}
        # DeepSpeed takes a step with gradients of zero when it starts.
        if any(shard.grad is not None and shard.grad.any() for shard in self.last):
            self.steps += 1
            self.first = self.first or self.last

    def after(self, *_: object) -> None:
        if self.steps:
            print(f"absorbed: step {self.steps}  this step {share(self.last):.3f}  so far {share(self.first):.3f}")


def share(before: dict[Tensor, Tensor]) -> float:
    """Returns what share of the masters' change their rounded values show."""
    seen = total = 0.0
    for shard, old in before.items():
        change = shard.detach() - old
        seen += (shard.detach().bfloat16().float() - old.bfloat16().float()).double().dot(change.double()).item()
        total += change.double().square().sum().item()
    return seen / total


if __name__ == "__main__":
    watch = Watch()
    register_optimizer_step_pre_hook(watch.before)
    register_optimizer_step_post_hook(watch.after)
    sys.exit(main(["train", *sys.argv[1:]]))
