"""This module makes uneven groups for learner tests: ragged lengths, a silent group, a masked completion, a ragged
group.

With `OBSERVED` some completions have observed tokens, and the history of two was rewritten."""

from types import MappingProxyType

import torch

from grpo.types import Completion, Grade, GroupWithLogprobs, Observed, Problem, Prompt, RolloutGroup, ScoredGroup

LEVELS = ("token_mean", "sequence_mean", "constant", "prompt_mean")
VOCABULARY = 64

LENGTHS = [[3, 11, 1, 7], [5, 5, 2, 9], [4, 13, 6], [2, 8, 1, 10]]
PROMPT_LENGTHS = [9, 4, 13, 10]
REWARDS = [[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.0, 1.0]]
MASKED = {(2, 1)}
# (group, completion) → for each observed piece where it stands, its length, and how many tokens before it are kept.
OBSERVED = {
    (0, 1): [(4, 2, None)],
    (0, 3): [(0, 1, None), (5, 1, None)],
    (2, 2): [(2, 1, None), (4, 1, 14)],
    (3, 1): [(3, 1, 3)],
}


def uneven_groups(observed=MappingProxyType({})) -> list[GroupWithLogprobs]:
    generator = torch.Generator().manual_seed(7)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, VOCABULARY, (count,), generator=generator).tolist())

    # Every prompt begins with these tokens, as far as it is long enough.
    beginning = draw(8)
    groups = []
    for index, (prompt_length, lengths, rewards) in enumerate(zip(PROMPT_LENGTHS, LENGTHS, REWARDS, strict=True)):
        common = beginning[: prompt_length - 1]
        prompt = Prompt(Problem(f"p{index}", "q", "a"), (*common, *draw(prompt_length - len(common))))
        completions = []
        for length in lengths:
            logprobs = (-4 - torch.rand(length, generator=generator)).tolist()
            pieces = observed.get((index, len(completions)), ())
            between = tuple(Observed(at, draw(count), keep) for at, count, keep in pieces)
            completions.append(Completion(draw(length), tuple(logprobs), "", False, observed=between))
        group = RolloutGroup(prompt, tuple(completions), 0, 0)
        grades = tuple(Grade(reward, reward == 1, {}) for reward in rewards)
        included = tuple((index, position) not in MASKED for position in range(len(lengths)))
        groups.append(GroupWithLogprobs(ScoredGroup(group, grades, included)))
    return groups
