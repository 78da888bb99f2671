"""What the loop needs of its parts, and in which order it calls them.

One round calls, in this order: `Collector.collect` (which uses `Task` and `Sampler`), `Learner.add_logprobs`,
`Learner.step` once per batch, `WeightSync.check` and `refresh`, `Task.learn`, `Scheduler.next`. Where the verdict is to
go back, `Collector.forget`, `Learner.rewind` and `WeightSync.refresh` follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from grpo.types import (
    Batch,
    Collected,
    Decision,
    GroupWithLogprobs,
    Prompt,
    RolloutGroup,
    RoundPlan,
    RoundStatistics,
    ScoredGroup,
    StepReport,
    Verdict,
)

if TYPE_CHECKING:
    from torch import Tensor

    from grpo.config import SamplingConfig

Bucket = Sequence[tuple[str, "Tensor"]]
"""Weights under their Hugging Face names; whole tensors, valid until the next bucket is asked for."""

MERGED, BASE, ADAPTERS = "merged", "base", "adapters"
"""Forms in which a refresh sends weights. With LoRA, a receiver that keeps the frozen `BASE` is sent nothing but
`ADAPTERS` from then on; `MERGED` are all weights, adapters added in. Without LoRA all weights are MERGED."""

ROUND = "round"
"""Under this name a round's own seconds, by the clock on the wall, stand beside those of its phases."""

BASE_SUFFIX, DOWN_SUFFIX, UP_SUFFIX = ".base", ".lora_A", ".lora_B"
"""What follows the name of an adapted weight in a bucket: the frozen weight, A and the scaled B of W = base + B·A."""


class Task(Protocol):
    """What is asked, and how it is graded."""

    cursor: int

    @property
    def num_problems(self) -> int:
        """Problems of the stream, the prompts of one epoch."""

    def next_prompts(self, count: int) -> list[Prompt]:
        """The next `count` prompts of the stream over all ranks: this rank's share of them, those at the positions that
        leave `rank` when they are divided by the number of ranks."""

    def learn(self, outcomes: Mapping[str, tuple[int, int]], cursor: int) -> None:
        """(correct, tried) of a round's problems by id, over all ranks, and where the stream then stood: what an
        online curriculum goes by."""

    def held_out_prompts(self, count: int) -> list[Prompt]:
        """The first `count` problems that are never trained on, always the same."""

    def answer_of(self, text: str) -> str | None:
        """The answer in a completion, in one spelling; None where there is none."""

    def grade(self, groups: Sequence[RolloutGroup]) -> list[ScoredGroup]:
        """One grade per completion, in order. Never raises for what a model wrote."""


class Sampler(Protocol):
    """A copy of the policy that writes completions."""

    policy_version: int

    def generate(
        self,
        prompts: Sequence[Prompt],
        group_size: int | Sequence[int],
        sampling: SamplingConfig | None = None,
        first_sample: int = 0,
    ) -> list[RolloutGroup]:
        """`group_size` completions of each prompt (at least 1; one number, or one per prompt), in order, under
        `sampling` (the run's own by default). They are its samples number `first_sample` and following: a sample is
        the same whichever others are drawn with it."""

    def begin_refresh(self) -> str:
        """Begins a refresh, and returns the form in which weights are wanted: `MERGED`, `BASE` or `ADAPTERS`. Called
        between two calls of `generate`, never during one. `load_weights` and `finish_weights` follow."""

    def load_weights(self, bucket: Bucket) -> None:
        """Replaces these tensors. Called for each bucket, after `begin_refresh`."""

    def finish_weights(self, policy_version: int) -> None:
        """Ends a refresh: forgets cached activations and stamps the version. Called after the last bucket."""

    def checksums(self) -> Sequence[Mapping[str, int]]:
        """Of each copy of the weights: one number per tensor group (see `grpo.weight_sync.checksum`)."""

    def sleep(self) -> None:
        """Give memory back while the learner works; `wake` is called before the next use."""

    def wake(self) -> None:
        """Take the memory back. Weights may be stale until the next `finish_weights`."""


class Pending(Protocol):
    """One prompt's completions, on their way."""

    def result(self) -> RolloutGroup:
        """Waits for them."""

    def cancel(self) -> None:
        """Nobody will ask for them; `result` may raise then."""


class AskableSampler(Sampler, Protocol):
    """A sampler that goes on by itself, also while its weights are replaced."""

    def ask(
        self,
        prompts: Sequence[Prompt],
        group_size: int | Sequence[int],
        sampling: SamplingConfig | None = None,
        first_sample: int = 0,
    ) -> Sequence[Pending]:
        """As `generate`, without waiting."""


class Collector(Protocol):
    """Fills a round with scored groups."""

    def collect(self, plan: RoundPlan, steps_left: int) -> Collected:
        """Returns this rank's groups of a round. `steps_left` optimizer steps remain, this round's included."""

    def forget(self) -> None:
        """Drops what was sampled ahead. Its prompts come again, in their order."""


class Learner(Protocol):
    """The trained policy, sharded over ranks. Every method is collective: all ranks call it together."""

    num_steps: int

    def add_logprobs(self, steps: Sequence[Sequence[ScoredGroup]]) -> list[list[GroupWithLogprobs]]:
        """Adds old and reference log-probabilities to the groups of each step, where the loss needs them. Called before
        the round's first step."""

    def logprobs(self, groups: Sequence[RolloutGroup]) -> list[tuple[Tensor, ...]]:
        """log π of the current weights: one float32 tensor [completion tokens] per completion of each group."""

    def step(self, batch: Batch) -> StepReport:
        """One optimizer step."""

    def weight_buckets(self, form: str = MERGED) -> Iterator[Bucket]:
        """Weights in this form, gathered bucket by bucket, in the sampler's precision; `BASE` has the adapters too."""

    def save(self, directory: str) -> None:
        """Writes everything a resume needs into `directory`."""

    def load(self, directory: str) -> None:
        """Restores what `save` wrote."""

    def rewind(self, directory: str) -> None:
        """Restores the policy that `save` wrote, while steps are counted on."""


class WeightSync(Protocol):
    """The only bridge from learner to sampler."""

    def refresh(self, learner: Learner, sampler: Sampler) -> None:
        """Copies the weights and verifies them. After it, the sampler samples the learner's policy."""

    def check(self, report: StepReport) -> None:
        """Raises when sampler and learner disagree on the first step after a refresh."""


class Scheduler(Protocol):
    """Chooses each round's plan from measured facts, and says whether the run goes on. Its methods are pure: every rank
    computes the same decision. Its state is a frozen dataclass of plain values, or None."""

    def init(self) -> tuple[RoundPlan, Any]:
        """Returns the first round's plan and the scheduler's first state."""

    def next(self, plan: RoundPlan, statistics: RoundStatistics, state: Any) -> Decision:
        """Decides after a round under `plan`, from its statistics and the state before it."""

    def judge(self, step: int, state: Any) -> Verdict:
        """Returns the verdict on a run that is resumed after optimizer step `step`. It is made anew, under the settings
        of now, since a limit may have been raised."""

    def restore(self, values: Mapping[str, Any]) -> Any:
        """Returns the state that `dataclasses.asdict` made these values of, once they have been through JSON. Without
        any values it is the first state."""


class Collective(Protocol):
    """Sums over ranks; the identity on one rank."""

    rank: int
    world_size: int

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sum over ranks."""

    def maximum(self, value: int) -> int:
        """Largest of the ranks' values."""

    def gather(self, value: Any) -> list[Any]:
        """The ranks' values, in rank order, on every rank."""

    def pool(self, values: Sequence[Any]) -> tuple[list[Any], slice]:
        """The values of those ranks that learn from the same rows as this one, in rank order, and where this rank's
        are among them. All there are of a rank that learns alone."""

    def apart(self, deadline_seconds: float) -> Collective:
        """The same ranks for another thread, whose calls do not mix with this one's. There a rank waits for the others
        for `deadline_seconds`."""


class Clock(Protocol):
    """How long a round takes."""

    def begin_round(self) -> None:
        """Called before anything of the round. What was timed since the round before is no part of it."""

    def end_round(self) -> Mapping[str, float]:
        """Called once the sampler is refreshed. Returns the seconds of the whole round as `ROUND`, and those of each
        phase under its name."""


class Tracker(Protocol):
    """Where metrics go."""

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers of one optimizer step count."""

    def evaluation(self, result: Mapping[str, Any], step: int) -> None:
        """A held-out evaluation, as `grpo.evaluation.held_out.evaluate` returns it."""

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int) -> None:
        """Completions with prompt, text and reward."""

    def close(self, failed: bool = False) -> None:
        """Returns when everything is on disk or sent. A run that `failed` is shown as such."""
