"""This script compares the memory estimate of `grpo train` with what a learner really takes.

    python benchmarks/memory.py [overrides of grpo train]

Each case has a process: SmolLM2-135M, two optimizer steps on two prompts with eight completions of 240 made-up tokens,
in rows of 2,048 tokens. The estimate is what every run prints before it starts (`grpo.config.memory_estimate`). Two
peaks are measured: of tensors in the second step, and of resident memory from before the model is loaded. On a CPU the
second is larger, because freed memory is not given back to the system.
"""

import gc
import re
import subprocess
import sys
from pathlib import Path

from grpo.host import device_memory, environment
from grpo.run.preparing import with_precision
from grpo.run.tables import model_shape

environment.prepare()

import torch
from profile_step import made_up_groups
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from grpo.algorithm.batches import BatchMaker
from grpo.config.hydra import compose_config
from grpo.config.memory_estimate import memory_estimate
from grpo.config.parts import LearnerSettings
from grpo.host import ranks
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.models.files import ModelFiles
from grpo.models.resolve import resolve
from grpo.types import RoundPlan

GROUPS, GROUP_SIZE, PROMPT_TOKENS, COMPLETION_TOKENS = SIZES = 2, 8, 100, 240
CASES = {
    "float32": ["learner.precision=float32"],
    "bfloat16": ["learner.precision=bfloat16"],
    "bfloat16, recomputed": ["learner.precision=bfloat16", "learner.gradient_checkpointing=true"],
    "float32, recomputed": ["learner.precision=float32", "learner.gradient_checkpointing=true"],
    "float32, with a reference": ["learner.precision=float32", "objective.kl.coefficient=0.01"],
}


def resident(what):
    """Returns GiB of resident memory. "VmRSS" is what is resident now, and "VmHWM" is the most that ever was."""
    return int(re.search(rf"{what}:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) / 2**20


def peak_of_tensors(action):
    """Returns the peak of tensors in main memory during `action`, in GiB. Tensors that lived before it count too."""
    storages = {tensor.untyped_storage() for tensor in gc.get_objects() if isinstance(tensor, torch.Tensor)}
    now = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    peak = now
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        action()
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak / 2**30


def measure(overrides):
    """Measures one case in this process, and prints a line of GiB, estimated and measured."""
    sizes = [
        *(f"dynamics.prompts_per_step={GROUPS}", f"dynamics.group_size={GROUP_SIZE}"),
        *(f"rollout.sampling.max_tokens={COMPLETION_TOKENS}", f"task.prompt.max_tokens={PROMPT_TOKENS}"),
        *("learner.micro_batch_tokens=2048", "rollout=vllm_server"),
    ]
    config = with_precision(compose_config(["experiment=quickstart", *sizes, *overrides]))
    device, files = ranks.device(config.device), ModelFiles(resolve(config.model, list))
    init_distributed(device, 600)
    before = resident("VmRSS")
    learner = DeepSpeedLearner(LearnerSettings.of(config), files, device)
    plan = RoundPlan(GROUP_SIZE, 1, GROUPS)
    make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
    [batch] = make(learner.add_logprobs([made_up_groups(*SIZES)]), plan)
    learner.step(batch)
    if device.type == "cuda":
        learner.step(batch)
        tensors = torch.cuda.max_memory_allocated() / 2**30
    else:
        tensors = peak_of_tensors(lambda: learner.step(batch))
    estimated = memory_estimate(config, model_shape(files), 1, device_memory.device_gib(config.device))[-1][2]
    print(f"GiB {estimated} {tensors} {resident('VmHWM') - before}")


def main(*overrides):
    table = Table("learner", "estimated, GiB", "tensors, GiB", "resident, GiB", "tensors ÷ estimated")
    for name, changes in CASES.items():
        words = [sys.executable, __file__, "measure", *changes, *overrides]
        done = subprocess.run(words, capture_output=True, text=True)
        line = re.search(r"^GiB (\S+) (\S+) (\S+)$", done.stdout, re.MULTILINE)
        assert line, done.stderr[-3000:]
        estimated, tensors, taken = map(float, line.groups())
        table.add_row(name, *(f"{gib:.2f}" for gib in (estimated, tensors, taken, tensors / estimated)))
        print(f"{name}: {tensors:.2f} of {estimated:.2f} GiB", flush=True)
    Console().print(table)


if __name__ == "__main__":
    measure(sys.argv[2:]) if sys.argv[1:2] == ["measure"] else main(*sys.argv[1:])
