"""This module grades made-up completions, so that a reward can be tried before any model is loaded."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from grpo.config import TaskConfig
from grpo.tasks.curriculum import uniform
from grpo.tasks.grading_worker import UNPARSABLE
from grpo.tasks.prompt_stream import PromptStream
from grpo.tasks.rewards import EXTRACTING, of_episode
from grpo.tasks.task import VerifiableTask, build_gradings
from grpo.tasks.unit_tests import known_program
from grpo.tasks.usable import usable_problems
from grpo.types import Completion, EpisodeFacts, Problem, Prompt, RolloutGroup, ScoredGroup

Play = Callable[[str, Problem, str], EpisodeFacts | None]
"""Such a function plays an episode of a set's problem in which the model answers with a text."""

# How `task.reward.extract` wants an answer to be written.
FORMS = {
    "boxed": r"The answer is \boxed{%s}.",
    "final": r"The answer is \boxed{%s}.",
    "tag": "<answer>%s</answer>",
    "last_number": "The answer is %s.",
    "last_line": "The answer is\n%s",
    "all": "%s",
}
OTHER_FORMS = ("#### %s", *FORMS.values())
"""A user's own function may want an answer in one of these forms, whatever `task.reward.extract` says."""
PROGRAM = "```python\n%s\n```"
"""The reward part "code" wants a program to be written so."""
NOTHING = "I am not sure."
"""This completion holds no answer."""
MADE_UP = "42"
"""This answer stands for a wrong one where no other problem has one."""


SAME = (
    "right answers are not rewarded more than wrong ones: check task.reward.parts and task.reward.extract, and compare "
    "the completions above with what the reward looks for"
)


UNPARSED = (
    "the answers of these problems cannot be parsed: task.data.answer_pattern finds the part of an answer that counts, "
    'such as "#### (.*)" for GSM8K\'s; or name another task.data.answer_column, or the part exact for answers in words'
)


def no_episode(set_name: str, problem: Problem, text: str) -> EpisodeFacts | None:
    return None


def with_one_worker(config: TaskConfig) -> TaskConfig:
    """Returns a task whose few completions one process grades, since many take long to start."""
    sets = {name: with_one_worker(of_set) for name, of_set in config.sets.items()}
    return replace(config, reward=replace(config.reward, workers=1), sets=sets)


def trial(
    config: TaskConfig,
    max_tokens: int,
    count: int,
    problems: Mapping[str, Sequence[Problem]] | None = None,
    play: Play = no_episode,
) -> list[ScoredGroup]:
    """Grades three made-up completions of each of the first `count` problems of each set: the right answer, a wrong
    one, and none. A problem without an answer gets two: some answer, and none. Where programs are judged, the answers
    are programs that the rows have, and a row of tests alone has no right one.

    Where the reward has a function of the user's own, answers are written in the first form in which right ones earn
    more. The wrong answer is taken from the set's first problem with another answer, or is made up where there is none.
    `max_tokens` is the limit of a completion. `problems` are the problems of each set, if they are loaded already.
    `play` plays episodes in which these answers are given.
    Needs no model. Raises `UserError` for data that cannot be loaded, and for a reward that cannot be built or always
    fails.
    """
    config = with_one_worker(config)
    of_sets = problems or {name: usable_problems(of_set, name) for name, of_set in config.all_sets.items()}
    gradings = build_gradings(config, {name: of_set[0] for name, of_set in of_sets.items()}, max_tokens)
    shown = [problem for of_set in of_sets.values() for problem in of_set[:count]]

    def written(other_form: str) -> list[RolloutGroup]:
        groups = []
        for name, of_set in of_sets.items():
            for problem in of_set[:count]:
                reward = config.all_sets[name].reward.of(problem.source)
                form = other_form or FORMS[reward.extract]
                answers = (_said(problem), _wrong(problem, of_set)) if problem.answer else (MADE_UP,)
                if "code" in reward.weights:
                    others = (known_program(other.metadata) for other in of_set if other is not problem)
                    right, wrong = known_program(problem.metadata), next(filter(None, others), "pass")
                    form, answers = PROGRAM, (right, wrong) if right else (wrong,)
                texts = [*(form % answer for answer in answers), NOTHING]
                groups.append(_group(problem, texts, [play(name, problem, text) for text in texts]))
        return groups

    own = any(":" in name for reward in config.rewards for name in reward.weights)
    stream = PromptStream(shown, lambda problem: (0,), uniform(len(shown), 0))
    with VerifiableTask(stream, (), lambda problem: (0,), gradings) as task:
        first = task.grade(written(""))
        # Where grading took too long for every answer, it would in every other form.
        graded = any(grade.outcome == "graded" for group in first for grade in group.grades)
        if tells_apart(first) or not own or not graded:
            return first
        others = (task.grade(written(form)) for form in OTHER_FORMS)
        return next(filter(tells_apart, others), first)


def tells_apart(scored: Sequence[ScoredGroup]) -> bool:
    """Returns whether the right answers of a trial, if it has any, have a higher mean reward than the wrong ones.

    Rewards that episodes return may depend on more than the last message, so nothing follows from them.
    """
    answered = [group.rewards for group in _answered(scored)]
    return not answered or sum(rewards[0] for rewards in answered) > sum(rewards[1] for rewards in answered)


def _answered(scored: Sequence[ScoredGroup]) -> list[ScoredGroup]:
    """Returns the groups with a right, a wrong and no answer whose grades depend on them."""
    judged = (group for group in scored if not all(map(of_episode, group.grades[0].parts)))
    return [group for group in judged if len(group.grades) == len(("right", "wrong", "none"))]


def misjudged(scored: Sequence[ScoredGroup]) -> str:
    """Says how answers are graded otherwise than they are rewarded, or returns "": the first part of the reward counts
    an answer as right from `correct_at` on."""
    groups = [group.grades for group in _answered(scored)]
    if not groups or not tells_apart(scored) or any(grade.outcome != "graded" for grades in groups for grade in grades):
        return ""
    wrong = "right answers are graded as wrong" if not any(right.correct for right, *_ in groups) else ""
    wrong = wrong or ("wrong answers are graded as right" if all(other.correct for _, other, _ in groups) else "")
    return wrong and (
        f"{wrong}; if the model's are too, pass rates are false: an answer is right where the first part of "
        "task.reward.parts gives task.reward.correct_at or more, so set that, or scale what the part returns"
    )


def wrong_in(config: TaskConfig, scored: Sequence[ScoredGroup]) -> str:
    """Returns what made-up completions show to be wrong with a reward or an episode, or ""."""
    if all_failed(scored):
        return "every episode failed: correct task.episode"
    if name := reward_not_returned(scored):
        return (
            f"no episode returned the part {name} of task.reward.parts: an environment's reward or get_reward gives "
            "a number, a function returns it, and tools alone have none, so that another part has to grade them"
        )
    if {grade.outcome for group in _answered(scored) for grade in group.grades[:2]} == {UNPARSABLE}:
        return UNPARSED
    return (
        misjudged(scored)
        or ("" if tells_apart(scored) else SAME)
        or _untaken(config, scored)
        or _unasked(config, scored)
    )


def _unasked(config: TaskConfig, scored: Sequence[ScoredGroup]) -> str:
    """Says that the reward looks for a box, and that no prompt asks for one, or returns ""."""
    boxed = any(reward.extract == "boxed" and EXTRACTING & {*reward.weights} for reward in config.rewards)
    prompts = [of_set.prompt for of_set in config.all_sets.values()]
    problems = [group.group.prompt.problem for group in scored]
    asked = [
        *(f"{prompt.template} {prompt.system} {prompt.examples}" for prompt in prompts),
        *(f"{problem.question} {problem.messages}" for problem in problems),
    ]
    return (
        "task.reward.extract=boxed looks for \\boxed{…}, for which these prompts do not ask: ask for it in "
        "task.prompt.template, or set task.reward.extract=final, unless the model boxes its answers anyway"
        if boxed and not re.search(r"(?i)box|\{(?!question\})\w", str(asked))
        else ""
    )


def _untaken(config: TaskConfig, scored: Sequence[ScoredGroup]) -> str:
    """Says that episodes return rewards and no part of the reward takes one, or returns ""."""
    of_episodes = [completion.episode for group in scored for completion in group.group.completions]
    returned = {name for facts in of_episodes if facts for name in facts.rewards}
    taken = any(of_episode(name) for reward in config.rewards for name in reward.weights)
    return (
        f"episodes return {', '.join(sorted(returned))}, and nothing is learned from it: the part {{name: episode}} of "
        "task.reward.parts takes it"
        if returned and not taken
        else ""
    )


def all_failed(scored: Sequence[ScoredGroup]) -> bool:
    """Tells whether there are episodes, and all of them failed."""
    episodes = [completion.episode for group in scored for completion in group.group.completions if completion.episode]
    return bool(episodes) and all(facts.error for facts in episodes)


def reward_not_returned(scored: Sequence[ScoredGroup]) -> str:
    """Returns the first part of the reward that no episode has returned, of those that came to their own end, or ""."""
    lacking: dict[str, bool] = {}
    for group in scored:
        for completion, grade in zip(group.group.completions, group.grades, strict=True):
            facts = completion.episode
            for name in filter(of_episode, grade.parts) if facts and not (facts.error or facts.ended) else ():
                lacking[name] = lacking.get(name, True) and (name.partition("/")[2] or "reward") not in facts.rewards
    return next((name for name, lacks in lacking.items() if lacks), "")


def _group(problem: Problem, texts: Sequence[str], episodes: Sequence[EpisodeFacts | None]) -> RolloutGroup:
    completions = tuple(
        Completion((0,), (0.0,), text, truncated=False, episode=episode)
        for text, episode in zip(texts, episodes, strict=True)
    )
    return RolloutGroup(Prompt(problem, (0,)), completions, 0, 0)


def _wrong(problem: Problem, problems: Sequence[Problem]) -> str:
    made_up = "43" if MADE_UP in problem.answer else MADE_UP
    return next((_said(other) for other in problems if other.answer != problem.answer), made_up)


def _said(problem: Problem) -> str:
    """Returns an answer as a completion says it: of several, the first."""
    return str(problem.cell[0]) if isinstance(problem.cell, list) else problem.answer
