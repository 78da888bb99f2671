import pytest
import torch

from grpo.learner import attention
from grpo.types import Tree

# A tree of one completion, one of three (of which one has a single token and so no inputs), one of two, and two trees
# whose prompts begin with the first tokens of the row.
TREES = (Tree(0, 3, (4,)), Tree(7, 5, (2, 0, 6)), Tree(20, 2, (3, 3)), Tree(28, 5, (2, 0, 3), 2), Tree(36, 4, (5,), 3))
TOKENS, HEADS, GROUPS, WIDTH = 42, 4, 2, 8
KINDS = {
    "plain": {},
    "window": {"sliding_window": 3},
    "window of one": {"sliding_window": 1},
    "wide window": {"sliding_window": 100},
    "softcap": {"softcap": 0.7},
    "sinks": {"s_aux": True},
    "all": {"sliding_window": 4, "softcap": 0.9, "s_aux": True},
}


def drawn(dtype):
    torch.manual_seed(0)
    query = torch.randn(1, HEADS, TOKENS, WIDTH, dtype=dtype, requires_grad=True)
    key, value = (torch.randn(1, GROUPS, TOKENS, WIDTH, dtype=dtype, requires_grad=True) for _ in range(2))
    return query, key, value, torch.randn(HEADS, dtype=dtype, requires_grad=True)


def attended(kind):
    query, key, value, sinks = drawn(torch.float64)
    options = dict(KINDS[kind])
    if "s_aux" in options:
        options["s_aux"] = sinks
    row = attention.TreeRow(TREES, torch.float64, torch.device("cpu"))
    output, _ = attention.tree_attention(torch.nn.Module(), query, key, value, None, tree_row=row, **options)
    output.square().sum().backward()
    return output, query.grad, key.grad, value.grad, *([sinks.grad] if "s_aux" in options else [])


def by_hand(kind):
    """Returns attention, computed for one token at a time over exactly the tokens that it may see."""
    query, key, value, sinks = drawn(torch.float64)
    window, softcap = KINDS[kind].get("sliding_window", 100), KINDS[kind].get("softcap")
    rows = []
    for tree in TREES:
        first = tree.start + tree.own_prompt_length
        prompt = [*range(tree.shared), *range(tree.start, first)]
        paths = {token: prompt[: tree.shared + place + 1] for place, token in enumerate(range(tree.start, first))}
        for length in tree.branches:
            paths |= {token: [*prompt, *range(first, token + 1)] for token in range(first, first + length)}
            first += length
        for token, path in sorted(paths.items()):
            seen = path[-window:]
            heads = []
            for head in range(HEADS):
                group = head // (HEADS // GROUPS)
                scores = key[0, group, seen] @ query[0, head, token] / WIDTH**0.5
                scores = scores if softcap is None else softcap * (scores / softcap).tanh()
                scores = torch.cat([scores, sinks[head, None]]) if "s_aux" in KINDS[kind] else scores
                heads.append(scores.softmax(0)[: len(seen)] @ value[0, group, seen])
            rows.append(torch.stack(heads))
    output = torch.stack(rows)[None]
    output.square().sum().backward()
    return output, query.grad, key.grad, value.grad, *([sinks.grad] if "s_aux" in KINDS[kind] else [])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masked_tokens", [1024, 0], ids=["under a mask", "branch by branch"])
@pytest.mark.parametrize("block", [512, 2])
def test_each_token_attends_its_prompt_and_its_own_completion_as_far_as_the_window_reaches(
    kind, masked_tokens, block, monkeypatch
):
    monkeypatch.setattr(attention, "MASKED_TOKENS", masked_tokens)
    monkeypatch.setattr(attention, "BLOCK_TOKENS", block)
    for ours, exact in zip(attended(kind), by_hand(kind), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12)


def test_softcapped_scores_are_weighed_in_float32_where_the_model_is_in_bfloat16():
    """Whole numbers up to 45 are exact in bfloat16. Capped at 50 they would be rounded to a quarter, and weights would
    be off by up to an eighth."""
    dots = torch.arange(16.0) * 3
    query = torch.zeros(1, 1, 16, 16, dtype=torch.bfloat16)
    query[..., 0] = 1
    key = torch.zeros_like(query)
    key[0, 0, :, 0] = dots
    value = torch.eye(16, dtype=torch.bfloat16)[None, None]
    row = attention.TreeRow((Tree(0, 16, ()),), torch.bfloat16, torch.device("cpu"))
    options = {"scaling": 1.0, "softcap": 50.0, "tree_row": row}
    weights, _ = attention.tree_attention(torch.nn.Module(), query, key, value, None, **options)
    exact = (50 * (dots.double() / 50).tanh()).softmax(0)
    torch.testing.assert_close(weights[0, -1, 0].double(), exact, rtol=2**-8, atol=1e-6)


def test_bfloat16_is_attended_in_float32_on_a_cpu():
    """Nothing is rounded on the way: the output is the exact one, rounded once."""
    query, key, value = (tensor.detach() for tensor in drawn(torch.bfloat16)[:3])
    row = attention.TreeRow(TREES, torch.bfloat16, torch.device("cpu"))
    output, _ = attention.tree_attention(torch.nn.Module(), query, key, value, None, tree_row=row)
    row = attention.TreeRow(TREES, torch.float64, torch.device("cpu"))
    wide = (tensor.double() for tensor in (query, key, value))
    exact, _ = attention.tree_attention(torch.nn.Module(), *wide, None, tree_row=row)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), exact, rtol=2**-8, atol=1e-6)
