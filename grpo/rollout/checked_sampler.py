"""A wrapped sampler changes single calls of another sampler. A checked one checks its completions before they are
graded, measured or learned from. A returning one goes on after the loss of its engine."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from grpo.config import UserError
from grpo.config.errors import Diverged, SamplerLost
from grpo.interfaces import AskableSampler, Draw, OnGroup, Pending, Sampler
from grpo.types import Completion, Prompt, RolloutGroup


def check_groups(prompts: Sequence[Prompt], groups: Sequence[RolloutGroup], vocabulary: int) -> None:
    """Raises UserError for groups that a policy of `vocabulary` tokens cannot have sampled from `prompts`, and Diverged
    for log-probabilities that are not finite."""
    if len(groups) != len(prompts):
        raise UserError(f"the sampler answered {len(prompts)} prompts with {len(groups)} groups: {_CHECK_ENGINE}")
    for prompt, group in zip(prompts, groups, strict=True):
        if not group.completions:
            raise UserError(f"the sampler gave no completion of prompt {prompt.prompt_id!r}: {_CHECK_ENGINE}")
        for number, completion in enumerate(group.completions):
            what_has = f"the sampler's completion {number} of prompt {prompt.prompt_id!r} has"
            if complaint := _wrong(completion, vocabulary):
                raise UserError(f"{what_has} {complaint}")
            if odd_logprobs := [logprob for logprob in completion.sampler_logprobs if not math.isfinite(logprob)]:
                why = _DIVERGED if group.newest_version else _ODD_FROM_THE_START
                raise Diverged(f"{what_has} the log-probability {odd_logprobs[0]}: {why}")


_CHECK_ENGINE = "is its vLLM one that `grpo doctor` approves of, and does rollout.servers.urls name this run's servers?"
_DIVERGED = (
    "its weights have diverged, rollout.precision is too low for them, or the engine cannot do here what "
    "rollout.engine_args asks; lower learner.learning_rate, set rollout.precision=float32, or leave out "
    "rollout.engine_args"
)
_ODD_FROM_THE_START = (
    "nothing has been learned yet, so the model's files hold weights that are NaN or infinite, rollout.precision is "
    "too low for them, or the engine cannot do here what rollout.engine_args asks; copy the model again, set "
    "rollout.precision=float32, or leave out rollout.engine_args"
)


def _wrong(completion: Completion, vocabulary: int) -> str | None:
    tokens, logprobs = completion.token_ids, completion.sampler_logprobs
    if len(tokens) != len(logprobs):
        return f"{len(logprobs)} log-probabilities for {len(tokens)} tokens: {_CHECK_ENGINE}"
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary):
        odd_token = next(token for token in tokens if not 0 <= token < vocabulary)
        return f"token {odd_token}, and the model has tokens 0 to {vocabulary - 1}: {_CHECK_ENGINE}"
    return None


class Wrapped:
    """This wrapper replaces some methods of `part`. It reads and sets every other attribute in `part` itself."""

    def __init__(self, part: Any, **methods: Callable):
        vars(self).update(methods, _part=part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._part, name, value)


class WrappedSampler:
    """Passes every call on to another sampler. A class that extends it changes single calls.

    It implements `interfaces.AskableSampler` if that sampler does.
    """

    def __init__(self, sampler: Sampler | AskableSampler):
        self._sampler = sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class CheckedSampler(WrappedSampler):
    """This sampler checks the completions of another one, whose model has `vocabulary` tokens."""

    def __init__(self, sampler: Sampler | AskableSampler, vocabulary: int):
        super().__init__(sampler)
        self._vocabulary = vocabulary

    def generate(self, draw: Draw, on_group: OnGroup | None = None) -> list[RolloutGroup]:
        def checked(place: int, group: RolloutGroup) -> None:
            check_groups([draw.prompts[place]], [group], self._vocabulary)
            on_group(place, group)

        groups = self._sampler.generate(draw, checked if on_group else None)
        check_groups(draw.prompts, groups, self._vocabulary)
        return groups

    def ask(self, draw: Draw) -> list[Pending]:
        answers = zip(draw.prompts, self._sampler.ask(draw), strict=True)
        return [Wrapped(pending, result=partial(self._checked, prompt, pending)) for prompt, pending in answers]

    def _checked(self, prompt: Prompt, pending: Pending) -> RolloutGroup:
        group = pending.result()
        check_groups([prompt], [group], self._vocabulary)
        return group


class ReturningSampler(WrappedSampler):
    """This sampler goes on after the loss of an engine beside a learner: the engine is started again, gets the
    learner's weights, and writes what is missing."""

    def __init__(self, sampler: Sampler, refresh: Callable[[], None]):
        """`refresh` gives the sampler the learner's weights. Collective."""
        super().__init__(sampler)
        self._refresh = refresh

    def generate(self, draw: Draw, on_group: OnGroup | None = None) -> list[RolloutGroup]:
        """Raises SamplerLost, on all ranks, if an engine is lost a second time in this draw."""
        groups: dict[int, RolloutGroup] = {}

        def came(place: int, group: RolloutGroup) -> None:
            groups[place] = group
            if on_group:
                on_group(place, group)

        try:
            return self._sampler.generate(draw, came)
        except SamplerLost:
            self.come_back()
            self.sleep()
            self._refresh()
        places = [place for place in range(len(draw.prompts)) if place not in groups]
        sizes = [len(samples) for samples in draw.samples]
        rest = replace(draw, prompts=[draw.prompts[place] for place in places], group_size=[sizes[n] for n in places])
        for place, group in zip(
            places, self._sampler.generate(rest, lambda index, group: came(places[index], group)), strict=True
        ):
            groups[place] = group
        return [groups[place] for place in range(len(draw.prompts))]
