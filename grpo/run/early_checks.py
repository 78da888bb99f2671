# Light: imported before torch, or without it.
"""This module checks a configuration for a command in a second or two, before torch and the engines are imported."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from grpo.config import TrainConfig
from grpo.config.errors import UserError, first_line, require
from grpo.config.folder import CHECKPOINTS, CONFIG_FILE, checkpoints_in, evaluation_name, is_run, step_of
from grpo.config.hydra import compose_suite
from grpo.config.placement import KEY_VARIABLE, server_ports, starts_servers
from grpo.config.plain_json import read_object
from grpo.config.ranges import IMPORTED, value_at
from grpo.config.saved import check_resumed, from_dict, read_config
from grpo.config.validate import validate, validate_evaluation, validate_serving
from grpo.host import ranks
from grpo.host.alive import working
from grpo.host.disk import require_folder, require_writable
from grpo.host.environment import require_usual_python
from grpo.host.ports import require_ports
from grpo.models import resolve
from grpo.rollout.known_arguments import check_engine_arguments
from grpo.run.gates import check_gates
from grpo.tasks.early_checks import check_early
from grpo.telemetry.ending import FINISHED, read_ending
from grpo.types.imported import require_found


def check(command: str, config: TrainConfig) -> None:
    """Raises UserError for a configuration that the command cannot use, before anything heavy is imported."""
    require_usual_python()
    if command != "launch":  # it is no rank, and `grpo.launch.membership` reads these variables
        ranks.check_environment(config.output_dir)
    suite = compose_suite(config) if command in ("train", "launch", "eval") else []
    # Learners on this machine would find what is found here. `grpo launch` itself validates, once it knows whether it
    # resumes, and holds ports.
    all_learn = config.hardware.shell == "each" and not config.hardware.server_nodes
    learns_here = command == "train" or (command == "launch" and (config.hardware.shell == "here" or all_learn))
    if command == "eval" and not suite and not config.evaluation.num_problems:
        raise UserError("evaluation.num_problems=0 asks nothing: raise it, or name sets in evaluation.suite")
    if command == "solve-rates":
        require(
            not is_run(Path(config.output_dir)),
            f"output_dir={config.output_dir} holds a run: name another folder for the pass rates",
        )
        # It reports pass rates only.
        config = replace(config, evaluation=replace(config.evaluation, pass_at=[1]))
    if command == "train":
        ranks.refuse_unranked()
        validate(config, ranks.counts(config.hardware, config.dry_run)[0])
        check_gates(config, [task.name for task in suite])
        _check_resumed(config)
    elif command != "launch" and not suite:
        validate_evaluation(config)
    for task in suite:
        validate_evaluation(replace(config, task=task))
    if command == "serve":
        validate_serving(config)
    if command == "eval":
        _refuse_evaluated(Path(config.output_dir), [task.name for task in suite] or [""])
    if learns_here or command in ("serve", "eval", "solve-rates"):
        # `eval` and `solve-rates` accept `model.path` without `model.source`.
        named_by_path = command in ("eval", "solve-rates") and config.model.path
        model = replace(config.model, source="huggingface") if named_by_path else config.model
        if command in ("train", "launch"):
            _check_own_functions(config)
        resolve.check_early(model, needs_weights=not config.dry_run)
        check_engine_arguments(config.rollout)
        if any(of_set.data.source == "hub" for task in (config.task, *suite) for of_set in task.all_sets.values()):
            resolve.require_hub_cache()
        servers = config.rollout.servers
        require(
            bool(os.environ.get(KEY_VARIABLE)) or not servers.urls or config.dry_run,
            f"rollout.servers.urls: servers answer only those who have their key: set {KEY_VARIABLE} to what it was "
            "where `grpo serve` started them",
        )
        require_folder(Path(config.output_dir))
        if not config.dry_run:
            ranks.refuse_missing_driver(config.device)
            require_writable(Path(config.output_dir))
        starts_some = command == "serve" or (starts_servers(config.rollout) and not config.hardware.server_nodes)
        if not config.dry_run and ranks.rank() == 0 and starts_some:
            for port in require_ports(servers.host, server_ports(servers), "rollout.servers"):
                port.close()
    if learns_here or (command in ("eval", "solve-rates", "check-reward") and not suite):
        own = {name for reward in config.task.rewards for name in reward.weights if ":" in name}
        with working(" and ".join([*(f"importing {name}" for name in sorted(own)), "reading the problems"])):
            check_early(config.task, config.pipeline, learns_here and config.rollout.budget.enabled)


def _check_own_functions(config: TrainConfig) -> None:
    """Raises UserError for a function of the loss whose file or module is missing or no Python. `run.preflight` tries
    those that are there, once torch is imported."""
    for key in IMPORTED:
        name = value_at(config, key)
        try:
            if ":" in name:
                require_found(name)
        except Exception as error:  # Python's parser and finder raise several kinds
            raise UserError(f"{key}={name} cannot be imported: {type(error).__name__}: {first_line(error)}") from error


def finished(config: TrainConfig) -> str:
    """Returns what a run with checkpoint.resume=auto says that is finished, so that a restart ends at once, or "".

    A run that a limit, a forecast or a verdict has ended goes on where the settings that decide it have changed.
    """
    output = Path(config.output_dir)
    ending = read_ending(output) if config.checkpoint.resume == "auto" and not config.dry_run else None
    if not ending or ending.state != FINISHED:
        return ""
    if ending.step < config.num_steps:
        before = from_dict(read_object(output / CONFIG_FILE))
        if any(getattr(before, name) != getattr(config, name) for name in ("num_steps", "limits", "dynamics", "gates")):
            return ""
    why = f" ({ending.why})" if ending.why else ""
    return f"the run in {output} is finished at step {ending.step} of {config.num_steps}{why}: nothing is left to do"


def _check_resumed(config: TrainConfig) -> None:
    """Raises UserError for a run that cannot go on from its newest checkpoint as it is configured now. A checkpoint
    that is damaged is found later, where an older one may be whole."""
    if not config.checkpoint.resume or not (found := checkpoints_in(Path(config.output_dir) / CHECKPOINTS)):
        return
    try:
        old = read_config(found[-1])
    except UserError:
        return
    check_resumed(old, config, step_of(found[-1]))


def _refuse_evaluated(output: Path, sets: Sequence[str]) -> None:
    """Raises UserError where an earlier `grpo eval` has written the file of one of the sets, "" without a suite."""
    for file in (output / evaluation_name(name) for name in sets):
        require(not file.exists(), f"{file} holds an evaluation already: choose another output_dir, or move it away")
