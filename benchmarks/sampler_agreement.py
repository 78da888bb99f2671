"""This script compares vLLM's log-probabilities of its own tokens with the learner's, for many architectures.

python benchmarks/sampler_agreement.py OUTPUT.json [adapters] [NAME …]

With `adapters` the other weights are LoRA's, which change each adapted weight by about a tenth.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo.host import environment
from grpo.interfaces import Draw

environment.prepare()

# Experts' inner width is no multiple of 32: vLLM's CPU build fills it up.
WIDE = {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 48}
WIDE |= dict.fromkeys(("head_dim", "linear_key_head_dim", "linear_value_head_dim"), 32)


# vLLM reads these settings of a config, and transformers does not.
READ_BY_VLLM = {
    "LFM2": {"conv_dim": 128, "block_dim": 128, "block_ff_dim": 128},
    "Mamba 2": {"intermediate_size": 256},
    "GLM-4": {"eos_token_id": 2},
    "DeepSeek-V3": {"topk_method": "noaux_tc"},
}
READ_BY_VLLM["Mamba 2, one group"] = READ_BY_VLLM["Mamba 2"]


def architectures() -> dict[str, tuple[str, dict]]:
    """Returns each architecture's model type and its settings besides SMALL, by the architecture's name."""
    from benchmarks.small_models import ARCHITECTURES, EXPERTS, LATENT, ROUTED

    states = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
    return {name: (model_type, special) for name, (model_type, special, _) in ARCHITECTURES.items()} | {
        "Granite MoE": ("granitemoe", EXPERTS),
        "Falcon H1": ("falcon_h1", states),
        "GLM-4 MoE": ("glm4_moe", ROUTED),
        "DeepSeek-V3": ("deepseek_v3", {**ROUTED, **LATENT}),
        "Mamba 2, one group": ("mamba2", {**ARCHITECTURES["Mamba 2"][1], "n_groups": 1}),
    }


def random_model(name: str) -> Path:
    """Returns a folder with a model of this architecture, whose random weights give peaked distributions."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from benchmarks.small_models import SMALL, tiny_tokenizer

    model_type, special = architectures()[name]
    # Latent attention has widths of its own.
    kept = {"head_dim"} if "kv_lora_rank" in special else set()
    wide = {key: value for key, value in WIDE.items() if key in {**SMALL, **special} and key not in kept}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, **{**SMALL, **special, **wide, **READ_BY_VLLM.get(name, {})})
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3) if parameter.dim() > 1 else parameter.add_(torch.randn_like(parameter) * 0.1)
        for bias in (buffer for buffer_name, buffer in model.named_buffers() if "correction_bias" in buffer_name):
            bias.normal_(std=0.1)
    folder = Path(tempfile.mkdtemp())
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def gaps(policy, groups):
    """Returns |sampler − learner| in nats for every token of `groups`, [tokens]."""
    import torch

    from grpo.algorithm.packing import Branch, LooseTree, pack

    differences = []
    for group in groups:
        branches = tuple(Branch(completion, 0.0, 0.0) for completion in group.completions)
        micro = pack([LooseTree(group.prompt.token_ids, branches)])
        with torch.no_grad():
            differences.append((policy(micro, 1.0)[0] - micro.sampler_logprobs).abs())
    return torch.cat(differences)


def measure(name: str, rank: int = 0) -> dict:
    """Measures one row, with adapters of this rank or none. It runs in a process of its own, because vLLM does not give
    back the memory it has taken."""
    from collections import Counter

    import torch

    from grpo.config import LoraConfig, ModelConfig, SamplingConfig, TrainConfig
    from grpo.config.parts import SamplerSettings
    from grpo.learner.loading import load_policy
    from grpo.learner.weights import weight_buckets
    from grpo.models.files import ModelFiles
    from grpo.rollout.vllm_sampler import VllmSampler
    from grpo.types import Problem, Prompt
    from grpo.weight_sync.checksum import IN_ORDER, checksums
    from grpo.weight_sync.refresh import CheckedSync

    folder = random_model(name)
    settings = TrainConfig()
    settings.model = ModelConfig(path=str(folder), max_length=96, lora=LoraConfig(rank=rank))
    settings.rollout.precision = settings.learner.precision = "float32"
    settings.rollout.kv_cache_gib, settings.rollout.max_concurrent = 0.25, 16
    settings.rollout.sampling = SamplingConfig(max_tokens=40)
    files = ModelFiles(folder)
    policy = load_policy(files, settings.model, "float32", 512, lora_seed=0)
    sampler = VllmSampler(SamplerSettings.of(settings), files)
    prompts = [Prompt(Problem(f"p{i}", "", ""), tuple(range(3 + i, 15 + i))) for i in range(4)]

    class Learner:
        """This stand-in has only those parts of a learner that a refresh needs."""

        num_steps = 1

        def weight_buckets(self, form: str):
            return weight_buckets(policy, 2**24, torch.float32, form)

    def difference() -> list[float]:
        gap = gaps(policy, sampler.generate(Draw(prompts, 4)))
        return [float(gap.mean()), float(gap.max())]

    row = {"way": "trees" if policy.in_trees else "one by one", "loaded": difference()}
    # Whatever the difference, it is to be measured.
    sync = CheckedSync(math.inf)
    sync.refresh(Learner(), sampler)
    row["same weights sent"] = difference()
    [stored] = sampler.checksums()
    sent = Counter()
    for bucket in Learner().weight_buckets("base" if rank else "merged"):
        sent.update(checksums(bucket))
    in_order = [key for key in sent if key.startswith(IN_ORDER)]
    row["compared in order"] = f"{sum(key in stored for key in in_order)} of {len(in_order)}"
    with torch.no_grad():
        for parameter in policy.parameters():
            # The second halves of adapters are zero at first.
            spread = parameter.std().nan_to_num(0.0) or float(rank > 0)
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05 * spread)
    sync.refresh(Learner(), sampler)
    row["other weights sent"] = difference()
    return row


def main(output: str, *words: str) -> None:
    path, rank = Path(output), 8 if "adapters" in words else 0
    names = [word for word in words if word != "adapters"]
    rows = json.loads(path.read_text()) if path.exists() else {}
    for name in names or architectures():
        if name in rows:
            continue
        done = subprocess.run(
            [sys.executable, __file__, "--one", name, str(rank)], capture_output=True, text=True, timeout=300, cwd=ROOT
        )
        printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
        errors = [line.strip() for line in done.stderr.splitlines() if "Error" in line]
        rows[name] = json.loads(printed[-1]) if printed else {"error": errors[-1][:300] if errors else "no text"}
        print(name, rows[name], flush=True)
        path.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))), flush=True)
    else:
        main(*sys.argv[1:])
