"""This module turns what graders return into rewards: one `Grading` for every reward that a task has.

DAPO's soft overlong penalty (arXiv:2503.14476, section 3.4) is one of their parts.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from grpo.config import RewardConfig, UserError
from grpo.config.task import EPISODE
from grpo.tasks.extraction import extract
from grpo.tasks.grader_pool import FRUITLESS, GraderPool
from grpo.tasks.grading_worker import LATE, RAISED, UNPARSABLE, RawGrade, merged
from grpo.tasks.own_rewards import facts_of_one, reward_facts
from grpo.tasks.remote import RemoteRewards
from grpo.tasks.rewards import EXTRACTING, of_episode
from grpo.tasks.sources import listed
from grpo.tasks.verification import bare
from grpo.types import Completion, EpisodeFacts, Grade, RolloutGroup, ScoredGroup
from grpo.types.rollout import NOT_THEIR_FAULT

logger = logging.getLogger(__name__)


class Grading:
    """A grading computes the grades of completions by one configured reward.

    `max_tokens` is the limit of a completion. `bad_rows` says what to do with problems whose own answer a grader
    cannot parse: "skip" (their completions get no reward, with one warning) or "refuse" (an error).
    """

    def __init__(self, pool: GraderPool, reward: RewardConfig, max_tokens: int, bad_rows: str = "skip") -> None:
        self._pool = pool
        self._remote = RemoteRewards(reward.parts)
        self._reward = reward
        self._max_tokens = max_tokens
        self._bad_rows = bad_rows
        self._warned: set[str] = set()
        self._extracts = bool(EXTRACTING & {*reward.weights})
        self._named = [name for name in reward.weights if of_episode(name)]
        # How many episodes were at fault before the first that was not, or None once there was one.
        self._fruitless: int | None = 0
        self._lacking: set[str] = set()

    @property
    def together(self) -> bool:
        """Returns whether a part of the reward takes all groups of a round in one call."""
        return self._pool.together

    def answer_of(self, text: str) -> str | None:
        """Returns the answer in a completion without its typesetting, or None when there is none."""
        answer = extract(text, self._reward.extract)
        return None if answer is None else bare(answer)

    def grade(self, groups: Sequence[RolloutGroup]) -> list[ScoredGroup]:
        """Returns the groups in order, each with one grade per completion. Groups that were given up are not graded.

        Raises `UserError` when the reward itself is at fault, and for an unparsable answer where `bad_rows` is
        "refuse".
        """
        whole = [group for group in groups if not group.given_up]
        # Servers are asked first, so that workers grade while the answers are on their way.
        remote = self._remote.ask(whole) if self._remote.names else None
        raw_grades = [*self._graded_here(whole), self._of_episodes(whole), *([remote.result()] if remote else [])]
        graded = ([*map(merged, zip(*of_group, strict=True))] for of_group in zip(*raw_grades, strict=True))
        late = RawGrade(dict.fromkeys(self._reward.weights, 0.0), LATE)
        scored = [
            self._scored(group, [late] * len(group.completions) if group.given_up else next(graded)) for group in groups
        ]
        self._tell_unparsable(scored)
        return scored

    def close(self) -> None:
        """Stops the grading workers and the requests to servers."""
        self._pool.close()
        self._remote.close()

    def _graded_here(self, groups: Sequence[RolloutGroup]) -> list[list[list[RawGrade]]]:
        """Returns three lists, each with one list of grades for every group. Their grades are by the parts that see one
        completion, one group, and all groups."""
        items, group_items = [], []
        for group in groups:
            problem, facts = group.prompt.problem, reward_facts(group, self._pool.wanted)
            texts = tuple(completion.text for completion in group.completions)
            group_items.append((texts, problem, facts))
            for place, text in enumerate(texts):
                items.append((text, problem.own_answer, problem.metadata, facts_of_one(facts, place)))
        alone = iter(self._pool.grade(items))
        one_by_one = [[next(alone) for _ in group.completions] for group in groups]
        return [one_by_one, self._pool.grade_groups(group_items), self._pool.grade_batch(group_items)]

    def _of_episodes(self, groups: Sequence[RolloutGroup]) -> list[list[RawGrade]]:
        """Returns what episodes themselves returned, by the names of the parts, or that they failed."""

        def grade(completion: Completion) -> RawGrade:
            facts = completion.episode
            if facts is None:
                return RawGrade(dict.fromkeys(self._named, 0.0))
            # An episode that was cut off has returned nothing.
            rewards = {EPISODE if name == "reward" else f"{EPISODE}/{name}": v for name, v in facts.rewards.items()}
            self._judge_episode(facts, [name for name in self._named if name not in rewards])
            return RawGrade(dict.fromkeys(self._named, 0.0) | rewards, RAISED if facts.error else "graded")

        return [[grade(completion) for completion in group.completions] for group in groups]

    def _judge_episode(self, facts: EpisodeFacts, lacking: Sequence[str]) -> None:
        """Raises `UserError` where the first `FRUITLESS` episodes have failed, or returned no reward at their own end.
        `lacking` are the parts of the reward that this one did not return."""
        fault = facts.error or (f"no reward {lacking[0]} was returned" if lacking else "")
        if facts.ended and not facts.error:
            return
        if lacking and not facts.error and lacking[0] not in self._lacking:
            self._lacking.add(lacking[0])
            key = lacking[0].partition("/")[2] or "reward"
            logger.warning(
                "an episode ended without a reward %s, which counts as 0: let it return {%r: NUMBER}", lacking[0], key
            )
        if self._fruitless is None:
            return
        self._fruitless = self._fruitless + 1 if fault else None
        if self._fruitless == FRUITLESS:
            raise UserError(
                f"none of the first {FRUITLESS} episodes could be graded, for example: {fault}; "
                + ("raise that limit, or " if "task.limits" in fault else "")
                + "correct task.episode"
                + ("" if facts.error else ". It gives a number, and 0 where it means 0")
            )

    def _tell_unparsable(self, scored: Sequence[ScoredGroup]) -> None:
        """Warns once of each problem whose own answer cannot be parsed, or raises `UserError` to refuse it."""
        unparsable_groups = [graded for graded in scored if graded.grades and graded.grades[0].outcome == UNPARSABLE]
        problems = [graded.group.prompt.problem for graded in unparsable_groups]
        new = {problem.problem_id: problem.answer for problem in problems if problem.problem_id not in self._warned}
        if new and self._bad_rows == "refuse":
            raise UserError(f"{unparsable(new)}; correct them or set task.data.bad_rows=skip.")
        if new:
            self._warned |= new.keys()
            logger.warning("%s; nothing is learned from them", unparsable(new))

    def _scored(self, group: RolloutGroup, raw_grades: Sequence[RawGrade]) -> ScoredGroup:
        """Scores a group. If the problem's own answer cannot be parsed, a server did not answer, a user's function
        raised an exception, or the group was given up, all completions get the same reward and none is learned from.

        Only completions with an answer to compare show that the problem's own cannot be parsed. The others would win by
        giving none.
        """
        ungradable = next((raw.outcome for raw in raw_grades if raw.outcome in NOT_THEIR_FAULT), None)
        if ungradable:
            raw_grades = [RawGrade(dict.fromkeys(raw.parts, 0.0), ungradable) for raw in raw_grades]
        grades = tuple(map(self._grade, group.completions, raw_grades))
        masked = self._reward.overlong == "mask"
        included = tuple(not (ungradable or (masked and completion.truncated)) for completion in group.completions)
        return ScoredGroup(group, grades, included)

    def _grade(self, completion: Completion, raw: RawGrade) -> Grade:
        """Combines the values of the parts into a reward.

        The overlong penalty is added after the sign, since in DAPO it lowers a reward that is already −1 or 1.
        """
        config = self._reward
        if config.overlong == "zero" and completion.truncated:
            raw = replace(raw, parts=dict.fromkeys(raw.parts, 0.0))
        terms = [weight * raw.parts[name] for name, weight in config.weights.items()]
        if config.signed:
            terms = [*(2.0 * term for term in terms), -1.0]
        parts = dict(raw.parts)
        if config.overlong == "soft" and raw.outcome not in NOT_THEIR_FAULT:
            penalty = overlong_penalty(len(completion.token_ids), self._max_tokens, config.overlong_buffer)
            terms.append(penalty)
            parts["overlong"] = penalty
        correct = raw.outcome == "graded" and raw.parts[next(iter(config.weights))] >= config.correct_at
        answered = extract(completion.text, config.extract) is not None if self._extracts else None
        return Grade(math.fsum(terms), correct, parts, raw.outcome, math.fsum(map(abs, terms)), answered)


def unparsable(answers: Mapping[str, str]) -> str:
    """Returns a message about problems whose own answers cannot be parsed; `answers` maps their ids to the answers."""
    examples = listed(tuple(f"{name}: {answer!r}" for name, answer in answers.items()))
    return f"{len(answers)} answer{'s' * (len(answers) != 1)} cannot be parsed ({examples})"


def overlong_penalty(length: int, max_length: int, buffer: int) -> float:
    """Returns 0 up to `max_length` − `buffer` tokens, then falls linearly to −1 at `max_length`, and stays at −1.

    >>> [overlong_penalty(length, 20, 8) for length in (12, 14, 20, 21)]
    [0.0, -0.25, -1.0, -1.0]
    """
    return max(-1.0, min(0.0, (max_length - buffer - length) / buffer))
