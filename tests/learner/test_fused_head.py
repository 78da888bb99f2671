"""Compiled functions read the logits only where they compute what single steps compute.

Nothing is compiled here, which takes minutes on a CPU. tests/gpu/test_kernels.py does."""

from types import SimpleNamespace

import pytest
import torch

from grpo.algorithm import fused
from grpo.algorithm.logprobs import PLAIN, LogitRule
from grpo.learner import fused_head
from grpo.learner.fused_head import choose_head, deviation

CPU = torch.device("cpu")


@pytest.mark.parametrize("rule", [PLAIN, LogitRule(scale=0.5, softcap=3.0), LogitRule(float32=True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_their_formulas_are_those_of_single_steps(rule, dtype, monkeypatch):
    monkeypatch.setattr(fused, "compiled", lambda function: function)
    assert deviation(rule, CPU, dtype, 300) == ""


def wrong(name, change):
    """Returns what compiles all functions into themselves, but for one whose results `change` spoils."""

    def compiled(function):
        return (lambda *arguments: change(function(*arguments))) if function.__name__ == name else function

    return compiled


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("_plain_extent", lambda extent: extent * 1.01, "other log-probabilities"),
        ("_plain_read", lambda values: (values[0], -values[1]), "other entropies"),
        ("_plain_read_and_keep", lambda values: (*values[:2], values[2] * 1.1), "other gradients"),
        ("_plain_slopes", lambda wide: wide + 0.01, "other gradients"),
        ("_plain_slopes", lambda wide: wide / 0, "other gradients"),
        ("_plain_read", lambda values: {}["no kernel"], "KeyError: 'no kernel'"),
        ("_plain_read", lambda values: next(iter(())), "StopIteration"),
    ],
)
def test_a_wrong_term_is_noticed(name, change, found, monkeypatch):
    monkeypatch.setattr(fused, "compiled", wrong(name, change))
    for dtype in (torch.float32, torch.bfloat16):
        assert found in deviation(PLAIN, CPU, dtype, 300)


def test_heads_on_a_gpu_are_read_as_a_trial_there_and_the_key_say(monkeypatch, capsys):
    reasons = iter(["", "no compiler", ""])
    monkeypatch.setattr(fused_head, "deviation", lambda rule, device, dtype, vocabulary: next(reasons))

    alone = SimpleNamespace(rank=0, maximum=int)

    def chosen(device, setting, ranks=alone):
        heads = tuple(SimpleNamespace(rule=PLAIN, weight=torch.zeros(1)) for _ in range(2))
        choose_head(heads, torch.device(device), setting, 300, ranks)
        return [head.rule.compiled for head in heads], capsys.readouterr().err

    assert chosen("cpu", "auto") == ([False, False], "")
    assert chosen("cuda", "never") == ([False, False], "")
    assert chosen("cuda", "auto") == ([True, True], "grpo: logits are read by compiled functions\n")
    assert chosen("cuda", "auto") == ([False, False], "grpo: logits are read step by step (no compiler)\n")
    one_fails = SimpleNamespace(rank=0, maximum=lambda value: 1)
    assert chosen("cuda", "auto", one_fails)[0] == [False, False]
