"""This program makes two ranks share one vLLM engine. test_shared_engine.py runs it by torchrun.

Usage: shared_engine_worker.py MODEL_DIRECTORY OUTPUT_FILE. Rank 0 writes a JSON object of facts.
"""

import json
import sys
from collections import Counter

from grpo.host import environment
from grpo.interfaces import Draw

environment.prepare()

import torch

from benchmarks.small_models import tiny_tokenizer
from grpo.config import SamplingConfig, TrainConfig
from grpo.config.parts import LearnerSettings, SamplerSettings
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.rollout.vllm_sampler import VllmSampler
from grpo.types import Problem, Prompt
from grpo.weight_sync.checksum import checksums, differing
from grpo.weight_sync.refresh import CheckedSync
from tests.learner.models import files_of

DEVICE = torch.device("cpu")


def gap(groups, logprobs):
    """Returns the largest difference between the engine's and the learner's log-probabilities, in nats."""
    return max(
        abs(theirs - ours)
        for group, own in zip(groups, logprobs, strict=True)
        for completion, scored in zip(group.completions, own, strict=True)
        for theirs, ours in zip(completion.sampler_logprobs, scored.tolist(), strict=True)
    )


def flip(engine):
    engine.model.layers[0].mlp.down_proj.weight.data[3, 5].neg_()


def main(model, output):
    config = TrainConfig(device="cpu")
    config.learner.precision = config.rollout.precision = "float32"
    config.model.max_length, config.rollout.kv_cache_gib, config.rollout.tensor_parallel = 64, 0.0625, 2
    config.rollout.sampling = SamplingConfig(max_tokens=12)
    init_distributed(DEVICE, 300)
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    ranks = learner.collective
    sampler = VllmSampler(SamplerSettings.of(config), files_of(model, tiny_tokenizer()), DEVICE, ranks)
    sync = CheckedSync(0.02)
    prompts = [Prompt(Problem(f"p{number}", "q", "a"), (3, 4, 5 + number, 6)) for number in range(3)]
    mine, gaps = prompts[ranks.rank :: 2], []
    for _ in range(2):
        sync.refresh(learner, sampler)
        groups = sampler.generate(Draw(mine, 4))
        gaps.append(gap(groups, learner.logprobs(groups)))
        # Other weights, the same on both ranks.
        for parameter in learner.policy.parameters():
            parameter.data.mul_(1.1)
    own = [group.prompt.prompt_id for group in groups] == [prompt.prompt_id for prompt in mine]
    [shard] = sampler._llm.apply_model(lambda engine: sum(parameter.numel() for parameter in engine.parameters()))
    # The engine has the last weights that were sent, and the learner goes back to them.
    for parameter in learner.policy.parameters():
        parameter.data.div_(1.1)
    sync.refresh(learner, sampler)
    if ranks.rank:
        # One number of one shard. Both ranks compare the whole.
        sampler._llm.apply_model(flip)
    sent = Counter()
    for bucket in learner.weight_buckets():
        sent.update(checksums(bucket))
    flipped = differing(sent, sampler.checksums()[0])
    facts = ranks.gather({"gaps": gaps, "own": own, "shard": shard, "flipped": flipped, "use": sampler.cache_usage()})
    if ranks.rank == 0:
        numbers = sum(parameter.numel() for parameter in learner.policy.parameters())
        with open(output, "w") as file:
            json.dump({"ranks": facts, "numbers": numbers}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
