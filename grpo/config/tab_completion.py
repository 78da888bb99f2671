"""This module completes words on the command line, as `grpo completion` installs it in a shell."""

from collections.abc import Sequence
from pathlib import Path

from grpo.config.leaves import leaves
from grpo.config.ranges import CHOICES, as_typed
from grpo.config.run import TrainConfig

SCRIPTS = {
    "bash": """_grpo() {
    local line="${COMP_LINE:0:COMP_POINT}" word
    local typed="${line##* }"
    COMPREPLY=()
    # Bash takes what stands after a = as a word of its own.
    while read -r word; do
        if [[ $typed == *=* ]]; then word="${word#"${typed%"${typed##*=}"}"}"; fi
        COMPREPLY+=("$word")
    done < <(grpo completion words "$line" 2>/dev/null)
}
complete -o nospace -o default -F _grpo grpo""",
    "zsh": """_grpo() {
    compadd -Q -S '' -- ${(f)"$(grpo completion words "${(j: :)words[1,CURRENT]}" 2>/dev/null)"}
}
compdef _grpo grpo""",
    "fish": "complete -c grpo -f -a '(grpo completion words (commandline -cp) 2>/dev/null)'",
}
"""Each shell asks `grpo completion words LINE` for the words that may stand where the cursor is."""

KEYLESS = ("report", "samples", "export", "audit", "dynamics", "completion", "doctor")
"""These commands take files or words of their own instead of keys, so the shell completes file names."""


def candidates(line: str, commands: Sequence[str], directory: Path, analyses: Sequence[str] = ()) -> list[str]:
    """Returns the words that may stand at the end of a line that begins with "grpo ".

    `directory` holds the YAML groups, and `analyses` may follow "grpo dynamics". A word that ends in "=" or "." can be
    completed further.

    >>> candidates("grpo tra", ["train", "eval"], Path("configs"))
    ['train ']
    >>> candidates("grpo train task.limits.failed=", ["train"], Path("configs"))
    ['task.limits.failed=spoil ', 'task.limits.failed=truncate ']
    """
    words = line.split(" ")
    last_word = words[-1]
    if len(words) < 3:
        return sorted(f"{command} " for command in commands if command.startswith(last_word))
    if words[1] == "dynamics" and len(words) == 3:
        return sorted(f"{analysis} " for analysis in analyses if analysis.startswith(last_word))
    if words[1] in KEYLESS:
        return []
    key, equals, _ = last_word.partition("=")
    words_known = _values(key, directory) if equals else _keys(key, directory)
    return sorted(word for word in words_known if word.startswith(last_word))


def _values(key: str, directory: Path) -> list[str]:
    """Returns `key=value` for every value that a group or a key may have."""
    if (directory / key).is_dir():
        return [f"{key}={file.stem} " for file in (directory / key).glob("*.yaml")]
    return [f"{key}={as_typed([value])} " for value in CHOICES.get(key, ())]


def _keys(typed: str, directory: Path) -> set[str]:
    """Returns all groups, and all keys, each cut after the number of dotted parts that `typed` has."""
    groups = {f"{path.name}=" for path in directory.iterdir() if any(path.glob("*.yaml")) and path.name != "sweep"}
    depth = typed.count(".")
    keys = set()
    for key, _ in leaves(TrainConfig()):
        parts = key.split(".")
        is_complete = len(parts) == depth + 1
        if len(parts) > depth:
            keys.add(f"{key}=" if is_complete else ".".join(parts[: depth + 1]) + ".")
    return groups | keys
