"""This module has stand-ins for collectives, tasks and samplers, for unit tests of other parts."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from grpo.rollout.grading_thread import GradingThread, sampled_and_graded
from grpo.rollout.group_source import Asking
from grpo.rollout.seeds import sample_numbers
from grpo.types import Completion, Grade, Problem, Prompt, RolloutGroup, ScoredGroup


class SingleRank:
    """This is a collective of one rank."""

    rank, world_size = 0, 1

    def sum(self, values):
        return [float(value) for value in values]

    def maximum(self, value):
        return value

    def gather(self, value):
        return [value]

    def pool(self, values):
        return list(values), slice(0, len(values))

    def barrier(self):
        """Does nothing, since one rank waits for nobody."""


class Rank(SingleRank):
    """This is the collective of one of several ranks, each in a thread of its own (see `on_ranks`)."""

    def __init__(self, rank, values, meeting):
        self.rank, self.world_size = rank, len(values)
        self._values, self._meeting = values, meeting

    def gather(self, value):
        self._values[self.rank] = value
        self._meeting.wait(60)
        gathered = list(self._values)
        self._meeting.wait(60)
        return gathered

    def sum(self, values):
        return [float(sum(column)) for column in zip(*self.gather(list(values)), strict=True)]

    def maximum(self, value):
        return max(self.gather(value))

    def barrier(self):
        self.gather(None)


def on_ranks(count, action):
    """Returns what `action(collective)` returned or raised on each of `count` ranks."""
    values, meeting = [None] * count, threading.Barrier(count)

    def run(rank):
        try:
            return action(Rank(rank, values, meeting))
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


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
        return [Prompt(Problem(f"p{index}", "q", "a"), (1,)) for index in mine]

    def record_outcomes(self, outcomes, cursor):
        """Ignores the outcomes, since the order of prompts does not depend on them."""

    def grade(self, groups):
        return [self._scored(group) for group in groups]

    def _scored(self, group):
        scripted = self.rewards[int(group.prompt.problem.problem_id[1:])]
        rewards = [scripted[int(completion.text)] for completion in group.completions]
        grades = tuple(Grade(float(reward), reward == 1, {"exact": float(reward)}) for reward in rewards)
        return ScoredGroup(group, grades, (True,) * len(grades))


class ScriptedSampler:
    """This sampler writes completions of two tokens each. Their text is the number of the sample."""

    policy_version = 0

    def generate(self, prompts, group_size, sampling=None, first_sample=0, on_group=None):
        numbers = sample_numbers(group_size, first_sample, len(prompts))
        groups = [
            RolloutGroup(
                prompt,
                tuple(Completion((5, 2), (-0.5, -0.25), str(n), False) for n in samples),
                self.policy_version,
                self.policy_version,
            )
            for prompt, samples in zip(prompts, numbers, strict=True)
        ]
        for place, group in enumerate(groups if on_group else ()):
            on_group(place, group)
        return groups

    def sleep(self):
        """Does nothing, since this sampler holds no memory."""


def asking(task, sampler):
    """Returns a source of groups that samples a prompt when its group is taken, and grades in a thread of its own."""
    return Asking(task, sampler, GradingThread(task))


def answering(task, sampler=None):
    """Returns the function that an evaluation calls to sample and grade."""
    return partial(sampled_and_graded, sampler or ScriptedSampler(), GradingThread(task))


def ids(groups):
    return [group.group.prompt.problem.problem_id for group in groups]
