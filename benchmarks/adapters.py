"""This script measures the gap between sampler and learner in bfloat16, with all weights and with adapters.

    python benchmarks/adapters.py tiny|smollm2 SIZE|CHECKPOINT [WAY …]

The adapters have rank 16. They are those of a run's CHECKPOINT, or their second halves are random numbers of this
SIZE. The sampler is the real vLLM, the learner transformers. Prints a row for each way in which the sampler gets the
weights: mean |sampler − learner| in nats over the sampler's own tokens, for three seeds. "nearest" merges adapters and
rounds the sum to the nearest number, as most frameworks do. "none" leaves the adapters away, so it shows how far they
move the model.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo.host import environment
from grpo.interfaces import Draw

environment.prepare()

RANK, SEEDS = 16, (0, 1, 2)
WAYS = ("all weights", "adapters", "merged without bias", "nearest", "none")


def measure(source: str, way: str, adapters: str) -> list[float]:
    """Returns the mean gap for each seed."""
    import torch

    from benchmarks.sampler_agreement import gaps
    from grpo.config import LoraConfig, ModelConfig, SamplingConfig, TrainConfig
    from grpo.config.hydra import compose_config
    from grpo.config.parts import SamplerSettings
    from grpo.learner import weights
    from grpo.learner.loading import load_policy
    from grpo.models.files import ModelFiles
    from grpo.models.resolve import resolve
    from grpo.rollout.vllm_sampler import VllmSampler
    from grpo.run.parts import warm_start_examples
    from grpo.types import Problem, Prompt
    from grpo.weight_sync.refresh import CheckedSync

    config = TrainConfig()
    rank = 0 if way == "all weights" else RANK
    start = adapters if rank and Path(adapters).exists() else ""
    lora = LoraConfig(rank=rank)
    config.model = ModelConfig(source=source, max_length=96, head_precision="model", lora=lora, start=start)
    config.rollout.precision = config.learner.precision = "bfloat16"
    config.rollout.kv_cache_gib, config.rollout.max_concurrent = 0.5, 32
    config.rollout.merge_adapters = way not in ("all weights", "adapters")
    config.rollout.sampling = SamplingConfig(max_tokens=16)
    files = ModelFiles(resolve(config.model, lambda: warm_start_examples(compose_config(["experiment=tiny"]))))
    policy = load_policy(files, config.model, "bfloat16", 512, lora_seed=0)
    sampler = VllmSampler(SamplerSettings.of(config), files)
    if way == "nearest":
        weights.rounded = lambda exact, dtype, name: exact.to(dtype)
    prompts = [Prompt(Problem(f"p{i}", "", ""), tuple(range(20 + i, 32 + i))) for i in range(4)]

    def buckets(form: str):
        return weights.weight_buckets(policy, 2**26, torch.bfloat16, form)

    halves = {name: half for name, half in policy.named_parameters() if "lora_B" in name}
    trained = {name: half.detach().clone() for name, half in halves.items()}
    means = []
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            drawn = {name: torch.randn(half.shape, generator=generator) for name, half in halves.items()}
            wanted = trained if start else {name: float(adapters) * half for name, half in drawn.items()}
            for name, half in halves.items():
                half.copy_(0 * wanted[name] if way == "none" else wanted[name])
            for parameter in policy.parameters() if not rank else ():
                change = 0.01 * parameter.float().std() * torch.randn(parameter.shape, generator=generator)
                parameter.add_(change.nan_to_num(0.0).to(parameter.dtype))
            CheckedSync(math.inf).refresh(SimpleNamespace(num_steps=seed, weight_buckets=buckets), sampler)
            groups = sampler.generate(Draw(prompts, 4))
            for name, half in halves.items():
                half.copy_(wanted[name])
        means.append(gaps(policy, groups).mean().item())
    sampler.close()
    return means


def main(source: str, adapters: str, *ways: str) -> None:
    for way in ways or WAYS:
        means = measure(source, way, adapters)
        print(f"{way:20}", *(f"{mean:.4f}" for mean in means), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
