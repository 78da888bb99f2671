"""This module supplies scored groups in the order of the prompt stream, sampled on demand or ahead.

| what waits | for what | unblocked by |
|---|---|---|
| `OnDemandSource.take` | completions, then grades | the sampler, then the grading thread |
| `AheadSource.take` | the first prompts' graded groups, then all other ranks | its own thread and the grading thread |
| `AheadSource`'s thread | the next request, then its completions | `begin` or `take`, then the servers or `forget` |
| `AheadCollector.collect` | the round that was begun by the call before | the thread that collects this round |
| `AheadCollector.settle` | the same, before weights change | the same |

No weights are replaced while `OnDemandSource` or an `AheadCollector` samples. An `AheadSource` samples meanwhile, so a
completion may hold tokens of several policies.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from grpo.config.errors import NOBODY_LEFT, GradingFailed, GradingFailedElsewhere, Interrupted, SamplerLost, UserError
from grpo.host.signals import interruptible
from grpo.host.together import fail_together
from grpo.interfaces import AskableSampler, Collective, Collector, Draw, Pending, Sampler, Task
from grpo.rollout.grading_thread import Graded, GradingThread, result_in_time, sampled_and_graded
from grpo.types import Collected, Prompt, RoundPlan, ScoredGroup


class Source(Protocol):
    """Supplies a round's groups. Each round calls `begin`, then `take` as often as groups are wanted, then `rest`."""

    @property
    def cursor(self) -> int:
        """Returns the position of the prompt stream after the last group taken."""

    def begin(self, plan: RoundPlan, steps_left: int) -> None:
        """Begins a round of `plan`. `steps_left` optimizer steps remain of the run, this round's included."""

    def take(self, num_prompts: int) -> list[ScoredGroup]:
        """Returns this rank's share of the next `num_prompts` prompts' groups, as `Task.next_prompts` shares them.
        The share may be empty. Collective."""

    def rest(self) -> None:
        """Ends a round: nothing more is sampled for it."""

    def forget(self) -> None:
        """Drops the groups that were asked ahead. Their prompts come again, in the same order."""


class OnDemandSource:
    """This source samples prompts when their groups are taken."""

    def __init__(self, task: Task, sampler: Sampler, grading: GradingThread):
        self._task, self._sampler, self._grading = task, sampler, grading

    @property
    def cursor(self) -> int:
        return self._task.cursor

    def begin(self, plan: RoundPlan, steps_left: int) -> None:
        self._group_size = plan.group_size

    def take(self, num_prompts: int) -> list[ScoredGroup]:
        prompts = self._task.next_prompts(num_prompts)
        return sampled_and_graded(self._sampler, self._grading, Draw(prompts, self._group_size))

    def rest(self) -> None:
        self._sampler.sleep()

    def forget(self) -> None:
        """Does nothing, because nothing is asked ahead."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A request is a prompt whose group is not taken yet. `seconds` are those of sampling and grading by phase."""

    prompt: Prompt
    pending: Pending
    scored: Future[ScoredGroup] = field(default_factory=Future)
    seconds: dict[str, float] = field(default_factory=dict)


class AheadSource:
    """Samples prompts before their groups are needed (`pipeline=continuous`).

    Sampling goes on while the learner works and while the sampler's weights are replaced. Groups are still taken in the
    order of their prompts, so that short completions are not preferred.

    At first, prompts are asked one round ahead of the round that is learned from. Each time the learner would have to
    wait, they are asked one round further ahead, and one round less far when all groups have come early.

    No token is more than `max_staleness` optimizer steps older than the policy that learns from it, because no prompt
    is asked earlier than that before its round's last step. A group may still become too old when a plan has fewer
    prompts per step than the plan before. Its prompt is then asked again.
    """

    def __init__(
        self,
        task: Task,
        sampler: AskableSampler,
        collective: Collective,
        max_staleness: int,
        grading: GradingThread,
        thread_seconds: Callable[[], Mapping[str, float]] = dict,
    ):
        """`thread_seconds` gives the calling thread's seconds by phase since the last call."""
        self._task, self._sampler, self._collective = task, sampler, collective
        self._max_staleness = max_staleness
        self._under_way: deque[_Request] = deque()
        self._rounds_ahead = 1
        self._taken_cursor: int | None = None
        self._thread_seconds, self._seconds = thread_seconds, Counter()
        self._grading, self._sampled = grading, SimpleQueue()
        # The thread is a daemon, so that a run that ends does not wait for samples that nobody will learn from. It ends
        # with the process: ranks whose thread ended with this object, as Python ended too, were ended by SIGABRT.
        threading.Thread(target=self._wait, name="sampling ahead", daemon=True).start()

    @property
    def cursor(self) -> int:
        return self._task.cursor if self._taken_cursor is None else self._taken_cursor

    def begin(self, plan: RoundPlan, steps_left: int) -> None:
        self._plan = plan
        # `cursor` may run ahead from here on. `_taken_cursor` stays with the groups that were taken.
        self._taken_cursor = self.cursor
        # All ranks look around, or none: what is under way may be the prompts of some ranks only.
        if self._task.cursor > self.cursor:
            self._look_around(self.cursor + plan.prompts_per_round)
        rounds = min(self._rounds_ahead + 1, (self._max_staleness + 1) // plan.refresh_interval)
        self._ask_until(min(rounds * plan.refresh_interval, steps_left) * plan.prompts_per_step)

    def take(self, num_prompts: int) -> list[ScoredGroup]:
        self._ask_until(num_prompts)
        end = self.cursor + num_prompts
        requests = []
        while self._under_way and self._under_way[0].prompt.position < end:
            requests.append(self._under_way.popleft())
        results = _waited_for(requests)
        for index, group in enumerate(results):
            if isinstance(group, ScoredGroup) and self._staleness(group) > self._max_staleness:
                requests[index] = self._ask([requests[index].prompt])[0]
        results = _waited_for(requests)
        # All ranks give up together, or none.
        if self._collective.maximum(any(isinstance(result, Interrupted) for result in results)):
            raise Interrupted
        lost = next((result for result in results if isinstance(result, SamplerLost)), None)
        if self._collective.maximum(lost is not None):
            raise lost or SamplerLost(NOBODY_LEFT)
        failure = next((result for result in results if isinstance(result, GradingFailed)), None)
        fail_together(self._collective, failure, GradingFailedElsewhere)
        self._taken_cursor = end
        for request in requests:
            self._seconds.update(request.seconds)
        return [result for result in results if isinstance(result, ScoredGroup)]

    def take_seconds(self) -> dict[str, float]:
        """Returns the seconds by phase that this rank waited for, and graded, the groups taken since the last call.

        Groups are waited for one after another, so the seconds of all rounds add up to the wall clock.
        """
        seconds, self._seconds = dict(self._seconds), Counter()
        return seconds

    def rest(self) -> None:
        """Does nothing: requests under way are for the next rounds."""

    def _look_around(self, end: int) -> None:
        """Adapts how many rounds ahead prompts are asked. Collective.

        The number grows when a rank lacks groups of this round, which ends at position `end`. It shrinks when no rank
        lacks any group that was asked.
        """
        missing = [request.prompt.position for request in self._under_way if not request.scored.done()]
        late, early = any(position < end for position in missing), not missing
        if self._collective.maximum(late):
            steps = (self._rounds_ahead + 1) * self._plan.refresh_interval
            self._rounds_ahead += steps <= self._max_staleness
        elif not self._collective.maximum(not early):
            self._rounds_ahead = max(1, self._rounds_ahead - 1)

    def _ask_until(self, num_prompts: int) -> None:
        """Asks prompts until `num_prompts`, over all ranks, are asked and not yet taken."""
        first, end = self._task.cursor, self.cursor + num_prompts
        if first < end:
            self._under_way.extend(self._ask(self._task.next_prompts(end - first)))

    def _ask(self, prompts: Sequence[Prompt]) -> list[_Request]:
        pending = self._sampler.ask(Draw(prompts, self._plan.group_size))
        requests = [_Request(prompt, group) for prompt, group in zip(prompts, pending, strict=True)]
        for request in requests:
            self._sampled.put(request)
        return requests

    def _wait(self) -> None:
        """Waits for the groups in the order in which they were asked, and hands them on to be graded."""
        while True:
            request = self._sampled.get()
            if not request.scored.set_running_or_notify_cancel():
                continue
            try:
                group = request.pending.result()
            except BaseException as error:
                request.scored.set_exception(error)
                continue
            request.seconds.update(self._thread_seconds())
            self._grading.grade(group).add_done_callback(partial(_pass_on, request))

    def _staleness(self, group: ScoredGroup) -> int:
        """Returns how many optimizer steps old the group's oldest token is if the round's last step learns from it.

        A group's step is not known before the round is full. The sampler holds the policy that the round begins with.
        """
        return self._sampler.policy_version + self._plan.refresh_interval - 1 - group.group.oldest_version

    def forget(self) -> None:
        for request in self._under_way:
            request.pending.cancel()
            request.scored.cancel()
        self._under_way.clear()
        self._task.cursor = self.cursor


def _pass_on(request: _Request, graded: Future[Graded]) -> None:
    """Gives a request its graded group and the seconds of grading, or the error that grading raised."""
    error = graded.exception()
    if isinstance(error, UserError):
        request.scored.set_exception(GradingFailed(str(error)))
    elif error:
        request.scored.set_exception(error)
    else:
        request.seconds.update(graded.result().seconds)
        request.scored.set_result(graded.result().scored)


def _waited_for(requests: Sequence[_Request]) -> list[ScoredGroup | SamplerLost | GradingFailed | Interrupted]:
    """Waits for the requests' groups, or errors, one after another, and for none beyond a wish to save at once."""
    results = []
    for request in requests:
        results.append(_scored(request))
        if isinstance(results[-1], Interrupted):
            break
    return results


def _scored(request: _Request) -> ScoredGroup | SamplerLost | GradingFailed | Interrupted:
    """Waits for the graded group and returns it, or the error when no server is left that could answer, when grading
    has failed, and when the run has to save at once."""
    try:
        with interruptible():
            return result_in_time(request.scored)
    except (SamplerLost, GradingFailed, Interrupted) as error:
        return error


class AheadCollector:
    """Samples one round ahead (`pipeline=one_round`): a round is sampled by the policy before the last refresh, so its
    staleness is τ steps more than without.

    `collect` returns the round that was sampled during the last one, with the present plan's learning rate and entropy
    settings, and starts to sample the next round. `settle` is called before weights change. The wrapped collector,
    which takes its prompts from `task`, runs in a separate thread, so its collectives need a process group of their
    own.
    """

    def __init__(self, collector: Collector, task: Task):
        self._collector = collector
        self._task = task
        self._ahead: Future[Collected] | None = None
        self._taken_cursor = 0

    def collect(self, plan: RoundPlan, steps_left: int) -> Collected:
        collected_groups = (self._ahead or self._start(plan, steps_left)).result()
        self._taken_cursor = collected_groups.cursor
        # A lowered learning rate holds from this round on, although its samples were asked before. An entropy bonus
        # does too.
        learning_plan = replace(
            collected_groups.plan,
            learning_rate_factor=plan.learning_rate_factor,
            entropy_coefficient=plan.entropy_coefficient,
            entropy_bonus=plan.entropy_bonus,
        )
        steps_after = steps_left - collected_groups.plan.refresh_interval
        # The next plan is not known yet, so this one is used, cut at the end of the run.
        next_plan = replace(plan, refresh_interval=min(plan.refresh_interval, steps_after))
        self._ahead = self._start(next_plan, steps_after) if steps_after > 0 else None
        return replace(collected_groups, plan=learning_plan)

    def forget(self) -> None:
        if self._ahead is not None:
            self.settle()
            self._ahead, self._task.cursor = None, self._taken_cursor

    def settle(self) -> None:
        """Waits until nothing is being sampled. An error of sampling is raised when the failed round is collected."""
        if self._ahead is not None:
            self._ahead.exception()

    def _start(self, plan: RoundPlan, steps_left: int) -> Future[Collected]:
        future: Future[Collected] = Future()

        def sample() -> None:
            try:
                future.set_result(self._collector.collect(plan, steps_left))
            except BaseException as error:
                future.set_exception(error)

        # The thread is a daemon, so that a run that ends does not wait for samples that nobody will learn from.
        threading.Thread(target=sample, name="sampling ahead", daemon=True).start()
        return future
