"""`grpo train`: puts the parts of a training run together, runs it, and leaves its report."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo import evaluation, launch_check, models
from grpo.algorithm.batches import BatchMaker
from grpo.clocks import EVALUATION, Clocks
from grpo.config import TaskConfig, TrainConfig
from grpo.config.errors import SamplerLost
from grpo.config.validate import validate
from grpo.dynamics.diagnostics import diagnose
from grpo.dynamics.findings import Finding
from grpo.dynamics.scheduler import build_scheduler, may_roll_back, replanned
from grpo.interfaces import Collective, Sampler, Task, Tracker
from grpo.learner.collective import TorchCollective
from grpo.learner.engine import init_distributed
from grpo.learner.export import export
from grpo.learner.learner import DeepSpeedLearner
from grpo.learner.loading import proven_layout
from grpo.loop import Engines, run
from grpo.observers import (
    PROMPTS_FILE,
    Checkpointer,
    Evaluator,
    Feedback,
    LastRound,
    Recorder,
    RecordFiles,
    Rewinder,
    Watch,
)
from grpo.parts import build_sampler, load_suite, load_task, warm_start_examples
from grpo.pipeline import build_pipeline
from grpo.ranks import from_first, on_first
from grpo.report.logs import read_log
from grpo.report.run import write_report
from grpo.resume import Saved, checkpoint_store, saved_run
from grpo.run_lock import held
from grpo.tasks import VerifiableTask
from grpo.telemetry import (
    EVALUATIONS_FILE,
    JsonLines,
    JsonlTracker,
    Phases,
    RunDisplay,
    Trackers,
    peak_tflops,
    read_metrics,
    service_trackers,
    write_code,
)
from grpo.types import Progress

CONFIG_FILE = "config.json"
INTERRUPTED = 128 + signal.SIGTERM


def train(config: TrainConfig) -> int:
    """Runs one training job; the process's exit code. Every rank calls it with the same config."""
    world_size = launch_check.world_size()
    validate(config, world_size)
    device = launch_check.device(config)
    config = launch_check.with_precision(config)
    path = models.resolve(config.model, lambda: warm_start_examples(config))
    layout = proven_layout(path, config.model, config.learner.layout)
    told = replace(config, learner=replace(config.learner, layout=layout))
    launch_check.print_tables(told, path, world_size)
    if config.dry_run:
        return 0
    # First what is asked: what is wrong with data or reward shows before the engines start.
    suite = load_suite(config)
    tokenizer = models.load_tokenizer(path, config.model)
    with load_task(config, tokenizer, launch_check.rank(), world_size) as task:
        init_distributed(device, config.learner.deadline_seconds)
        collective = TorchCollective(device)
        with held(Path(config.output_dir), collective):
            saved = saved_run(config, collective) if config.checkpoint.resume else None
            # A service that does not answer costs nothing yet.
            with open_services(config, collective, saved) as services:
                return Session(config, path, tokenizer, task, suite, saved, services).run()


def open_services(config: TrainConfig, collective: Collective, saved: Saved | None) -> Trackers:
    """What shows the run besides its own files; on the first rank, and nothing on the others. Collective."""
    output, step = Path(config.output_dir), saved.progress.step if saved else None

    def opened() -> Sequence[Tracker]:
        write_code(output)
        return service_trackers(config.tracking, asdict(config), output, step)

    return Trackers(on_first(collective, opened) or ())


class Session:
    """One run from its first evaluation to its report."""

    def __init__(
        self,
        config: TrainConfig,
        path: Path,
        tokenizer: PreTrainedTokenizerBase,
        task: VerifiableTask,
        suite: Sequence[TaskConfig],
        saved: Saved | None,
        services: Trackers,
    ):
        """`saved` is where a resumed run goes on."""
        device = launch_check.device(config)
        self._config, self._output, self._saved, self._services = config, Path(config.output_dir), saved, services
        self._tokenizer, self._task, self._suite, self._device = tokenizer, task, suite, device
        learner = DeepSpeedLearner(config, path, device)
        self._collective = learner.collective
        self._first = self._collective.rank == 0
        sampler = build_sampler(config, path, tokenizer, device, self._collective)
        self._clocks = Clocks(config, Phases(self._collective.rank))
        self._engines = self._assemble(sampler, learner)
        self._store = checkpoint_store(config, self._collective)
        self._stop = StopRequest()

    def _assemble(self, sampler: Sampler, learner: DeepSpeedLearner) -> Engines:
        config, task, collective = self._config, self._task, learner.collective
        collector, sync = build_pipeline(config, task, sampler, collective, self._clocks)
        laid_out = replace(config.learner, layout=learner.layout)
        return Engines(
            task=task,
            sampler=sampler,
            collector=collector,
            learner=self._clocks.learner(learner),
            make_batches=BatchMaker(config.normalization, config.objective, laid_out, collective),
            weight_sync=sync,
            scheduler=build_scheduler(config, collective.world_size),
            collective=collective,
            clock=self._clocks.phases,
        )

    def run(self) -> int:
        """Evaluate, train, evaluate, export, report."""
        progress = self._resumed(self._saved) if self._saved else self._fresh()
        self._engines.weight_sync.refresh(self._engines.learner, self._engines.sampler)
        files = on_first(self._collective, lambda: self._files(progress.step))
        with files or nullcontext():
            progress = self._train(progress, files)
        if self._first and progress.plan.stop:
            print(f"step {progress.step}: {progress.plan.reason}")
        if not self._is_over(progress):
            if self._first:
                steps = f"step {progress.step} of {self._config.num_steps}"
                print(f"stopped at {steps}; continue with checkpoint.resume=true")
            return INTERRUPTED
        self._leave()
        return 0

    def _train(self, progress: Progress, files: RecordFiles | None) -> Progress:
        """Rounds, with what goes on around them. Returns where they ended."""
        config, engines = self._config, self._engines
        evaluator = self._evaluator(files)
        checkpointer = Checkpointer(config.checkpoint, self._store, engines.learner, asdict(config), evaluator)
        last, samples = LastRound(), config.tracking.samples_per_round
        recorder = Recorder(self._collective, files, samples, peak_tflops(self._device))
        rewinder = Rewinder(self._store, engines.learner, engines.sampler, engines.weight_sync)
        observers = [last, recorder, self._feedback(), rewinder, evaluator, checkpointer, self._watch(files)]
        try:
            if not config.checkpoint.resume:
                evaluator.at(progress.step)
                if may_roll_back(config):
                    checkpointer.save(progress)
            if files:
                files.display.begin()
            progress = run(engines, progress, config.num_steps, observers, self._stop)
            if self._is_over(progress):
                evaluator.at(progress.step)
            checkpointer.save(progress)
        except SamplerLost:
            if last.progress is not None and engines.learner.num_steps == last.progress.step:
                checkpointer.save(last.progress)
            raise
        return progress

    def _is_over(self, progress: Progress) -> bool:
        return progress.plan.stop or progress.step >= self._config.num_steps

    def _leave(self) -> None:
        """The trained model and the report."""
        exported = None
        if self._config.checkpoint.export:
            learner = self._engines.learner
            exported = export(learner, self._tokenizer, self._output / "model", self._config.learner.precision)
        if self._first:
            write_report(self._output, exported)

    def _fresh(self) -> Progress:
        plan, state = self._engines.scheduler.init()
        return Progress(0, 0, 0, plan, state)

    def _resumed(self, saved: Saved) -> Progress:
        engines, config = self._engines, self._config
        engines.learner.load(str(saved.checkpoint))
        self._store.restore_rng(saved.checkpoint)
        engines.task.cursor = saved.progress.cursor
        progress = replanned(saved.progress, saved.config, config, engines.scheduler, self._collective.world_size)
        before, now = saved.progress.plan.prompts_per_step, progress.plan.prompts_per_step
        if self._first and before != now:
            print(f"  prompts per step: {before} → {now} on {self._collective.world_size} ranks")
        return progress

    def _resume_step(self, step: int) -> int | None:
        return step if self._config.checkpoint.resume else None

    def _files(self, step: int) -> RecordFiles:
        config, from_step = self._config, self._resume_step(step)
        tracker = Trackers([JsonlTracker(self._output, from_step), self._services])
        prompts = JsonLines(self._output / PROMPTS_FILE, from_step)
        (self._output / CONFIG_FILE).write_text(json.dumps(asdict(config), indent=1))
        return RecordFiles(tracker, prompts, RunDisplay(config.num_steps, first_step=step))

    def _watch(self, files: RecordFiles | None) -> Watch:
        def findings() -> Sequence[Finding]:
            return on_first(self._collective, lambda: diagnose(read_log(self._output))) or ()

        return Watch(self._config.dynamics.diagnose_every, findings, files.display.note if files else print)

    def _feedback(self) -> Feedback:
        """Of a resumed run, as it stood: every rank reads the rounds before from the log that the first one has."""
        feedback = Feedback(self._task, self._engines.collective)
        if self._config.checkpoint.resume:
            feedback.replay(from_first(self._collective, lambda: read_metrics(self._output / PROMPTS_FILE)))
        return feedback

    def _evaluator(self, files: RecordFiles | None) -> Evaluator:
        config, engines, clocks = self._config, self._engines, self._clocks
        sampler = clocks.sampler(engines.sampler, EVALUATION)
        earlier = from_first(self._collective, lambda: read_metrics(self._output / EVALUATIONS_FILE))

        def ask(task: Task, count: int) -> dict[str, Any]:
            asked, task = replace(config.evaluation, num_problems=count), clocks.task(task, EVALUATION)
            return evaluation.evaluate(task, sampler, asked, config.rollout.sampling, engines.collective)

        def load(task: TaskConfig) -> VerifiableTask:
            ranks = engines.collective.rank, engines.collective.world_size
            return load_task(replace(config, task=task), self._tokenizer, *ranks)

        def evaluate() -> dict[str, Any]:
            engines.sampler.wake()
            result = ask(engines.task, config.evaluation.num_problems)
            suite = evaluation.evaluate_suite(self._suite, load, ask)
            return result | {"suite": suite} if suite else result

        def record(result: dict[str, Any]) -> None:
            on_first(self._collective, lambda: files.tracker.evaluation(result, result["step"]))
            for line in evaluation.told(result) if files else ():
                files.display.note(f"step {result['step']}: {line}")

        return Evaluator(config.evaluation, evaluate, record, earlier, self._is_over)


class StopRequest:
    """True once SIGTERM or Ctrl-C has come: the round is finished and saved first. A second one is not held."""

    def __init__(self):
        self._requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request)

    def _request(self, number: int, frame: object) -> None:
        print("stopping after this round, with a checkpoint; again to stop at once", file=sys.stderr)
        self._requested = True
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)

    def __call__(self) -> bool:
        return self._requested
