"""This module holds what `dynamics=adaptive` remembers from round to round, as plain frozen data."""

from dataclasses import dataclass, field, replace

from grpo.dynamics.gain import Products
from grpo.dynamics.guard import GuardState
from grpo.dynamics.history import History, curve_of, num_tried, pass_rate
from grpo.types import RoundStatistics
from grpo.types import metrics as m
from grpo.types.rounds import ROUND

# Earlier counts are multiplied by this each round, since difficulty is estimated for the present policy.
FORGETTING = 0.8
# Counts that have become smaller than this are dropped.
SMALLEST_COUNT = 1e-3


@dataclass(frozen=True, slots=True)
class PastRound:
    """A past round holds the measurements of one round.

    step            optimizer steps taken by the policy that sampled the round
    value, error    pass rate and its standard error, from `tried` completions
    interval        optimizer steps of the round (τ)
    delay           τ plus the lag of sampling ahead
    seconds         wall-clock seconds of the whole round
    fixed_seconds   seconds of the weight sync, which do not grow with τ
    tokens          prompt and completion tokens that were sampled
    """

    step: int
    value: float
    error: float
    tried: int
    interval: int
    delay: int
    seconds: float
    fixed_seconds: float
    tokens: float


@dataclass(frozen=True, slots=True)
class AdaptiveState:
    """The adaptive state is the scheduler's memory.

    longest       longest refresh interval that is still tried
    rounds        the rounds since the run began or last went back
    counts        (correct, group size, weighted number of groups); older rounds have less weight
    guard         the guard's memory
    rounds_below  number of decisions in a row whose forecast gain was too small
    products      products of steps with later gradients, and what they were expected to be
    waited        number of rounds since the last decision
    measured      whether a product was measured since then
    told          whether a line has said that the learning rate is at fault
    fewest        fewest prompts per step that are still tried; 0 before the guard has acted
    """

    longest: int
    rounds: tuple[PastRound, ...] = ()
    counts: tuple[tuple[int, int, float], ...] = ()
    guard: GuardState = field(default_factory=GuardState)
    rounds_below: int = 0
    products: Products = field(default_factory=Products)
    waited: int = 0
    measured: bool = False
    told: bool = False
    fewest: int = 0

    @property
    def curve(self) -> History:
        """Returns the reward curve of the rounds."""
        return curve_of((p.step, p.value, p.error, p.tried, p.interval, p.delay - p.interval) for p in self.rounds)


def afresh(state: AdaptiveState) -> AdaptiveState:
    """Drops the curve, the counts and the products after the run went back, since they belong to the abandoned
    policy."""
    return replace(state, rounds=(), counts=(), rounds_below=0, products=Products(), waited=0)


def remember(state: AdaptiveState, statistics: RoundStatistics) -> AdaptiveState:
    """Adds a round to the state, and reduces the weight of earlier counts."""
    counts = {(correct, size): FORGETTING * number for correct, size, number in state.counts}
    for pair, number in statistics.reward_counts.items():
        counts[pair] = counts.get(pair, 0.0) + number
    rate, error = pass_rate(statistics.unbiased_counts)
    interval = len(statistics.reports)
    past = PastRound(
        step=statistics.sampled_at,
        value=rate,
        error=error,
        tried=num_tried(statistics.unbiased_counts),
        interval=interval,
        delay=interval + statistics.lag,
        seconds=statistics.seconds[ROUND],
        fixed_seconds=statistics.seconds.get("sync", 0.0),
        tokens=sampled_tokens(statistics),
    )
    new_counts = tuple((*pair, number) for pair, number in sorted(counts.items()) if number > SMALLEST_COUNT)
    return replace(state, counts=new_counts, rounds=(*state.rounds, past))


def sampled_tokens(statistics: RoundStatistics) -> float:
    """Returns the prompt and completion tokens of a round. A prompt counts once for its whole group."""
    return sum(statistics.means[name].total for name in (m.PROMPT_LENGTH, m.LENGTH))
