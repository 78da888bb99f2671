"""This module runs one training run, a session, from the start of its engines to its report."""

import shlex
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo.config import TrainConfig
from grpo.config.errors import Diverged, GradingFailed, Interrupted, SamplerLost, UserError
from grpo.config.folder import EVALUATIONS_FILE, MODEL_FOLDER, PROFILE_FOLDER
from grpo.config.parts import LearnerSettings
from grpo.config.rewording import path_word
from grpo.dynamics.scheduler import may_go_back
from grpo.host import ranks
from grpo.host.alive import working
from grpo.host.folder_lock import locked
from grpo.host.output import outlasting, unread
from grpo.host.signals import EXIT_STOPPED, StopRequest
from grpo.host.terminal import Terminal, say
from grpo.host.together import from_first, on_first
from grpo.insight.diagnosis.diagnostics import diagnose
from grpo.insight.diagnosis.findings import Finding
from grpo.insight.logs.logs import read_log
from grpo.insight.pages.run_page import write_report
from grpo.learner.collective import TorchCollective
from grpo.learner.engine import end_distributed, init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.loop import Loop, Observer
from grpo.run.assembly import assemble, sampler_in_turn
from grpo.run.clocks import Clocks, TimedSampler, explaining_oom
from grpo.run.evaluating import PolicyEvaluation, record_evaluation
from grpo.run.exporting import Exporter, ModelWriter
from grpo.run.gates import RoundNumbers, broken_gates
from grpo.run.manifest import closing, facts_of_start, open_manifest
from grpo.run.observers import Checkpointer, Evaluator, InOrder, Together, Watch
from grpo.run.outlook import Outlook, past_rows, price_per_hour
from grpo.run.parts import build_sampler, load_task
from grpo.run.preparing import Prepared, dry_run, prepared
from grpo.run.records import Recorder, RecordFiles, open_files, open_services
from grpo.run.resume import (
    PROBLEMS,
    Saved,
    base_of,
    check_start,
    checkpoint_store,
    fresh,
    goes_on,
    keep_model,
    require_same_inputs,
    resumed,
    saved_run,
    set_aside,
)
from grpo.run.upload import opened
from grpo.tasks.task import VerifiableTask
from grpo.telemetry.completions import CompletionFiles
from grpo.telemetry.ending import FINISHED, INTERRUPTED, Ending, recording_failure, write_ending
from grpo.telemetry.energy import EnergyMeter
from grpo.telemetry.hardware import peak_tflops
from grpo.telemetry.json_lines import read_metrics
from grpo.telemetry.phases import Phases
from grpo.telemetry.profiler import ProfiledRounds
from grpo.telemetry.trackers import Trackers
from grpo.types import MachineConstants, Progress, Verdict

STOPPING = "stopping after this round, with a checkpoint; again after some seconds to stop before the round's end"
HURRYING = "stopping with a checkpoint, and without the rest of this round; again after some seconds to stop at once"


def train(config: TrainConfig, observers: Sequence[Observer] = (), machine: MachineConstants | None = None) -> int:
    """Runs one training job and returns the process's exit code. Every rank calls it with the same config.

    `observers` are called after each round, after the run's own. A dry run is priced by the speeds in `machine`. The
    engines and servers that the run started end with it, also if it fails.
    """
    ready = prepared(config)
    if ready.config.dry_run:
        return dry_run(ready, machine)
    config, files = ready.config, ready.files
    # Tasks are loaded first, so that errors in data or reward show before the engines start.
    with load_task(config, files.tokenizer, ranks.rank(), ranks.world_size(), ready.task) as task, ExitStack() as ends:
        device = ranks.device(config.device)
        alone = init_distributed(device, config.longest_wait_seconds)
        if alone:
            ends.callback(end_distributed)
        collective = TorchCollective(device)
        require_same_inputs(ready.task, ready.files, collective)
        with locked(Path(config.output_dir), collective):
            upload = on_first(collective, lambda: opened(config.checkpoint, Path(config.output_dir)))
            resume = goes_on(config, collective)
            config = replace(config, checkpoint=replace(config.checkpoint, resume=resume))
            ready = ready._replace(config=config)
            saved = saved_run(config, files.path, ready.task, collective) if resume else None
            if not saved:
                check_start(config, files.path, collective)
                if earlier := on_first(collective, lambda: set_aside(Path(config.output_dir))):
                    print(
                        f"an earlier run left no checkpoint in {config.output_dir}; what it logged is now in {earlier}"
                    )
            # Services are opened before the engines: if one does not answer, no time is lost.
            output = Path(config.output_dir)
            with (
                upload.copying() if upload else nullcontext(),
                closing(output, collective.rank == 0),
                recording_failure(output),
                open_services(config, collective, saved) as services,
            ):
                session = Session(ready, task, saved, services, ends)
                with outlasting():
                    return session.run([*([upload] if upload else []), *observers])


class Session:
    """A session takes one run from its first evaluation to its report."""

    def __init__(self, ready: Prepared, task: VerifiableTask, saved: Saved | None, services: Trackers, ends: ExitStack):
        """Builds the engines. `saved` is the checkpoint from which a resumed run continues, or None. `ends` ends the
        sampler."""
        config, files = ready.config, ready.files
        device = ranks.device(config.device)
        self._config, self._output, self._saved, self._services = config, Path(config.output_dir), saved, services
        self._tokenizer, self._suite, self._device = files.tokenizer, ready.suite, device
        self._problems, self._model = ready.task.identity, files.path
        with working("loading the model into the learner"), explaining_oom("loading the model"):
            learner = DeepSpeedLearner(LearnerSettings.of(config), files, device, saved.checkpoint if saved else None)
        self._collective = learner.collective
        self._first = self._collective.rank == 0
        self._base = on_first(self._collective, lambda: base_of(config, files.path))
        label = torch.profiler.record_function if config.tracking.profile_rounds else nullcontext
        # The first rank of each machine counts the machine's energy.
        meter = EnergyMeter() if self._collective.rank % ranks.local_world_size() == 0 else None
        energy = Phases(clock=meter.joules) if meter else None
        self._clocks = Clocks(config, Phases(self._collective.rank, label=label), energy)
        build = partial(build_sampler, config, files, device, self._collective)
        with explaining_oom("starting the sampler"):
            sampler = sampler_in_turn(config, learner, build, self._clocks)
        ends.callback(sampler.close)
        self._store = checkpoint_store(config, self._collective)
        self._numbers = RoundNumbers(config.gates)
        self._parts = assemble(config, task, sampler, learner, self._store, self._clocks, self._numbers)
        self._writer = ModelWriter(config, learner.policy, files.tokenizer, self._parts)
        # A machine that is soon taken away leaves no time for the round.
        self._stop = StopRequest([HURRYING] if config.checkpoint.grace_seconds else [STOPPING, HURRYING])
        self._interrupted = False

    def run(self, observers: Sequence[Observer] = ()) -> int:
        """Evaluates, trains, evaluates again, exports the model and writes the report. Returns the exit code."""
        parts, saved = self._parts, self._saved
        progress, verdict = resumed(self._config, saved, parts, self._store) if saved else fresh(parts)
        if saved and not self._is_over(progress, verdict):
            on_first(self._collective, lambda: keep_model(self._output, saved.resumption))
        with working("giving the sampler the learner's weights"):
            parts.weight_sync.begin(parts.learner, TimedSampler(parts.sampler, self._clocks))
        files = on_first(self._collective, lambda: self._open_files(progress.step))
        with files or nullcontext():
            progress, verdict = self._train(progress, verdict, files, observers)
        reason = verdict.reason if verdict.stop else ""
        if self._first and reason:
            print(f"step {progress.step}: {reason}")
        if self._interrupted or not self._is_over(progress, verdict):
            if self._first:
                write_ending(self._output, Ending(INTERRUPTED, progress.step))
                message = way_on(self._output, progress.step, self._config.num_steps)
                if unread():
                    say(f"grpo: nobody reads the run's output any more, so it {message}")
                else:
                    print(message)
            return EXIT_STOPPED
        self._leave(Ending(FINISHED, progress.step, reason))
        return 0

    def _open_files(self, step: int) -> RecordFiles:
        """Opens the run's files, and writes into its manifest what it is made from."""
        config, saved = self._config, self._saved
        with working("hashing the model's weights"):
            start = facts_of_start(config, self._model, self._problems, self._device, step)
        # The two records of a resumption are written one after the other, so hardly any kill comes between them.
        files = open_files(config, self._services, saved)
        open_manifest(self._output, start, resumed=saved is not None)
        return files

    def _train(
        self, progress: Progress, verdict: Verdict, files: RecordFiles | None, observers: Sequence[Observer]
    ) -> tuple[Progress, Verdict]:
        """Runs the rounds, with evaluations and checkpoints around them. Returns the last progress and verdict."""
        config, parts = self._config, self._parts
        tell = files.display.note if files else lambda text: None
        if profile_rounds := config.tracking.profile_rounds:
            traces, rank = self._output / PROFILE_FOLDER, self._collective.rank
            profiled = ProfiledRounds(parts.clock, profile_rounds, traces, rank, progress.round_index, tell)
            parts = replace(parts, clock=profiled)
        evaluator = self._evaluator(files)
        past = past_rows(config, self._collective, progress.step)
        self._numbers.evaluated = evaluator.results.get
        self._numbers.go_on(past)
        self._numbers.outlook = Outlook(config.num_steps, price_per_hour(config), past)
        facts = {"config": asdict(config), "base": self._base and asdict(self._base), PROBLEMS: self._problems}
        resumed_at = progress.step if config.checkpoint.resume else -1
        checkpointer = Checkpointer(config.checkpoint, self._store, parts.learner, facts, evaluator, tell, resumed_at)
        peak = peak_tflops(self._device)
        measured = parts.sampler.cache_usage, self._clocks.joules, self._numbers
        recorder = Recorder(self._collective, files, config.tracking.samples_per_round, peak, *measured)
        export_step = self._clocks.between("export", self._writer.between_rounds)
        exporter = Exporter(config.checkpoint.export_every, self._output, export_step, tell, self._collective)
        own_observers = [evaluator, checkpointer, exporter, self._watch(files)]
        # Completions are on disk before the checkpoint from which a resumed run goes on: it does not sample them again.
        recorders = InOrder([recorder, *self._completion_files(progress.step)])
        loop = Loop(parts, progress, verdict, recorders, [*own_observers, *observers])
        try:
            evaluator.make_up(progress)
            exporter.make_up(progress)
            if may_go_back(config) and not config.checkpoint.resume:
                checkpointer.save(progress, verdict)
            if files:
                files.display.begin()
            loop.run(config.num_steps, lambda: self._stop() or unread(), lambda: self._stop.urgent)
            if self._is_over(loop.progress, loop.verdict):
                evaluator.at(loop.progress.step)
            checkpointer.save(loop.progress, loop.verdict)
        except Interrupted:
            # Since the last round only completions were sampled, which a resumed run samples again.
            self._interrupted = True
            if parts.learner.num_steps == loop.progress.step:
                checkpointer.save(loop.progress, loop.verdict)
        except UserError as error:
            # A learner in the middle of a round is not saved: a resumed run samples that round again.
            is_between_rounds = loop.progress.step > progress.step and parts.learner.num_steps == loop.progress.step
            if is_between_rounds and leaves_checkpoint(error, self._collective.world_size):
                with suppress(UserError):
                    checkpointer.save(loop.progress, loop.verdict)
            raise
        return loop.progress, loop.verdict

    def _is_over(self, progress: Progress, verdict: Verdict) -> bool:
        """Tells whether the run is finished: all steps are taken, or the verdict stops it. An interruption is not."""
        return verdict.stop or progress.step >= self._config.num_steps

    def _leave(self, ending: Ending) -> None:
        """Exports the model of the last step if configured, records how the run ended, and writes the report."""
        exported = self._output / MODEL_FOLDER if self._config.checkpoint.export else None
        broken = from_first(self._collective, lambda: broken_gates(self._output, self._config, ending.step))
        if exported and broken:
            exported = None
            if self._first:
                print(f"no model is written, since it is beyond the run's gates: {'; '.join(broken)}")
        if exported:
            self._writer.at_the_end(ending.step, exported)
        if self._first:
            write_ending(self._output, ending)
            console = Terminal()
            with console.at_once(), working("drawing the report"):
                write_report(self._output, exported, console)

    def _completion_files(self, step: int) -> list[Observer]:
        """Builds the observer that writes every completion, if `tracking.completions` is "all"."""
        if self._config.tracking.completions != "all":
            return []
        resumed_at = step if self._config.checkpoint.resume else None
        collective = self._collective
        files = CompletionFiles(self._output, collective.rank, resumed_at, collective.gather)
        return [Together(files, collective)]

    def _watch(self, files: RecordFiles | None) -> Watch:
        """Builds the observer that diagnoses the run's log."""

        warnings: set[str] = set()

        def diagnosed() -> Sequence[Finding]:
            try:
                return diagnose(read_log(self._output))
            except UserError as error:
                # A log that somebody has removed or damaged does not end the run.
                if str(error) not in warnings:
                    say(f"grpo: there is no diagnosis: {error}")
                warnings.add(str(error))
                return ()

        def findings() -> Sequence[Finding]:
            return on_first(self._collective, diagnosed) or ()

        return Watch(self._config.dynamics.diagnose_every, findings, files.display.note if files else print)

    def _evaluator(self, files: RecordFiles | None) -> Evaluator:
        """Builds the observer that evaluates on held-out problems, and on the suite if there is one."""
        config, collective = self._config, self._collective
        evaluate = PolicyEvaluation(
            config, self._parts.task, self._suite, self._tokenizer, self._parts.sampler, self._clocks, collective
        )
        earlier = from_first(collective, lambda: read_metrics(self._output / EVALUATIONS_FILE))

        def record(result: dict[str, Any]) -> None:
            record_evaluation(result, files, collective)

        return Evaluator(config.evaluation, evaluate, record, earlier, self._is_over)


def leaves_checkpoint(error: UserError, world_size: int) -> bool:
    """Tells whether a run that `error` ends saves its last round. A resumed run could not go on with a policy that has
    diverged. And ranks save together: all lose the sampler and raise it when grading fails on one of them, but any
    other error may be that of one rank."""
    return not isinstance(error, Diverged) and (isinstance(error, SamplerLost | GradingFailed) or world_size == 1)


def way_on(output: Path, step: int, num_steps: int) -> str:
    """Returns what a run says stopped at `step` of `num_steps`. Before the first there is no report to read."""
    word = shlex.quote(path_word("output_dir", output))
    stopped = f"stopped at step {step} of {num_steps}; continue with checkpoint.resume=true {word}"
    return f"{stopped}\ngrpo report {shlex.quote(str(output))} shows how far it came" if step else stopped
