"""This module has stand-ins for collectives, tasks and samplers, for unit tests of other parts."""

from dataclasses import replace
from functools import partial

from benchmarks.ranks_in_threads import SingleRank as SingleRank
from benchmarks.ranks_in_threads import on_ranks as on_ranks
from grpo.config import UserError
from grpo.rollout.grading_thread import GradingThread, sampled_and_graded
from grpo.rollout.group_source import OnDemandSource
from grpo.types import Completion, Grade, Problem, Prompt, RolloutGroup, ScoredGroup


class ScriptedTask:
    """This task has the prompts p0, p1, …, and gives one rank its share. `rewards[i]` are the rewards of the i-th
    prompt's completions."""

    grades_together = False

    def __init__(self, rewards, rank=0, world_size=1):
        self.rewards, self.cursor = rewards, 0
        self.rank, self.world_size = rank, world_size

    def next_prompts(self, count):
        first, self.cursor = self.cursor, self.cursor + count
        mine = [index for index in range(first, self.cursor) if index % self.world_size == self.rank]
        return [Prompt(Problem(f"p{index}", "q", "a"), (1,), position=index) for index in mine]

    def record_outcomes(self, outcomes, cursor):
        """Ignores the outcomes, since the order of prompts does not depend on them."""

    def record_lengths(self, lengths):
        """Ignores the lengths, since rank p mod n always gets prompt p."""

    def grade(self, groups):
        return [self._scored(group) for group in groups]

    def _scored(self, group):
        scripted = self.rewards[int(group.prompt.problem.problem_id[1:])]
        rewards = [scripted[int(completion.text)] for completion in group.completions]
        grades = tuple(Grade(float(reward), reward == 1, {"exact": float(reward)}) for reward in rewards)
        return ScoredGroup(group, grades, (True,) * len(grades))


class BrokenTask(ScriptedTask):
    """This task's reward fails for all answers."""

    def grade(self, groups):
        raise UserError("the function is broken")


def ungraded(scored):
    """Returns a group as it is when a reward server did not answer: every reward is 0, and no completion is right."""
    grades = tuple(replace(grade, reward=0.0, correct=False, outcome="unanswered") for grade in scored.grades)
    return replace(scored, grades=grades, included=(False,) * len(grades))


class ScriptedSampler:
    """This sampler writes completions of two tokens each. Their text is the number of the sample."""

    policy_version = 0

    def generate(self, draw, on_group=None):
        groups = [
            RolloutGroup(
                prompt,
                tuple(Completion((5, 2), (-0.5, -0.25), str(n), False) for n in samples),
                self.policy_version,
                self.policy_version,
            )
            for prompt, samples in zip(draw.prompts, draw.samples, strict=True)
        ]
        for place, group in enumerate(groups if on_group else ()):
            on_group(place, group)
        return groups

    def sleep(self):
        """Does nothing, since this sampler holds no memory."""


def asking(task, sampler):
    """Returns a source of groups that samples a prompt when its group is taken, and grades in a thread of its own."""
    return OnDemandSource(task, sampler, GradingThread(task))


def answering(task, sampler=None):
    """Returns the function that an evaluation calls to sample and grade."""
    return partial(sampled_and_graded, sampler or ScriptedSampler(), GradingThread(task))


def ids(groups):
    return [group.group.prompt.problem.problem_id for group in groups]
