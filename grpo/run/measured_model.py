"""This module loads a model that is only sampled from, not trained. `grpo eval` and `grpo solve-rates` use it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from grpo.config import LearnerConfig, TaskConfig, TrainConfig
from grpo.config.parts import LearnerSettings
from grpo.config.pass_through import check_model_settings
from grpo.config.placement import uses_running_servers
from grpo.config.ranges import check_values
from grpo.config.saved import is_checkpoint, read_config, read_step
from grpo.host import ranks
from grpo.host.alive import working
from grpo.interfaces import Collective, Sampler, WeightSync
from grpo.learner.collective import TorchCollective
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.run import preflight
from grpo.run.assembly import sampler_in_turn
from grpo.run.clocks import Clocks, EvaluatedSampler
from grpo.run.parts import build_sampler, load_task, tried_episodes
from grpo.run.preparing import model_and_problems, with_precision
from grpo.run.resume import check_start
from grpo.tasks.task import VerifiableTask
from grpo.telemetry.phases import Phases
from grpo.weight_sync.refresh import CheckedSync


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate is a model to be measured. `load_task` returns one of `tasks` with this rank's share of problems.

    `sampler` has the deadlines of an evaluation, and `clocks` gives them to a thread that grades.
    """

    sampler: Sampler
    clocks: Clocks
    collective: Collective
    tasks: Sequence[TaskConfig]
    load_task: Callable[[TaskConfig], VerifiableTask]


def candidate(config: TrainConfig, tasks: Sequence[TaskConfig]) -> Candidate:
    """Loads the model that `grpo.config.saved.described` has found at `model.path`.

    Lengths that the configuration leaves open are fitted to the prompts of `tasks`.
    """
    model = config.model
    if model.path:
        model = replace(model, source="huggingface")
        config = replace(config, model=model)
    if is_checkpoint(model.start):
        config = replace(config, learner=saved_learner(config.learner, read_config(Path(model.start)).learner))
        # Values from a checkpoint need the same checks as those from the command line.
        check_values(config, "learner.")
        check_model_settings(model)
    device = ranks.device(config.device)
    preflight.check_vllm(config)
    config = with_precision(config)
    sends = _sends(config)
    config, files, fitted_tasks = model_and_problems(config, tasks, learns=sends)
    with working("trying the episodes"):
        tried_episodes(config, files, {name: asked for task in fitted_tasks for name, asked in task.problems.items()})
    loaded = {task.config.name: task for task in fitted_tasks}
    if ranks.world_size() > 1:
        init_distributed(device, config.longest_wait_seconds)
    collective = TorchCollective(device)
    learner = None
    if sends:
        check_start(config, files.path, collective)
        # The learner is built before the sampler, as in training, because vLLM changes the classes of some models.
        init_distributed(device, config.longest_wait_seconds)
        learner = DeepSpeedLearner(LearnerSettings.of(config), files, device)
        # The steps are part of the samples' seeds.
        learner.num_steps = read_step(Path(model.start)) if is_checkpoint(model.start) else 0
    build = partial(build_sampler, config, files, device, collective)
    clocks = Clocks(config, Phases(collective.rank))
    if learner:
        sampler = sampler_in_turn(config, learner, build, clocks)
        clocks.timed(CheckedSync.of(config.weight_sync, config.learner, config.rollout), WeightSync).refresh(
            learner, sampler
        )
    else:
        sampler = build()

    def load(task: TaskConfig) -> VerifiableTask:
        task_config = replace(config, task=task)
        return load_task(task_config, files.tokenizer, collective.rank, collective.world_size, loaded[task.name])

    return Candidate(
        EvaluatedSampler(sampler, clocks), clocks, collective, [task.config for task in fitted_tasks], load
    )


def _sends(config: TrainConfig) -> bool:
    """Tells whether a learner sends the sampler its weights: those of `model.start`, and those of any model to servers
    that run already, which have the weights that somebody sent them last."""
    return bool(config.model.start) or uses_running_servers(config.rollout)


# These settings decide how a checkpoint's weights lie in memory. No other setting is taken: the checkpoint may be
# somebody else's, and DeepSpeed, for example, writes files where its settings say.
LAYOUT = ("zero_stage", "precision", "offload_optimizer", "offload_states")


def saved_learner(present: LearnerConfig, saved: LearnerConfig) -> LearnerConfig:
    """Returns the present learner config, but holding weights as the learner of a checkpoint did."""
    return replace(present, **{name: getattr(saved, name) for name in LAYOUT})
