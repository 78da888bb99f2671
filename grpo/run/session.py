"""This module implements `grpo train`: it builds the parts of a training run, runs it, and writes its report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo import models
from grpo.algorithm.batches import BatchMaker
from grpo.config import TaskConfig, TrainConfig
from grpo.config.errors import SamplerLost
from grpo.config.folder import CONFIG_FILE, EVALUATIONS_FILE, MODEL_FOLDER, PROMPTS_FILE
from grpo.config.validate import validate
from grpo.dynamics.diagnostics import diagnose
from grpo.dynamics.findings import Finding
from grpo.dynamics.scheduler import build_scheduler, may_go_back, replanned
from grpo.evaluation import held_out
from grpo.host import ranks
from grpo.host.folder_lock import held
from grpo.host.stop import INTERRUPTED, StopRequest
from grpo.interfaces import Collective, Sampler, Task, Tracker
from grpo.learner.collective import TorchCollective
from grpo.learner.engine import init_distributed
from grpo.learner.export import export
from grpo.learner.learner import DeepSpeedLearner
from grpo.learner.loading import proven_layout
from grpo.loop import Engines, Loop
from grpo.report.logs import read_log
from grpo.report.run import write_report
from grpo.run import preflight
from grpo.run.clocks import EVALUATION, Clocks
from grpo.run.first_rank import from_first, on_first
from grpo.run.going_back import GoingBack
from grpo.run.observers import (
    Checkpointer,
    Evaluator,
    Recorder,
    RecordFiles,
    Watch,
)
from grpo.run.parts import build_sampler, load_suite, load_task, warm_start_examples
from grpo.run.pipeline import build_pipeline
from grpo.run.resume import Saved, checkpoint_store, relearn, saved_run
from grpo.tasks import VerifiableTask
from grpo.telemetry import (
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
from grpo.types import Progress, Verdict

STOPPING = "stopping after this round, with a checkpoint; interrupt again to stop at once"


def train(config: TrainConfig) -> int:
    """Runs one training job and returns the process's exit code. Every rank calls it with the same config."""
    world_size = ranks.world_size()
    validate(config, world_size)
    device = ranks.device(config)
    config = preflight.with_precision(config)
    path = models.resolve(config.model, lambda: warm_start_examples(config))
    layout = proven_layout(path, config.model, config.learner.layout)
    preflight.print_tables(replace(config, learner=replace(config.learner, layout=layout)), path)
    if config.dry_run:
        return 0
    # Tasks are loaded first, so that errors in data or reward show before the engines start.
    suite = load_suite(config)
    tokenizer = models.load_tokenizer(path, config.model)
    with load_task(config, tokenizer, ranks.rank(), world_size) as task:
        init_distributed(device, config.learner.deadline_seconds)
        collective = TorchCollective(device)
        with held(Path(config.output_dir), collective):
            saved = saved_run(config, collective) if config.checkpoint.resume else None
            # Services are opened before the engines: if one does not answer, no time is lost.
            with open_services(config, collective, saved) as services:
                return Session(config, path, tokenizer, task, suite, saved, services).run()


def open_services(config: TrainConfig, collective: Collective, saved: Saved | None) -> Trackers:
    """Opens the services (such as W&B) that show the run besides its own files. Collective.

    They are opened on the first rank only. On other ranks the returned trackers are empty.
    """
    output, step = Path(config.output_dir), saved.progress.step if saved else None

    def opened() -> Sequence[Tracker]:
        write_code(output)
        return service_trackers(config.tracking, asdict(config), output, step)

    return Trackers(on_first(collective, opened) or ())


class Session:
    """A session is one run, from its first evaluation to its report."""

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
        """Builds the engines. `saved` is the checkpoint from which a resumed run continues, or None."""
        device = ranks.device(config)
        self._config, self._output, self._saved, self._services = config, Path(config.output_dir), saved, services
        self._tokenizer, self._task, self._suite, self._device = tokenizer, task, suite, device
        learner = DeepSpeedLearner(config, path, device, saved.checkpoint if saved else None)
        self._collective = learner.collective
        self._first = self._collective.rank == 0
        sampler = build_sampler(config, path, tokenizer, device, self._collective)
        self._clocks = Clocks(config, Phases(self._collective.rank))
        self._store = checkpoint_store(config, self._collective)
        self._engines = self._assemble(sampler, learner)
        self._stop = StopRequest(STOPPING)

    def _assemble(self, sampler: Sampler, learner: DeepSpeedLearner) -> Engines:
        """Puts the loop's parts together, with clocks around them."""
        config, task, collective = self._config, self._task, learner.collective
        collector, sync = build_pipeline(config, task, sampler, collective, self._clocks)
        laid_out = replace(config.learner, layout=learner.layout)
        timed = self._clocks.learner(learner)
        return Engines(
            task=task,
            sampler=sampler,
            collector=collector,
            learner=timed,
            make_batches=BatchMaker(config.normalization, config.objective, laid_out, collective),
            weight_sync=sync,
            scheduler=build_scheduler(config, collective.world_size),
            go_back=GoingBack(self._store, collector, timed, sampler, sync),
            collective=collective,
            clock=self._clocks.phases,
        )

    def run(self) -> int:
        """Evaluates, trains, evaluates again, exports the model and writes the report. Returns the exit code."""
        progress, verdict = self._resumed(self._saved) if self._saved else self._fresh()
        self._engines.weight_sync.refresh(self._engines.learner, self._engines.sampler)
        files = on_first(self._collective, lambda: self._files(progress.step))
        with files or nullcontext():
            progress, verdict = self._train(progress, verdict, files)
        if self._first and verdict.stop:
            print(f"step {progress.step}: {verdict.reason}")
        if not self._is_over(progress, verdict):
            if self._first:
                steps = f"step {progress.step} of {self._config.num_steps}"
                print(f"stopped at {steps}; continue with checkpoint.resume=true")
            return INTERRUPTED
        self._leave()
        return 0

    def _train(self, progress: Progress, verdict: Verdict, files: RecordFiles | None) -> tuple[Progress, Verdict]:
        """Runs the rounds, with evaluations and checkpoints around them. Returns the last progress and verdict."""
        config, engines = self._config, self._engines
        evaluator = self._evaluator(files)
        checkpointer = Checkpointer(config.checkpoint, self._store, engines.learner, asdict(config), evaluator)
        recorder = Recorder(self._collective, files, config.tracking.samples_per_round, peak_tflops(self._device))
        loop = Loop(engines, progress, verdict, recorder, [evaluator, checkpointer, self._watch(files)])
        try:
            if not config.checkpoint.resume:
                evaluator.at(progress.step)
                if may_go_back(config):
                    checkpointer.save(progress, verdict)
            if files:
                files.display.begin()
            loop.run(config.num_steps, self._stop)
            if self._is_over(loop.progress, loop.verdict):
                evaluator.at(loop.progress.step)
            checkpointer.save(loop.progress, loop.verdict)
        except SamplerLost:
            # A learner in the middle of a round is not saved: a resumed run samples that round again.
            if loop.progress.step > progress.step and engines.learner.num_steps == loop.progress.step:
                checkpointer.save(loop.progress, loop.verdict)
            raise
        return loop.progress, loop.verdict

    def _is_over(self, progress: Progress, verdict: Verdict) -> bool:
        """Tells whether the run is finished, and not merely interrupted."""
        return verdict.stop or progress.step >= self._config.num_steps

    def _leave(self) -> None:
        """Exports the trained model and writes the report."""
        exported = None
        if self._config.checkpoint.export:
            learner = self._engines.learner
            exported = export(learner, self._tokenizer, self._output / MODEL_FOLDER, self._config.learner.precision)
        if self._first:
            write_report(self._output, exported)

    def _fresh(self) -> tuple[Progress, Verdict]:
        """Returns progress and verdict at the start of a new run."""
        plan, state = self._engines.scheduler.init()
        return Progress(0, 0, 0, plan, state), Verdict()

    def _resumed(self, saved: Saved) -> tuple[Progress, Verdict]:
        """Restores the state of a saved run. Returns its progress, and the verdict under the present config."""
        engines, config = self._engines, self._config
        engines.learner.load(str(saved.checkpoint))
        self._store.restore_rng(saved.checkpoint)
        engines.task.cursor = saved.progress.cursor
        progress = replanned(saved.progress, saved.config, config, engines.scheduler, self._collective.world_size)
        before, now = saved.progress.plan.prompts_per_step, progress.plan.prompts_per_step
        if self._first and before != now:
            print(f"  prompts per step: {before} → {now} on {self._collective.world_size} ranks")
        # Only the first rank is sure to have the run's log, so it sends the earlier rounds to the others.
        relearn(engines.task, from_first(self._collective, lambda: read_metrics(self._output / PROMPTS_FILE)))
        return progress, engines.scheduler.judge(progress.step, progress.scheduler)

    def _resume_step(self, step: int) -> int | None:
        """Returns the step from which log files continue, or None for a new run."""
        return step if self._config.checkpoint.resume else None

    def _files(self, step: int) -> RecordFiles:
        """Opens what the first rank writes to, and writes the run's config."""
        config, from_step = self._config, self._resume_step(step)
        tracker = Trackers([JsonlTracker(self._output, from_step), self._services])
        prompts = JsonLines(self._output / PROMPTS_FILE, from_step)
        (self._output / CONFIG_FILE).write_text(json.dumps(asdict(config), indent=1))
        return RecordFiles(tracker, prompts, RunDisplay(config.num_steps, first_step=step))

    def _watch(self, files: RecordFiles | None) -> Watch:
        """Builds the observer that diagnoses the run's log."""

        def findings() -> Sequence[Finding]:
            return on_first(self._collective, lambda: diagnose(read_log(self._output))) or ()

        return Watch(self._config.dynamics.diagnose_every, findings, files.display.note if files else print)

    def _evaluator(self, files: RecordFiles | None) -> Evaluator:
        """Builds the observer that evaluates on held-out problems, and on the suite if there is one."""
        config, engines, clocks = self._config, self._engines, self._clocks
        sampler = clocks.sampler(engines.sampler, EVALUATION)
        earlier = from_first(self._collective, lambda: read_metrics(self._output / EVALUATIONS_FILE))

        def ask(task: Task, count: int) -> dict[str, Any]:
            asked, task = replace(config.evaluation, num_problems=count), clocks.task(task, EVALUATION)
            return held_out.evaluate(task, sampler, asked, config.rollout.sampling, engines.collective)

        def load(task: TaskConfig) -> VerifiableTask:
            ranks = engines.collective.rank, engines.collective.world_size
            return load_task(replace(config, task=task), self._tokenizer, *ranks)

        def evaluate() -> dict[str, Any]:
            engines.sampler.wake()
            result = ask(engines.task, config.evaluation.num_problems)
            suite = held_out.evaluate_suite(self._suite, load, ask)
            return result | {"suite": suite} if suite else result

        def record(result: dict[str, Any]) -> None:
            on_first(self._collective, lambda: files.tracker.evaluation(result, result["step"]))
            for line in held_out.told(result) if files else ():
                files.display.note(f"step {result['step']}: {line}")

        return Evaluator(config.evaluation, evaluate, record, earlier, self._is_over)
