"""This module prints one line per round and, on a terminal, a live progress bar below the lines.

A legend says once what each number of a line means, above the first line that has it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import accumulate
from typing import NamedTuple

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from grpo.host.terminal import Terminal
from grpo.types import metrics as m


class Field(NamedTuple):
    """A field is one number of a round's line: its label, its metric, and its format.

    Lines show the field from the first round on in which the number's size is at least `least`; 0 shows it always.
    """

    label: str
    metric: str
    form: str
    least: float = 0.0

    @property
    def meaning(self) -> str:
        """Returns the meaning of the metric."""
        return m.TABLE[self.metric].meaning


# A line on a narrow terminal ends with this where fields are left out.
MORE = "…"
# A line leaves out metrics that the round did not measure. On a narrow terminal it leaves out the last fields too.
FIELDS = (
    Field("reward", m.REWARD, "{:.2f}"),
    Field("right", m.PASS_RATE, "{:.0%}"),
    Field("raised", m.RAISED, "{:.0%}", 5e-3),
    Field("unanswered", m.UNANSWERED, "{:.0%}", 5e-3),
    Field("late", m.LATE, "{:.0%}", 5e-3),
    Field("silent", m.SILENT, "{:.0%}"),
    Field("len", m.LENGTH, "{:.0f}"),
    Field("cut", m.TRUNCATED, "{:.0%}"),
    Field("turns", m.TURNS, "{:.1f}", 5e-2),
    Field("calls", m.CALLS, "{:.1f}", 5e-2),
    Field("failed calls", m.FAILED_CALLS, "{:.0%}", 5e-3),
    Field("failed", m.EPISODES_FAILED, "{:.0%}", 5e-3),
    Field("KL", m.REFERENCE_KL, "{:.3f}", 5e-4),
    Field("loss", m.LOSS, "{:+.3f}", 0.1),
    Field("gap", m.GAP, "{:.3f}", 0.02),
    Field("entropy", m.ENTROPY, "{:.2f}"),
    Field("grad", m.GRADIENT_NORM, "{:.2g}"),
    Field("lr", m.LEARNING_RATE, "{:.0e}"),
)
# A phase shorter than this many seconds is left out of the line.
_SHORTEST_PHASE = 0.05
# An imbalance between ranks is shown above this ratio.
_EVEN = 1.05
# Work after which ranks wait for each other ("": learning) → the metric of its imbalance.
_WORK = {
    " sampling": m.SAMPLE_IMBALANCE,
    " scoring": m.LOGPROBS_IMBALANCE,
    "": m.IMBALANCE,
}


class RunDisplay:
    """This display shows a run of `total_steps` that begins at `first_step` (above 0 when it is resumed).

    Anywhere but on a terminal (a log file, CI) it prints plain lines without control characters. `clock` returns
    seconds. The remaining time is the time since `begin`, scaled to the remaining steps, and so are energy and cost.
    All devices of the run together cost `per_hour`.
    """

    def __init__(
        self,
        total_steps: int,
        console: Terminal | None = None,
        first_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
        per_hour: float = 0.0,
    ) -> None:
        self._per_hour, self._joules, self._tokens = per_hour, 0.0, 0.0
        self._console = console or Terminal()
        self._total = total_steps
        self._first = first_step
        self._clock = clock
        self._start = clock()
        self._explained: set[str] = set()
        self._left_out: set[str] = set()
        self._bar = Progress(
            BarColumn(bar_width=10),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            expand=True,
            console=self._console,
            # Each redrawing takes the interpreter lock away from the run, so it is rare.
            refresh_per_second=2,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total_steps, completed=first_step)
        self._bar.start()

    def begin(self) -> None:
        """Marks the start of the first round. Time before it does not count for the estimate of the remaining time."""
        self._start = self._clock()

    def round(self, step: int, metrics: Mapping[str, float]) -> None:
        """Prints the line of a round that ended at optimizer step `step`. `metrics` have the names that `flatten`
        gives them."""
        width = len(str(self._total))
        # A column that was shown once stays, however small its number, since columns that come and go are hard to read.
        available = [
            field
            for field in FIELDS
            if field.metric in metrics and (field.label in self._explained or abs(metrics[field.metric]) >= field.least)
        ]
        shown = [field for field in available if field.label not in self._left_out]
        numbers = [f"step {step:>{width}}/{self._total}"]
        numbers += [f"{field.label} {field.form.format(metrics[field.metric])}" for field in shown]
        # The remaining time comes first, so that a narrow terminal cuts off something else.
        costs = [*self._to_go(step, metrics), *_costs(metrics)]
        if self._console.is_terminal:
            self._bar.update(self._task, completed=step, description="  ".join(costs))
            whole = len(shown) == len(available) and len("  ".join(numbers)) <= self._console.width
            numbers = numbers if whole else _fitting(numbers, self._console.width - len(MORE) - 2)
            # A shorter line does not bring a field back, since columns that come and go are hard to read.
            self._left_out |= {field.label for field in shown[len(numbers) - 1 :]}
            costs = [] if whole else [MORE]
        self._explain(shown[: len(numbers) - 1], costs == [MORE])
        self.note("  ".join(numbers + costs))

    def _explain(self, shown: Sequence[Field], more: bool) -> None:
        """Prints the meaning of each field that is shown for the first time, and of the mark for those left out."""
        new = [field for field in shown if field.label not in self._explained]
        if new and not self._explained:
            self.note("Each line is a round: the model writes completions, they are graded, and it learns from them.")
        for field in new:
            self.note(f"  {field.label:<7} {field.meaning}")
        if more and MORE not in self._explained:
            self.note(f"  {MORE:<8}there are more numbers, for which this terminal is too narrow: see metrics.jsonl")
        self._explained |= {field.label for field in new} | ({MORE} if more else set())

    def note(self, text: str) -> None:
        """Prints `text` unchanged above the bar."""
        self._console.print(Text(text), soft_wrap=not self._console.is_terminal)

    def close(self) -> None:
        """Removes the bar. The lines stay."""
        self._bar.stop()

    def _to_go(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Returns the remaining time and completion tokens, what was spent and remains of money and energy, and the
        gain that is expected, where these are known."""
        done, seconds = step - self._first, self._clock() - self._start
        self._joules += metrics.get(m.ROUND_ENERGY, 0.0)
        self._tokens += metrics.get(m.LENGTH, 0.0) * metrics.get(m.NUM_COMPLETIONS, 0.0)
        if done <= 0:
            return ["ETA ?"]
        more = (self._total - step) / done
        money, energy = seconds / 3600 * self._per_hour, self._joules / 3.6e6
        texts = [f"ETA {timedelta(seconds=round(seconds * more))}"]
        texts += [f"{self._tokens * more:,.0f} tokens to go"] if self._tokens else []
        texts += [f"cost {money:.2f}, {money * more:.2f} to go"] if money else []
        if (gain := metrics.get(m.EXPECTED_GAIN)) is not None:
            texts.append(f"expected gain to go {100 * gain:+.3g} points" + _of_price(metrics))
        return texts + ([f"energy {energy:.2g} kWh, {energy * more:.2g} to go"] if energy else [])


def _fitting(parts: Sequence[str], width: int) -> list[str]:
    """Returns the first parts that fit into a line, with two blanks between them; at least one.

    >>> _fitting(["step 1/9", "reward 0.5", "right 50%"], 20)
    ['step 1/9', 'reward 0.5']
    """
    ends = accumulate(len(part) + 2 for part in parts)
    return list(parts[: max(1, sum(end - 2 <= width for end in ends))])


def _of_price(metrics: Mapping[str, float]) -> str:
    """Returns what an hour and a unit of money are expected to gain, in points of the pass rate. Leaves out a gain of
    more than all points.

    >>> _of_price({"forecast/gain_per_hour": 0.1234, "forecast/gain_per_money": 0.01})
    ' (an hour +12.3 points, a unit of money +1 points)'
    """
    of = {"an hour": m.GAIN_PER_HOUR, "a unit of money": m.GAIN_PER_MONEY}
    known = {name: metrics[metric] for name, metric in of.items() if abs(metrics.get(metric, 2.0)) <= 1}
    texts = [f"{name} {100 * gain:+.3g} points" for name, gain in known.items()]
    return f" ({', '.join(texts)})" if texts else ""


def _costs(metrics: Mapping[str, float]) -> list[str]:
    """Returns as texts the seconds of the round and of each phase, tokens per second, and uneven loads of ranks."""
    costs = []
    whole = m.ROUND_SECONDS
    for name in sorted(metrics, key=lambda name: name != whole):
        seconds = metrics[name]
        if name.startswith(m.TIME) and seconds >= _SHORTEST_PHASE:
            phase = name.removeprefix(m.TIME).removesuffix("_seconds")
            speed = metrics.get(m.SPEEDS.get(phase, ""))
            costs.append(f"{phase} {seconds:.1f} s" + (f" ({speed:,.0f} tok/s)" if speed else ""))
    for work, name in _WORK.items():
        if (imbalance := metrics.get(name, 1.0)) > _EVEN:
            costs.append(f"busiest rank{work} {imbalance:.2f} × mean")
    return costs
