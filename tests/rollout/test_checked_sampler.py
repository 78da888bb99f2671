"""These tests hold that an impossible answer of a sampler is refused in one line, before it is graded."""

from dataclasses import replace

import pytest

from grpo.config import UserError
from grpo.config.errors import Diverged
from grpo.interfaces import Draw
from grpo.rollout.checked_sampler import CheckedSampler
from grpo.rollout.collect import PlainCollector
from grpo.types import Completion, RoundPlan
from tests.fakes import ScriptedSampler, ScriptedTask, asking

VOCABULARY = 8
PLAN = RoundPlan(group_size=2, refresh_interval=1, prompts_per_step=2)


class Odd(ScriptedSampler):
    """This sampler puts `completion` in the place of the last group's last one, or returns `change(groups)`."""

    def __init__(self, completion=None, change=None):
        self._completion, self._change = completion, change

    def generate(self, draw, on_group=None):
        groups = super().generate(draw)
        if self._completion is not None:
            groups[-1] = replace(groups[-1], completions=(*groups[-1].completions[:-1], self._completion))
        groups = self._change(groups) if self._change else groups
        for place, group in enumerate(groups if on_group else ()):
            on_group(place, group)
        return groups

    def ask(self, draw):
        return [Ready(group) for group in self.generate(draw)]


class Ready:
    def __init__(self, group):
        self._group = group

    def result(self):
        return self._group


class NeverGraded(ScriptedTask):
    def grade(self, groups):
        raise AssertionError("graded")


ODD = [
    (Completion((5, 8), (-0.5, -0.5), "", False), r"completion 1 of prompt 'p1@0' has token 8, .* tokens 0 to 7: "),
    (Completion((-1, 2), (-0.5, -0.5), "", False), "has token -1, and the model has tokens 0 to 7"),
    (Completion((5, 2), (-0.5,), "", False), "has 1 log-probabilities for 2 tokens: .* rollout.servers.urls"),
    (Completion((5, 2), (-0.5, float("nan")), "", False), "log-probability nan: .*rollout.precision=float32"),
    (Completion((5, 2), (float("-inf"), -0.5), "", False), "log-probability -inf: "),
]


@pytest.mark.parametrize(("completion", "message"), ODD)
def test_an_odd_completion_is_refused_before_it_is_graded(completion, message):
    collector = PlainCollector(asking(NeverGraded([[1, 0]] * 2), CheckedSampler(Odd(completion), VOCABULARY)))
    with pytest.raises(UserError, match=message) as caught:
        collector.collect(PLAN, 1)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, Diverged) == message.startswith("log-probability")


@pytest.mark.parametrize(
    ("version", "cause"), [(0, "nothing has been learned yet, so the model's files hold"), (3, "weights have diverged")]
)
def test_numbers_that_are_odd_before_anything_is_learned_are_not_blamed_on_the_learning_rate(version, cause):
    odd = Odd(ODD[3][0], lambda groups: [replace(group, newest_version=version) for group in groups])
    with pytest.raises(Diverged, match=cause) as caught:
        CheckedSampler(odd, VOCABULARY).generate(Draw(ScriptedTask([]).next_prompts(2), 2))
    assert ("learner.learning_rate" in str(caught.value)) == bool(version)


@pytest.mark.parametrize(("completion", "message"), ODD)
def test_so_is_one_that_was_asked_for_ahead(completion, message):
    prompts = ScriptedTask([]).next_prompts(2)
    first, second = CheckedSampler(Odd(completion), VOCABULARY).ask(Draw(prompts, 2))
    assert first.result().prompt == prompts[0]
    with pytest.raises(UserError, match=message):
        second.result()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda groups: [], "answered 2 prompts with 0 groups"),
        (lambda groups: groups[:1], "answered 2 prompts with 1 groups"),
        (lambda groups: [groups[0], replace(groups[1], completions=())], "gave no completion of prompt 'p1@0'"),
    ],
)
def test_missing_groups_and_completions_are_reported(change, message):
    sampler = CheckedSampler(Odd(change=change), VOCABULARY)
    with pytest.raises(UserError, match=message):
        sampler.generate(Draw(ScriptedTask([]).next_prompts(2), 2))


def test_possible_completions_pass():
    groups = CheckedSampler(Odd(Completion((0, 7), (0.0, -80.0), "", True)), VOCABULARY).generate(
        Draw(ScriptedTask([]).next_prompts(2), 2)
    )
    assert groups[1].completions[1].token_ids == (0, 7)
