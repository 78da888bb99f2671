"""This script compares the learner with the specification of a step (`grpo.audit.reference`) on random settings.

    python -m benchmarks.against_reference [COUNT] [FIRST]
    torchrun --nproc-per-node=2 -m benchmarks.against_reference [COUNT] [FIRST]

Each number is one combination of objective, ratio, selection, aggregation, normalization, KL, correction, masks, ragged
groups, episodes, layout, row length, adapters, steps of a round, passes, temperature and an adaptive entropy bonus, and
draws always the same one. With several ranks a ZeRO stage is drawn too, and whether ranks compute each row together.
The real learner takes the steps of a round on a tiny random Llama in float32. At one of these steps its gradient and
loss are compared with those that the specification has at the same weights: in float64, with transformers' own
attention, one sequence at a time. The combinations farthest apart are printed, and
the exit code is 1 if some are off by 1e-5 or more.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpo.host import environment

environment.prepare()

from deepspeed.utils import safe_get_full_fp32_param
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from grpo.algorithm.batches import BatchMaker
from grpo.audit import reference
from grpo.config import (
    AggregationConfig,
    CorrectionConfig,
    KlConfig,
    NormalizationConfig,
    ObjectiveConfig,
    TokenSelectionConfig,
    TrainConfig,
)
from grpo.config.parts import LearnerSettings
from grpo.learner.collective import TorchCollective
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.learner.loading import with_lora
from grpo.models.files import ModelFiles
from grpo.types import (
    Completion,
    Grade,
    GroupWithLogprobs,
    Observed,
    Problem,
    Prompt,
    RolloutGroup,
    RoundPlan,
    ScoredGroup,
)

VOCABULARY = 32
WEIGHTS = {"right": 1.0, "form": 0.5}
CPU = torch.device("cpu")
# (ZeRO stage, ranks that compute each row together), by the number of ranks.
SPLITS = {1: [(1, 1)], 2: [(1, 1), (2, 1), (3, 1), (1, 2), (3, 2)]}
LIMIT = 1e-5
# Adam's update is lr·g/(|g| + ε). In the step that is compared ε is far above every gradient, so the update is the
# gradient times SCALE, beside which the weights before it are small.
SCALE, EPSILON = 1e4, 1e10
NOISELESS = -2.0
"""Tokens of steps that are not compared have this log-probability, plus noise, under their sampler."""


@dataclass(frozen=True)
class Case:
    """A case is one combination. `groups` holds the groups of each step of a round, and the step `checked` of all steps
    of `passes` over them is compared. `bonus` is the coefficient of an entropy bonus that follows a target, if any."""

    config: TrainConfig
    groups: list[list[ScoredGroup]]
    checked: int
    bonus: float | None

    @property
    def plan(self) -> RoundPlan:
        passes = self.config.dynamics.passes
        return RoundPlan(4, passes * len(self.groups), 4, passes=passes, entropy_coefficient=self.bonus)


@dataclass(frozen=True)
class Outcome:
    """An outcome says how far learner and specification are apart, relative to the gradient, and in the loss.

    KL-Cov adds |log π − log π_old|, which has no slope where the policy has not moved. Rounding then gives it one, so
    such a combination `has_slope` only if no token is there.
    """

    number: int
    has_slope: bool
    gradient: float
    loss: float
    size: float
    settings: str


def drawn(number: int, world: int) -> Case:
    """Returns the combination of this number. On several ranks it has a split of `SPLITS` too."""
    rng = np.random.default_rng(number)
    config = TrainConfig()
    config.normalization, config.objective = drawn_normalization(rng), drawn_objective(rng)
    config.model.lora.rank = int(rng.choice([0, 0, 0, 3]))
    config.rollout.sampling.temperature = float(rng.choice([1.0, 1.0, 0.7, 1.4]))
    config.dynamics.passes = int(rng.choice([1, 1, 2]))
    config.learner.layout = str(rng.choice(["shared", "packed", "padded"]))
    config.learner.micro_batch_tokens = int(rng.choice([16, 40, 10_000]))
    config.learner.skip_silent_groups = bool(rng.random() < 0.5)
    if config.normalization.parts == "each":
        config.objective.kl.place = "loss"
    splits = SPLITS[world]
    config.learner.zero_stage, config.learner.sequence_parallel = splits[number % len(splits)]
    steps = int(rng.choice([1, 2, 3]))
    groups = [[drawn_group(rng) for _ in range(rng.integers(1, 4))] for _ in range(steps)]
    checked = int(rng.integers(steps * config.dynamics.passes))
    bonus = float(rng.choice([0.0, 0.2])) if rng.random() < 0.15 else None
    config.objective.entropy_target = 0.0 if bonus is None else 1.0
    return Case(config, groups, checked, bonus)


def drawn_normalization(rng: np.random.Generator) -> NormalizationConfig:
    common = {
        "exponent": float(rng.choice([1.0, 1.0, 0.0, 0.5, 1.3])),
        "ddof": int(rng.choice([0, 0, 1])),
        "epsilon": float(rng.choice([0.0, 0.0, 1e-4, 0.1])),
        "epsilon_in": str(rng.choice(["std", "variance"])),
        "min_std": float(rng.choice([0.0, 0.0, 0.0, 0.3])),
        "parts": str(rng.choice(["sum", "sum", "sum", "each"])),
    }
    name = str(rng.choice(["dial", "dial", "dial", "pass_at_k", "reinforce_plus_plus"]))
    if name != "dial":
        return NormalizationConfig(name=name, k=int(rng.integers(1, 4)), **common)
    return NormalizationConfig(
        scope=str(rng.choice(["group", "group", "batch"])),
        leave_one_out=bool(rng.random() < 0.3),
        mean_exponent=float(rng.choice([0.0, 0.0, 1.0, -0.5])),
        **common,
    )


def drawn_objective(rng: np.random.Generator) -> ObjectiveConfig:
    name = str(rng.choice(["clip", "clip", "cispo", "unclipped", "sapo", "dppo", "gmpo"]))
    on = rng.random(5)
    sizes = [float(size) for size in rng.uniform(0.02, 0.3, 2)]
    selection = TokenSelectionConfig(
        name=str(rng.choice(["clip_cov", "kl_cov", "top_entropy"])) if on[0] < 0.3 else "none",
        share=float(rng.choice([0.1, 0.29, 0.5])), low=0.02, high=1.0, penalty=0.5,
    )  # fmt: skip
    kl = KlConfig(
        coefficient=float(rng.uniform(0.01, 0.5)) if on[1] < 0.4 else 0.0,
        estimator=str(rng.choice(["k1", "k2", "k3"])),
        place=str(rng.choice(["loss", "loss", "reward"])),
        by_ratio=bool(rng.random() < 0.4),
    )
    corrects = on[2] < 0.6
    correction = CorrectionConfig(
        level=str(rng.choice(["token", "sequence", "sequence_mean"])) if corrects else "none",
        mode=str(rng.choice(["truncate", "mask"])), cap=1.3, floor=float(rng.choice([0.0, 0.7])),
        veto=float(rng.choice([0.0, 0.0, 0.5])),
    )  # fmt: skip
    return ObjectiveConfig(
        name=name,
        ratio="token" if name in ("dppo", "gmpo") else str(rng.choice(["token", "sequence", "sequence_token"])),
        clip_low=sizes[0], clip_high=sizes[1], dual_clip=float(rng.choice([0.0, 0.0, 1.2])),
        temperature_positive=1.3, temperature_negative=2.0,
        old_logprobs=str(rng.choice(["learner", "learner", "sampler"])),
        entropy_coefficient=0.1 if on[3] < 0.25 else 0.0,
        aggregation=AggregationConfig(
            level=str(rng.choice(["token_mean", "sequence_mean", "constant", "prompt_mean"])), constant_length=9
        ),
        selection=selection, kl=kl, correction=correction,
    )  # fmt: skip


def drawn_group(rng: np.random.Generator) -> ScoredGroup:
    """Draws a group of one to five completions: binary, shaped or equal rewards, masked ones, episodes, a spoilt
    group."""
    size = int(rng.integers(1, 6))
    beginning = rng.integers(3, VOCABULARY, int(rng.choice([1, 10]))) if rng.random() < 0.5 else np.full(9, 5)
    prompt = tuple(map(int, [*beginning, *rng.integers(3, VOCABULARY, int(rng.integers(1, 4)))]))
    completions = tuple(drawn_completion(rng, prompt) for _ in range(size))
    kind, spoilt = rng.choice(["binary", "binary", "shaped", "equal"]), rng.random() < 0.06
    right = {"binary": rng.integers(0, 2, size), "shaped": rng.uniform(-0.5, 1, size), "equal": np.ones(size)}[kind]
    form = np.ones(size) if kind == "equal" else rng.integers(0, 3, size) / 2
    parts = [{"right": 0.0 if spoilt else float(r), "form": 0.0 if spoilt else float(f)}
             for r, f in zip(right, form, strict=True)]  # fmt: skip
    outcome = "unanswered" if spoilt else "graded"
    grades = tuple(Grade(sum(WEIGHTS[n] * v for n, v in part.items()), False, part, outcome) for part in parts)
    included = tuple(not spoilt and bool(rng.random() < 0.85) for _ in range(size))
    return ScoredGroup(RolloutGroup(Prompt(Problem("p", "q", "a"), prompt), completions, 0, 0), grades, included)


def drawn_completion(rng: np.random.Generator, prompt: tuple[int, ...]) -> Completion:
    length = int(rng.integers(1, 8))
    ids, observed, read = tuple(map(int, rng.integers(3, VOCABULARY, length))), [], len(prompt)
    for at in range(length) if rng.random() < 0.3 else ():
        read += at > 0
        if rng.random() < 0.4:
            keep = int(rng.integers(1, read + 1)) if rng.random() < 0.4 else None
            piece = tuple(map(int, rng.integers(3, VOCABULARY, int(rng.integers(1, 4)))))
            observed.append(Observed(at, piece, keep))
            read = (read if keep is None else keep) + len(piece)
    # In the step that is compared, the noise is that of a sampler with the learner's policy.
    noise = float(rng.choice([0.03, 0.1, 0.5])) * rng.standard_normal(length)
    return Completion(ids, tuple(map(float, NOISELESS + noise)), "", False, observed=tuple(observed))


class Comparison:
    """A comparison holds a learner of a tiny model, split over the ranks and with adapters or without, and a plain copy
    of it in float64."""

    def __init__(self, folder: Path, lora_rank: int, zero_stage: int, together: int):
        config = TrainConfig()
        config.model.lora.rank = lora_rank
        config.learner.zero_stage, config.learner.sequence_parallel = zero_stage, together
        config.learner.precision = config.rollout.precision = "float32"
        config.learner.max_gradient_norm, config.learner.logit_chunk_tokens = 0.0, 7
        config.learner.betas, config.learner.weight_decay = [0.0, 0.999], 0.0
        config.learner.learning_rate = 1e-2
        # The reference policy is there from the beginning, whether a case needs it or not.
        config.objective.kl.coefficient = 1.0
        self._config, files = config, ModelFiles(folder)
        self.learner = DeepSpeedLearner(LearnerSettings.of(config), files, CPU)
        eager = {"attn_implementation": "eager", "dtype": torch.float64}
        plain = AutoModelForCausalLM.from_pretrained(folder, **eager)
        self._plain = with_lora(plain, config.model).double() if lora_rank else plain
        self._start = None if lora_rank else AutoModelForCausalLM.from_pretrained(folder, **eager)
        self._saved = self.learner.collective.gather(tempfile.mkdtemp(dir=folder))[0]
        self.learner.save(self._saved)

    def outcome(self, number: int, case: Case) -> Outcome:
        """Takes the steps of a round up to the one that is compared."""
        learner, config = self.learner, case.config
        config.learner = replace(
            self._config.learner,
            **{name: getattr(config.learner, name) for name in ("layout", "micro_batch_tokens", "skip_silent_groups")},
        )
        learner.load(self._saved)
        learner._settings = LearnerSettings.of(config)
        objective = config.objective
        if case.bonus is not None:
            objective = replace(objective, entropy_coefficient=case.bonus)
        settings = reference.Settings(config.normalization, objective, config.rollout.sampling.temperature, WEIGHTS)
        steps, place = [*case.groups], case.checked % len(case.groups)
        self._follow()
        groups = [self._sampled(group, settings) for group in steps[place]]
        steps[place] = [group.scored for group in groups]
        own = [step[learner.collective.rank :: learner.collective.world_size] for step in steps]
        make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective, WEIGHTS)
        batches = make(learner.add_logprobs(own), case.plan)
        for batch in batches[: case.checked]:
            learner.step(batch)
        self._follow()
        loss = reference.step_loss(self._plain, groups, settings, first=case.checked == 0)
        has_slope = True
        if config.objective.selection.name == "kl_cov" and (case.checked or config.objective.old_logprobs == "sampler"):
            step = [*reference.stretches_of(self._plain, groups, settings, first=case.checked == 0)]
            has_slope = all(((s.now - s.old).abs() - reference.ALIKE).abs().min().item() > 1e-6 for s in step)
        before = self._weights()
        config.learner.learning_rate, config.learner.adam_epsilon = SCALE * EPSILON, EPSILON
        learner._settings = LearnerSettings.of(config)
        report = learner.step(batches[case.checked])
        ours = {name: (before[name] - weight) / SCALE for name, weight in self._weights().items()}
        gradients = {name: (ours[name], theirs) for name, theirs in self._gradients(loss)}
        off = sum((ours.double() - theirs).square().sum() for ours, theirs in gradients.values()) ** 0.5
        size = float(sum(theirs.square().sum() for _, theirs in gradients.values()) ** 0.5)
        # A gradient that is zero on paper has the size of rounding.
        relative = float(off) / max(size, 0.1)
        loss_off = abs(report.means["policy/loss"].value - loss.item()) / max(abs(loss.item()), 1.0)
        stage, together = config.learner.zero_stage, config.learner.sequence_parallel
        splits = f"ZeRO {stage}, {together} together, adapters of rank {config.model.lora.rank}"
        return Outcome(
            number, has_slope, relative, loss_off, size, f"{splits} {config.normalization} {config.objective}"
        )

    def _gradients(self, loss: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields name and gradient of `loss` of every weight that is trained."""
        named = {name: weight for name, weight in self._plain.named_parameters() if weight.requires_grad}
        zeros = [torch.zeros_like(weight) for weight in named.values()]
        gradients = torch.autograd.grad(loss, [*named.values()], allow_unused=True) if loss.requires_grad else zeros
        for (name, weight), gradient in zip(named.items(), gradients, strict=True):
            yield name, torch.zeros_like(weight) if gradient is None else gradient

    def _weights(self) -> dict[str, torch.Tensor]:
        """Returns the learner's weights that are trained, name → float64 tensor. Collective."""
        ours = dict(self.learner.policy.language_model.named_parameters())
        trained = {name: weight.shape for name, weight in self._plain.named_parameters() if weight.requires_grad}
        return {name: safe_get_full_fp32_param(ours[name]).view(shape).double() for name, shape in trained.items()}

    def _follow(self) -> None:
        """Gives the plain copy the learner's weights. Collective."""
        with torch.no_grad():
            for name, weight in self._weights().items():
                self._plain.get_parameter(name).copy_(weight)

    @torch.no_grad()
    def _sampled(self, scored: ScoredGroup, settings: reference.Settings) -> GroupWithLogprobs:
        """Returns a group as the learner's policy sampled it, but for the sampler's noise."""
        prompt, completions = scored.group.prompt.token_ids, scored.group.completions

        def under(model: Any) -> tuple[torch.Tensor, ...]:
            every = (reference.logprobs(model, prompt, completion, settings.temperature) for completion in completions)
            return tuple(every)

        old, start = under(self._plain), ()
        if settings.objective.kl.coefficient:
            with self._plain.disable_adapter() if self._start is None else nullcontext():
                start = under(self._start or self._plain)
        written = tuple(
            replace(completion, sampler_logprobs=tuple(map(float, np.float32(values.numpy() + noise - NOISELESS))))
            for completion, values in zip(completions, old, strict=True)
            for noise in [np.array(completion.sampler_logprobs)]
        )
        return GroupWithLogprobs(replace(scored, group=replace(scored.group, completions=written)), old, start)


def tiny_model(folder: Path) -> Path:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, tie_word_embeddings=True, max_position_embeddings=128,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        # Random weights of the usual size give nearly uniform predictions, which hide errors.
        parameter.data.mul_(8) if parameter.dim() > 1 else None
    model.save_pretrained(folder)
    return folder


@contextmanager
def comparisons(folder: Path) -> Iterator[dict[tuple[int, int, int], Comparison]]:
    """Yields comparisons by the rank of their adapters, ZeRO stage and ranks together. Ends their learners."""
    world = torch.distributed.get_world_size()
    kinds = [(lora_rank, *split) for lora_rank in (0, 3) for split in SPLITS[world]]
    by_kind = {kind: Comparison(folder, *kind) for kind in kinds}
    yield by_kind
    for comparison in by_kind.values():
        comparison.learner.engine.destroy()


def outcomes(by_kind: dict[tuple[int, int, int], Comparison], numbers: range) -> Iterator[Outcome]:
    """Yields the outcome of each number."""
    for number in numbers:
        case = drawn(number, torch.distributed.get_world_size())
        learner = case.config.learner
        kind = case.config.model.lora.rank, learner.zero_stage, learner.sequence_parallel
        yield by_kind[kind].outcome(number, case)


def main(count: int = 1000, first: int = 0) -> int:
    torch.set_num_threads(1)
    init_distributed(CPU, 300)
    first_rank, gather = torch.distributed.get_rank() == 0, TorchCollective(CPU).gather
    with tempfile.TemporaryDirectory() as folder:
        [model, *_] = gather(tiny_model(Path(folder)) if first_rank else None)
        with comparisons(model) as by_kind:
            found = sorted(
                outcomes(by_kind, range(first, first + count)),
                key=lambda outcome: (not outcome.has_slope, -outcome.gradient),
            )
    apart = sum(outcome.has_slope and max(outcome.gradient, outcome.loss) > LIMIT for outcome in found)
    if first_rank:
        taught = sum(outcome.size > 0 for outcome in found)
        print(f"{count} combinations, {taught} with a gradient; farthest apart:")
        for outcome in found[:5]:
            print(f"{outcome.number}: gradient {outcome.gradient:.1e}, loss {outcome.loss:.1e}: {outcome.settings}")
        print(
            f"the median gradient is {found[count // 2].gradient:.1e} off; {apart} combinations are off by {LIMIT} or "
            "more"
        )
    return int(apart > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
