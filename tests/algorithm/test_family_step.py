"""These tests compare a whole optimizer step of each loss, from rewards to the gradient, with formulas in float64.

The groups are ragged: one is silent, one has a single completion, and two completions are not learned from. Log ratios
reach ±0.6, so every bound is active. Rows are packed into several micro-batches. Advantages and weights are float32
there, so numbers agree to 1e-6.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grpo.algorithm.batches import BatchMaker
from grpo.algorithm.loss import policy_loss, tokens_of
from grpo.algorithm.token_selection import select
from grpo.config import (
    AggregationConfig,
    CorrectionConfig,
    KlConfig,
    NormalizationConfig,
    ObjectiveConfig,
    TokenSelectionConfig,
    TrainConfig,
)
from grpo.types import Completion, Grade, GroupWithLogprobs, Problem, Prompt, RolloutGroup, RoundPlan, ScoredGroup
from tests.fakes import SingleRank

from .test_advantages_family import over_all_subsets
from .test_family import dppo, gmpo, gspo, mean, sapo

# Per group: (right, form) of each completion, its number of tokens, and whether it is learned from.
GROUPS = (
    [((1, 0), 4, True), ((0, 1), 1, True), ((0, 0), 6, False), ((1, 1), 3, True), ((0, 1), 5, True)],
    [((1, 1), 2, True), ((1, 1), 5, True), ((1, 1), 3, True)],
    [((0, 1), 7, True)],
    [((0, 1), 3, True), ((1, 0), 6, True), ((0, 0), 2, True), ((0, 1), 4, False)],
)
PARTS = {"right": 1.0, "form": 0.25}


def scenario():
    """Makes tables [tokens] of log-probabilities and entropies, indexed by token id. Each token of the step has its own
    id."""
    generator = torch.Generator().manual_seed(5)
    count = sum(length for group in GROUPS for _, length, _ in group)
    new, change, reference, entropies = torch.rand(4, count, dtype=torch.float64, generator=generator)
    new = -0.2 - 2 * new
    old = (new + 1.2 * (change - 0.5)).float()
    return SimpleNamespace(
        new=new.requires_grad_(),
        old=old,
        reference=(-0.2 - 2 * reference).float(),
        entropies=entropies,
    )


def step(tables):
    """Returns the step's groups as the code reads them, and their completions as the formulas read them."""
    groups, completions, first = [], [], 0
    for index, rows in enumerate(GROUPS):
        texts, olds, references, grades = [], [], [], []
        for (right, form), length, included in rows:
            ids = list(range(first, first + length))
            first += length
            old = tables.old[ids]
            texts.append(Completion(tuple(ids), tuple(old.tolist()), "", False))
            olds.append(old)
            references.append(tables.reference[ids])
            parts = {"right": float(right), "form": float(form)}
            grades.append(Grade(right + 0.25 * form, right == 1, parts))
            completions.append(SimpleNamespace(group=index, grade=grades[-1], ids=ids, included=included))
        group = RolloutGroup(Prompt(Problem(f"p{index}", "q", "a"), (1,)), tuple(texts), 0, 0)
        scored = ScoredGroup(group, tuple(grades), tuple(included for *_, included in rows))
        groups.append(GroupWithLogprobs(scored, tuple(olds), tuple(references)))
    return groups, completions


def ours(objective, normalization, tables):
    """Returns the loss and gradient of the round's second batch, whose old policy differs from the current one."""
    learner = TrainConfig().learner
    learner.micro_batch_tokens, learner.layout = 12, "packed"
    make = BatchMaker(normalization, objective, learner, SingleRank(), PARTS)
    groups, _ = step(tables)
    batch = make([groups, groups], RoundPlan(4, 2, len(groups)))[1]
    micros = batch.micro_batches
    assert len(micros) > 1
    if objective.selection.name != "none":
        looked = [tokens_of(tables.new[m.targets], tables.entropies[m.targets], m, objective) for m in micros]
        for micro, chosen in zip(micros, select(looked, list, objective), strict=True):
            object.__setattr__(micro, "selected", chosen)
    loss = sum(policy_loss(tables.new[m.targets], tables.entropies[m.targets], m, objective)[0] for m in micros)
    return loss.item(), torch.autograd.grad(loss, tables.new)[0]


def centered(rewards, power=0.0, by=lambda rewards: float(np.std(rewards))):
    """Returns (r − r̄) / by(r)^power, or 0 where all rewards are equal."""
    if max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    return [(reward - float(np.mean(rewards))) / by(rewards) ** power for reward in rewards]


def by_group(values):
    """Splits values [completions] into a list for each group."""
    groups, first = [], 0
    for rows in GROUPS:
        groups.append(values[first : first + len(rows)])
        first += len(rows)
    return groups


def joined(groups):
    return [value for group in groups for value in group]


REWARDS = [right + 0.25 * form for group in GROUPS for (right, form), *_ in group]


def gdpo():
    parts = [[row[0][part] for group in GROUPS for row in group] for part in (0, 1)]
    normalized = [joined(centered(group, 1.0) for group in by_group(values)) for values in parts]
    total = [right + 0.25 * form for right, form in zip(*normalized, strict=True)]
    return [value / np.std(total) for value in total]


def of_groups(advantages):
    """Applies `advantages` to the rewards of each group, and returns all values in one list."""
    return joined(advantages(group) for group in by_group(REWARDS))


def best_of_two(rewards):
    silent = len(rewards) < 2 or max(rewards) == min(rewards)
    return [0.0] * len(rewards) if silent else over_all_subsets(rewards, 2, 1.0)


GRPO = of_groups(lambda rewards: centered(rewards, 1.0))
NORMALIZED = {
    "grpo": ({}, GRPO),
    "dr_grpo": ({"exponent": 0.0}, of_groups(centered)),
    "sample_sigma": ({"ddof": 1}, of_groups(lambda r: centered(r, 1.0, lambda r: float(np.std(r, ddof=1))))),
    "dial": ({"exponent": 0.6, "mean_exponent": 0.7}, of_groups(
        lambda r: [value / np.mean(r) ** 0.7 for value in centered(r, 0.6)]
    )),
    "maxrl": ({"exponent": 0.0, "mean_exponent": 1.0}, of_groups(lambda r: centered(r, 1.0, np.mean))),
    "rloo": ({"exponent": 0.0, "leave_one_out": True}, of_groups(
        lambda r: [(reward - (sum(r) - reward) / (len(r) - 1)) if len(r) > 1 else 0.0 for reward in r]
    )),
    "batch_sigma": ({"scope": "batch"}, of_groups(lambda r: centered(r, 1.0, lambda _: float(np.std(REWARDS))))),
    "pass_at_k": ({"name": "pass_at_k", "k": 2}, of_groups(best_of_two)),
    "reinforce_plus_plus": ({"name": "reinforce_plus_plus"}, centered(REWARDS, 1.0)),
    "gdpo": ({"parts": "each"}, gdpo()),
}  # fmt: skip
"""Name → (settings, advantages of all completions by the formula)."""


def clip(new, old, advantage):
    ratios = [(a - b).exp() for a, b in zip(new, old, strict=True)]
    return -mean([torch.minimum(r * advantage, r.clamp(0.8, 1.15) * advantage) for r in ratios])


def dual_clip(new, old, advantage):
    terms = []
    for a, b in zip(new, old, strict=True):
        term = torch.minimum((a - b).exp() * advantage, (a - b).exp().clamp(0.8, 1.15) * advantage)
        terms.append(torch.maximum(term, 1.1 * advantage * torch.ones_like(term)) if advantage < 0 else term)
    return -mean(terms)


def cispo(new, old, advantage):
    return -mean([(a - b).exp().detach().clamp(0.8, 1.15) * advantage * a for a, b in zip(new, old, strict=True)])


def unclipped(new, old, advantage):
    return -mean([(a - b).exp() * advantage for a, b in zip(new, old, strict=True)])


BOUNDS = {"clip_low": 0.2, "clip_high": 0.15}
OBJECTIVES = {
    "clip": (clip, BOUNDS),
    "dual_clip": (dual_clip, {"dual_clip": 1.1, **BOUNDS}),
    "cispo": (cispo, {"name": "cispo", **BOUNDS}),
    "unclipped": (unclipped, {"name": "unclipped"}),
    "sapo": (sapo, {"name": "sapo", "temperature_positive": 1.3, "temperature_negative": 2.0}),
    "dppo": (dppo, {"name": "dppo", "clip_low": 0.1, "clip_high": 0.05}),
    "gmpo": (gmpo, {"name": "gmpo", "clip_low": 0.2, "clip_high": 0.3}),
    "gspo": (gspo, {"ratio": "sequence", "clip_low": 0.1, "clip_high": 0.15}),
    "gspo_token": (gspo, {"ratio": "sequence_token", "clip_low": 0.1, "clip_high": 0.15}),
}
LEVELS = {
    "token_mean": lambda length, counts: length / counts.tokens,
    "sequence_mean": lambda length, counts: 1 / counts.sequences,
    "constant": lambda length, counts: length / (8 * counts.sequences),
    "prompt_mean": lambda length, counts: length / (counts.group_tokens * counts.groups),
}
"""The weight of a completion's mean loss."""


def by_formula(formula, level, advantages, tables):
    _, completions = step(tables)
    learned = [completion for completion in completions if completion.included]
    total = torch.zeros((), dtype=torch.float64)
    for completion, advantage in zip(completions, advantages, strict=True):
        if not completion.included:
            continue
        counts = SimpleNamespace(
            tokens=sum(len(other.ids) for other in learned),
            sequences=len(learned),
            groups=len({other.group for other in learned}),
            group_tokens=sum(len(other.ids) for other in learned if other.group == completion.group),
        )
        losses = formula(tables.new[completion.ids], tables.old[completion.ids].double(), advantage)
        total = total + LEVELS[level](len(completion.ids), counts) * losses
    return total.item(), torch.autograd.grad(total, tables.new)[0]


def settings(level="token_mean", **objective):
    return ObjectiveConfig(
        **{"correction": CorrectionConfig(level="none")} | objective,
        aggregation=AggregationConfig(level=level, constant_length=8),
    )


def assert_equal(taken, expected):
    assert taken[0] == pytest.approx(expected[0], rel=1e-6)
    torch.testing.assert_close(taken[1], expected[1], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("member", OBJECTIVES)
def test_a_step_of_an_objective_is_that_of_its_formula(member, level):
    tables = scenario()
    formula, objective = OBJECTIVES[member]
    taken = ours(settings(level, **objective), NormalizationConfig(), tables)
    assert_equal(taken, by_formula(formula, level, GRPO, tables))
    plain = by_formula(unclipped, level, GRPO, tables)
    assert member == "unclipped" or not torch.allclose(taken[1], plain[1], rtol=1e-2), "no bound was active"


@pytest.mark.parametrize("name", NORMALIZED)
def test_a_step_of_a_normalization_is_that_of_its_formula(name):
    tables = scenario()
    normalization, advantages = NORMALIZED[name]
    taken = ours(settings(**BOUNDS), NormalizationConfig(**normalization), tables)
    assert_equal(taken, by_formula(clip, "token_mean", advantages, tables))
    learns_from_silent = {"reinforce_plus_plus"}
    silent = [index for completion in step(tables)[1] if completion.group == 1 for index in completion.ids]
    assert bool(taken[1][silent].any()) == (name in learns_from_silent)


def tokens_by_formula(tables):
    """Returns token ids, advantages, ratios and terms of the plain clipped loss, [tokens], for tokens that are learned
    from."""
    _, completions = step(tables)
    learned = [(c, a) for c, a in zip(completions, GRPO, strict=True) if c.included]
    ids = [index for completion, _ in learned for index in completion.ids]
    advantages = torch.tensor([a for c, a in learned for _ in c.ids], dtype=torch.float64)
    ratio = (tables.new[ids] - tables.old[ids].double()).exp()
    bounded = ratio.clamp(0.8, 1.15)
    return ids, advantages, ratio, torch.maximum(-ratio * advantages, -bounded * advantages)


def covariances(tables, ids, advantages):
    logprobs = tables.new[ids].detach()
    return (advantages - advantages.mean()) * (logprobs - logprobs.mean())


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov", "top_entropy"])
def test_a_step_of_a_selection_is_that_of_its_formula(name):
    tables = scenario()
    ids, advantages, ratio, losses = tokens_by_formula(tables)
    covariance, number = covariances(tables, ids, advantages), int(0.2 * len(ids))
    if name == "top_entropy":
        least = sorted(tables.entropies[ids].float())[-number]
        losses = losses * (tables.entropies[ids].float() >= least)
    elif name == "kl_cov":
        most = covariance >= covariance.sort().values[-number]
        change = (tables.new[ids] - tables.old[ids].double()).abs()
        losses = -ratio * advantages + 0.5 * change * most
    else:
        pushed = ((ratio > 1.15) & (advantages > 0)) | ((ratio < 0.8) & (advantages < 0))
        eligible = (covariance > 0.02) & (covariance < 5) & ~pushed
        losses = losses * (1 - eligible * min(1.0, number / int(eligible.sum())))
    expected = losses.mean()
    choice = TokenSelectionConfig(name=name, share=0.2, low=0.02, high=5.0, penalty=0.5)
    objective = settings(name="unclipped" if name == "kl_cov" else "clip", selection=choice, **BOUNDS)
    taken = ours(objective, NormalizationConfig(), tables)
    assert_equal(taken, (expected.item(), torch.autograd.grad(expected, tables.new)[0]))


def test_a_step_with_a_kl_by_the_ratio_is_that_of_its_formula():
    tables = scenario()

    def formula(new, old, advantage):
        first = int((tables.new == new[0]).nonzero()[0])
        reference = tables.reference[first : first + len(new)].double()
        kl = [(r - a).exp() - (r - a) - 1 for a, r in zip(new, reference, strict=True)]
        ratios = [(a - b).exp() for a, b in zip(new, old, strict=True)]
        return clip(new, old, advantage) + 0.3 * mean([k * r for k, r in zip(kl, ratios, strict=True)])

    objective = settings("sequence_mean", kl=KlConfig(coefficient=0.3, by_ratio=True), **BOUNDS)
    taken = ours(objective, NormalizationConfig(), tables)
    assert_equal(taken, by_formula(formula, "sequence_mean", GRPO, tables))
    assert math.isfinite(taken[0])
