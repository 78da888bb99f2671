"""This module samples episodes. Its sampler uses another one, whose completions are the turns of conversations.

All episodes that are asked for are under way together. Each runs in a process of its own (see `process`), and its
requests for turns meet here, in one thread with an event loop. An engine in this process samples the turns in the
caller's thread, as they come; servers sample them in the background.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, TypeVar

from grpo.config import LimitsConfig, SamplingConfig
from grpo.config.errors import Interrupted, SamplerLost, UserError, first_line
from grpo.episodes.gateway import Gateway
from grpo.episodes.made_up_calls import Message
from grpo.episodes.processes import Answer, Ended, Failed, Hanging, Link, Processes, Question
from grpo.episodes.recorder import Place, Recorder, common_opening
from grpo.episodes.template import ChatTemplate
from grpo.interfaces import Draw, OnGroup
from grpo.rollout.checked_sampler import CheckedSampler, check_groups
from grpo.rollout.turns import Turn, Turns
from grpo.types import Completion, EpisodeFacts, Problem, Prompt, RolloutGroup

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
AskTurn = Callable[[Turn], None]
# At most this many kinds of failures are shown, each once.
MOST_WARNINGS = 8
MOST_REFUSALS = 100
"""An agent may ask for this many turns beyond its limit, since some agents try again after every error."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage is where the episodes of one set of problems run.

    `messages` returns the messages that put a problem to the model, and `column_names` are those of questions and
    answers. A `gateway` answers programs that speak OpenAI's interface.
    """

    processes: Processes
    template: ChatTemplate
    messages: Callable[[Problem], Sequence[Message]]
    column_names: tuple[str, str]
    limits: LimitsConfig
    max_length: int
    gateway: Gateway | None = None


class EpisodeSampler(CheckedSampler):
    """Implements `interfaces.AskableSampler`: a completion of a problem whose source has a stage is an episode.

    `stages` maps a source of problems to its stage, or to None if its problems have single turns. The source "" stands
    for all others. A group that takes longer than `group_seconds` is given up. With 0 no group is.
    """

    def __init__(
        self,
        sampler: Any,
        vocabulary: int,
        stages: Mapping[str, Stage | None],
        sampling: SamplingConfig,
        seed: int,
        group_seconds: float = 0.0,
    ):
        super().__init__(sampler, vocabulary)
        self._stages, self._sampling, self._seed, self._group_seconds = stages, sampling, seed, group_seconds
        self._asks = hasattr(sampler, "ask")
        self._warned: set[str] = set()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._places = {source: asyncio.Semaphore(stage.limits.at_once) for source, stage in stages.items() if stage}
        threading.Thread(target=self._loop.run_forever, name="episodes", daemon=True).start()
        for stage in filter(None, stages.values()):
            if stage.gateway:
                self._start(stage.gateway.start()).result()

    def generate(self, draw: Draw, on_group: OnGroup | None = None) -> list[RolloutGroup]:
        if draw.single_turn or not draw.prompts:
            return super().generate(draw, on_group)
        if self._asks:
            return self._generated_by_servers(draw, on_group)
        turns = Turns()
        playing = self._start(self._groups(draw, turns.put, turns.put, on_group), turns.close)
        try:
            self._sampler.serve(turns)
        except BaseException:
            playing.cancel()
            raise
        return playing.result()

    def _generated_by_servers(self, draw: Draw, on_group: OnGroup | None) -> list[RolloutGroup]:
        turns = Turns()
        playing = self._start(self._groups(draw, self._ask_servers, turns.put, on_group), turns.close)
        try:
            while turns.take(wait=True) is not None:
                pass
            lost = playing.exception() if isinstance(playing.exception(), SamplerLost) else None
        except Interrupted as interrupted:
            playing.cancel()
            lost = interrupted
        # All ranks give up together, or none.
        self._sampler.agree(lost)
        return playing.result()

    def ask(self, draw: Draw) -> list[Future[RolloutGroup]]:
        return [self._start(self._group(draw, place, self._ask_servers)) for place in range(len(draw.prompts))]

    def close(self) -> None:
        self.close_episodes()
        self._sampler.close()

    def close_episodes(self) -> None:
        """Ends all episodes, and leaves the engine as it is."""
        self._closed = True
        for stage in filter(None, self._stages.values()):
            if stage.gateway:
                self._start(stage.gateway.stop()).result()
            stage.processes.close()
        self._loop.call_soon_threadsafe(self._loop.stop)

    # --- in the loop's thread ------------------------------------------------------------------

    def _start(self, coroutine: Coroutine, at_end: Callable[[], None] = lambda: None) -> Future[Any]:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        future.add_done_callback(lambda _: at_end())
        return future

    def _ask_servers(self, turn: Turn) -> None:
        turn.completion.set_running_or_notify_cancel()
        [pending] = self._sampler.ask(Draw([turn.prompt], 1, turn.sampling, turn.sample))

        def settle(_: object) -> None:
            try:
                turn.completion.set_result(pending.result().completions[0])
            except BaseException as error:
                turn.completion.set_exception(error)

        pending.add_done_callback(settle)

    async def _groups(
        self, draw: Draw, ask: AskTurn, call: Callable[[Callable[[], None]], None], on_group: OnGroup | None
    ) -> list[RolloutGroup]:
        """Plays all episodes of a draw. `call` makes a call in the thread that has asked for them."""

        async def one(place: int) -> RolloutGroup:
            group = await self._group(draw, place, ask)
            if on_group:
                call(lambda: on_group(place, group))
            return group

        return await _all(one(place) for place in range(len(draw.prompts)))

    async def _group(self, draw: Draw, place: int, ask: AskTurn) -> RolloutGroup:
        prompt, samples = draw.prompts[place], draw.samples[place]
        source = prompt.problem.source if prompt.problem.source in self._stages else ""
        stage = self._stages.get(source)
        sampling = draw.sampling or self._sampling
        version = self.policy_version
        if stage is None:
            plain = [Turn(prompt, sample, sampling) for sample in samples]
            for turn in plain:
                ask(turn)
            completions = await _all(asyncio.wrap_future(turn.completion) for turn in plain)
        else:
            plays = [_Play(stage, prompt, sample, sampling, ask, self._seed, self._warn) for sample in samples]
            late = await self._played(plays, self._places[source])
            # Episodes of a group usually open alike. The prompt is what all of them have in common.
            openings = [play.recorder.opening for play in plays if play.recorder.num_turns]
            prompt = replace(prompt, token_ids=common_opening(openings or [prompt.token_ids]) or openings[0])
            completions = [play.completion(prompt.token_ids, late) for play in plays]
        versions = [number for completion in completions for number, _ in completion.versions] or [version]
        group = RolloutGroup(prompt, tuple(completions), min(versions), max(versions))
        check_groups([prompt], [group], self._vocabulary)
        return group

    async def _played(self, plays: Sequence[_Play], places: asyncio.Semaphore) -> bool:
        """Plays the episodes of a group. Returns whether it was given up before their end. Its time begins when the
        first of them has a place."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:

                def begin() -> None:
                    if limit.when() is None and self._group_seconds:
                        limit.reschedule(self._loop.time() + self._group_seconds)

                await _all(play.run(places, begin) for play in plays)
        return limit.expired()

    def _warn(self, problem: Problem, error: str) -> None:
        """Warns once of each kind of failure, up to `MOST_WARNINGS` kinds, and of none that the run's end causes."""
        kind = re.sub(r"\d+", "", error)
        if kind not in self._warned and len(self._warned) < MOST_WARNINGS and not self._closed:
            self._warned.add(kind)
            logger.warning("an episode of problem %s failed: %s", problem.problem_id, error)


async def _all(awaitables: Iterable[Awaitable[Item]]) -> list[Item]:
    """Waits for all and returns their results. As soon as one raises, cancels the others and raises the same."""
    tasks = [asyncio.ensure_future(each) for each in awaitables]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class _Play:
    """A play is one episode under way."""

    def __init__(
        self,
        stage: Stage,
        prompt: Prompt,
        sample: int,
        sampling: SamplingConfig,
        ask: AskTurn,
        seed: int,
        warn: Callable[[Problem, str], None],
    ):
        self._stage, self._prompt, self._sample, self._sampling = stage, prompt, sample, sampling
        self._ask, self._seed, self._warn = ask, seed, warn
        self.recorder = Recorder(stage.template)
        self._ended, self._error, self._seconds, self._num_asked, self._num_refused = "", "", 0.0, 0, 0
        self._under_way: list[Question] = []
        self._said = Ended({}, {})

    async def run(self, places: asyncio.Semaphore, begin: Callable[[], None]) -> None:
        """Plays the episode to its end, in a process of its own once there is room for one. Then it calls `begin`."""
        gateway = self._stage.gateway
        async with places, self._stage.processes.episode() as link:
            begin()
            with gateway.address(link) if gateway else nullcontext("") as address:
                try:
                    await self._follow(link, address)
                except Failed as error:
                    # Programs break off, or wait for long, in ways of their own once they get no further turn.
                    if not self._ended:
                        self._fail("seconds" if isinstance(error, Hanging) else "error", str(error))
            self._seconds = link.seconds

    def _fail(self, ended: str, error: str) -> None:
        if self._stage.limits.failed == "truncate":
            self._ended = ended
        else:
            self._error = error
        self._warn(self._prompt.problem, error)

    async def _follow(self, link: Link, address: str) -> None:
        """Answers what the episode's code asks, until it has ended."""
        problem = replace(self._prompt.problem, messages=tuple(self._stage.messages(self._prompt.problem)))
        name = f"{self._seed}/{self._prompt.prompt_id}/{self._sample}"
        seed = int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        link.begin(problem, self._stage.column_names, seed, address)
        answers: set[asyncio.Task[None]] = set()
        try:
            while isinstance(said := await link.said(answers, self._stage.limits.seconds), Question):
                answers = {task for task in answers if not task.done()} | {asyncio.create_task(self._answer(said))}
            self._said = said
        finally:
            for task in answers:
                task.cancel()

    async def _answer(self, question: Question) -> None:
        """Samples the model's next turn and replies with it, or with None if the episode has reached a limit. A turn
        whose program has hung up is no part of the episode. Raises Failed for an agent that asks without end."""
        turns = self.recorder.num_turns + sum(not asked.gone() for asked in self._under_way)
        if turns >= self._stage.limits.turns and self._ended != "tokens":
            self._ended = "turns"
        if self._ended in ("turns", "tokens"):
            self._num_refused += 1
            if self._num_refused > MOST_REFUSALS:
                raise Failed(f"it has asked for {MOST_REFUSALS} turns beyond its limit")
            question.reply(None)
            return
        # The turn counts from now on, since several may be asked at once. Its number seeds what is sampled in it.
        self._under_way.append(question)
        number = self._num_asked
        self._num_asked += 1
        try:
            answer = await self._turn(question, number)
        finally:
            self._under_way = [asked for asked in self._under_way if asked is not question]
        if not question.gone():
            question.reply(answer)

    async def _turn(self, question: Question, number: int) -> Answer | None:
        """Samples and records the turn that the episode's question `number` asks for, unless nobody waits for it any
        more."""
        template = self._stage.template
        fits = template.may_fit(question.messages, self._stage.max_length)
        try:
            template.require_proven(question.messages, question.tools)
            # A long text is encoded elsewhere, while this thread attends to the other episodes.
            place = await asyncio.to_thread(self.recorder.place, question.messages, question.tools) if fits else None
        except UserError as error:
            raise Failed(str(error)) from error
        except Exception as error:  # templates and tokenizers raise many kinds for what agents may say
            raise Failed(f"the messages cannot be read ({type(error).__name__}: {first_line(error)})") from error
        room = self._room(place, is_first=number == 0)
        if place is None or room <= 0:
            return None
        prompt = replace(self._prompt, token_ids=place.context, turn=number)
        most = min(room, question.max_tokens or room)
        turn = Turn(prompt, self._sample, replace(self._sampling, max_tokens=most))
        self._ask(turn)
        completion: Completion = await asyncio.wrap_future(turn.completion)
        if question.gone():
            return None
        message = self.recorder.record(place, question.messages, question.tools, completion, number)
        if completion.truncated and most == room:
            filled = len(place.context) + len(completion.token_ids) >= self._stage.max_length
            self._ended = "room" if filled else "tokens"
        return Answer(message, completion, len(place.context))

    def _room(self, place: Place | None, is_first: bool) -> int:
        """Returns how many tokens the next turn may have behind `place`, which is None for a text that is far too long.
        Without room an episode that has not begun fails, and a later one ends, unless its agent goes on with a shorter
        history."""
        longest = self._stage.max_length
        behind = longest - len(place.context) if place else 0
        if behind <= 0 and is_first:
            opening = f"{len(place.context)} tokens" if place else "far more tokens"
            raise Failed(
                f"the conversation opens with {opening}, tools included, and model.max_length={longest} leaves none "
                "for the model: raise it"
            )
        if behind <= 0:
            self._ended = self._ended or "room"
            return 0
        if self._ended == "room":
            self._ended = ""
        if self.recorder.num_tokens >= self._sampling.max_tokens:
            self._ended = self._ended or "tokens"
        return min(self._sampling.max_tokens - self.recorder.num_tokens, behind)

    def completion(self, prompt: tuple[int, ...], late: bool) -> Completion:
        """Returns the episode as a completion of the group's prompt. `late` says that the group was given up."""
        recorder = self.recorder
        if not (recorder.num_turns or self._error or late):
            self._error = self._stage.processes.no_turn
            self._warn(self._prompt.problem, self._error)
        facts = EpisodeFacts(
            messages=recorder.messages,
            opening=recorder.num_opening,
            written=recorder.written,
            rewards=self._said.rewards,
            state=self._said.state,
            turns=recorder.num_turns,
            # A person's own agent answers calls where nobody counts them.
            calls=self._said.counts.get("calls", recorder.num_calls),
            failed_calls=self._said.counts.get("failed_calls", 0),
            unreadable_calls=recorder.unreadable,
            branches=recorder.num_branches,
            seconds=self._seconds,
            ended=self._ended,
            error=self._error,
            shown_tools=recorder.shown_tools,
        )
        return replace(recorder.completion(prompt, facts), late=late)
