"""This module plays episodes in which the model's turns are made up, so that they can be tried without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo.config import TaskConfig
from grpo.episodes.gateway import Gateway
from grpo.episodes.made_up_calls import made_up_call
from grpo.episodes.processes import NO_TURN, Answer, Ended, Failed, Link, Processes, Question
from grpo.host.alive import working
from grpo.host.event_loop import finished
from grpo.tasks.prompt_encoding import filled
from grpo.types import Completion, EpisodeFacts, Problem


def processes_of(task: TaskConfig) -> Processes:
    """Starts the processes of a task's episodes, and says so where importing their file takes long."""
    with working(f"importing task.episode={task.episode}"):
        return Processes(task.episode, task.limits, task.python)


class ScriptedEpisodes:
    """Plays episodes of a task's sets. The model calls its first tool once, with made-up arguments, and then answers.

    Raises UserError if the code of an episode cannot be imported.
    """

    def __init__(self, task: TaskConfig):
        self._sets = {name: of_set for name, of_set in task.all_sets.items() if of_set.episode}
        self._processes = {name: processes_of(of_set) for name, of_set in self._sets.items()}
        self._gateways = {name: Gateway(of_set.gateway) for name, of_set in self._sets.items()}

    def __call__(self, set_name: str, problem: Problem, text: str) -> EpisodeFacts | None:
        """Returns the facts of an episode in which the model answers with `text`, or None where nothing is played."""
        if set_name not in self._sets:
            return None
        return finished(self._played(set_name, problem, text))

    async def _played(self, set_name: str, problem: Problem, text: str) -> EpisodeFacts:
        of_set = self._sets[set_name]
        question = {"role": "user", "content": filled(of_set.prompt.template, problem)}
        messages = problem.messages or (question,)
        script, gateway, processes = (
            Script(text, of_set.limits.turns),
            self._gateways[set_name],
            self._processes[set_name],
        )
        await gateway.start()
        try:
            async with processes.episode() as link:
                with gateway.address(link) as address:
                    link.begin(replace(problem, messages=messages), of_set.column_names, 0, address)
                    facts = await script.played(link, of_set.limits.seconds)
                    return replace(facts, error=processes.no_turn) if facts.error == NO_TURN else facts
        finally:
            await gateway.stop()

    def __enter__(self) -> ScriptedEpisodes:
        return self

    def __exit__(self, *exception: object) -> None:
        for processes in self._processes.values():
            processes.close()


class Script:
    """A script is the made-up side of one conversation."""

    def __init__(self, text: str, most_turns: int):
        self._text, self._most = text, most_turns
        self._turns = 0
        self._messages: Sequence[Any] = ()
        self._opening = 0

    async def played(self, link: Link, seconds: float) -> EpisodeFacts:
        ended, error = Ended({}, {}), ""
        try:
            while isinstance(said := await link.said((), seconds), Question):
                self._reply(said)
            ended = said
        except Failed as failure:
            error = str(failure)
        if not self._turns:
            error = error or NO_TURN
        return EpisodeFacts(
            messages=tuple(self._messages),
            opening=self._opening,
            rewards=ended.rewards,
            state=ended.state,
            turns=self._turns,
            calls=ended.counts.get("calls", 0),
            failed_calls=ended.counts.get("failed_calls", 0),
            ended="turns" if self._turns > self._most else "",
            error=error,
        )

    def _reply(self, question: Question) -> None:
        self._turns += 1
        if self._turns > self._most:
            return question.reply(None)
        calls = question.tools and self._turns == 1 < self._most
        turn = made_up_call(question.tools[0]) if calls else {"role": "assistant", "content": self._text}
        self._opening = self._opening or len(question.messages)
        self._messages = [*question.messages, turn]
        question.reply(Answer(turn, Completion((), (), self._text, truncated=False), 0))
