"""This module implements `grpo completion`, which completes commands, groups and keys in a shell."""

from collections.abc import Sequence

from grpo.config import UserError
from grpo.config.hydra import config_directory
from grpo.config.tab_completion import SCRIPTS, candidates

USAGE = """usage: eval "$(grpo completion bash)"  in ~/.bashrc
       eval "$(grpo completion zsh)"   in ~/.zshrc, after compinit
       grpo completion fish | source   in ~/.config/fish/config.fish

Lets the Tab key complete commands, groups such as objective=, their choices, and keys."""


def run(words: Sequence[str], commands: Sequence[str] = (), analyses: Sequence[str] = ()) -> int:
    """Prints a shell's script, or the words that complete a line: one of `commands`, after "dynamics" one of
    `analyses`, a group or a key. Returns the exit code."""
    if len(words) == 2 and words[0] == "words":
        print("\n".join(candidates(words[1], commands, config_directory(), analyses)))
        return 0
    if len(words) != 1 or words[0] not in SCRIPTS:
        raise UserError(f"grpo completion prints the script of one shell: choose one of {', '.join(SCRIPTS)}")
    print(SCRIPTS[words[0]])
    return 0
