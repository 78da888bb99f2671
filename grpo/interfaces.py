"""This module defines the protocols that the loop's parts implement, and the order in which the loop calls them.

One round calls, in this order: `Collector.collect` (which uses `Task` and `Sampler`), `Learner.add_logprobs`,
`Learner.step` once per batch, `WeightSync.check` and `refresh`, `Task.record_outcomes` and `record_lengths`,
`Scheduler.next`. If the verdict is to go back, the loop then calls `Collector.forget`, `Learner.rewind` and
`WeightSync.refresh`.

Methods marked "Collective" exchange data between ranks, so all ranks must call them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from grpo.types import (
    Batch,
    Collected,
    Decision,
    GroupWithLogprobs,
    Problem,
    Prompt,
    RolloutGroup,
    RoundPlan,
    RoundStatistics,
    ScoredGroup,
    State,
    StepReport,
    Verdict,
)
from grpo.types.weights import MERGED

if TYPE_CHECKING:
    from torch import Tensor

    from grpo.config import SamplingConfig
    from grpo.config.errors import Interrupted, SamplerLost

Bucket = Sequence[tuple[str, "Tensor"]]
"""A bucket is a list of weights under their Hugging Face names. The tensors are whole (not sharded), and valid only
until the next bucket is asked for."""

OnGroup = Callable[[int, RolloutGroup], None]


@dataclass(frozen=True, slots=True)
class Draw:
    """A draw is what a sampler is asked for: completions of some prompts.

    group_size     number of completions, at least 1: one for all prompts, or one for each
    sampling       how they are sampled, or None for the run's own settings
    first_sample   number of each prompt's first completion; the others follow
    single_turn    whether a completion is one turn of the model, also where the task has episodes
    """

    prompts: Sequence[Prompt]
    group_size: int | Sequence[int]
    sampling: SamplingConfig | None = None
    first_sample: int = 0
    single_turn: bool = False

    @property
    def samples(self) -> list[range]:
        """Returns the numbers of each prompt's completions.

        >>> Draw(("a", "b"), (1, 2), first_sample=4).samples
        [range(4, 5), range(4, 6)]
        """
        sizes = [self.group_size] * len(self.prompts) if isinstance(self.group_size, int) else self.group_size
        return [range(self.first_sample, self.first_sample + size) for size in sizes]


class Task(Protocol):
    """A task gives out prompts and grades completions."""

    cursor: int
    """The number of prompts given out over all ranks. Set it to resume."""
    grades_together: bool
    """True says that a reward compares groups with each other. `grade` must then get all groups of a round at once."""

    @property
    def num_problems(self) -> int:
        """Returns the number of problems trained on, which is the number of prompts in one epoch."""

    def next_prompts(self, count: int) -> list[Prompt]:
        """Returns this rank's share of the stream's next `count` prompts over all ranks, in the stream's order.
        Each of N ranks gets one of every N consecutive ones, counted from the first."""

    def record_lengths(self, lengths: Mapping[str, float]) -> None:
        """Passes how long a round's completions were: problem id → mean tokens, over all ranks. Later prompts are then
        shared out so that ranks have about equally much to sample. All ranks call it with the same lengths, between the
        same calls of `next_prompts`."""

    def record_outcomes(self, outcomes: Mapping[str, tuple[int, int]], cursor: int) -> None:
        """Passes the outcomes of a round to an online curriculum: problem id → (correct, tried), over all ranks.
        `cursor` is where the stream stood after that round."""

    def held_out_prompts(self, count: int) -> list[Prompt]:
        """Returns the first `count` held-out problems. They are never trained on and always the same. If nothing is
        held out, they are training problems."""

    def answer_of(self, problem: Problem, text: str) -> str | None:
        """Returns the answer in a completion of a problem, in a normalized spelling, or None when there is none."""

    def grade(self, groups: Sequence[RolloutGroup]) -> list[ScoredGroup]:
        """Grades every completion and keeps their order. Never raises because of a completion's text."""


class Sampler(Protocol):
    """A sampler holds a copy of the policy and writes completions.

    A refresh of its weights calls `begin_refresh`, `load_weights` for each bucket, then `finish_weights`.
    """

    policy_version: int
    """The number of optimizer steps that the sampler's weights had taken."""

    def generate(self, draw: Draw, on_group: OnGroup | None = None) -> list[RolloutGroup]:
        """Samples what `draw` asks for and returns one group per prompt, in order.

        A completion's random seed comes from its number, its prompt, the policy version and the run's seed. `on_group`
        is called with a prompt's index and its group as soon as the group is complete.
        """

    def begin_refresh(self) -> str:
        """Begins a refresh. Returns the form in which the sampler wants its weights: `MERGED`, `BASE` or `ADAPTERS`.

        Called between two calls of `generate`, never during one. `load_weights` and `finish_weights` follow.
        """

    def load_weights(self, bucket: Bucket) -> None:
        """Replaces the tensors in `bucket`. Called for each bucket, after `begin_refresh`."""

    def finish_weights(self, policy_version: int) -> None:
        """Ends a refresh: drops cached activations and sets `policy_version`. Called after the last bucket."""

    def checksums(self) -> Sequence[Mapping[str, int]]:
        """Returns one mapping of checksums per copy of the weights, see `grpo.weight_sync.checksum`."""

    def cache_usage(self) -> Mapping[str, float]:
        """Returns metrics of how the engine's cache was used since the last call, or nothing if it reports none."""

    def sleep(self) -> None:
        """Frees memory while the learner works. The weights may be lost: a refresh must precede `generate`."""

    def wake(self) -> None:
        """Takes the memory of the weights again. Called before `begin_refresh`. The sampler cannot generate before the
        next `finish_weights`."""

    def close(self) -> None:
        """Ends what this sampler has started: its engine, its servers, and requests under way. Called last."""


class Pending(Protocol):
    """A pending group is one prompt's completions, which are still being sampled. A `Future` is one."""

    def result(self) -> RolloutGroup:
        """Waits for the completions and returns them."""

    def cancel(self) -> None:
        """Cancels the sampling. `result` may raise afterwards."""

    def add_done_callback(self, call: Callable[[Any], object]) -> object:
        """Makes a call once `result` does not wait any more, from any thread."""


class AskableSampler(Sampler, Protocol):
    """An askable sampler works in the background. It continues while its weights are replaced."""

    def ask(self, draw: Draw) -> Sequence[Pending]:
        """Starts what `generate` does and returns at once, with one pending group per prompt."""

    def agree(self, lost: SamplerLost | Interrupted | None) -> None:
        """Ends what was asked for instead of `generate`. Raises such an error on all ranks if `lost` is one on any.
        Collective."""


class Collector(Protocol):
    """A collector fills a round with scored groups."""

    def collect(self, plan: RoundPlan, steps_left: int) -> Collected:
        """Returns this rank's groups of a round. `steps_left` optimizer steps remain, including those of this round."""

    def forget(self) -> None:
        """Drops the groups that were sampled ahead. Their prompts are sampled again, in the same order."""


class Learner(Protocol):
    """A learner holds the trained policy, sharded over ranks. Every method is collective."""

    num_steps: int
    """The number of optimizer steps taken."""

    def add_logprobs(self, steps: Sequence[Sequence[ScoredGroup]]) -> list[list[GroupWithLogprobs]]:
        """Adds old and reference log-probabilities to the groups of each step, where the loss needs them.

        Called before the round's first step.
        """

    def logprobs(self, groups: Sequence[RolloutGroup]) -> list[tuple[Tensor, ...]]:
        """Returns log π under the current weights: one float32 tensor [completion tokens] per completion of each
        group."""

    def step(self, batch: Batch) -> StepReport:
        """Takes one optimizer step."""

    def weight_buckets(self, form: str = MERGED) -> Iterator[Bucket]:
        """Yields the weights in `form` (see `grpo.types.weights`), gathered bucket by bucket.

        They are in the sampler's precision, except for unmerged adapters and the weights that these adapt.
        """

    def save(self, directory: str) -> None:
        """Writes everything a resume needs into `directory`."""

    def load(self, directory: str) -> None:
        """Restores what `save` wrote."""

    def rewind(self, directory: str) -> None:
        """Restores the policy that `save` wrote. The count of optimizer steps does not go back."""


class WeightSync(Protocol):
    """The weight sync is the only bridge from learner to sampler."""

    def begin(self, learner: Learner, sampler: Sampler) -> None:
        """Refreshes the sampler before the first round. Raises if it computes other log-probabilities than the
        learner."""

    def refresh(self, learner: Learner, sampler: Sampler) -> None:
        """Copies the weights to the sampler and verifies them. Then the sampler samples from the learner's policy."""

    def check(self, report: StepReport) -> None:
        """Checks the log-probabilities of the first step after a refresh. Raises when sampler and learner disagree."""


class Scheduler(Protocol[State]):
    """A scheduler chooses each round's plan from measurements and decides whether the run continues.

    Its methods are pure, so that every rank computes the same decision. Its state is a frozen dataclass of plain
    values, or None.
    """

    def init(self) -> tuple[RoundPlan, State]:
        """Returns the first round's plan and the scheduler's first state."""

    def next(self, plan: RoundPlan, statistics: RoundStatistics, state: State) -> Decision[State]:
        """Decides after a round. `plan` and `state` are those before the round, `statistics` were measured in it."""

    def judge(self, step: int, state: State) -> Verdict:
        """Returns the verdict on a run that is resumed after optimizer step `step`.

        The verdict is not saved but made again under the present settings, since the user may have raised a limit.
        """

    def restore(self, values: Mapping[str, Any]) -> State:
        """Rebuilds a state from `values`, which `dataclasses.asdict` made and JSON stored.

        Without any values it returns the first state.
        """


class Collective(Protocol):
    """A collective exchanges values between ranks. On a single rank it returns what it was given."""

    rank: int
    world_size: int

    def sum(self, values: Sequence[float]) -> list[float]:
        """Returns the element-wise sum over ranks."""

    def maximum(self, value: int) -> int:
        """Returns the largest of the ranks' values."""

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, in rank order, on every rank."""

    def pool(self, values: Sequence[Any]) -> tuple[list[Any], slice]:
        """Joins the values of all ranks that compute the same packed rows as this one (sequence parallelism).

        Returns the joined values, in rank order, and the slice of them that came from this rank. Without sequence
        parallelism these are this rank's values alone.
        """

    def apart(self, deadline_seconds: float) -> Collective:
        """Returns a collective over the same ranks for use in another thread.

        Its calls do not mix with those of this one. A rank waits for the others for `deadline_seconds` at most.
        """


class Clock(Protocol):
    """A clock measures how long a round and its phases take."""

    def begin_round(self) -> None:
        """Starts a round's time. Called before anything else in the round; time measured since the last round is not
        part of it."""

    def end_round(self) -> Mapping[str, float]:
        """Ends a round's time. Called once the sampler is refreshed.

        Returns the seconds of the whole round as `ROUND`, and those of each phase under its name.
        """


class Tracker(Protocol):
    """A tracker receives metrics and samples, and stores or sends them."""

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Logs the metrics of a round that ended at optimizer step `step`."""

    def evaluation(self, result: Mapping[str, Any], step: int) -> None:
        """Logs a held-out evaluation, as `grpo.evaluation.held_out.evaluate` returns it."""

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int) -> None:
        """Logs completions with their prompt, text and reward."""

    def close(self, failed: bool = False) -> None:
        """Returns when everything is on disk or sent. With `failed` the run is marked as failed."""
