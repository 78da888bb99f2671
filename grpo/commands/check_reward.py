"""This module implements `grpo check-reward`, which shows the reward of made-up completions before any training."""

from __future__ import annotations

from grpo.config import TrainConfig
from grpo.host.terminal import Terminal
from grpo.insight.pages.trial import SAME, trial_table
from grpo.tasks.rewards import odd_judge
from grpo.tasks.trial import tells_apart, trial

NUM_PROBLEMS = 4


def run(config: TrainConfig) -> int:
    """Grades a right, a wrong and an empty answer to some problems, and prints their rewards.

    Returns 0, or 1 where right answers are not rewarded more than wrong ones.
    """
    scored = trial(config.task, config.rollout.sampling.max_tokens, NUM_PROBLEMS)
    console = Terminal()
    console.print(trial_table(scored))
    for odd in {odd_judge(of_set.reward, of_set.answer_name) for of_set in config.task.all_sets.values()} - {""}:
        console.print(odd, style="yellow", soft_wrap=True)
    if tells_apart(scored):
        return 0
    console.print(SAME, style="yellow", soft_wrap=True)
    return 1
