"""The command line: `grpo train|launch|serve|eval|solve-rates|sweep|report|dynamics|reproduce|doctor`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

from grpo import environment
from grpo.config.errors import EndedElsewhere, UserError
from grpo.terminal import protect, say
from grpo.tether import end_with_parent

USAGE = """usage: grpo COMMAND [key=value ...]

  train    train a model:        grpo train experiment=quickstart num_steps=60
  eval     pass@1 and pass@k:    grpo eval model.path=runs/default/model task=arithmetic
  solve-rates  how often a model solves each problem, as a column for training:
           grpo solve-rates model.path=DIR task=file task.data.path=FILE evaluation.samples_per_problem=16
  launch   the same over several machines: grpo launch hardware=two_nodes hardware.hosts=[a,b] experiment=...
  serve    vLLM servers on this machine, for a learner on another one
  sweep    variants × seeds, resumable: grpo sweep help
  report   runs or a sweep compared:  grpo report runs/a runs/b
  dynamics laws, forecast, diagnosis, decisions of a run, or a plan before it: grpo dynamics help
  reproduce  numbers and figures of the papers: grpo reproduce help
  doctor   what is here, what does not fit, what to do about it

Keys are Hydra overrides of configs/train.yaml; `grpo train --help` shows all of them."""

WRONG_USE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code. A UserError is printed as the one line it is."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = arguments.pop(0) if arguments else "help"
    if command in ("help", "-h", "--help"):
        print(USAGE)
        return 0
    if command not in COMMANDS:
        say(f"grpo: unknown command {command!r}; there are: {', '.join(COMMANDS)}")
        return WRONG_USE
    environment.prepare()
    protect()
    # As `python -m` does: a reward function may stand in a module of the folder that one works in.
    sys.path.insert(0, os.getcwd())
    try:
        return COMMANDS[command](arguments)
    except EndedElsewhere:
        return WRONG_USE
    except UserError as error:
        say(f"grpo: {error}")
        return WRONG_USE


def _train(overrides: list[str]) -> int:
    from grpo.config.hydra import compose_config, print_help

    if {"-h", "--help"} & set(overrides):
        print_help()
        return 0
    if {"-m", "--multirun"} & set(overrides):
        raise UserError("grpo train starts one run at a time; grpo sweep starts several (grpo sweep help)")
    config = compose_config(overrides)
    if "LOCAL_RANK" in os.environ:
        # A rank whose launcher is killed saves and ends; nothing else would end it.
        end_with_parent(signal.SIGTERM)
    from grpo.train import train

    return train(config)


def _launch(overrides: list[str]) -> int:
    from grpo.launch.run import launch

    return launch(overrides)


def _serve(overrides: list[str]) -> int:
    from grpo.config.hydra import compose_config

    config = compose_config(overrides)
    from grpo.serve import serve

    return serve(config)


def _eval(overrides: list[str]) -> int:
    from grpo.config.hydra import compose_config

    config = compose_config(overrides)
    from grpo.eval import evaluate_model

    return evaluate_model(config)


def _solve_rates(overrides: list[str]) -> int:
    from grpo.config.hydra import compose_config

    config = compose_config(overrides)
    from grpo.solve_rates import measure_solve_rates

    return measure_solve_rates(config)


def _sweep(words: list[str]) -> int:
    from grpo.sweep.run import sweep

    return sweep(words)


def _report(words: list[str]) -> int:
    from grpo.report_command import report

    return report(words)


def _dynamics(arguments: list[str]) -> int:
    from grpo.dynamics_command import dynamics

    return dynamics(arguments)


def _reproduce(arguments: list[str]) -> int:
    from grpo.reproduce.command import reproduce

    return reproduce(arguments)


def _doctor(arguments: list[str]) -> int:
    from grpo.doctor import examine

    return examine()


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "eval": _eval,
    "solve-rates": _solve_rates,
    "launch": _launch,
    "serve": _serve,
    "sweep": _sweep,
    "report": _report,
    "dynamics": _dynamics,
    "reproduce": _reproduce,
    "doctor": _doctor,
}


if __name__ == "__main__":
    sys.exit(main())
