"""These tests check the words that the Tab key completes."""

import subprocess
import sys

import pytest

from grpo.cli import ANALYSES, COMMANDS, main
from grpo.config.hydra import config_directory
from grpo.config.tab_completion import SCRIPTS, candidates


def completed(line):
    return candidates(line, COMMANDS, config_directory(), ANALYSES)


def test_commands_groups_choices_and_keys_are_completed():
    assert completed("grpo tr") == ["train "]
    assert completed("grpo train hardware=t") == ["hardware=two_nodes "]
    assert "pipeline=continuous " in completed("grpo train seed=1 pipeline=")
    assert completed("grpo train learner.zero") == ["learner.zero_stage="]
    assert "task.reward." in completed("grpo train task.") and "task=" not in completed("grpo train task.")
    assert completed("grpo train learner.zero_stage=") == [f"learner.zero_stage={stage} " for stage in range(4)]
    assert completed("grpo train nonsense") == []
    assert completed("grpo dynamics d") == ["diagnose "] and completed("grpo dynamics diagnose d") == []
    assert completed("grpo samples le") == [] and "learner." in completed("grpo config le")


def test_bash_completes_a_line(tmp_path):
    script = f"""grpo() {{ {sys.executable} -m grpo.cli "$@"; }}
{SCRIPTS["bash"]}
COMP_LINE="grpo train learner.precision=b"; COMP_POINT=${{#COMP_LINE}}; _grpo; echo "[${{COMPREPLY[*]}}]"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("[bfloat16 ]", "[bfloat16]")


def test_another_shell_is_refused_by_those_there_are(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "choose one of bash, zsh, fish" in capsys.readouterr().err
    assert main(["completion"]) == 2


@pytest.mark.parametrize("value", ["[file:///no/such/folder]", "[/no/such/folder]", "file:///no/such/folder"])
def test_a_search_path_that_does_not_exist_is_refused(value, capsys):
    assert main(["train", f"hydra.searchpath={value}"]) == 2
    assert "hydra.searchpath: there is no folder /no/such/folder" in capsys.readouterr().err
