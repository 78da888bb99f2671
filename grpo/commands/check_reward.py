"""This module implements `grpo check-reward`, which shows the reward of made-up completions before any training."""

from __future__ import annotations

from grpo.config import TrainConfig
from grpo.config.surprises import surprises
from grpo.host.terminal import Terminal
from grpo.insight.pages.trial import SAME, trial_episodes, trial_table
from grpo.run.scripted_episodes import ScriptedEpisodes
from grpo.tasks.early_checks import oddities
from grpo.tasks.trial import all_failed, misjudged, reward_not_returned, tells_apart, trial

NUM_PROBLEMS = 4


def run(config: TrainConfig) -> int:
    """Grades a right, a wrong and an empty answer to some problems, and prints their rewards. Episodes are played with
    these answers, and the first conversation is printed.

    Returns 0, or 1 where right answers are not rewarded more than wrong ones, every episode failed, or none returned
    its reward.
    """
    with ScriptedEpisodes(config.task) as play:
        scored = trial(config.task, config.rollout.sampling.max_tokens, NUM_PROBLEMS, play=play)
    console = Terminal()
    console.print(trial_table(scored))
    for text in trial_episodes(scored):
        console.print(text, soft_wrap=True)
    odd_lines = {line for of_set in config.task.all_sets.values() for line in oddities(of_set)}
    for odd in (*odd_lines, *(line for line in surprises(config) if "task." in line)):
        console.print(odd, style="yellow", soft_wrap=True)
    if all_failed(scored):
        console.print("every episode failed: correct task.episode", style="yellow", soft_wrap=True)
        return 1
    if name := reward_not_returned(scored):
        console.print(
            f"no episode returned the part {name} of task.reward.parts: an environment needs reward or get_reward, a "
            "function returns it, and tools alone have none, so that another part has to grade them",
            style="yellow",
            soft_wrap=True,
        )
        return 1
    if line := misjudged(scored):
        console.print(line, style="yellow", soft_wrap=True)
    if tells_apart(scored):
        return 0
    console.print(SAME, style="yellow", soft_wrap=True)
    return 1
