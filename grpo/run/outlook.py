"""This module says what a run may still gain, what an hour of it buys, and how noisy its gradients are.

The gain is that of the pass rate's forecast (`grpo.dynamics.forecast`) from now to the last step. Hours are those of
the steps that are left, at the pace of the last rounds. A gate of these numbers stops a run that is no longer worth its
price.

The gradient noise scale tr Σ/|∇F|² (McCandlish et al., arXiv:1812.06162), in completions, follows from a step's C
completions and its share of signal s (`step/signal`): C·(1 − s)/s. One round's share is mostly luck, so the mean over
the last rounds counts. It compares a gradient with Adam's mean of those before. Where the rate is so high that these
point elsewhere, the scale comes out too large, or there is none.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from grpo.config import TrainConfig
from grpo.config.folder import METRICS_FILE
from grpo.config.placement import num_serving
from grpo.dynamics.forecast import forecast
from grpo.dynamics.history import FEWEST_POINTS, history_of
from grpo.host import ranks
from grpo.insight.logs.logs import past_round, since_going_back
from grpo.interfaces import Collective
from grpo.telemetry.json_lines import read_metrics
from grpo.telemetry.metrics import flatten
from grpo.types import RoundStatistics
from grpo.types import metrics as m

EVERY_SECONDS = 30.0
"""Rounds of at least this many seconds lie between two forecasts, of which one takes a tenth of a second."""
RECENT = 50
"""The pace and the noise scale are those of this many of the last rounds."""
FEWEST_SIGNALS, SURELY = 10, 2.0
"""There is a noise scale where so many rounds have a mean share of signal above 0 by so many standard errors."""


def price_per_hour(config: TrainConfig) -> float:
    """Returns what all devices of a run cost an hour, and 0 where no price is configured."""
    return (ranks.world_size() + num_serving(config)) * config.hardware.price_per_hour


def past_rows(config: TrainConfig, collective: Collective, step: int) -> list[Mapping[str, Any]]:
    """Returns what metrics.jsonl says of the rounds of a resumed run up to `step`. The first rank reads it.
    Collective."""
    path, rows = Path(config.output_dir) / METRICS_FILE, []
    if collective.rank == 0 and step and path.exists():
        rows = [row for row in read_metrics(path) if m.COUNTS in row and row["step"] <= step]
    return collective.gather(rows)[0]


class Outlook:
    """An outlook is asked once or more after each round, and remembers the run's rounds.

    `rows` are the metrics of the rounds before a resumed run, and all devices cost `per_hour`. Ranks that are asked
    after each round answer alike.
    """

    def __init__(self, num_steps: int, per_hour: float = 0.0, rows: Sequence[Mapping[str, Any]] = ()):
        self._num_steps, self._per_hour = num_steps, per_hour
        # A run that went back in its last round begins anew, too.
        gave_up = bool(rows) and rows[-1].get(m.WENT_BACK)
        self._rounds = [] if gave_up else [past_round(row) for row in since_going_back(rows)]
        self._paces = [(row.get(m.ROUND_SECONDS, 0.0), row[m.INTERVAL]) for row in rows]
        self._signals = [_signal(row) for row in rows if m.SIGNAL in row]
        self._last, self._newest, self._seconds = 0, dict[str, float](), EVERY_SECONDS

    def __call__(self, statistics: RoundStatistics) -> dict[str, float]:
        """Returns what the round cost, the noise scale where it is known, and where a forecast is due the gain that is
        expected, with that of an hour and of a unit of money."""
        if statistics.step != self._last:
            row = flatten(statistics) | {m.COUNTS: [[*pair, n] for pair, n in statistics.unbiased_counts.items()]}
            self._last = statistics.step
            price = self._per_hour * row.get(m.ROUND_SECONDS, 0.0) / 3600
            self._newest = self._after(row | {"step": statistics.step}) | ({m.ROUND_COST: price} if price else {})
            self._newest |= self._noise_scale(row)
        return self._newest

    def begin_anew(self) -> None:
        """Forgets the curve of a policy that was given up."""
        self._rounds = []

    def _after(self, row: Mapping[str, Any]) -> dict[str, float]:
        self._rounds.append(past_round(row))
        self._paces.append((row.get(m.ROUND_SECONDS, 0.0), row[m.INTERVAL]))
        self._seconds += self._paces[-1][0]
        left = self._num_steps - row["step"]
        if (
            left <= 0
            or self._seconds < EVERY_SECONDS
            or sum(bool(counts) for *_, counts in self._rounds) < FEWEST_POINTS
        ):
            return {}
        self._seconds = 0.0
        seconds, steps = map(sum, zip(*self._paces[-RECENT:], strict=True))
        gain = forecast(history_of(self._rounds), self._num_steps).gain.value
        values = {m.EXPECTED_GAIN: gain}
        if hours := left * seconds / steps / 3600:
            values[m.GAIN_PER_HOUR] = gain / hours
            values |= {m.GAIN_PER_MONEY: gain / hours / self._per_hour} if self._per_hour else {}
        return values

    def _noise_scale(self, row: Mapping[str, Any]) -> dict[str, float]:
        self._signals += [_signal(row)] if m.SIGNAL in row else []
        if len(self._signals) < FEWEST_SIGNALS:
            return {}
        shares, sizes = zip(*self._signals[-RECENT:], strict=True)
        share, error = fmean(shares), stdev(shares) / len(shares) ** 0.5
        is_sure = SURELY * error < share < 1
        return {m.NOISE_SCALE: fmean(sizes) * (1 / share - 1)} if is_sure else {}


def _signal(row: Mapping[str, Any]) -> tuple[float, float]:
    """Returns a round's share of signal, and the completions of its steps. A gradient that is almost 0, as where all
    groups are silent, would count for any number of others."""
    return min(max(row[m.SIGNAL], -1.0), 1.0), row[m.GROUP_SIZE] * row[m.PROMPTS]
