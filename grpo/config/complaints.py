"""This module turns errors of Hydra and OmegaConf into one plain line: which key is wrong, and what it takes."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from hydra.errors import OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from grpo.config.credentials import without_credentials
from grpo.config.directory import config_directory
from grpo.config.errors import require
from grpo.config.hints import LIKE, hint
from grpo.config.leaves import entries
from grpo.config.rewording import free_key, kind_of
from grpo.config.run import TrainConfig

SECTION = "keys and values, {KEY: VALUE}"
LIST = "a list, [a,b]"
# Names follow + or ~ in a word, joined by dots in a key, by slashes in a group, by @ before a place.
_KEY = re.compile(r"~?[A-Za-z_][\w-]*([./@][\w-]+)*", re.ASCII)
# A value in quotes or brackets, and what follows its end.
_ENDED = re.compile(r"""("[^"]*"|'[^']*'|\[[^][]*\]|\{[^{}]*\})(.+)""", re.DOTALL)
_PLAIN = {int: "a whole number", float: "a number", bool: "true or false"}
ONE_CHOICE = "a group takes the name of one of its choices, such as task=file"
# Pattern in OmegaConf's message about a value that does not fit → what the key takes.
WANTED = {
    r"converted to Integer|subclass of int": "a whole number",
    r"converted to Float|subclass of float": "a number",
    r"not a valid bool|subclass of bool": "true or false",
    r"to string: |subclass of str|is incompatible with type hint 'str'": "text",
    r"Union\[bool, str\]": "true, false or auto",
    r"ListConfig, list or tuple|ListConfig(?s:.*)reference_type=List|type hint 'typing.List": LIST,
    r"subclass of \w+Config|Cannot assign \w+ to Dict|merge DictConfig with ListConfig": SECTION,
}
# Pattern in OmegaConf's message about a `${…}` → what is wrong with it. {0} is the pattern's group in parentheses.
UNRESOLVED = {
    r"Interpolation key '(.*?)' not found": "there is no key {0}",
    r"Error resolving key '(.*?)'": "there is no key {0}",
    r"Environment variable '(.*?)' not found": "the environment variable {0} is not set",
    r"Unsupported interpolation type (\w+)": "${{{0}:…}} is unknown",
    r"Recursive interpolation": "its ${{…}} leads back to itself",
    r" start\(\) takes": "${{start:}} takes nothing after its colon; ${{now:%Y}} formats the time",
    r"UserError raised while resolving interpolation: ([^\n]*)": "{0}",
    r"HydraConfig was not set": "${{hydra:…}} is not known here",
    r"missing mandatory value": "??? stands for a value that has to be given",
}
# Pattern in Hydra's message about a whole word, or about a file's list of defaults → what is wrong with it.
GROUPS = {
    r"Multiple values for task@task\.sets\.(\w+)": "two sets have the name {0}: give each a name of its own",
    r"To append to your default list use (\+task@task\.sets\.\S+)": "a set is added by a + before it: write {0}",
    r"Multiple values for ([\w/]+)|([\w/]+) appears more than once": (
        "{0} is chosen twice: leave out the + before it; in a file's list of defaults write `override /{0}: …`"
    ),
    r"force-add of config groups is not supported: '\++(.*?)'": "a group takes no ++ before it: write {0}",
    r"An item is already at '(.*?)'": "{0} is there already: leave out the + before it",
    r"Config group override must be a string|argument of type '\w+' is not iterable": ONE_CHOICE,
    r"invalid literal for int\(\) with base 10: '(.*?)'": (
        "{0} stands where a list has the places 0, 1, …: give the list as a whole, KEY=[a,b]"
    ),
    r"Expected header format: KEY VALUE, got '(.*?)'": (
        "a file's first line says {0} without a place: write `# @package _global_`, or leave the line out"
    ),
    r"Cannot find primary config '(.*?)'": (
        "there is no {0}.yaml in the folder that --config-dir names: correct one of both, or give the file as {0}.yaml"
    ),
}


def one_line(error: Exception) -> str:
    """Returns in one line what an exception of Hydra or OmegaConf means, with the nearest key for an unknown one.

    Keys and passwords in a word that is repeated are left out.
    """
    return without_credentials(_meaning(error))


def _meaning(error: Exception) -> str:
    if isinstance(error, OverrideParseException):
        word = re.sub(r"^\+{1,2}", "", error.override)
        return f"cannot read {word!r}: {_readable(word)}"
    text = str(error)
    for pattern, meaning in GROUPS.items():
        if match := re.search(pattern, text):
            return meaning.format(*filter(None, match.groups()))
    if several := re.match(r"(?:Ambiguous value for argument|Sweep parameters) '\+*(([^=]*).*)'", text):
        key, config_keys = several[2], paths(TrainConfig())
        if key not in config_keys and not free_key(key) and not (config_directory() / key).is_dir():
            return f"unknown config key {key}{hint(key, config_keys)}"
        return _several(several[1], key)
    cause = f"{text}: {error.__cause__}" if error.__cause__ else text
    if complaint := _unknown_choice(text) or _unknown_key(cause):
        return complaint
    if merged := re.match(r"Error merging override \+*(([^=]*).*)", text):
        no_set = merged[2].startswith("task.sets.") and "TaskConfig" in cause
        return _no_set(merged[2]) if no_set else f"{merged[1]}: {misfit(str(error.__cause__), merged[2])}"
    if in_file := re.match(r"In '([^']+)': \w+ raised while composing config:", text):
        return f"{in_file[1]}.yaml: {misfit(text.partition(':')[2])}"
    if isinstance(error, OmegaConfBaseException):
        return misfit(text)
    text = text.split("Config search path")[0].split("See https")[0]
    return " ".join(text.split())


def unknown_keys(words: Sequence[str], least: int = 2) -> str:
    """Returns what the unknown keys of a command are here, one a line, or "" where there are fewer than `least`."""
    config_keys, lines = paths(TrainConfig()), []
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        # A key within one that holds a value is a wrong value of that one.
        names = key.split(".")
        known = (
            key in config_keys
            or free_key(key)
            or any(kind_of(".".join(names[:end])) for end in range(1, len(names) + 1))
            or any(one.startswith(f"{key}.") for one in config_keys)
        )
        if not (known or key.startswith("~") or "@" in key or (config_directory() / key).is_dir()):
            lines.append(f"  {key}{hint(key, config_keys, value)}")
    if len(lines) == 1:
        lines = [f"unknown config key {lines[0].strip()}"] if least == 1 else []
    return without_credentials("\n".join(["unknown config keys:", *lines] if len(lines) > 1 else lines))


def _several(word: str, key: str) -> str:
    """Returns what is wrong with a word whose value has a comma."""
    values = word.partition("=")[2].split(",")
    if (config_directory() / key).is_dir():
        both = "; grpo sweep runs several"
        if key == "tracking":
            both = ": tracking=wandb tracking.tensorboard=true has both"
        return f"{word!r} names several choices of {key}, and a run has one{both}"
    grouped = values[0].strip("-0") and all(re.fullmatch(r"\d{3}", value) for value in values[1:])
    if kind_of(key) in (int, float) and grouped:
        return f"{word!r} gives several values: a number has no commas, {key}={''.join(values)}"
    if kind_of(key) is float and re.fullmatch(r"-?\d+,\d+", ",".join(values)):
        return f"{word!r} gives several values: a decimal number has a point, {key}={'.'.join(values)}"
    return f"{word!r} gives several values: put one text in quotes, a list in brackets; grpo sweep runs several"


def misfit(text: str, word: str = "") -> str:
    """Returns what is wrong with a value, by OmegaConf's message.

    `word` is the key of an override that begins the caller's line. The message then calls that key "it".
    """
    full_key = next(iter(re.findall(r"full_key: ?(.*)", text)), "").strip()
    inner_key = full_key.removeprefix(word).lstrip(".")
    inner_subject = inner_key if re.match("[a-z]", inner_key) else "each entry"
    subject = (inner_subject if inner_key else "it") if word else full_key
    for pattern, meaning in UNRESOLVED.items():
        if match := re.search(pattern, text):
            return f"{full_key}: {meaning.format(*match.groups())}"
    if unknown := re.search(r"Key '([^']+)' not in ", text):
        owner = word or full_key.rpartition(".")[0]
        return f"{owner} has no key {_with_others(unknown[1], text)}" if owner else f"there is no key {unknown[1]}"
    if re.search(r"is not Optional|Incompatible value 'None'|NoneType is not", text):
        return f"{subject} takes no null; leave it out for its default"
    what_it_takes = next((words for pattern, words in WANTED.items() if re.search(pattern, text)), "")
    if re.search(r"Key '' not in", text):
        return "a key has no name: write KEY: VALUE"
    if "'DictConfig' is incompatible with type hint '<class 'str'>'" in text:
        return f"{full_key}: each entry is a text such as KEY=VALUE, and one is written with a colon"
    if number := re.search(r"Key (\S+) \(\w+\) is incompatible with \(str\)", text):
        return f"{full_key}: a name is a text: put {number[1]} in quotes"
    if not what_it_takes:
        return f"{full_key}: {text.splitlines()[0]}"
    if not subject:
        # OmegaConf does not name a section of a file, but its class.
        subject = next(iter(re.findall(r"subclass of (\w+)", text)), "")
        subject = next((name for name, kind in sections().items() if kind == subject), subject)
    if "object_type=SweepConfig" in text and "ListConfig" in text and "seeds" in f"{word}{full_key}":
        return "seeds takes a whole number: how many seeds each variant is run with"
    if "object_type=SweepConfig" in text and "ListConfig" in text:
        return "variants takes names with lists of words, {NAME: [KEY=VALUE]}, not a list"
    if not subject:
        return (
            f"a list or text stands where {SECTION} belong, or these where a list does, such as "
            "task.reward.parts: [{name: math}]; `grpo config KEY` says which"
        )
    value_match = re.search(r"Value '(.*?)' of type|Value '(.*?)' is|value: (.*)|Value (\S+) \(\w+\) is", text)
    value = next(filter(None, value_match.groups()), "") if value_match else ""
    looked_up = re.search(r"interpolation '(\$.*?)'", text)
    if looked_up:
        return f"{full_key}: {looked_up[1]} is {value:.40}, and {full_key} takes {what_it_takes}"
    if full_key.endswith("server") and what_it_takes == SECTION:
        return f'server takes keys and values, such as {{url: "{value or "http://HOST:8000/v1"}"}}'
    if (word or subject).endswith("reward.parts") and what_it_takes in (LIST, SECTION):
        return f"{'it' if word else subject} takes a list of parts, [{{name: {value.strip('[]') or 'math'}}}]"
    is_section = what_it_takes == SECTION and not free_key(word or subject)
    section = (word or subject).partition("[")[0]
    where_listed = f"; `grpo config {section}` lists them" if is_section else ""
    if is_section and value and (config_directory() / section).is_dir():
        where_listed += f", and a choice of its group stands in the list of defaults, as `override {section}: {value}`"
    if what_it_takes == "text" and re.search("ListConfig|'list'", text):
        return f"{subject} takes one text, not a list; `grpo config {word or subject}` says how to write it"
    if value.lower() == "none":
        where_listed += "; leave it out for its default, or write null where a key may have none"
    return f"{subject} takes {what_it_takes}" + (f", not {value}" if value and subject != "it" else "") + where_listed


def _unknown_choice(text: str) -> str:
    """Returns which choice of a group does not exist, with the choices that do, or "" for an error of another kind."""
    match = re.search(r"(?:In '([^']+)': )?Could not (?:find|load) '([^']+)'", text)
    if not match:
        return ""
    group, slash, choice = match[2].rpartition("/") if match[2].startswith("hydra/") else match[2].partition("/")
    file = f"{match[1]}.yaml: " if match[1] not in (None, "train", "hydra/config") else ""
    if match[1] and match[1].startswith("experiment/") and choice.partition("/")[0] in sections():
        return f"{file}in its list of defaults, write `override /{choice.replace('/', ': ')}`"
    options = re.findall(r"^\t(\w+)$", text, re.MULTILINE)
    elsewhere = [folder.parent.name for folder in sorted(config_directory().glob(f"*/{choice}.yaml"))]
    other = f", but {elsewhere[0]}={choice}" if elsewhere else ""
    choices_hint = f"{other}: choose one of {', '.join(options)}" if options else other
    if choice.endswith(".yaml"):
        choices_hint = f": one of your own is DIR/{group}/NAME.yaml, and chosen by --config-dir DIR {group}=NAME"
    elif group == "task" and "." in choice:
        choices_hint = f": problems of a file are given as task=file task.data.path={choice}"
    elif group == "model" and "/" in choice:
        choices_hint = f": a model of the hub or of a folder is given as model=huggingface model.path={choice}"
    if not slash:
        return f"{file}there is no {group.removesuffix('.yaml')}.yaml beside it"
    return f"{file}there is no {group}={choice}{choices_hint}"


def _unknown_key(text: str) -> str:
    """Returns which key is unknown, and the key that may be meant, or "" for an error of another kind."""
    config_keys = paths(TrainConfig())
    if in_file := re.search(r"In '([^']+)': ConfigKeyError", text):
        full_key = next(iter(re.findall(r"full_key: (.+)", text)), "")
        key = full_key or next(iter(re.findall(r"Key '([^']+)' not in", text)), "")
        if key == "experiment" and in_file[1].startswith("experiment/"):
            return f"{in_file[1]}.yaml changes keys of the whole configuration: begin it with `# @package _global_`"
        if key == "experiment":
            return f"{in_file[1]}.yaml: a recipe stands in the list of defaults, as `override experiment: NAME`"
        owner = re.search(r"not in '(\w+)'", text)
        if owner and owner[1] not in ("TrainConfig", *sections().values()):
            return f"{in_file[1]}.yaml: an entry of a list has no key {_with_others(key, text)}"
        return f"{in_file[1]}.yaml: unknown config key {key}{hint(key, config_keys)}" if key else ""
    unknown = re.search(r"Could not override '([^']+)'|Could not delete from config\. '([^']+)'", text)
    if not unknown:
        return ""
    key = unknown[1] or unknown[2]
    if re.match(r"\w+@experiment\b", key):
        return "a recipe changes keys of the whole configuration: begin its file with `# @package _global_`"
    if relative := re.match(r"experiment/(\w+)@", key):
        return f"a recipe's list of defaults names a group after a slash: `override /{relative[1]}: …`"
    if key.startswith("task.sets"):
        return _no_set(key)
    if unknown[2] and free_key(key):
        return f"{free_key(key)} has no entry {key.removeprefix(free_key(key)).lstrip('.')} to remove"
    if key not in config_keys:
        # Hydra ends with "To append to your config use +KEY=VALUE".
        value = re.search(r"use \+[\w.]+=([^\s:]*)", text)
        return f"unknown config key {key}{hint(key, config_keys, value[1] if value else '')}"
    inside = re.search(r"Key '([^']+)' not in '", text)
    return f"{key} has no key {_with_others(inside[1], text)}" if inside else ""


def _no_set(key: str) -> str:
    return (
        f"there is no {key}: a set is added by +task@task.sets.NAME=TASK, and has the keys of a task, such as "
        "task.sets.NAME.data.path"
    )


def _with_others(name: str, text: str) -> str:
    """Returns an unknown name with the one that may be meant, or with those that its dataclass in `text` has."""
    owner = re.search(r"not in '(\w+)'", text)
    names = _fields_of(owner[1]) if owner else []
    near = difflib.get_close_matches(name, names, n=1)
    return name + (f"; did you mean {near[0]}?" if near else f"; it has {', '.join(names)}" if names else "")


def _fields_of(class_name: str) -> list[str]:
    """Returns the names of the fields of one of the configuration's dataclasses."""
    return next(([field.name for field in fields(kind)] for kind in _classes() if kind.__name__ == class_name), [])


def _classes(hint: Any = TrainConfig) -> Iterator[type]:
    """Yields the dataclasses that a type is made of."""
    if is_dataclass(hint):
        yield hint
        inner = [inner for inner in get_type_hints(hint).values() if hint not in get_args(inner)]
    else:
        inner = get_args(hint)
    for part in inner:
        yield from _classes(part)


def _readable(word: str) -> str:
    """Returns how to write a word that Hydra's grammar cannot parse."""
    key, _, value = word.partition("=")
    if dotted := next((known for known in paths(TrainConfig()) if known == key.replace("/", ".")), ""):
        if dotted != key:
            return f"the names of a key are joined by dots, {dotted}"
    elif not _KEY.fullmatch(key):
        return f"{key!r} is no key: a key is written KEY=VALUE, such as dynamics.group_size=8"
    if (second := re.search(r"[\s,;&]([\w.]+)=", value)) and second[1] in ("experiment", *paths(TrainConfig())):
        first = word[: len(key) + 1 + second.start()]
        return f"it holds two words: write each as one, {first!r} and {word[len(first) + 1 :].strip()!r}"
    kind = kind_of(key)
    empty = re.search(r"([\w.]+):\s*(?=[,}\]])", value) if value.startswith(("[", "{")) else None
    if empty and kind is not str:
        return f"{empty[1]} has no value: write one after its colon, or '' for an empty text"
    if (unclosed := _unclosed(value)) and kind is not str:
        return f"it lacks {unclosed} at its end"
    if re.fullmatch(r"\([^()]*\)", value) and kind is list:
        return f"a list is written in brackets, {f'{key}=[{value[1:-1]}]'!r}"
    if "${}" in value or value.count("${") > value.count("}"):
        return "${ begins the name of a key, which } ends, such as ${seed}"
    if kind in _PLAIN:
        searched = "; grpo sweep takes a range too, interval(a,b)" if re.match(r"\w+\(", value) else ""
        return f"{key} takes {_PLAIN[kind]}{searched}"
    if re.fullmatch(r"[\w./-]+,", value):
        return f"leave out the comma at its end, {f'{key}={value[:-1]}'!r}"
    if kind is not str and (fault := _fault_in_brackets(value)):
        return fault
    ended = _ENDED.fullmatch(value)
    if ended and (kind is not str or value[0] in "\"'"):
        return f"leave out {ended[2]!r}, which follows the end of its value, {ended[1]}"
    if value.count('"') + value.count("'") == 1 and {value[0], value[-1]} & {'"', "'"}:
        return "its quotation mark has no second one: close it, or leave it out"
    if kind is list and (entry := re.fullmatch(r"""\[?([^][{}'",]+)\]?""", value)):
        return f"put a text with special characters in quotes, '{key}=[\"{entry[1]}\"]'"
    if value.startswith(("[", "{")) and kind is not str:
        return "put a value with special characters in quotes, 'key=[\"a=b\"]'"
    return f"put a value with special characters in quotes, {_quoted(key, value)}"


def _unclosed(value: str) -> str:
    """Returns the brackets that are to be added at the end of a text, where it has no quotes and none is wrong.

    >>> _unclosed("[{a: 1}, {b: [2"), _unclosed("[a]]"), _unclosed("['['"), _unclosed("[a,b]")
    (']}]', '', '', '')
    """
    expected = ""
    for letter in "" if {*"\"'"} & {*value} else value:
        if letter in "[{":
            expected = "]}"["[{".index(letter)] + expected
        elif letter in "]}" and expected[:1] != letter:
            return ""
        elif letter in "]}":
            expected = expected[1:]
    return expected


def _fault_in_brackets(value: str) -> str:
    """Returns what is wrong with a list or with keys and values that are written as in JSON, Python or a file."""
    if value.startswith(("[", "{")):
        if name := re.search(r"""[{,]\s*(["'])([\w.]+)\1\s*:""", value):
            return f"a name before a colon stands without quotes, {{{name[2]}: VALUE}}"
        if "{" in value and (name := re.search(r"[{,]\s*([\w.]+)=", value)):
            return f"a colon and a blank follow a name within braces, {{{name[1]}: VALUE}}"
        if name := re.search(r"\{\s*([\w.]+)\s+[^][{}:,]+[,}]", value):
            return f"a colon and a blank follow a name within braces, {{{name[1]}: VALUE}}"
        if ";" in value:
            return "commas separate the entries of a list, [a,b]"
    return ""


def _quoted(key: str, value: str) -> str:
    """Returns a word with its value in quotes, for a shell and for Hydra."""
    if "'" in value:
        return f'"{key}=\\"{value}\\""' if '"' not in value else "key='\"a=b\"'"
    return f"'{key}=\"{value.replace(chr(34), chr(92) + chr(34))}\"'"


def refuse_misspelt(words: Iterable[str], own: Sequence[str]) -> None:
    """Raises UserError for a word that is no key of a run, and nearly one of a command's own."""
    for name in (word.partition("=")[0] for word in words):
        near = difflib.get_close_matches(name, own, n=1, cutoff=LIKE)
        known = name in paths(TrainConfig()) or (config_directory() / name).is_dir()
        require(known or not near, f"unknown key {name}; did you mean {near[0] if near else ''}?")


def paths(config: object) -> list[str]:
    """Returns every dotted key of a configuration, sections included."""
    return [key for key, _ in entries(config)]


def sections() -> dict[str, str]:
    """Returns the name of the class of each section of the configuration, by the section's key."""
    return {key: type(value).__name__ for key, value in entries(TrainConfig()) if is_dataclass(value)}
