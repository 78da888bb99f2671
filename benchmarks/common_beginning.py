"""This script measures what it saves to compute the common beginning of all prompts of a row once.

    python benchmarks/common_beginning.py PRECISION [COMMON]

One row of the quickstart's model holds 8 prompts of 40 random tokens, of which the first COMMON (20) are the same, each
with 8 completions of 10 tokens. Prints the packed tokens and the median seconds of six forward and backward passes,
with the beginning computed once for the row ("shared") and once for each prompt ("packed"). The layouts take turns.
"""

import random
import sys
import time
from statistics import median

from grpo.host import environment

environment.prepare()

from grpo.algorithm.packing import Branch, LooseTree, pack
from grpo.config.hydra import compose_config
from grpo.learner.loading import load_policy
from grpo.models.files import ModelFiles
from grpo.models.resolve import resolve
from grpo.types import Completion

PROMPTS, PROMPT_TOKENS, GROUP_SIZE, COMPLETION_TOKENS = 8, 40, 8, 10
WARM_UP, MEASURED = 2, 6


def row(common: int) -> list[LooseTree]:
    """Returns trees of random tokens whose prompts begin with `common` equal ones."""
    draw = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, 49_000) for _ in range(count))

    def branch() -> Branch:
        logprobs = (-1.0,) * COMPLETION_TOKENS
        return Branch(Completion(tokens(COMPLETION_TOKENS), logprobs, "", False), 0.5, 0.1)

    beginning = tokens(common)
    return [
        LooseTree(beginning + tokens(PROMPT_TOKENS - common), tuple(branch() for _ in range(GROUP_SIZE)))
        for _ in range(PROMPTS)
    ]


def main(precision: str, common: int = 20) -> None:
    config = compose_config(["experiment=quickstart"])
    path = resolve(config.model, list)
    policy = load_policy(ModelFiles(path), config.model, precision, config.learner.logit_chunk_tokens)
    trees, seconds = row(common), {"shared": [], "packed": []}
    for _ in range(WARM_UP + MEASURED):
        for layout, taken in seconds.items():
            start = time.perf_counter()
            logprobs, _ = policy(pack(trees, layout), 1.0)
            logprobs.sum().backward()
            policy.zero_grad()
            taken.append(time.perf_counter() - start)
    for layout, taken in seconds.items():
        print(f"{layout}: {len(pack(trees, layout).token_ids)} tokens, {median(taken[WARM_UP:]):.2f} s")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
