"""This program runs the real learner on a pretended GPU and on the CPU, see tests/pretend_gpu.py. test_pretended.py
runs it, alone or on two ranks.

Usage: pretended_worker.py MODEL_DIRECTORY OUTPUT_FILE PART... Rank 0 writes a JSON object of facts for each part.
"""

import itertools
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest.mock import patch

from grpo.host import environment

environment.prepare()

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from benchmarks.small_models import config_of, tiny_tokenizer
from grpo.algorithm.loss import policy_loss
from grpo.algorithm.packing import ONE_A_ROW, Branch, LooseTree, pack
from grpo.config import ObjectiveConfig, SamplingConfig
from grpo.config.parts import LearnerSettings, SamplerSettings
from grpo.learner import attention, fused_layers, loading
from grpo.learner.engine import init_distributed
from grpo.learner.group_logprobs import to_device
from grpo.learner.learner import DeepSpeedLearner
from grpo.learner.policy import Policy
from grpo.learner.proof import example_row
from grpo.prove import computation
from grpo.rollout.transformers_sampler import TransformersSampler
from grpo.types import Completion, Problem, Prompt
from grpo.weight_sync import channel
from grpo.weight_sync.refresh import CheckedSync, Probe
from tests.gpu import test_kernels
from tests.learner import family_worker
from tests.learner.learner_worker import config_for, take_step
from tests.learner.models import files_of
from tests.learner.test_attention import HEADS, KINDS, TOKENS, TREES
from tests.learner.test_varlen import Operations
from tests.pretend_gpu import CPU, pretend_gpu, waits


def both(make):
    """Returns what `make` returns on the CPU and on a pretended GPU."""
    on_cpu = make(CPU)
    with pretend_gpu() as gpu:
        return on_cpu, make(gpu)


def off(ours, exact, least=1e-30):
    """Returns the distance of a pretended GPU's numbers from those of a CPU, relatively to a norm of `least` at
    least."""
    return float((ours.cpu().double() - exact.double()).norm() / exact.double().norm().clamp_min(least))


# --- parts ---------------------------------------------------------------------------------------


def errors(model):
    """Returns the errors of operations that a GPU refuses, and those that make the host wait for it."""
    facts = {}
    with pretend_gpu() as gpu:
        here, there = torch.arange(6.0), torch.arange(6.0, device=gpu)
        mixed = {
            "sum": lambda: there + here,
            "product": lambda: there[None] @ here[:, None],
            "chosen": lambda: there.index_select(0, torch.tensor([1, 2])),
            "joined": lambda: torch.cat([there, here]),
            "written": lambda: there.mul_(here),
            "onto the CPU": lambda: here + there[0],
            "index on the GPU": lambda: here[there.long()],
            "placed": lambda: there.index_put_((torch.arange(6, device=gpu),), here),
            "a number": lambda: there + here[3],
        }
        for name, operation in mixed.items():
            try:
                facts[name] = str(operation().device)
            except RuntimeError as error:
                facts[name] = str(error)
        waiting = {
            "item": lambda: there.sum().item(),
            "compared": lambda: bool((there > 3).any()),
            "by numbers": lambda: there.tolist(),
            "to the CPU": lambda: there.cpu(),
            "written to the CPU": lambda: here.copy_(there, non_blocking=True),
            "index on the CPU": lambda: there[torch.tensor([1, 2])],
            "mask": lambda: there[there > 3],
            "places": lambda: there.nonzero(),
            "from numbers": lambda: torch.tensor([1, 2], device=gpu),
            "from the CPU": lambda: here.to(gpu),
            "from pages that move": lambda: here.to(gpu, non_blocking=True),
            "from pinned pages": lambda: here.pin_memory().to(gpu),
            "without waiting": lambda: here.pin_memory().to(gpu, non_blocking=True),
            "index there": lambda: there[torch.arange(2, device=gpu)],
            "where": lambda: there.where(there > 3, torch.nan).isfinite().all(),
        }
        for name, operation in waiting.items():
            with waits() as waited:
                operation()
            facts[name] = len(waited)
    return facts


def kernels(model):
    """Attention of every kind, with gradients, in both precisions."""
    shapes = ((HEADS, 32), (2, 32), (2, 32))
    drawn = [torch.randn(1, heads, TOKENS, width) for heads, width in shapes]
    sinks = torch.randn(HEADS)
    facts = {}
    for kind, options in KINDS.items():
        for dtype in (torch.float32, torch.bfloat16):

            def attended(device, dtype=dtype, options=options):
                inputs = [tensor.to(device, dtype, copy=True).requires_grad_() for tensor in (*drawn, sinks)]
                own = options | ({"s_aux": inputs[3]} if "s_aux" in options else {})
                with waits() as waited:
                    row = attention.TreeRow(TREES, dtype, device)
                    output, _ = attention.tree_attention(nn.Module(), *inputs[:3], None, tree_row=row, **own)
                    output.square().sum().backward()
                return [output.detach(), *(tensor.grad for tensor in inputs if tensor.grad is not None)], waited

            (exact, _), (ours, waited) = both(attended)
            errors = [off(a, b, least=10.0) for a, b in zip(ours, exact, strict=True)]
            facts[f"{kind}/{str(dtype).removeprefix('torch.')}"] = {"off": max(errors), "waits": waited}
    return facts


def completion(length):
    return Completion((5,) * length, (-4.0,) * length, "", False)


def alone(model):
    """Models that are computed one completion a row, in bfloat16."""
    trees = [LooseTree((3, 4, 5), (Branch(completion(length), 0.5, 0.1),)) for length in (7, 3)]
    facts = {}
    for name in ("Mamba 2", "LFM2"):
        torch.manual_seed(0)
        config = config_of(name)
        language_model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        policy = Policy(language_model, 64, loading.logit_rule(config), in_trees=False)

        def learned(device, policy=policy):
            policy.to(device)
            micro = to_device(pack(trees, ONE_A_ROW), device)
            with waits() as waited:
                logprobs, entropies = policy(micro, 1.0)
                policy_loss(logprobs, entropies, micro, ObjectiveConfig())[0].backward()
            return logprobs.detach(), waited

        (exact, _), (ours, waited) = both(learned)
        facts[name] = {"off": off(ours, exact), "waits": waited}
    return facts


def family(model):
    """A step of every loss. Several ranks compute each row together."""
    together = torch.distributed.get_world_size()
    on_cpu, on_gpu = both(lambda device: family_worker.changes_of(model, together, "float32", CUTS, device))
    return {
        member: max(off(on_gpu[member, layout, budget][name], exact) for name, exact in changes.items())
        for (member, layout, budget), changes in on_cpu.items()
    }


def proofs(model):
    """Makes the comparisons with float64 that GPU tests and `grpo prove` make on a GPU, so that their own code has run
    once."""
    facts = {}
    with pretend_gpu() as gpu, patch.object(torch.cuda, "set_sync_debug_mode", lambda mode: None):
        for kind, dtype in itertools.product(test_kernels.KINDS, test_kernels.BOUNDS):
            test_kernels.test_attention_and_its_gradients_are_those_of_float64(kind, dtype, 64)
        test_kernels.test_the_host_never_waits_in_a_micro_batch(Path(model).parent / "of kernels")
        test_kernels.test_float32_has_a_fused_kernel_too()
        for dtype in test_kernels.BOUNDS:
            test_kernels.test_a_norm_and_its_gradients_are_those_of_float64(dtype)
            for part in fused_layers.PARTS:
                test_kernels.test_compiled_functions_compute_parts_of_layers_as_single_steps_do(dtype, part)
        for dtype in computation.BOUNDS:
            error = computation.attention_error(gpu, dtype, computation.WINDOW)
            facts[str(dtype)] = [error, computation.gradient_error(gpu, dtype, *example_row())]
    return facts


CUTS = family_worker.CUTS[1:2]
REFERRED = {"objective__kl__coefficient": 0.1, "learner__gradient_checkpointing": True}
STEPS = {
    "1/bfloat16": (1, "bfloat16", {}),
    "2/float32": (2, "float32", {"objective__selection__name": "clip_cov", "model__lora__rank": 4}),
    "3/bfloat16": (3, "bfloat16", REFERRED),
}


def steps(model, case):
    """Norms of gradients, and the waits and operations of a step in many rows and of one in one row."""
    stage, precision, changes = STEPS[case]
    together = torch.distributed.get_world_size()
    config = config_for(stage, precision, **changes, learner__sequence_parallel=together)
    norms, waited, operations = [], [], []
    with pretend_gpu() as gpu:
        learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), gpu)
        # The first step copies weights for the path. DeepSpeed watches two passes under ZeRO-3, to know what to gather.
        for tokens in (*(40,) * max(1, stage - 1), 40, 10_000):
            config.learner.micro_batch_tokens = tokens
            with waits() as of_step, Operations() as asked:
                norms.append(take_step(learner, config).gradient_norm)
            waited.append(of_step)
            operations.append(Counter(asked.names))
        learner.engine.destroy()
    each = {"operations in many rows": operations[-2], "operations in one row": operations[-1]}
    return {"norms": norms, "many rows": waited[-2], "one row": waited[-1], **each}


def rounds(model):
    """A refresh and its probe, states that leave and come back, and a checkpoint, under ZeRO-3."""
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(model)
    prompts = [Prompt(Problem(f"p{last}", "q", "a"), (3, 4, 5, last)) for last in (6, 7)]
    config = config_for(3, "bfloat16", rollout__sampling=SamplingConfig(max_tokens=4))

    def made(device):
        learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), device)
        sampler = TransformersSampler(SamplerSettings.of(config), files_of(model, tokenizer), device)
        sync = CheckedSync.of(
            config.weight_sync,
            config.learner,
            config.rollout,
            Probe(prompts, config.rollout.sampling, learner.collective),
        )
        sync.begin(learner, sampler)
        take_step(learner, config)
        with waits() as of_refresh:
            sync.refresh(learner, sampler)
        states = learner.states()
        states.offload()
        states.reload()
        folder = tempfile.mkdtemp()
        learner.save(folder)
        straight = take_step(learner, config).gradient_norm
        learner.load(folder)
        again = take_step(learner, config).gradient_norm
        [bucket] = learner.weight_buckets()
        assert channel.packed(bucket, device).device == device
        learner.engine.destroy()
        return [straight, again], of_refresh, len(bucket)

    (exact, _, _), (norms, of_refresh, tensors) = both(made)
    return {"norms": [norms, exact], "waits": of_refresh, "tensors": tensors}


def main(model: str, output: str, *parts: str) -> None:
    init_distributed(CPU, 300)
    torch.manual_seed(0)
    facts = {}
    for part in parts:
        name, _, case = part.partition("/")
        facts[part] = globals()[name](model, *filter(None, [case]))
    if torch.distributed.get_rank() == 0:
        Path(output).write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
