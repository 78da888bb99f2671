"""This module implements `grpo check-reward`, which shows the reward of made-up completions before any training."""

from grpo.config import TrainConfig
from grpo.config.surprises import surprises
from grpo.host.terminal import Terminal
from grpo.insight.pages.trial import trial_episodes, trial_table
from grpo.run.scripted_episodes import ScriptedEpisodes
from grpo.tasks.early_checks import oddities
from grpo.tasks.trial import all_failed, reward_not_returned, tells_apart, trial, wrong_in

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
    if line := wrong_in(config.task, scored):
        console.print(line, style="yellow", soft_wrap=True)
    return int(all_failed(scored) or bool(reward_not_returned(scored)) or not tells_apart(scored))
