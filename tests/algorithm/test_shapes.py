"""These tests hold that signatures name the shapes of their tensors, and that calls with other shapes are found."""

import inspect

import pytest
import torch

from grpo.algorithm import kl
from grpo.algorithm.kl import ESTIMATORS, k3
from grpo.algorithm.logprobs import token_logprobs
from grpo.algorithm.normalization import advantages, dial
from grpo.algorithm.token_losses import Tokens, clip
from tests.algorithm import shapes
from tests.algorithm.shapes import checked, hints

# All as they are once checked functions stand in their places.
ALL = shapes.public_functions()


def test_every_public_signature_names_the_shapes_of_its_tensors():
    def bare(hint):
        return hint is torch.Tensor or (
            any(map(bare, getattr(hint, "__args__", ()))) and not hasattr(hint, "__metadata__")
        )

    functions = [(inspect.unwrap(function), module) for function, module in ALL]
    assert not [f.__name__ for f, module in functions if any(map(bare, hints(f, module).values()))]


def test_functions_of_tensors_are_checked_and_those_with_examples_are_as_they_were():
    checked_ones = [function for function, _ in ALL if function.__globals__ is vars(shapes)]
    assert len(checked_ones) > 25 and clip in checked_ones and dial in checked_ones
    assert not [function.__name__ for function in checked_ones if ">>>" in (function.__doc__ or "")]


def test_a_table_of_functions_has_checked_ones_too():
    with pytest.raises(AssertionError, match="k3: reference_logprobs has 1 targets where other tensors have 3"):
        ESTIMATORS["k3"](torch.zeros(3), torch.zeros(1))


THREE, COLUMN = torch.zeros(3), torch.zeros(3, 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: k3(THREE, COLUMN), r"has the shape \[3, 1\], and not \['targets'\]"),
        (lambda: clip(Tokens(THREE, THREE, THREE, torch.zeros(1), THREE, THREE), None), "tokens.advantages has 1 targ"),
        (lambda: dial(COLUMN, None, None), "dial: rewards has the shape"),
        (lambda: advantages([torch.zeros(2), COLUMN], None, None), "advantages: rewards has the shape"),
        (lambda: token_logprobs(torch.zeros(3, 4), torch.zeros(7, 5), THREE.long(), 1.0, 2), "weight has 5 width"),
        (lambda: token_logprobs(torch.zeros(3, 4), torch.zeros(7, 4), THREE.long(), 1.0, 2, THREE), "3 vocabulary"),
    ],
)
def test_a_call_with_another_shape_is_found(call, words):
    with pytest.raises(AssertionError, match=words):
        call()


def test_a_result_of_another_shape_is_found():
    def k4(logprobs: "Targets", reference_logprobs: "Targets") -> "Targets":  # noqa: F821
        return (logprobs - reference_logprobs)[:, None]

    with pytest.raises(AssertionError, match="the result of k4 has the shape"):
        checked(k4, kl)(THREE, THREE)
