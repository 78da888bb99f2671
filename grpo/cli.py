"""This module is the command line: `grpo COMMAND` calls `run` of `grpo/commands/COMMAND.py`."""

import difflib
import errno
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import grpo
from grpo.config.directory import config_directory
from grpo.config.errors import WRONG_USE, EndedElsewhere, UserError
from grpo.config.flags import read_words
from grpo.host import environment, ranks
from grpo.host.alive import end_in_time, working
from grpo.host.disk import FULL
from grpo.host.imports import how_to_install, importing, look_here_last
from grpo.host.output import open_closed
from grpo.host.signals import EXIT_BROKEN_OFF, EXIT_UNREAD
from grpo.host.terminal import protect, reader_left, say, wrapped, wrapped_usage

USAGE = """usage: grpo COMMAND [key=value ...]

  train         trains a model
                grpo train experiment=quickstart num_steps=60
  launch        trains over several processes or machines
                grpo launch hardware=two_nodes hardware.hosts=[a,b] experiment=...
  serve         runs vLLM servers on this machine for a learner on another one
  eval          measures pass@1 and pass@k of a model
                grpo eval model.path=runs/a/model task=arithmetic
  solve-rates   measures how often a model solves each problem, as a column for training
                grpo solve-rates model.path=DIR task=file task.data.path=FILE evaluation.samples_per_problem=16
  check-reward  shows the reward of a right, a wrong and an empty answer to some problems, without a model
                grpo check-reward task=file task.data.path=FILE 'task.reward.parts=[{name: "rewards.py:f"}]'
  sweep         runs variants × seeds, and can be resumed: grpo sweep help
  report        reports on a run, or compares runs or the variants of a sweep
                grpo report runs/a runs/b
  samples       shows completions of a run in the terminal
                grpo samples runs/a correct=false limit=3
  export        writes the model of a checkpoint, or its adapter, as a Hugging Face folder
                grpo export runs/a models/a
  audit         compares a run's records with its data, weights, graders and configuration
  dynamics      fits, forecasts, diagnoses or replays a run, or plans one: grpo dynamics help
  config        explains every key: grpo config clip
  completion    lets the Tab key complete words: eval "$(grpo completion bash)", or zsh, or fish
  doctor        checks this machine, and says what to do about each problem
  prove         measures whether what is installed is right and fast here: grpo prove help

Keys are Hydra overrides of configs/train.yaml. `grpo config WORD` explains them, and `grpo train KEY=VALUE ...
--help` shows the values that would run. `--cfg job` prints them as YAML. `grpo train my.yaml` begins with a file of
one's own, and --config-dir DIR adds a folder of groups, such as DIR/experiment/mine.yaml."""

HELP = ("help", "-h", "--help")
VERSION = ("version", "-V", "--version")
# A file or folder that is named wrongly, is gone, or may not be written.
MENDABLE = (
    *(errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.EROFS, *FULL),
)
# The words of these commands are overrides of a run's configuration. The other commands read their words themselves.
CONFIGURED = ("train", "serve", "eval", "solve-rates", "check-reward")
# These commands need a word. Without one they print their usage.
WORDED = ("sweep", "report", "samples", "export", "audit", "dynamics")
# The words that follow `grpo dynamics`.
ANALYSES = ("fit", "forecast", "diagnose", "replay", "whatif", "plan")
COMMANDS = (*CONFIGURED, "launch", *WORDED, "config", "completion", "doctor", "prove")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Ends silently when nobody reads its output any more, as after
    `| head`."""
    open_closed()
    try:
        code = _main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        if not reader_left():
            raise
        code = EXIT_UNREAD
    except OSError as error:
        # The disk behind a redirected output is full.
        if error.errno not in FULL:
            raise
        say(f"grpo: the output cannot be written: {error.strerror}")
        code = WRONG_USE
    if arguments is None:
        end_in_time(code)
    return code


def _main(arguments: Sequence[str] | None) -> int:
    """Runs one command and returns its exit code. A UserError is printed as one line, without a traceback."""
    command, *words = list(sys.argv[1:] if arguments is None else arguments) or ["help"]
    if command in HELP and words:
        command, words = words[0], ["--help"]
    if command in HELP:
        print(wrapped_usage(USAGE))
        return 0
    if command in VERSION:
        print(f"grpo {grpo.__version__}")
        return 0
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        meant = f"did you mean grpo dynamics {command}? " if command in ANALYSES else meant
        meant = "leave out the second grpo; " if command == "grpo" else meant
        words = {"resume": "checkpoint.resume=true output_dir=RUN"}.get(command, command if "=" in command else "")
        if (config_directory() / "experiment" / f"{command}.yaml").is_file():
            words = f"experiment={command}"
        meant = f"did you mean grpo train {words}? " if words else meant
        say(f"grpo: unknown command {command!r}; {meant}there are: {', '.join(COMMANDS)}")
        return WRONG_USE
    protect()
    try:
        environment.prepare()
        look_here_last()
        return _run(command, words)
    except EndedElsewhere:
        return WRONG_USE
    except KeyboardInterrupt:
        # A run that has begun takes the first Ctrl-C itself, and saves.
        say(f"grpo {command}: interrupted")
        return EXIT_BROKEN_OFF
    except UserError as error:
        say(f"grpo: {error}")
        return WRONG_USE
    except ModuleNotFoundError as error:
        # The light package lacks the trainer's packages.
        if (command_line := how_to_install(error.name or "")) is None:
            raise
        say(f"grpo: grpo {command} needs {error.name}, which is not installed here: {command_line}")
        return WRONG_USE
    except OSError as error:
        # Writing to an open file does not name it.
        if error.errno not in MENDABLE or not (error.filename or error.errno in FULL):
            raise
        say(f"grpo: cannot use {error.filename or 'a file'}: {error.strerror}")
        return WRONG_USE


def _run(command: str, words: list[str]) -> int:
    """Runs a known command, or prints what was asked for instead: its help or its composed configuration."""
    if command not in (*CONFIGURED, "launch"):
        with working(f"loading what grpo {command} needs"):
            module = _module(command)
        wants_help = words[:1] == ["help"] or {"-h", "--help"} & {*words}
        if wants_help or (not words and command in WORDED):
            print(wrapped_usage(module.USAGE))
            return 0
        return module.run(words, COMMANDS, ANALYSES) if command == "completion" else module.run(words)
    from grpo.config.hydra import as_yaml, compose_config
    from grpo.config.optimizer import with_learning_rate
    from grpo.config.saved import described
    from grpo.config.unread import RULES_OF, refuse_unread
    from grpo.run.early_checks import check, finished

    if {"-m", "--multirun"} & {*words}:
        raise UserError(f"grpo {command} starts one run at a time; grpo sweep starts several (grpo sweep help)")
    request = read_words(words)
    if request.help:
        from grpo.config.keys import help_text

        print(wrapped(help_text(command, [word for word in words if word not in HELP])))
        return 0
    if request.show:
        print(as_yaml(words), end="")
        return 0
    # The config is composed and checked before the command's module is imported, which takes seconds.
    config = compose_config(words)
    if command in ("train", "launch") and (word := finished(config)):
        if ranks.rank() == 0:
            print(word)
        return 0
    config = with_learning_rate(replace(config, model=described(config.model)))
    check(command, config)
    refuse_unread(words, config, RULES_OF.get(command, ()))
    if command not in CONFIGURED:
        return _module(command).run(words)
    if ranks.rank() == 0 and command != "check-reward":
        into = "" if config.dry_run else f", and {config.output_dir} will hold what it writes"
        say(f"grpo {command}: the configuration is valid{into}; loading torch and transformers takes some seconds")
    with working("still loading torch and transformers"):
        module = _module(command)
    return module.run(config)


def _module(command: str) -> ModuleType:
    """Imports the module of a command."""
    with importing():
        return import_module(f"grpo.commands.{command.replace('-', '_')}")


if __name__ == "__main__":
    sys.exit(main())
