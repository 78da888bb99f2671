"""This module separates the words of a command: Hydra's flags, a user's configuration file, and overrides."""

import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.config.aliases import ALIASES, ELSEWHERE
from grpo.config.errors import UserError, require

FLAGS = "--help, --cfg job, --config-dir DIR, --config-name NAME"
_SHORT = {"-h": "--help", "-c": "--cfg", "-cd": "--config-dir", "-cn": "--config-name"}
_VALUED = ("--cfg", "--config-dir", "--config-name")
_HELP = ("--help", "help")


@dataclass(frozen=True, slots=True)
class Request:
    """A request is what the words of a command ask for.

    overrides  the `key=value` words
    directory  the user's own folder of YAML groups, or None
    name       the configuration to begin with
    help       whether the keys should be explained instead of running
    show       whether the composed configuration should be printed instead of running
    """

    overrides: list[str]
    directory: Path | None
    name: str = "train"
    help: bool = False
    show: bool = False


def _as_key(flag_name: str) -> str:
    """Returns the end of a message about a flag of another program: the key to write in its place."""
    from grpo.config.complaints import paths
    from grpo.config.directory import config_directory
    from grpo.config.hints import hint
    from grpo.config.run import TrainConfig

    if (config_directory() / flag_name).is_dir():
        return f"; a choice is written {flag_name}=NAME"
    if flag_name in ELSEWHERE:
        return f"; {ELSEWHERE[flag_name]}"
    key, config_keys = ALIASES.get(flag_name, flag_name), paths(TrainConfig())
    return f"; a key is written {key}=VALUE" if key in config_keys else hint(flag_name, config_keys)


def _meant(word: str) -> str:
    """Returns how to write a word that has no key."""
    from grpo.config.directory import config_directory

    # Characters as wide as Chinese ones have the form of others: ＝ that of =.
    narrow = unicodedata.normalize("NFKC", word)
    if narrow != word and re.search("[=:]", narrow):
        mended = narrow if "=" in narrow else narrow.replace(":", "=", 1)
        return f"it has wide characters in the place of plain ones: write {mended}"
    if word in ("grpo", "train", "launch", "sweep"):
        return "the name of a command stands once, first: leave it out here"
    if word.endswith(".py"):
        return "grpo starts no script of your own, which calls `grpo.Trainer`: run it by python"
    if re.match(r"\{\w+\}", word):
        return "a blank has cut a word in two: put the whole word in quotes, 'KEY=… {question} …'"
    if word.count("[") + word.count("{") != word.count("]") + word.count("}"):
        return "a blank has cut a word in two: put the whole word in quotes, 'KEY=[{name: VALUE}]'"
    if ".py:" in word:
        return f"a reward is written 'task.reward.parts=[{{name: \"{word}\"}}]'"
    # A word of any length and with any character is a path to os.path.
    if os.path.isdir(word) or (re.fullmatch(r"[\w.-]+/[\w.-]+", word) and not os.path.exists(word)):
        return f"a model is written model.path={word}"
    if Path(word).suffix in (".jsonl", ".csv", ".parquet"):
        return f"problems of a file are given as task=file task.data.path={word}"
    if Path(word).suffix in (".json", ".toml", ".yml"):
        return "a configuration file of your own is YAML, and its name ends in .yaml"
    files = sorted(config_directory().glob("*/*.yaml"))
    choices = [f"{file.parent.name}={word}" for file in files if file.stem == word and file.parent.name != "sweep"]
    return f"write {' or '.join(choices)}" if choices else "a key is written KEY=VALUE"


def read_words(words: Sequence[str]) -> Request:
    """Separates flags from overrides. A word that ends in .yaml is the user's configuration file to begin with.

    Raises UserError for an unknown flag, and for a word that is no flag, no file and no override.
    """
    flags: dict[str, str] = {}
    overrides: list[str] = []
    own_file = ""
    remaining_words = iter(words)
    for word in remaining_words:
        name, equals, value = word.partition("=")
        name = _SHORT.get(name, name)
        if name in _HELP:
            require(not equals, f"{name} takes no value; `grpo config WORD` finds keys")
            flags["--help"] = ""
        elif name in _VALUED:
            flags[name] = value if equals else next(remaining_words, "")
            require(bool(flags[name]), f"{name} needs a value: there are {FLAGS}")
        elif word.startswith("-"):
            raise UserError(f"unknown flag {name}: there are {FLAGS}{_as_key(name.lstrip('-').replace('-', '_'))}")
        elif word.endswith((".yaml", ".yml")) and not equals:
            require(Path(word).is_file(), f"there is no file {word}")
            require(word.endswith(".yaml"), f"Hydra reads {word} as {Path(word).stem}.yaml: give it that name")
            require(not own_file, f"{word} would replace {own_file}: name one file in the defaults of the other")
            own_file = word
        else:
            has_key = bool(equals and name.lstrip("+~")) or word.startswith("~")
            if not has_key:
                raise UserError(f"cannot read {word!r}: {_meant(word)}")
            # A shell leaves the ~ of a word like task.data.path=~/sums.csv as it is.
            home = os.path.expanduser(value) if value.startswith("~") else value
            require(
                not home.startswith("~") or "/" not in home,
                f"{word}: this machine has no user {home.partition('/')[0][1:]}, so write the folder in full",
            )
            overrides.append(word if home == value else f'{name}="{home}"')
    require(
        not flags.get("--cfg", "").endswith(".yaml"),
        f"-c {flags.get('--cfg')} prints no configuration: {ELSEWHERE['config']}",
    )
    require(
        flags.get("--cfg", "job") == "job",
        f"--cfg {flags.get('--cfg')} is unknown: --cfg job prints the configuration that would run",
    )
    if own_file:
        first, folder = flags.get("--config-name"), Path(own_file).parent.resolve()
        require(first is None, f"{own_file} would replace {first}: name one file in the defaults of the other")
        require(
            Path(flags.setdefault("--config-dir", str(folder))).resolve() == folder,
            f"{own_file} is read with the groups in its own folder: put those of --config-dir there, and leave it out",
        )
        flags["--config-name"] = Path(own_file).stem
    directory = Path(flags["--config-dir"]).absolute() if "--config-dir" in flags else None
    require(directory is None or directory.is_dir(), f"--config-dir: there is no folder {directory}")
    name = flags.get("--config-name", "train").removesuffix(".yaml")
    return Request(overrides, directory, name, "--help" in flags, "--cfg" in flags)
