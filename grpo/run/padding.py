"""This module finds out how `rollout.engine=transformers` may batch a model's prompts without changing what it samples.

Shorter prompts of a batch are padded on the left. Models that carry a state from token to token, or that choose blocks
of tokens, compute something else then. A small copy of the model, as `grpo.learner.proof` makes it, samples prompts of
several lengths in each of the sampler's ways. Its log-probabilities have to be those of its own forward pass over each
row alone, without padding and without a cache.
"""

from math import inf, isfinite

import torch
from transformers import GenerationConfig, PreTrainedModel

from grpo.config import UserError
from grpo.learner.loading import builder
from grpo.learner.proof import InFloat64, own_copy
from grpo.learner.small_copy import VOCABULARY
from grpo.models.files import ModelFiles
from grpo.rollout.transformers_sampler import ALONE, WAYS, SeededSampling, batches, continued

TOLERANCE = 1e-5
"""The largest difference allowed of a token's log-probability, in nats. Padding that changes a model changes it by
hundredths."""

# Lengths of prompts in tokens: below and above the windows of a small copy, and two alike.
LENGTHS = (3, 21, 14, 14)
NEW_TOKENS = 12
# Pads are this token, as any other: the embedding of a model's own padding token may be zero, which would hide much.
PAD = VOCABULARY // 2


def exact_way(files: ModelFiles) -> str:
    """Returns the quickest of the sampler's `WAYS` in which a model samples what it computes. Without a
    small copy of the model it returns the surest one. Raises UserError where no way is exact."""
    found = []
    with torch.random.fork_rng(devices=[]), InFloat64():
        torch.manual_seed(0)
        try:
            copy, _ = own_copy(str(files.path), files.config, builder(files.trust))
        except UserError:
            return ALONE
        copy.generation_config = GenerationConfig()
        for way in WAYS:
            difference = _difference(copy, way)
            if difference <= TOLERANCE:
                return way
            found.append(f"{way}: off by {difference:.1g}")
    raise UserError(
        f"{files.path}: rollout.engine=transformers does not sample what the model computes ({'; '.join(found)} nats): "
        "use rollout.engine=vllm"
    )


@torch.no_grad()
def _difference(model: PreTrainedModel, way: str) -> float:
    """Returns the largest difference of a sampled token's log-probability from the model's own, or infinity where one
    is no number."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(1, VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS]
    differences: list[float] = []
    for batch in batches(LENGTHS, len(LENGTHS), way):
        rows = [prompts[index] for index in batch]
        tokens, logprobs = continued(model, rows, NEW_TOKENS, (), PAD, SeededSampling(1.0, batch))
        for prompt, completion, sampled in zip(rows, tokens, logprobs, strict=True):
            ids = torch.tensor([prompt + completion.tolist()])
            logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
            own = logits.log_softmax(-1).gather(-1, completion[:, None]).squeeze(-1)
            differences.append(float((own - sampled).abs().max()))
    return max(differences) if all(map(isfinite, differences)) else inf
