"""Hydra composes the configuration from the YAML files and checks it against the dataclasses."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from grpo.config import plain_yaml
from grpo.config.complaints import ONE_CHOICE, one_line, paths, unknown_keys
from grpo.config.credentials import refuse_credentials
from grpo.config.directory import config_directory
from grpo.config.errors import UserError, require
from grpo.config.flags import Request, read_words
from grpo.config.hints import hint
from grpo.config.leaves import leaves
from grpo.config.rewording import kind_of, reworded
from grpo.config.run import TrainConfig
from grpo.config.start import moment, start
from grpo.config.sweep import SweepConfig
from grpo.config.task import CurriculumConfig, DataConfig, SelectionConfig, TaskConfig

_UNREAD = "is not read here: output_dir is a run's folder, and grpo sweep runs several side by side (jobs=N)"
_BEGINNING = "begin it with `defaults: [train, _self_]`"


@cache
def register() -> None:
    """Registers `TrainConfig` as the schema that `configs/train.yaml` starts from, and `${start:}`."""
    ConfigStore.instance().store(name="schema", node=TrainConfig)
    OmegaConf.register_new_resolver("start", start, replace=True)
    # Hydra copies the whole store before it composes, and copies again what it takes from it.
    ConfigStore.__deepcopy__ = lambda store, _: store


@contextmanager
def _without_unread_groups() -> Iterator[None]:
    """Leaves out Hydra's groups for its own launchers, logs and help while a configuration is composed.

    They take a third of the time, and nothing here reads them.
    """
    hydra_configs = ConfigStore.instance().repo["hydra"]
    whole_config = hydra_configs["config.yaml"]
    hydra_configs["config.yaml"] = _bare()
    try:
        yield
    finally:
        hydra_configs["config.yaml"] = whole_config


@cache
def _bare() -> ConfigNode:
    """Returns Hydra's own configuration without its groups."""
    node = OmegaConf.structured(HydraConf(defaults=[]))
    return ConfigNode(name="config.yaml", node=node, group="hydra", package=None, provider="grpo")


def compose_config(words: list[str]) -> TrainConfig:
    """Returns the configuration that words of the command line give: Hydra overrides and flags (`grpo.config.flags`).

    Raises a one-line UserError for a wrong word, and for a configuration that holds a key or a password.
    """
    config = to_config(composed(words))
    refuse_credentials(config)
    return config


def as_yaml(words: list[str]) -> str:
    """Returns as YAML the configuration that words of the command line give."""
    return OmegaConf.to_yaml(composed(words))


def composed(words: list[str]) -> DictConfig:
    """Returns the configuration of `compose_config` as OmegaConf's DictConfig, not searched for keys and passwords."""
    register()
    request = read_words(words)
    first = request.directory if request.directory and request.name != "train" else config_directory()
    if request.directory and first != request.directory:
        _refuse_hidden(request.directory)
    overrides = [*reworded(request.overrides), *_search_path(request, first)]
    _refuse_removed(request.overrides)
    _refuse_several_choices(request.overrides)
    if request.name != "train":
        _check_own(first / f"{request.name}.yaml")
    try:
        with plain_yaml.bounded(), _without_unread_groups(), initialize_config_dir(str(first), version_base="1.3"):
            # Hydra's own would not tell that a folder's name holds it.
            OmegaConf.register_new_resolver("now", moment, use_cache=True, replace=True)
            config = compose(request.name, overrides, return_hydra_config=True)
    except UnicodeDecodeError as error:
        raise UserError(f"{_not_utf8(request.directory or first)} is not UTF-8 text: save it as UTF-8") from error
    except RecursionError:
        raise UserError("a configuration file names itself in its list of defaults: leave it out there") from None
    # A TypeError is Hydra's, about a group that is given a list.
    except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:
        # Pages of Hydra's own frames would hide the line in a notebook.
        raise UserError(unknown_keys(request.overrides) or one_line(error)) from None
    if OmegaConf.get_type(config) is not TrainConfig:
        raise UserError(f"{request.name}.yaml does not build on train.yaml: {_BEGINNING}")
    _take_out_hydras_own(config)
    _refuse_added(config)
    _refuse_sections_in_text(config)
    return config


def _refuse_hidden(directory: Path) -> None:
    """Raises UserError for a file of the user's own that would never be read, since one of grpo's has its name."""
    for file in sorted(directory.glob("*/*.yaml")):
        ours = config_directory() / file.relative_to(directory)
        require(
            not ours.exists() or ours.read_bytes() == file.read_bytes(),
            f"{file} is never read, since {file.parent.name}={file.stem} is one of grpo's: give it another name",
        )


def _refuse_sections_in_text(config: DictConfig) -> None:
    """Raises UserError for a text such as runs/${model}, which would hold a whole section as Python writes it."""
    values = leaves(OmegaConf.to_container(config, resolve=False))
    for key, text in ((key, value) for key, value in values if isinstance(value, str) and "${" in value):
        # A section's whole value may be that of another one.
        names = re.findall(r"\$\{(\w[\w.]*)\}", text) if kind_of(key) is str or not text.startswith("${") else ()
        for name in names:
            inside = OmegaConf.select(config, name, throw_on_resolution_failure=False)
            one = next(iter(inside), "") if OmegaConf.is_dict(inside) else ""
            require(
                not OmegaConf.is_config(inside),
                f"{key}: ${{{name}}} is not one value: name one" + (f", such as ${{{name}.{one}}}" if one else ""),
            )


def _not_utf8(folder: Path) -> str:
    """Returns the name of the first configuration file that is not UTF-8, which Hydra's error does not name."""
    for file in sorted(folder.rglob("*.yaml")):
        try:
            file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return str(file.relative_to(folder))
    return "a configuration file"


def _check_own(file: Path) -> None:
    """Raises UserError for a user's configuration file that does not build on, or is overridden by, train.yaml.

    Hydra only warns of a list of defaults without `_self_`. It accepts a list that begins with `_self_`, whose later
    entries then override the file's own values.
    """
    if not file.is_file():
        return
    content = OmegaConf.to_container(plain_yaml.load(file))
    header = re.match(r"(?:\s*#.*\n)*?\s*#\s*@package[ \t]+(?!_global_\s)(\S+)", file.read_text(encoding="utf-8"))
    if header:
        raise UserError(
            f"{file.name}: its line @package puts all its keys below {header[1]}, those of train.yaml too: leave out "
            f"the line, and write {header[1]}: before the keys that belong there"
        )
    if isinstance(content, dict) and "hydra" in content:
        raise UserError(f"{file.name}: the block hydra: {_UNREAD}; --config-dir DIR adds a folder of groups")
    defaults = content.get("defaults") if isinstance(content, dict) else None
    if not isinstance(defaults, list) or defaults in ([], ["_self_"]):
        raise UserError(f"{file.name} does not build on train.yaml: {_BEGINNING}")
    if "_self_" not in defaults[1:]:
        own = [_written_default(entry) for entry in defaults if entry != "_self_"]
        raise UserError(
            f"{file.name} does not say that its own values come after those of train.yaml: begin it with `defaults: "
            f"[{', '.join([*own, '_self_'])}]`"
        )
    # Hydra would name an unknown section alone, such as verl's actor_rollout_ref.
    unknown = unknown_keys([f"{key}={value}" for key, value in leaves(content) if key != "defaults"], least=1)
    require(not unknown, f"{file.name}: {unknown}")


def _written_default(entry: Any) -> str:
    """Returns an entry of a list of defaults as it has to be written behind train.yaml's, which choose groups too."""
    if not isinstance(entry, dict):
        return str(entry)
    group, choice = next(iter(entry.items()), ("", ""))
    is_ours = (config_directory() / str(group).lstrip("/")).is_dir()
    return f"{{{'override ' if is_ours else ''}{group}: {choice}}}"


def _search_path(request: Request, first: Path) -> list[str]:
    """Returns the override that makes Hydra look into grpo's folder of YAML groups and the user's own.

    Raises UserError for other keys of Hydra's own configuration, which nothing here reads.
    """
    hydra_words = [word for word in request.overrides if word.lstrip("+~").startswith(("hydra.", "hydra/"))]
    for word in hydra_words:
        if not word.startswith("hydra.searchpath="):
            key = word.partition("=")[0]
            raise UserError(f"{key} {_UNREAD}")
        _require_folders(word)
    folders = {config_directory(), request.directory} - {None, first}
    if folders and hydra_words:
        raise UserError("hydra.searchpath and --config-dir name the same thing: give one of them")
    return [searched(*sorted(folders))] if folders else []


def searched(*folders: Path) -> str:
    """Returns the word by which Hydra looks for configurations in further folders."""
    return f"hydra.searchpath={json.dumps([f'file://{folder}' for folder in folders], ensure_ascii=False)}"


def _require_folders(word: str) -> None:
    """Raises UserError for a folder in hydra.searchpath that does not exist. Hydra would ignore such a folder."""
    value = OverridesParser.create().parse_override(word).value()
    for entry in value if isinstance(value, list) else [value]:
        scheme, separator, path = str(entry).partition("://")
        scheme, path = (scheme, path) if separator else ("file", scheme)
        require(scheme in ("file", "pkg"), f"hydra.searchpath: {entry} is no folder: write file://FOLDER")
        require(scheme != "file" or Path(path).is_dir(), f"hydra.searchpath: there is no folder {path}")
        require(scheme != "pkg" or _is_package(path), f"hydra.searchpath: there is no Python package {path}")


def _is_package(path: str) -> bool:
    """Tells whether Python finds a package by the name or the path that follows pkg://."""
    try:
        return find_spec(path.replace("/", ".")) is not None
    except (ImportError, ValueError):
        return False


def _take_out_hydras_own(config: DictConfig) -> None:
    """Removes Hydra's own configuration. Raises UserError for a file that changes it, since nothing here reads it."""
    hydra_settings, hydra_defaults = OmegaConf.to_container(config.hydra), _hydras_own()
    for key in ("run", "sweep", "launcher", "sweeper", "mode", "verbose", "output_subdir", "env", "callbacks"):
        require(hydra_settings.get(key) == hydra_defaults.get(key), f"a file sets hydra.{key}, which {_UNREAD}")
    with open_dict(config):
        del config["hydra"]


@cache
def _hydras_own() -> dict[str, Any]:
    """Returns Hydra's own configuration as it is where no file changes it."""
    return OmegaConf.to_container(OmegaConf.structured(HydraConf(defaults=[])))


def _refuse_removed(overrides: list[str]) -> None:
    """Raises UserError for `~key`. Hydra would remove the key, and the run would go on with its default in silence."""
    config_keys = paths(TrainConfig())
    for key in (word[1:].partition("=")[0] for word in overrides if word.startswith("~")):
        require(key not in config_keys, f"~{key}: every run has {key}, so it cannot be removed; {key}=VALUE changes it")


def _refuse_several_choices(overrides: list[str]) -> None:
    """Raises UserError for `group=[a,b]`, whose choices Hydra would merge, and for a number in a choice's place.

    Only a group that is a section too, unlike experiment, takes keys and values. Also raises it for two recipes, of
    which Hydra would take the last one in silence.
    """
    config_keys = paths(TrainConfig())
    recipes = [*dict.fromkeys(word for word in overrides if word.startswith("experiment="))]
    require(len(recipes) < 2, f"{' and '.join(recipes)}: a run has one recipe, so leave out the others")
    for word in overrides:
        group, _, choice = word.lstrip("+").partition("=")
        is_group = bool(group) and "." not in group and (config_directory() / group).is_dir()
        wrong = re.match(r"\[|-?[\d.]+(e-?\d+)?$|(null|true|false)$" + ("" if group in config_keys else r"|\{"), choice)
        require(not (is_group and wrong), f"{word}: {ONE_CHOICE}")


def _refuse_added(config: DictConfig) -> None:
    """Raises UserError for a key that `+key=value` has added and no dataclass has."""
    config_keys = paths(TrainConfig())
    for key in _added(config):
        raise UserError(f"unknown config key {key}{hint(key, config_keys)}")


def _added(config: DictConfig, prefix: str = "") -> Iterator[str]:
    schema = OmegaConf.get_type(config)
    names = {field.name for field in fields(schema)} if is_dataclass(schema) else set(config)
    for name in config:
        if name not in names:
            # A key of another framework is known by the whole of its name.
            within = (leaf for leaf, _ in leaves(OmegaConf.to_container(config, resolve=False)))
            inner = [leaf for leaf in within if leaf.startswith(f"{name}.")]
            yield f"{prefix}{inner[0] if inner else name}"
        elif OmegaConf.is_dict(config._get_node(name)) and is_dataclass(schema):
            yield from _added(config._get_node(name), f"{prefix}{name}.")


def compose_suite(config: TrainConfig) -> list[TaskConfig]:
    """Returns the tasks of `evaluation.suite`, with no problems held out.

    A task's problems come from its file in `evaluation.suite_folder`, where that folder has one. Its prompts are put
    to the model as those of the run are, with or without a chat template and with the same options of the template.
    A file of the user's own is a task where its name ends in .yaml. Any other name with a dot is a file of problems,
    which are read and asked as the run's own task is. Where something is asked in episodes, each task consists of sets,
    since a problem's set tells its episode.
    """
    tasks, folder = [], config.evaluation.suite_folder
    require(not folder or Path(folder).is_dir(), f"evaluation.suite_folder={folder}: there is no such folder")
    prompts = [of_set.prompt for of_set in config.task.all_sets.values()]
    shared_keys = [
        key for key in ("chat", "chat_template_kwargs") if all(vars(p)[key] == vars(prompts[0])[key] for p in prompts)
    ]
    for name in config.evaluation.suite:
        own = Path(name) if name.endswith(".yaml") else None
        if "." in name and not own:
            tasks.append(_task_of_file(config.task, name))
            continue
        try:
            task = compose_config([f"task={name}"] if not own else _words_of_task(own)).task
        except UserError as error:
            raise UserError(f"evaluation.suite: {error}") from error
        local = Path(folder) / f"{name}.jsonl"
        if folder and local.is_file():
            task.data = DataConfig(path=str(local))
        require(
            bool(task.data.path or task.sets) or task.data.source == "arithmetic",
            f"evaluation.suite: {name} has no problems of its own: name a set that has, such as math500",
        )
        task.data.held_out_fraction = 0.0
        task.prompt = replace(task.prompt, **{key: getattr(prompts[0], key) for key in shared_keys})
        tasks.append(task)
    files = [Path(folder) / f"{name}.jsonl" for name in config.evaluation.suite if "." not in name]
    require(
        not folder or not files or any(file.is_file() for file in files),
        f"evaluation.suite_folder={folder} has no file of evaluation.suite, such as {min(files, default=folder)}: put "
        "it there, or leave the folder out, and the hub is asked",
    )
    names = [task.name for task in tasks]
    require(
        len({*names}) == len(names), f"evaluation.suite has two sets of one name ({', '.join(names)}): rename a file"
    )
    if any(of_set.episode for task in (config.task, *tasks) for of_set in task.all_sets.values()):
        tasks = [task if task.sets else TaskConfig(name=task.name, sets={task.name: task}) for task in tasks]
        sets = [*config.task.sets, *chain.from_iterable(task.sets for task in tasks)]
        require(
            len({*sets}) == len(sets),
            f"evaluation.suite and task.sets have two sets of one name ({', '.join(sets)}): rename one",
        )
    return tasks


def _words_of_task(file: Path) -> list[str]:
    """Returns the words that choose a task in a file of the user's own."""
    require(file.is_file() and file.parent.name == "task", f"there is no file {file} in a folder that is named task")
    return [f"--config-dir={file.parent.parent}", f"task={file.stem}"]


def _task_of_file(own: TaskConfig, path: str) -> TaskConfig:
    """Returns the task of all problems in a file that is written as the data of the run's own task are."""
    require(Path(path).is_file(), f"evaluation.suite: there is no file {path}")
    require(
        not own.sets,
        f"evaluation.suite: {path} would be read as the run's own problems are, and they come from several sets: give "
        "the file a task of its own, and write evaluation.suite=[DIR/task/NAME.yaml]",
    )
    data = replace(
        own.data, source="file", path=path, limit=0, held_out_fraction=0.0, selection=SelectionConfig(), split="train"
    )
    return replace(own, name=Path(path).stem, data=data, curriculum=CurriculumConfig())


def compose_sweep(preset: str, overrides: list[str]) -> SweepConfig:
    """Returns the sweep of a preset, changed by `key=value` words.

    A preset is a file of `configs/sweep`, given by name, or a user's own file, given by path.
    """
    preset_path = Path(preset)
    path = preset_path if preset_path.suffix in (".yaml", ".yml") else config_directory() / "sweep" / f"{preset}.yaml"
    if not path.is_file():
        presets = ", ".join(sorted(file.stem for file in (config_directory() / "sweep").glob("*.yaml")))
        raise UserError(f"there is no sweep {preset!r}: choose one of {presets}, or give a file that ends in .yaml")
    schema = OmegaConf.structured(SweepConfig)
    try:
        words = plain_yaml.from_words(reworded(overrides, SweepConfig))
        OmegaConf.merge(schema, words)
    except OmegaConfBaseException as error:
        raise UserError(one_line(error)) from error
    try:
        file_config = plain_yaml.load(path)
        require(OmegaConf.is_dict(file_config), f"{path.name}: a sweep has keys and values, such as seeds: 5")
        return OmegaConf.to_object(OmegaConf.merge(schema, file_config, words))
    except OmegaConfBaseException as error:
        raise UserError(f"{path.name}: {one_line(error)}") from error


def to_config(composed: DictConfig) -> TrainConfig:
    """Returns a composed config as plain dataclasses. Raises UserError for a `${…}` in it that leads nowhere."""
    try:
        return OmegaConf.to_object(composed)
    except (OmegaConfBaseException, HydraException, ValueError) as error:
        raise UserError(one_line(error)) from error
