"""These tests compute a whole row in one call of the flash kernel. The kernel is a stand-in that computes what torch
documents."""

from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo.learner import attention, varlen
from grpo.types import Tree
from tests.learner.test_attention import TREES, attended, by_hand

PLACES = [range(7), range(7, 12), [*range(7, 12), 12, 13], [*range(7, 12), *range(14, 20)], range(20, 22)]
PLACES += [[20, 21, 22, 23, 24], [20, 21, 25, 26, 27]]
SHARED = [0, 1, 28, 29, 30]
PLACES += [SHARED, [*SHARED, 31, 32], [*SHARED, 33, 34, 35], [0, 1, 2, *range(36, 42)]]


def documented(query, key, value, query_ends, key_ends, most_queries, most_keys, *, scale, window_size, **options):
    """Returns what torch documents: each sequence of queries attends to its keys, aligned at the last key, from
    `window_size[0]` places back on."""
    assert options in ({}, {"enable_gqa": True}) and window_size[1] == 0
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    outputs = []
    for (first, last), (start, stop) in zip(pairwise(query_ends.tolist()), pairwise(key_ends.tolist()), strict=True):
        queries, keys = last - first, stop - start
        assert queries <= most_queries and keys <= most_keys
        distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
        hidden = (distance < 0) | (distance > window_size[0] if window_size[0] >= 0 else distance < 0)
        scores = torch.einsum("qhw,khw->hqk", query[first:last], key[start:stop])
        scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khw->qhw", weights, value[start:stop]))
    return torch.cat(outputs)


@pytest.fixture
def calls(monkeypatch):
    """Replaces the kernel by a stand-in that accepts all arguments, and returns the list of the stand-in's calls."""
    made = []

    def kernel(*arguments, **named):
        made.append(named["window_size"])
        return documented(*arguments, **named)

    monkeypatch.setattr(varlen, "takes", lambda query, value: True)
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    return made


@pytest.mark.parametrize(("kind", "left"), [("plain", -1), ("window", 2), ("window of one", 0), ("wide window", -1)])
def test_one_call_attends_every_prompt_and_completion_of_a_row(kind, left, calls):
    for ours, exact in zip(attended(kind), by_hand(kind), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12)
    assert calls == [(left, 0)]


@pytest.mark.parametrize("kind", ["softcap", "sinks"])
def test_attention_that_the_kernel_does_not_know_is_computed_without_it(kind, calls):
    for ours, exact in zip(attended(kind), by_hand(kind), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12)
    assert calls == []


@pytest.mark.parametrize(
    ("factor", "error", "said", "impl"),
    [
        (1, None, "3", "FA3"),
        (2, None, "2, without FlashAttention 3 (it computes other numbers)", None),
        (1, ModuleNotFoundError("No module named 'flash_attn_interface'"), "2, without FlashAttention 3 (Module", None),
        (1, AssertionError(), "2, without FlashAttention 3 (AssertionError", None),
    ],
)
def test_hopper_takes_flash_attention_3_where_it_is_installed_and_computes_the_same(
    factor, error, said, impl, calls, monkeypatch, capsys
):
    active = []
    kernel = varlen.varlen_attn

    def activate(name):
        active.append(name)
        if error:
            active.clear()
            raise error

    monkeypatch.setattr(varlen, "varlen_attn", lambda *row, **named: kernel(*row, **named) * (factor if active else 1))
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", activate)
    monkeypatch.setattr(torch.nn.attention, "current_flash_attention_impl", lambda: active[0] if active else None)
    monkeypatch.setattr(torch.nn.attention, "restore_flash_attention_impl", active.clear)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    tried = varlen._tried
    monkeypatch.setattr(varlen, "_tried", lambda device: tried(torch.device("cpu")))
    varlen.choose_kernel.__wrapped__(torch.device("cuda"))
    printed = capsys.readouterr()
    assert f"attention is computed by FlashAttention {said}" in printed.out + printed.err
    assert active == ([impl] if impl else [])


def test_the_keys_of_a_completion_are_its_prompts_and_its_own():
    spans = attention.TreeRow(TREES, torch.float64, torch.device("cpu")).spans
    assert spans.keys.tolist() == [place for run in PLACES for place in run]
    assert spans.query_ends.tolist() == [0, 7, 12, 14, 20, 22, 25, 28, 31, 33, 36, 42]
    assert spans.key_ends.tolist() == [0, 7, 12, 19, 30, 32, 37, 42, 47, 54, 62, 71]
    assert spans.longest == (7, 11)
    assert spans.query_ends.dtype == spans.key_ends.dtype == torch.int32


def test_nothing_is_gathered_where_every_completion_has_a_prompt_of_its_own():
    row = attention.TreeRow((Tree(0, 3, (4,)), Tree(7, 2, (3,))), torch.float64, torch.device("cpu"))
    assert row.spans.keys is None
    assert row.spans.key_ends.tolist() == row.spans.query_ends.tolist() == [0, 7, 12]


class Operations(TorchDispatchMode):
    """Records all operations, and the type of each operation's first argument."""

    def __init__(self):
        super().__init__()
        self.names, self.types = [], []

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        self.names.append(operation.name().removeprefix("aten::"))
        self.types.append(getattr(arguments[0], "dtype", None) if arguments else None)
        return operation(*arguments, **(named or {}))


def test_gradients_of_a_shared_prompt_are_summed_in_float32():
    """A GPU would add up numbers of 16 bits, and bfloat16 counts no further than 256."""
    rows = torch.ones(2, 1, dtype=torch.bfloat16, requires_grad=True)
    places = torch.tensor([0] * 260 + [1])
    with Operations() as asked:
        varlen._Gathered.apply(rows, places).sum().backward()
    assert rows.grad.flatten().tolist() == [260.0, 1.0] and rows.grad.dtype == torch.bfloat16
    assert asked.types[asked.names.index("index_add_")] == torch.float32


def test_a_layer_asks_for_as_many_operations_whatever_is_in_the_row(monkeypatch):
    """The tensors have no data, so an operation that the host had to wait for would raise."""
    monkeypatch.setattr(varlen, "takes", lambda query, value: True)
    counts = []
    for trees in (TREES, tuple(Tree(12 * index, 2, (3, 3, 4)) for index in range(50))):
        row, tokens = attention.TreeRow(trees, torch.bfloat16, torch.device("meta")), trees[-1].end
        query = torch.empty(1, 4, tokens, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
        key = torch.empty(1, 2, tokens, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
        assert row.spans.key_ends.is_meta
        with Operations() as asked:
            output, _ = attention.tree_attention(torch.nn.Module(), query, key, key, None, tree_row=row)
            output.sum().backward()
        assert output.shape == (1, tokens, 4, 64) and output.is_contiguous()
        assert asked.names.count("torch_attn::_varlen_attn") == 1
        assert asked.names.count("torch_attn::_varlen_attn_backward") == 1
        assert not [name for name in asked.names if "scaled_dot_product" in name or "softmax" in name]
        # No gradient is written into zeros of its size.
        assert "select_backward" not in asked.names and "slice_backward" not in asked.names
        counts.append(len(asked.names))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("capability", "width", "dtype", "taken"),
    [
        ((9, 0), 128, torch.bfloat16, True),
        ((9, 0), 256, torch.bfloat16, True),
        ((8, 9), 256, torch.bfloat16, False),
        ((7, 5), 128, torch.float16, False),
        ((9, 0), 128, torch.float32, False),
        ((9, 0), 100, torch.bfloat16, False),
    ],
)
def test_the_kernel_is_asked_for_what_it_has(capability, width, dtype, taken, monkeypatch):
    class OnGpu:
        is_cuda, device = True, torch.device("cuda", 0)

        def __init__(self, width):
            self.shape, self.dtype = (1, 4, 10, width), dtype

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    varlen._widest.cache_clear()
    assert varlen.takes(OnGpu(width), OnGpu(width)) is taken
    assert not varlen.takes(OnGpu(width), OnGpu(width // 2)), "values of another width"
    varlen._widest.cache_clear()


def test_cudnn_is_never_chosen_whoever_was_imported():
    assert not torch.backends.cuda.cudnn_sdp_enabled()
