"""This module records every round: in the run's own files, in the configured trackers, and on the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

from grpo.config import TrainConfig
from grpo.config.folder import CONFIG_FILE, PROMPTS_FILE, RESUMPTIONS_FILE
from grpo.host.disk import write_whole
from grpo.host.together import on_first
from grpo.insight.diagnosis import no_reward
from grpo.interfaces import Collective, Tracker
from grpo.rollout.engine_use import use_of_all
from grpo.run.gates import RoundNumbers
from grpo.run.outlook import price_per_hour
from grpo.run.resume import Saved
from grpo.telemetry.breakdown import breakdown, completion_facts
from grpo.telemetry.completions import completion_row, first_groups
from grpo.telemetry.console import RunDisplay
from grpo.telemetry.ending import add_resumption, write_code
from grpo.telemetry.hardware import peak_memory
from grpo.telemetry.json_lines import JsonLines, JsonlTracker
from grpo.telemetry.metrics import energy, flatten, without_pass_rates
from grpo.telemetry.notebook import NotebookDisplay, in_notebook
from grpo.telemetry.trackers import Trackers, service_trackers
from grpo.types import FinishedRound, RoundPlan
from grpo.types import metrics as m
from grpo.types.rounds import is_news


def open_services(config: TrainConfig, collective: Collective, saved: Saved | None) -> Trackers:
    """Opens the configured tracking services on the first rank, and no tracker on the other ranks. Collective.

    A service that fails later on does not end the run.
    """
    output, step = Path(config.output_dir), saved.progress.step if saved else None

    def opened() -> Sequence[Tracker]:
        write_code(output)
        return service_trackers(config.tracking, asdict(config), output, step)

    return Trackers(on_first(collective, opened) or ())


def open_files(config: TrainConfig, services: Trackers, saved: Saved | None) -> RecordFiles:
    """Opens the run's own files. Those of a resumed run are cut back to the step from which the run goes on."""
    output, from_step = Path(config.output_dir), saved.progress.step if saved else None
    if saved:
        add_resumption(output, saved.resumption)
    else:
        (output / RESUMPTIONS_FILE).unlink(missing_ok=True)
    tracker = Trackers([JsonlTracker(output, from_step), services])
    prompts = JsonLines(output / PROMPTS_FILE, from_step)
    # A run that has no step left to take was not made with the present settings.
    if not saved or saved.progress.step < config.num_steps:
        write_whole(output / CONFIG_FILE, json.dumps(asdict(config), indent=1))
    if in_notebook():
        display = NotebookDisplay(config.num_steps, from_step or 0)
    else:
        display = RunDisplay(config.num_steps, first_step=from_step or 0, per_hour=price_per_hour(config))
    return RecordFiles(tracker, prompts, display)


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """This type bundles rank 0's trackers, prompt log and display, and closes them at the end of a `with`.

    If the `with` ends by an exception, the trackers mark the run as failed.
    """

    tracker: Tracker
    prompts: JsonLines
    display: RunDisplay | NotebookDisplay

    def __enter__(self) -> RecordFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.display.close()
        self.prompts.close()
        self.tracker.close(failed=kind is not None)


class Recorder:
    """The recorder logs each round's metrics, samples and prompt ids, gathered from all ranks.

    The first rank writes them; `files` is None on the others. `peak_tflops` is the peak of one device, from which the
    model FLOPs utilization (MFU) is computed, or None if it is not known. `engine_use` is `Sampler.cache_usage`, and
    `joules` is `Clocks.joules`. `numbers` has the outlook, and knows whether rounds are judged.
    """

    def __init__(
        self,
        collective: Collective,
        files: RecordFiles | None,
        samples_per_round: int,
        peak_tflops: float | None = None,
        engine_use: Callable[[], Mapping[str, float]] = dict,
        joules: Callable[[], Mapping[str, float]] = dict,
        numbers: RoundNumbers | None = None,
    ):
        self._collective = collective
        self._files = files
        self._samples_per_round = samples_per_round
        self._plan: RoundPlan | None = None
        self._remarked: set[str] = set()
        self._numbers_before: dict[str, float] = {}
        self._engine_use, self._joules, self._numbers = engine_use, joules, numbers or RoundNumbers()
        self._peak_tflops = peak_tflops and peak_tflops * collective.world_size

    def after_round(self, finished: FinishedRound) -> None:
        sampled = finished.collected.sampled
        ids = [scored.group.prompt.prompt_id for scored in sampled]
        # From these a resumed run restores the outcomes and lengths that the task has learned.
        correct = [scored.outcome for scored in sampled]
        lengths = [scored.group.mean_length for scored in sampled]
        versions = [(scored.group.oldest_version, scored.group.newest_version) for scored in sampled]
        facts = list(chain.from_iterable(map(completion_facts, sampled)))
        rows = (completion_row(scored, sample) for scored in sampled for sample in range(len(scored.grades)))
        samples = first_groups(rows, self._samples_per_round)
        by_prompt = ids, correct, lengths, versions
        measured = peak_memory(), self._engine_use(), self._joules()
        shares = self._collective.gather((*by_prompt, facts, samples, *measured))
        on_first(self._collective, lambda: self._write(finished, shares))
        if finished.verdict.go_back:
            self._numbers.outlook.begin_anew()

    def _write(self, finished: FinishedRound, shares: Sequence[tuple]) -> None:
        """Writes a round's records, on the first rank. `shares` holds what each rank contributes, one tuple a rank."""
        statistics, progress, verdict = finished.statistics, finished.progress, finished.verdict
        ids, counts_by_rank, lengths, versions, facts, samples, memory, use, joules = zip(*shares, strict=True)
        metrics = flatten(statistics, self._peak_tflops) | breakdown(list(chain(*facts))) | use_of_all(use)
        metrics |= {name: max(peaks[name] for peaks in memory) for name in memory[0]}
        metrics |= energy(joules, metrics) | self._numbers.outlook(statistics)
        if not self._numbers.judges(statistics):
            metrics, statistics = without_pass_rates(metrics), replace(statistics, reward_counts={}, first_counts={})
        counts = [[*pair, groups] for pair, groups in sorted(statistics.reward_counts.items())]
        row = metrics | {m.COUNTS: counts, m.REASON: verdict.reason, m.WENT_BACK: float(verdict.go_back)}
        if statistics.first_counts:
            row[m.FIRST_COUNTS] = [[*pair, groups] for pair, groups in sorted(statistics.first_counts.items())]
        self._files.tracker.log(row, statistics.step)
        # The first rank's groups come first, and a run on several ranks keeps no more of them than a run on one.
        self._files.tracker.samples(first_groups(chain(*samples), self._samples_per_round), statistics.step)
        row = {
            "round": statistics.round_index,
            "cursor": progress.cursor,
            "prompt_ids": list(chain(*ids)),
            "correct": list(chain(*counts_by_rank)),
            "lengths": list(chain(*lengths)),
            "versions": list(chain(*versions)),
        }
        self._files.prompts.write(row, statistics.step)
        self._files.display.round(statistics.step, metrics)
        if self._plan is None:
            self._files.display.note(f"step {statistics.step}: {no_reward.shares(metrics)}")
        numbers = metrics | {"step": statistics.step}
        warnings = no_reward.warnings(numbers, self._numbers_before)
        self._numbers_before = numbers
        for name, sentence in warnings.items():
            if name not in self._remarked:
                self._remarked.add(name)
                self._files.display.note(f"step {statistics.step}: {sentence}")
        # An entropy bonus that is adapted changes after every round; the metrics say how.
        before, after = (
            replace(plan, entropy_coefficient=None, entropy_bonus=True)
            for plan in (self._plan or statistics.plan, progress.plan)
        )
        if after != before or verdict.stop or verdict.go_back or is_news(verdict.reason):
            self._files.display.note(f"step {statistics.step}: {verdict.reason}")
        self._plan = progress.plan
