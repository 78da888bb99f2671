"""Stand-ins for unit tests of something else."""

from grpo.types import Completion, Grade, Problem, Prompt, RolloutGroup, ScoredGroup


class SingleRank:
    """A collective of one rank."""

    rank, world_size = 0, 1

    def sum(self, values):
        return [float(value) for value in values]

    def maximum(self, value):
        return value

    def gather(self, value):
        return [value]

    def barrier(self):
        """One rank waits for nobody."""


class ScriptedTask:
    """Prompts p0, p1, …; `rewards[i]` are the rewards of the i-th prompt's completions."""

    def __init__(self, rewards):
        self.rewards, self.cursor = rewards, 0

    def next_prompts(self, count):
        first, self.cursor = self.cursor, self.cursor + count
        return [Prompt(Problem(f"p{index}", "q", "a"), (1,)) for index in range(first, self.cursor)]

    def grade(self, groups):
        return [self._scored(group) for group in groups]

    def _scored(self, group):
        rewards = self.rewards[int(group.prompt.problem.problem_id[1:])]
        grades = tuple(Grade(float(reward), reward == 1, {"exact": float(reward)}) for reward in rewards)
        return ScoredGroup(group, grades, (True,) * len(grades))


class ScriptedSampler:
    """Completions of two tokens each."""

    policy_version = 0

    def generate(self, prompts, group_size, sampling=None):
        completion = Completion((5, 2), (-0.5, -0.25), "text", False)
        return [RolloutGroup(prompt, (completion,) * group_size, 0) for prompt in prompts]

    def sleep(self):
        """Holds nothing."""


def ids(groups):
    return [group.group.prompt.problem.problem_id for group in groups]
