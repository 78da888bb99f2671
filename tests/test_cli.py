import pytest

from grpo.cli import WRONG_USE, main


def test_without_a_command_the_usage_is_printed(capsys):
    assert main([]) == 0
    assert "grpo COMMAND" in capsys.readouterr().out


def test_an_unknown_command_names_those_there_are(capsys):
    assert main(["trian"]) == WRONG_USE
    assert "unknown command 'trian'; there are: train, eval, doctor" in capsys.readouterr().err


def test_a_wrong_key_is_one_line_before_anything_heavy_is_imported(capsys):
    assert main(["train", "leaner.zero_stage=1"]) == WRONG_USE
    error = capsys.readouterr().err
    assert error == "grpo: unknown config key leaner.zero_stage; did you mean learner.zero_stage?\n"


def test_help_lists_groups_and_keys(capsys):
    assert main(["train", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "normalization: dapo, dial, dr_grpo, grpo" in printed
    assert "refresh_interval: 1" in printed


@pytest.mark.parametrize("package", ["torch", "deepspeed", "antlr4 runtime", "vLLM", "GPUs", "memory"])
def test_the_doctor_looks_at_everything_that_a_run_needs(capsys, package):
    main(["doctor"])
    assert package in capsys.readouterr().out
