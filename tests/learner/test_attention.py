import pytest
import torch

from grpo.learner import attention
from grpo.types import Tree

# A tree of one completion, one of three (of which one has a single token and so no inputs), one of two.
TREES = (Tree(0, 3, (4,)), Tree(7, 5, (2, 0, 6)), Tree(20, 2, (3, 3)))
TOKENS, HEADS, GROUPS, WIDTH = 28, 4, 2, 8


def attended(dtype):
    torch.manual_seed(0)
    query = torch.randn(1, HEADS, TOKENS, WIDTH, dtype=dtype, requires_grad=True)
    key, value = (torch.randn(1, GROUPS, TOKENS, WIDTH, dtype=dtype, requires_grad=True) for _ in range(2))
    row = attention.spans(TREES, dtype, torch.device("cpu"))
    output, _ = attention.tree_attention(torch.nn.Module(), query, key, value, None, tree_spans=row)
    output.square().sum().backward()
    return output, query.grad, key.grad, value.grad


def by_hand(dtype):
    """Softmax over exactly the tokens that a token may see, one token at a time."""
    torch.manual_seed(0)
    query = torch.randn(1, HEADS, TOKENS, WIDTH, dtype=dtype)
    key, value = (torch.randn(1, GROUPS, TOKENS, WIDTH, dtype=dtype) for _ in range(2))
    output = torch.zeros(1, TOKENS, HEADS, WIDTH, dtype=dtype)
    for tree in TREES:
        prompt = range(tree.start, tree.start + tree.prompt_length)
        seen = {token: list(range(tree.start, token + 1)) for token in prompt}
        first = prompt.stop
        for length in tree.branches:
            seen |= {token: [*prompt, *range(first, token + 1)] for token in range(first, first + length)}
            first += length
        for token, others in seen.items():
            for head in range(HEADS):
                group = head // (HEADS // GROUPS)
                scores = key[0, group, others] @ query[0, head, token] / WIDTH**0.5
                output[0, token, head] = scores.softmax(0) @ value[0, group, others]
    return output


@pytest.mark.parametrize("masked_tokens", [1024, 0], ids=["under a mask", "branch by branch"])
def test_each_token_attends_its_prompt_and_its_own_completion_only(masked_tokens, monkeypatch):
    monkeypatch.setattr(attention, "MASKED_TOKENS", masked_tokens)
    torch.testing.assert_close(attended(torch.float64)[0], by_hand(torch.float64), rtol=1e-12, atol=1e-12)


def test_long_trees_have_the_gradients_of_short_ones(monkeypatch):
    masked = attended(torch.float64)
    monkeypatch.setattr(attention, "MASKED_TOKENS", 0)
    for one, other in zip(masked, attended(torch.float64), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
