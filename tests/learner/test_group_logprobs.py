"""Log-probabilities of groups are computed by all ranks together, and return to the rank that owns the groups."""

import random

import pytest
import torch

from grpo.learner.group_logprobs import Scoring
from grpo.types import Completion, Problem, Prompt, RolloutGroup
from tests.fakes import on_ranks

CPU = torch.device("cpu")


def groups(rank):
    """Makes one rank's groups: rank 0 has long completions, rank 1 short ones, and rank 2 none."""
    drawn = random.Random(rank)
    longest = [90, 12, 0][rank]
    return [
        RolloutGroup(
            Prompt(Problem(f"{rank}/{number}", "q", "a"), (1, 2, 3 + number)),
            tuple(completion(drawn, longest) for _ in range(5)),
            0,
            0,
        )
        for number in range(4 if longest else 0)
    ]


def completion(drawn, longest):
    tokens = tuple(drawn.randrange(4, 1000) for _ in range(drawn.randint(1, longest)))
    return Completion(tokens, (0.0,) * len(tokens), "", False)


def forward(micro):
    """Returns made-up log-probabilities that encode each token's id and the id of the token before."""
    return micro.targets.float() + micro.token_ids[micro.predictors].float() / 1024


@pytest.mark.parametrize("layout", ["shared", "packed", "padded"])
def test_every_completion_gets_its_own_log_probabilities_wherever_they_were_computed(layout):
    work = [0, 0, 0]

    def action(collective):
        def counted(micro):
            work[collective.rank] += len(micro.token_ids)
            return forward(micro)

        scoring = Scoring(layout, 120, collective, CPU, lambda before, tokens: tokens)
        return scoring(groups(collective.rank), counted), scoring.take_imbalance(), scoring.take_imbalance()

    for rank, (scored, imbalance, again) in enumerate(on_ranks(3, action)):
        for group, of_group in zip(groups(rank), scored, strict=True):
            for own, logprobs in zip(group.completions, of_group, strict=True):
                before = torch.tensor((group.prompt.token_ids[-1], *own.token_ids[:-1]))
                assert torch.equal(logprobs, torch.tensor(own.token_ids) + before / 1024)
        assert 1 <= imbalance.value < 1.1 and imbalance.count == 1 and again.count == 0
    # Rows padded to a rank's longest completion are not even.
    assert layout == "padded" or max(work) < 1.3 * sum(work) / 3
