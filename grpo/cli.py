"""The command line: `grpo COMMAND` calls `run` of `grpo/commands/COMMAND.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from grpo.config.errors import EndedElsewhere, UserError
from grpo.host import environment
from grpo.host.terminal import protect, say

USAGE = """usage: grpo COMMAND [key=value ...]

  train    train a model:        grpo train experiment=quickstart num_steps=60
  launch   train over several processes or machines:
           grpo launch hardware=two_nodes hardware.hosts=[a,b] experiment=...
  serve    vLLM servers on this machine, for a learner on another one
  eval     pass@1 and pass@k:    grpo eval model.path=runs/default/model task=arithmetic
  solve-rates  how often a model solves each problem, as a column for training:
           grpo solve-rates model.path=DIR task=file task.data.path=FILE evaluation.samples_per_problem=16
  sweep    variants × seeds, resumable: grpo sweep help
  report   runs or a sweep compared:  grpo report runs/a runs/b
  dynamics laws, forecast, diagnosis, decisions of a run, or a plan before it: grpo dynamics help
  reproduce  numbers and figures of the papers: grpo reproduce help
  config   every key with its meaning: grpo config clip
  doctor   what is here, what does not fit, what to do about it

Keys are Hydra overrides of configs/train.yaml; `grpo config` explains all of them."""

HELP = ("help", "-h", "--help")
WRONG_USE = 2
# Commands whose words are overrides of a run's configuration; the others read their words themselves.
CONFIGURED = ("train", "serve", "eval", "solve-rates")
# Commands that do nothing without a word: they print their usage.
WORDED = ("sweep", "report", "dynamics", "reproduce")
COMMANDS = (*CONFIGURED, "launch", *WORDED, "config", "doctor")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code. A UserError is printed as the one line it is."""
    command, *words = list(sys.argv[1:] if arguments is None else arguments) or ["help"]
    if command in HELP:
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
        return _run(command, words)
    except EndedElsewhere:
        return WRONG_USE
    except UserError as error:
        say(f"grpo: {error}")
        return WRONG_USE


def _run(command: str, words: list[str]) -> int:
    if command not in CONFIGURED:
        module = _module(command)
        if (words[0] in HELP) if words else command in WORDED:
            print(module.USAGE)
            return 0
        return module.run(words)
    from grpo.config.hydra import compose_config, print_help

    if {*HELP} & {*words}:
        print_help()
        return 0
    if {"-m", "--multirun"} & {*words}:
        raise UserError(f"grpo {command} starts one run at a time; grpo sweep starts several (grpo sweep help)")
    # Before the command's module and all that it imports: a wrong key is answered at once.
    config = compose_config(words)
    return _module(command).run(config)


def _module(command: str) -> ModuleType:
    return import_module(f"grpo.commands.{command.replace('-', '_')}")


if __name__ == "__main__":
    sys.exit(main())
