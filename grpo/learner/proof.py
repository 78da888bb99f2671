"""This module checks, before a model is trained, that packed rows give the results of the model's own forward pass.

A small copy of the model, of its own class and with random weights, is computed twice, wholly in float64: every
completion alone by transformers' eager attention, and packed as the learner does it. Log-probabilities and gradients
have to be equal but for rounding. Windows are made shorter than the completions, so that they take effect. A model that
is not exact in packed trees is tried with one completion a row and transformers' own code, first with the model's
default attention, then with eager attention. If neither is exact, the model is refused with the measured differences.
No list of model names decides.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PretrainedConfig, PreTrainedModel

from grpo.algorithm.logprobs import LogitRule
from grpo.algorithm.packing import Branch, LooseTree, pack
from grpo.config import UserError
from grpo.config.errors import first_line
from grpo.learner.attention import NAME
from grpo.learner.policy import Policy
from grpo.learner.small_copy import SIZES, VOCABULARY, covering_layers, small_config
from grpo.types import Completion, MicroBatch

TOLERANCE = 1e-5
"""The largest difference allowed: of a log-probability in nats, and of the gradient relatively. Rounding leaves at most
1e-9 (Gemma 3n), usually 1e-15."""

LARGEST = 100_000_000
"""The largest number of parameters of a small copy: 0.8 GB, four times over."""

# Lengths of each tree's prompt and completions, in tokens: longer and shorter than the window, and a single token.
TREES = ((11, (14, 5, 1, 10)), (9, (6, 12)))
# Both prompts begin with as many of the same tokens.
COMMON = 8

Build = Callable[[PretrainedConfig, str | None], PreTrainedModel]
"""Builds a model with random float64 weights from a config and the name of an attention implementation (None: the
model's default)."""

Rule = Callable[[PretrainedConfig], LogitRule]
"""Returns how a model of a config scales and caps its logits, which may depend on its width."""

Calm = Callable[[PretrainedConfig], PretrainedConfig]
"""Returns a copy of a config without dropout and other randomness."""


WAYS: dict[str | None, str] = {NAME: "packed in trees", None: "one completion a row", "eager": "the same in eager mode"}
"""Attention implementations by which a policy may be computed, the quickest first, and what to call each."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A proof says by which of `WAYS` a model is computed exactly. `difference` is the larger of two measured ones, of
    log-probabilities (nats) and of the gradient (relative). `reason` says why the first way failed, if it did."""

    way: str | None
    difference: float
    reason: str = ""

    @property
    def in_trees(self) -> bool:
        return self.way == NAME


class InFloat64(TorchFunctionMode):
    """Within this context, code that asks for float32 gets float64.

    Norms, softmaxes, rotary positions and routers of many models compute in float32 whatever their inputs are. That
    rounds by 6e-8, which some models (Gemma 4) multiply to 1e-4.

    >>> with InFloat64():
    ...     torch.ones(1, dtype=torch.float32).float().dtype
    torch.float64
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        options = {name: _widened(value) for name, value in (kwargs or {}).items()}
        return func(*map(_widened, args), **options)


def _widened(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def prove(path: str, config: PretrainedConfig, build: Build, rule: Rule, calm: Calm = lambda config: config) -> Proof:
    """Finds the first of `WAYS` by which a small copy of the model gives the results of its own eager forward pass.
    `calm` changes the copy's config as a model's is changed before training. Raises UserError where no way is exact."""
    verbosity = logging.getLogger("transformers").level
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        with torch.random.fork_rng(devices=[]), InFloat64():
            return _prove(path, config, build, rule, calm)
    finally:
        logging.getLogger("transformers").setLevel(verbosity)


def _prove(path: str, config: PretrainedConfig, build: Build, rule: Rule, calm: Calm) -> Proof:
    torch.manual_seed(0)
    micro, sequences = example_row()
    own_model, small = own_copy(path, config, build)
    coefficients = torch.randn(len(micro.targets), dtype=torch.float64)
    expected = own_results(own_model, sequences, coefficients)
    outcomes: list[str] = []
    for way, called in WAYS.items():
        try:
            language_model = build(calm(small), way)
            language_model.load_state_dict(own_model.state_dict())
            policy = Policy(language_model.train(), len(micro.targets), rule(small), way == NAME)
            deviation = difference(packed_results(policy, micro, coefficients), expected)
        except Exception as error:  # whatever a model's own code raises when it is called like this
            outcomes.append(f"{called}: {type(error).__name__}: {first_line(error)}")
            continue
        if deviation <= TOLERANCE:
            return Proof(way, deviation, outcomes[0] if outcomes else "")
        outcomes.append(f"{called} off by {deviation:.1g}")
    raise UserError(
        f"{path}: {config.model_type} is not computed exactly here, so it is not trained; against its own eager "
        f"forward pass it is {', '.join(outcomes)}{_no_language_model(config)}"
    )


def _no_language_model(config: PretrainedConfig) -> str:
    """Returns the end of a refusal where a config names a class that is surely no causal language model, or ""."""
    named = config.architectures or []
    causal = any(re.search("CausalLM|LMHead|ConditionalGeneration", name) for name in named)
    return "" if causal or not named else f"; its config.json says {named[0]}, which is no causal language model"


def own_copy(path: str, config: PretrainedConfig, build: Build) -> tuple[PreTrainedModel, PretrainedConfig]:
    """Returns the small copy, with eager attention, and its config. Its size is the first of `SIZES` that the model's
    class accepts. Raises UserError where it accepts none."""

    def on_meta(config: PretrainedConfig) -> PreTrainedModel:
        with torch.device("meta"):
            return build(config, "eager")

    reasons = []
    for layers, heads in SIZES:
        try:
            small = small_config(config, layers * covering_layers(config, on_meta), heads)
            size = sum(parameter.numel() for parameter in on_meta(small).parameters())
            if size > LARGEST:
                raise ValueError(f"a copy of {size:,} parameters would be too large")
            own_model = build(small, "eager").eval()
            _randomize(own_model)
            own_model(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=False)
            return own_model, small
        except Exception as error:  # whatever a config or a model's own code says of such numbers
            reasons.append(first_line(error))
    explanation = "; ".join(dict.fromkeys((reasons[0], reasons[-1])))
    raise UserError(
        f"{path}: no small copy of a model of type {config.model_type} can be made to check how it is computed, so "
        f"it is not trained ({explanation})"
    )


def example_row() -> tuple[MicroBatch, list[tuple[list[int], list[int]]]]:
    """Returns a packed row of `TREES`, and its completions one after another: (prompt, completion) token ids."""
    generator = torch.Generator().manual_seed(1)

    def draw(count: int) -> list[int]:
        return torch.randint(VOCABULARY, (count,), generator=generator).tolist()

    trees, sequences = [], []
    beginning = draw(COMMON)
    for prompt_length, lengths in TREES:
        prompt = beginning + draw(prompt_length - COMMON)
        completions = [draw(length) for length in lengths]
        sequences += [(prompt, completion) for completion in completions]
        branches = [
            Branch(Completion(tuple(completion), (0.0,) * len(completion), "", False), 0.0, 0.0)
            for completion in completions
        ]
        trees.append(LooseTree(tuple(prompt), tuple(branches)))
    return pack(trees), sequences


def own_results(
    model: PreTrainedModel, sequences: list[tuple[list[int], list[int]]], coefficients: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns log-probabilities [targets] and gradients of their weighted sum, with each completion computed alone."""
    pieces = []
    for prompt, completion in sequences:
        ids = torch.tensor([prompt + completion])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        pieces.append(logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None]).squeeze(-1))
    logprobs = torch.cat(pieces)
    (logprobs * coefficients).sum().backward()
    return logprobs.detach(), _gradients(model)


def packed_results(policy: Policy, micro: MicroBatch, coefficients: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    logprobs, _ = policy(micro, 1.0)
    (logprobs * coefficients).sum().backward()
    return logprobs.detach(), _gradients(policy.language_model)


def _gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def difference(ours: tuple[Tensor, Mapping[str, Tensor]], own: tuple[Tensor, Mapping[str, Tensor]]) -> float:
    """Returns the larger of two differences: the largest of a log-probability, and the gradient's, relative to its
    norm. It is infinite where either is not finite or the weights with gradients differ."""
    (logprobs, gradients), (own_logprobs, own_gradients) = ours, own
    if gradients.keys() != own_gradients.keys():
        return float("inf")
    squared_difference = sum((gradients[name] - gradient).square().sum() for name, gradient in own_gradients.items())
    total = sum(gradient.square().sum() for gradient in own_gradients.values())
    differences = [(logprobs - own_logprobs).abs().max(), (squared_difference / total).sqrt()]
    return max(float(value) if value.isfinite() else float("inf") for value in differences)


@torch.no_grad()
def _randomize(model: PreTrainedModel) -> None:
    """Changes a fresh model's weights so that every part has an effect. Otherwise predictions would be nearly uniform,
    and biases zero."""
    for parameter in model.parameters():
        if parameter.dim() > 1 and parameter.std() > 0:
            parameter.mul_(parameter[0].numel() ** -0.5 / parameter.std())
        elif parameter.dim() == 1:
            parameter.add_(torch.randn_like(parameter) * 0.1)
