"""This module is the specification of a step: rewards → advantages → loss of every token → loss of the step.

Everything is float64 and written for one group, one completion or one token after another, as the papers print it.
Nothing is packed, padded or shared between ranks. The code that trains (`grpo.algorithm`, `grpo.learner`) is not used
here, so each of the two checks the other: tests compare their gradients on random settings, and `grpo audit` compares
what a run has recorded. Settings have the names of configuration keys. A user's own functions have no place here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from grpo.types import Completion, GroupWithLogprobs

if TYPE_CHECKING:
    from grpo.config import CorrectionConfig, NormalizationConfig, ObjectiveConfig

# A model is one of transformers, or anything that is called like one. Groups are those of one optimizer step, rewards
# those of one group, and moments are mean and σ over the rewards of the step.
Model = Callable[..., Any]
Groups = Sequence[GroupWithLogprobs]
Rewards = list[float]
Moments = tuple[float, float]

# Sums that differ by less, relative to what was added up, are the same number on paper. Tokens whose values differ by
# less share their place in an order, so that rounding does not choose among them.
ROUNDING, ALIKE = 16 * 2.0**-52, 1e-5


class Settings(NamedTuple):
    """These are the keys that decide about a step. `part_weights` are the weights of the reward's parts."""

    normalization: NormalizationConfig
    objective: ObjectiveConfig
    temperature: float = 1.0
    part_weights: Mapping[str, float] = {}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def sigma(values: Sequence[float], ddof: int) -> float:
    """Returns √(Σ(v − v̄)² / (n − ddof))."""
    return math.sqrt(sum((value - mean(values)) ** 2 for value in values) / max(len(values) - ddof, 1))


def equal(values: Sequence[float], added_up: float = 0.0) -> bool:
    """Tells whether all values are the same on paper: .3 is .1 + .2. `added_up` is the size of the terms that cancelled
    in them, if any."""
    return max(values) - min(values) <= ROUNDING * max(*map(abs, values), added_up, 0.0)


def divided(values: Rewards, by_sigma: float, normalization: NormalizationConfig) -> Rewards:
    """Returns v · σ^(−α), with ε added to σ or to σ², and 0 where σ is not above σ_min."""
    if by_sigma <= normalization.min_std:
        return [0.0] * len(values)
    alpha, epsilon = normalization.exponent, normalization.epsilon
    divisor = (by_sigma + epsilon) ** alpha
    if normalization.epsilon_in == "variance":
        divisor = (by_sigma**2 + epsilon) ** (alpha / 2)
    return [value / divisor for value in values]


def dial(rewards: Rewards, step: Moments, normalization: NormalizationConfig) -> Rewards:
    """Returns Â = (r − r̄) · σ^(−α) · r̄^(−β) (arXiv:2607.00152). GRPO is α = 1, Dr. GRPO α = 0, MaxRL α = 0 and β = 1
    (arXiv:2602.02710). RLOO compares a reward with the mean of the others."""
    size, centre, beta = len(rewards), mean(rewards), normalization.mean_exponent
    if equal(rewards) or (beta and centre <= 0):
        return [0.0] * size
    others = [(sum(rewards) - reward) / (size - 1) for reward in rewards]
    baselines = others if normalization.leave_one_out else [centre] * size
    distances = [reward - baseline for reward, baseline in zip(rewards, baselines, strict=True)]
    spread = step[1] if normalization.scope == "batch" else sigma(rewards, normalization.ddof)
    values = divided(distances, spread, normalization)
    return [value / centre**beta for value in values] if beta else values


def pass_at_k(rewards: Rewards, step: Moments, normalization: NormalizationConfig) -> Rewards:
    """Returns the mean best reward of the subsets of k that hold a completion, minus that of all, times σ^(−α) of these
    best rewards (arXiv:2508.10751)."""
    best = best_of(rewards, normalization.k)
    if not best or equal([value for value, _ in best]):
        return [0.0] * len(rewards)
    every = sum(share * value for value, share in best)
    spread = math.sqrt(sum(share * (value - every) ** 2 for value, share in best))
    rests = [best_of(rewards[:i] + rewards[i + 1 :], normalization.k - 1) for i in range(len(rewards))]
    with_it = [sum(share * max(own, v) for v, share in rest) for own, rest in zip(rewards, rests, strict=True)]
    return divided([value - every for value in with_it], spread, normalization)


def best_of(rewards: Rewards, k: int) -> list[tuple[float, float]]:
    """Returns rewards with the share of the subsets of k whose best they are. Of C(j, k − 1) it is the j-th lowest."""
    number, order = math.comb(len(rewards), k), enumerate(sorted(rewards))
    return [(value, math.comb(j, k - 1) / number) for j, value in order if j >= k - 1] if k else [(-math.inf, 1.0)]


def reinforce_plus_plus(rewards: Rewards, step: Moments, normalization: NormalizationConfig) -> Rewards:
    """Returns (r − mean) · σ^(−α) with mean and σ of the whole step (arXiv:2501.03262)."""
    centre, spread = step
    if spread <= ROUNDING * abs(centre):
        return [0.0] * len(rewards)
    return divided([reward - centre for reward in rewards], spread, normalization)


NORMALIZATIONS = {"dial": dial, "pass_at_k": pass_at_k, "reinforce_plus_plus": reinforce_plus_plus}


def advantages(groups: Groups, settings: Settings) -> list[Rewards]:
    """Returns the advantages of the completions of all groups of a step."""
    normalization, weights = settings.normalization, settings.part_weights
    if normalization.parts == "each":
        # GDPO (arXiv:2601.05242): each part of the reward is normalized by itself, then their sum over the step.
        def of_part(name: str) -> list[Rewards]:
            values = [[grade.parts.get(name, 0.0) for grade in group.scored.grades] for group in groups]
            return normalized(groups, values, normalization)

        by, of_groups = [*weights.values()], zip(*map(of_part, weights), strict=True)
        sums = [[weighted_sum(values, by) for values in zip(*own, strict=True)] for own in of_groups]
        _, spread = moments(groups, sums, normalization.ddof)
        return [divided(values, spread, normalization) for values in sums]
    values = normalized(groups, [rewards_of(group, settings.objective) for group in groups], normalization)
    if normalization.name == "reinforce_plus_plus":
        return values
    # A group whose rewards are equal is silent, whatever a KL term in the reward adds to them.
    return [
        [0.0] * len(own) if equal([grade.reward for grade in grades], max(grade.magnitude for grade in grades)) else own
        for own, grades in zip(values, (group.scored.grades for group in groups), strict=True)
    ]


def normalized(groups: Groups, rewards: list[Rewards], normalization: NormalizationConfig) -> list[Rewards]:
    """Applies the configured normalization to each group."""
    step = moments(groups, rewards, normalization.ddof)
    return [NORMALIZATIONS[normalization.name](values, step, normalization) for values in rewards]


def moments(groups: Groups, rewards: Sequence[Rewards], ddof: int) -> Moments:
    """Returns mean and σ over all rewards of a step. Those of groups that could not be graded stand for none."""
    every = [reward for group, own in zip(groups, rewards, strict=True) if not group.scored.spoilt for reward in own]
    return (mean(every), sigma(every, ddof)) if every else (0.0, 0.0)


def rewards_of(group: GroupWithLogprobs, objective: ObjectiveConfig) -> Rewards:
    """Returns the rewards of a group. With the KL in the reward, β·Σ_t KL_t at the round's start is subtracted."""
    rewards, kl = [grade.reward for grade in group.scored.grades], objective.kl
    if not kl.in_reward:
        return rewards
    pairs = zip(group.old_logprobs, group.reference_logprobs, strict=True)
    penalties = [kl_of(old.double(), reference.double(), kl.estimator).sum().item() for old, reference in pairs]
    return [reward - kl.coefficient * penalty for reward, penalty in zip(rewards, penalties, strict=True)]


def weighted_sum(values: Sequence[float], weights: Sequence[float]) -> float:
    terms = [weight * value for weight, value in zip(weights, values, strict=True)]
    return sum(terms) if abs(sum(terms)) > ROUNDING * sum(map(abs, terms)) else 0.0


def stretches(prompt: Sequence[int], completion: Completion) -> Iterator[tuple[list[int], list[int]]]:
    """Yields (tokens, places): the tokens that the model read and wrote, and the places of those that it wrote.

    Tokens of tools and environments stand between its own, and are never learned. Where a conversation was rewritten,
    what the model then read is another sequence, which begins a stretch of its own.

    >>> from grpo.types import Observed
    >>> seen = Observed(2, (7, 8)), Observed(3, (9,), keep=1)
    >>> list(stretches([10, 11], Completion((1, 2, 3, 4), (-1.0,) * 4, "", False, observed=seen)))
    [([10, 11, 1, 2, 7, 8, 3], [2, 3, 6]), ([10, 9, 4], [2])]
    """
    tokens, places = [*prompt], []
    for number, token in enumerate(completion.token_ids):
        for piece in completion.observed:
            if piece.at == number and piece.keep is not None:
                if places:
                    yield tokens, places
                tokens, places = tokens[: piece.keep], []
            if piece.at == number:
                tokens = [*tokens, *piece.token_ids]
        places.append(len(tokens))
        tokens = [*tokens, token]
    if places:
        yield tokens, places


def drawn_from(model: Model, tokens: list[int], places: list[int], temperature: float) -> tuple[Tensor, Tensor]:
    """Returns log π of the tokens at `places`, and the entropies of the distributions that they were drawn from."""
    logits = model(input_ids=torch.tensor([tokens])).logits[0].double()
    every = (logits[[place - 1 for place in places]] / temperature).log_softmax(-1)
    written = torch.tensor([tokens[place] for place in places])
    return every.gather(1, written[:, None])[:, 0], -(every.exp() * every).sum(-1)


def logprobs(model: Model, prompt: Sequence[int], completion: Completion, temperature: float) -> Tensor:
    """Returns log π of the tokens that a completion wrote."""
    parts = [drawn_from(model, *stretch, temperature)[0] for stretch in stretches(prompt, completion)]
    return torch.cat([torch.zeros(0, dtype=torch.float64), *parts])


def token_weights(groups: Groups, objective: ObjectiveConfig) -> list[list[float]]:
    """Returns the weight of each token of each completion in the step's loss, 0 where a completion is not learned from.

    token_mean weighs tokens alike (DAPO), sequence_mean completions (GRPO), constant has a constant in place of the
    completion's length (Dr. GRPO), and prompt_mean weighs prompts alike.
    """
    learned = [zip(g.scored.group.completions, g.scored.included, strict=True) for g in groups]
    lengths = [[len(completion.token_ids) if used else 0 for completion, used in of_group] for of_group in learned]
    num_tokens = sum(map(sum, lengths))
    num_sequences = sum(length > 0 for of_group in lengths for length in of_group)
    num_groups = sum(any(of_group) for of_group in lengths)

    def weight(length: int, of_group: list[int]) -> float:
        if not length:
            return 0.0
        return {
            "token_mean": 1 / num_tokens,
            "sequence_mean": 1 / (num_sequences * length),
            "constant": 1 / (num_sequences * (objective.aggregation.constant_length or 1)),
            "prompt_mean": 1 / (num_groups * sum(of_group)),
        }[objective.aggregation.level]

    return [[weight(length, of_group) for length in of_group] for of_group in lengths]


class Stretch(NamedTuple):
    """A stretch has what the loss needs of the tokens that a completion wrote without a rewriting of its history.

    Tensors have one number for each token, and gradients flow through `now` and `entropies` only. `start` is the
    learner's log π at the round's start, `sampler` that which was sampled from, `old` the one of both by which ratios
    divide, and `reference` that of the KL term or None.
    """

    now: Tensor
    entropies: Tensor
    start: Tensor
    sampler: Tensor
    old: Tensor
    reference: Tensor | None
    advantage: float
    weight: float


def bounded(log_ratio: Tensor) -> Tensor:
    # A ratio beyond e²⁰ says nothing more than "far away".
    return log_ratio.clamp(-20.0, 20.0)


def ratio_of(s: Stretch, objective: ObjectiveConfig) -> Tensor:
    """Returns ρ = π/π_old at each token: of the token, or as geometric mean of all tokens (GSPO, arXiv:2507.18071).
    GSPO-token has the latter's value and each token's own gradient."""
    difference = s.now - s.old
    if objective.ratio == "sequence":
        return bounded(difference.mean()).exp().expand(len(difference))
    if objective.ratio == "sequence_token":
        return (bounded(difference.detach().mean()) + s.now - s.now.detach()).exp()
    return bounded(difference).exp()


def surrogate(s: Stretch, objective: ObjectiveConfig) -> Tensor:
    """Returns the loss of each token before everything that is added to it or multiplied with it."""
    rho, advantage, low, high = ratio_of(s, objective), s.advantage, objective.clip_low, objective.clip_high
    match objective.name:
        case "clip":  # PPO; with a dual clip arXiv:1912.09729
            gain = torch.minimum(rho * advantage, rho.clamp(1 - low, 1 + high) * advantage)
            floor = objective.dual_clip * advantage if objective.dual_clip and advantage < 0 else -math.inf
            return -gain.clamp(min=floor)
        case "cispo":  # arXiv:2506.13585
            return -rho.detach().clamp(1 - low, 1 + high) * advantage * s.now
        case "unclipped":
            return -rho * advantage
        case "sapo":  # arXiv:2511.20347
            tau = objective.temperature_positive if advantage > 0 else objective.temperature_negative
            return -(4 / tau) / (1 + (-tau * (rho - 1)).exp()) * advantage
        case "dppo":  # arXiv:2602.04879
            return -rho * advantage * ~beyond(s, objective)
        case "gmpo":  # arXiv:2507.20673
            difference = bounded(s.now - s.old)
            clipped = difference.clamp(max=high) if advantage > 0 else difference.clamp(min=-low)
            return (-clipped.mean().exp() * advantage).expand(len(difference))
    raise ValueError(f"objective.name={objective.name} is not specified here")


def beyond(s: Stretch, objective: ObjectiveConfig) -> Tensor:
    """Tells which tokens have moved beyond a bound where their advantage pushes them further."""
    now = s.now.detach()
    if objective.name in ("clip", "cispo"):
        distance = ratio_of(s, objective).detach() - 1
    else:
        distance = {"dppo": now.exp() - s.old.exp(), "gmpo": bounded(now - s.old)}.get(objective.name, 0 * now)
    if s.advantage > 0:
        return distance > objective.clip_high
    return (distance < -objective.clip_low) & (s.advantage < 0)


def kl_of(now: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Returns k1, k2 or k3 of the KL from the reference at each token (Schulman, 2020)."""
    if estimator == "k1":
        return now - reference
    if estimator == "k2":
        return (now - reference) ** 2 / 2
    difference = bounded(reference - now)
    return difference.exp() - difference - 1


def corrections(s: Stretch, correction: CorrectionConfig) -> Tensor:
    """Returns the factor of each token for the difference between learner and sampler: w = π_old/π_sampler of the
    token, of the completion, or its geometric mean, within its bounds (TIS, IcePop: arXiv:2510.18855)."""
    difference = s.start - s.sampler
    if correction.level == "sequence":
        difference = difference.sum().expand(len(difference))
    elif correction.level == "sequence_mean":
        difference = difference.mean().expand(len(difference))
    weights = bounded(difference).exp()
    if correction.mode == "mask":
        return weights * (weights >= correction.floor) * (weights <= correction.cap)
    return weights.clamp(correction.floor, correction.cap)


def chosen(step: Sequence[Stretch], objective: ObjectiveConfig) -> list[Tensor]:
    """Returns for each token how much the configured selection takes of it, from 0 to 1."""
    selection, sizes = objective.selection, [len(s.now) for s in step]
    now = torch.cat([s.now.detach() for s in step])
    advantage = torch.cat([torch.full((len(s.now),), s.advantage, dtype=torch.float64) for s in step])
    # Floats would round .29 · 100 down to 28.
    number = max(1, int(Fraction(str(selection.share)) * len(now)))
    covariance = (advantage - advantage.mean()) * (now - now.mean())
    if selection.name == "top_entropy":
        taken = largest(torch.cat([s.entropies.detach() for s in step]), number)
    elif selection.name == "kl_cov":
        taken = largest(covariance, number)
    else:
        free = ~torch.cat([beyond(s, objective) for s in step])
        may_be_drawn = (covariance > selection.low) & (covariance < selection.high) & free
        taken = may_be_drawn * min(1.0, number / max(int(may_be_drawn.sum()), 1))
    return list(taken.split(sizes))


def largest(values: Tensor, number: int) -> Tensor:
    """Returns 1 for the `number` largest values. Those that are equal to the last of these share what is left."""
    last = values.sort(descending=True).values[number - 1]
    width = ALIKE * max(1.0, abs(last.item()))
    above, same = values > last + width, (values - last).abs() <= width
    return above + same * ((number - int(above.sum())) / int(same.sum()))


def after_selection(losses: Tensor, s: Stretch, taken: Tensor, objective: ObjectiveConfig) -> Tensor:
    """Applies a selection: Clip-Cov removes gradient, KL-Cov adds |log ρ| above rounding (both arXiv:2505.22617), and
    top_entropy learns from the tokens with the highest entropy only (arXiv:2506.01939)."""
    if objective.selection.name == "kl_cov":
        return losses + objective.selection.penalty * taken * torch.threshold((s.now - s.old).abs(), ALIKE, 0.0)
    return losses * (1 - taken if objective.selection.name == "clip_cov" else taken)


def step_loss(model: Model, groups: Groups, settings: Settings, first: bool = True) -> Tensor:
    """Returns the loss of an optimizer step on these groups, a scalar. Its gradient is that of the step. In the `first`
    step of a round the old policy is the present one. In the others it is that of `old_logprobs`."""
    objective = settings.objective
    step = [*stretches_of(model, groups, settings, first)]
    selecting, correction = objective.selection.name != "none" and step, objective.correction
    choices = chosen(step, objective) if selecting else [None] * len(step)
    # With ratios to the sampler's policy, the correction is part of the ratio.
    corrects = correction.level != "none" and objective.old_logprobs == "learner"
    total = torch.zeros((), dtype=torch.float64)
    for s, taken in zip(step, choices, strict=True):
        losses = surrogate(s, objective)
        if taken is not None:
            losses = after_selection(losses, s, taken, objective)
        if corrects:
            losses = losses * corrections(s, correction)
        if objective.kl.in_loss and s.reference is not None:
            kl = kl_of(s.now, s.reference, objective.kl.estimator)
            losses = losses + objective.kl.coefficient * kl * (ratio_of(s, objective) if objective.kl.by_ratio else 1)
        losses = losses - objective.entropy_coefficient * s.entropies
        # A completion with a token that the learner would hardly ever write is left out.
        vetoed = corrects and bool(((s.start - s.sampler).exp() < correction.veto).any())
        total = total + (0.0 if vetoed else s.weight * losses.sum())
    return total


def stretches_of(model: Model, groups: Groups, settings: Settings, first: bool) -> Iterator[Stretch]:
    """Yields the stretches of all completions that are learned from, one sequence after another."""
    weights, every_advantage = token_weights(groups, settings.objective), advantages(groups, settings)
    for g, group in enumerate(groups):
        prompt = group.scored.group.prompt.token_ids
        for i, completion in enumerate(group.scored.group.completions):
            begin, learned = 0, group.scored.included[i]
            for tokens, places in stretches(prompt, completion) if learned else ():
                part = slice(begin, begin := begin + len(places))
                now, entropies = drawn_from(model, tokens, places, settings.temperature)
                start = group.old_logprobs[i][part].double() if group.old_logprobs and not first else now.detach()
                sampler = torch.tensor(completion.sampler_logprobs[part], dtype=torch.float64)
                old = sampler if settings.objective.old_logprobs == "sampler" else start
                reference = group.reference_logprobs[i][part].double() if group.reference_logprobs else None
                yield Stretch(now, entropies, start, sampler, old, reference, every_advantage[g][i], weights[g][i])
