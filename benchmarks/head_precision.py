"""This script measures how a bfloat16 output layer changes log-probabilities, on SmolLM2 with the real vLLM.

    python benchmarks/head_precision.py float32|model [float32|bfloat16]

Prints mean and largest |sampler − learner| in nats on the sampler's own tokens, with `model.head_precision` as given on
both sides, and tokens a second of sampling. The second word is the precision of the rest of both (bfloat16 by default).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo.host import environment
from grpo.interfaces import Draw

environment.prepare()


def main(head: str, precision: str = "bfloat16") -> None:

    from benchmarks.sampler_agreement import gaps
    from grpo.config import ModelConfig, SamplingConfig, TrainConfig
    from grpo.config.parts import SamplerSettings
    from grpo.learner.loading import load_policy
    from grpo.models.files import ModelFiles
    from grpo.models.resolve import resolve
    from grpo.rollout.vllm_sampler import VllmSampler
    from grpo.types import Problem, Prompt

    config = TrainConfig()
    config.model = ModelConfig(source="smollm2", max_length=256, head_precision=head)
    config.rollout.precision = config.learner.precision = precision
    config.rollout.kv_cache_gib, config.rollout.max_concurrent = 0.5, 32
    config.rollout.sampling = SamplingConfig(max_tokens=64)
    files = ModelFiles(resolve(config.model, lambda: []))
    sampler = VllmSampler(SamplerSettings.of(config), files)
    policy = load_policy(files, config.model, precision, 512)
    questions = ("Name three rivers.", "What is 12 + 31?", "Write a short poem on rain.", "Why is the sky blue?")
    prompts = [Prompt(Problem(text, text, ""), tuple(files.tokenizer(text)["input_ids"])) for text in questions]
    sampler.generate(Draw(prompts, 4, first_sample=100))
    begun = time.perf_counter()
    groups = sampler.generate(Draw(prompts, 8))
    seconds = time.perf_counter() - begun
    gap = gaps(policy, groups)
    print(
        f"{precision}, head {head}: {len(gap)} tokens, mean {gap.mean():.4f}, largest {gap.max():.3f} nats; "
        f"{len(gap) / seconds:.0f} tokens/s"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
