import os
import re
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

import grpo
from benchmarks.runs import SMALL
from benchmarks.small_models import config_of
from grpo.cli import ANALYSES, WRONG_USE, main
from grpo.commands.dynamics import COMMANDS as DYNAMICS
from grpo.config import UserError
from grpo.config.hydra import compose_config
from grpo.host.signals import EXIT_UNREAD
from grpo.run.early_checks import check
from tests.tasks.conftest import byte_tokenizer


def test_without_a_command_the_usage_is_printed(capsys):
    assert main([]) == 0
    assert "grpo COMMAND" in capsys.readouterr().out


def test_an_unknown_command_names_those_there_are(capsys):
    assert main(["trian"]) == WRONG_USE
    assert (
        "unknown command 'trian'; did you mean train? there are: train, serve, eval, solve-rates, check-reward, launch"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "rates.jsonl"], "did you mean grpo dynamics plan? "),
        (["grpo", "train"], "leave out the second grpo; "),
    ],
)
def test_a_command_in_another_place_leads_to_what_is_meant(words, said, capsys):
    assert main(words) == WRONG_USE
    assert said in capsys.readouterr().err


def test_every_analysis_is_known_to_the_first_word():
    assert set(ANALYSES) == set(DYNAMICS)


def test_help_of_what_is_no_command_says_so(capsys):
    assert main(["help", "nothing"]) == WRONG_USE
    assert "unknown command 'nothing'; there are: train" in capsys.readouterr().err
    for word, meant in (("tiny", "experiment=tiny"), ("resume", "checkpoint.resume=true output_dir=RUN")):
        assert main([word]) == WRONG_USE and f"did you mean grpo train {meant}? there" in capsys.readouterr().err


def test_a_wrong_key_is_one_line_before_anything_heavy_is_imported(capsys):
    assert main(["train", "leaner.zero_stage=1"]) == WRONG_USE
    error = capsys.readouterr().err
    assert error == "grpo: unknown config key leaner.zero_stage; did you mean learner.zero_stage?\n"


def test_ctrl_c_before_a_run_has_begun_is_one_line(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("grpo.cli._run", interrupted)
    assert main(["train", "experiment=tiny"]) == 130
    assert capsys.readouterr().err == "grpo train: interrupted\n"


def test_output_that_nobody_reads_ends_a_command_without_a_word():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "grpo.cli", "help"]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (EXIT_UNREAD, "")


def test_an_evaluation_of_nothing_is_refused_and_solve_rates_take_any_number_of_samples(capsys):
    assert main(["eval", "experiment=tiny", "evaluation.num_problems=0"]) == 2
    assert "evaluation.num_problems=0 asks nothing" in capsys.readouterr().err
    config = compose_config(["experiment=tiny", "evaluation.samples_per_problem=1"])
    check("solve-rates", config)
    with pytest.raises(UserError, match="evaluation.pass_at"):
        check("eval", config)


def test_several_runs_at_once_are_refused_with_what_to_do_instead(capsys):
    assert main(["train", "--multirun", "seed=0,1"]) == 2
    assert "one run at a time; grpo sweep" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        *([command, "--help"] for command in ("train", "eval", "solve-rates", "serve", "launch")),
        *(["train", "-h"], ["help", "train"]),
    ],
)
def test_help_lists_groups_and_keys_with_a_sentence_each(words, capsys):
    assert main(words) == 0
    printed = capsys.readouterr().out
    command = "train" if words[0] == "help" else words[0]
    assert printed.startswith(f"usage: grpo {command} [GROUP=CHOICE ...] [KEY=VALUE ...]\nflags: --help, --cfg job")
    assert "normalization: dapo, dial, dr_grpo, gdpo, grpo, maxrl, pass_at_k, reinforce_plus_plus" in printed
    assert "groups:\n  dynamics: adaptive, fixed\n" in printed
    assert "  task.data.limit=0  Only this many first rows of a file or a hub's data set are read.\n" in printed
    assert "`grpo config WORD` searches them" in printed.splitlines()[-1]


def test_help_shows_the_values_that_would_run(capsys):
    main(["train", "experiment=tiny", "num_steps=7", "--help"])
    printed = capsys.readouterr().out
    assert "keys, with the values of this command (experiment=tiny num_steps=7):" in printed
    assert "  num_steps=7  The run has this many optimizer steps in all (TRL: max_steps).\n" in printed
    assert "  rollout.sampling.max_tokens=6  A completion" in printed


@pytest.mark.parametrize("words", [["samples", "x", "--help"], ["export", "x", "-h"], ["help", "sweep"]])
def test_help_is_given_wherever_it_is_asked_for(words, capsys):
    assert main(words) == 0
    assert capsys.readouterr().out.startswith(f"usage: grpo {words[0] if words[0] != 'help' else words[1]}")


@pytest.mark.parametrize("words", [["--version"], ["-V"], ["version"]])
def test_grpo_prints_its_version(words, capsys):
    assert main(words) == 0
    assert capsys.readouterr().out == f"grpo {grpo.__version__}\n"


def test_the_composed_configuration_is_printed_as_yaml(capsys):
    assert main(["train", "experiment=tiny", "--cfg", "job", "num_steps=7"]) == 0
    printed = capsys.readouterr().out
    assert "\nnum_steps: 7\n" in printed and printed.startswith("model:\n  source: tiny\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num_steps", "5"], "unknown flag --num_steps: there are --help, --cfg job, --config-dir DIR,"),
        (["experiment", "tiny"], "cannot read 'experiment': a key is written KEY=VALUE"),
        (["--cfg", "hydra"], "--cfg hydra is unknown"),
        (["-c", "mine.yaml"], "-c mine.yaml prints no configuration: `grpo train my.yaml` begins with a configuration"),
        (["--cfg"], "--cfg needs a value"),
        (["dry_run=true", "--config-dir"], "--config-dir needs a value"),
        (["--config-name="], "--config-name needs a value"),
        (["--config-dir", "nowhere"], "--config-dir: there is no folder"),
        (["mine.yaml"], "there is no file mine.yaml"),
        (["group_size=4"], "here it is dynamics.group_size"),
    ],
)
def test_a_word_that_cannot_be_read_is_one_line(words, message, capsys):
    assert main(["train", *words]) == WRONG_USE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "evaluation.suite=[math500]", "rollout.engine=foo"], "rollout.engine='foo' is unknown"),
        (["eval", "evaluation.suite=[nosuch]"], "evaluation.suite: there is no task=nosuch: choose one of"),
        (["train", "evaluation.suite=[math]"], "evaluation.suite: math has no problems of its own: name a set"),
        (["train", "evaluation.suite=[nosuch]"], "evaluation.suite: there is no task=nosuch: choose one of"),
        (["train", "task.reward.parts=[{name: math, wieght: 2}]"], "grpo: task.reward.parts has no key wieght; did"),
    ],
)
def test_a_suite_and_an_entry_of_a_list_are_checked_before_anything_is_called_valid(words, message, capsys):
    assert main(words) == WRONG_USE
    shown = capsys.readouterr().err
    assert message in shown and "valid" not in shown


@pytest.mark.parametrize("command", ["train", "eval", "solve-rates"])
@pytest.mark.parametrize(
    ("path", "message"), [("", "task.data.path is empty"), ("nowhere.csv", "there is no file 'nowhere.csv'")]
)
def test_wrong_settings_are_refused_before_anything_heavy_is_imported(command, path, message, capsys, monkeypatch):
    monkeypatch.setattr("grpo.cli._module", lambda name: pytest.fail(f"{name} was imported"))
    assert main([command, "task=file", f"task.data.path={path}"]) == WRONG_USE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("package", ["torch", "deepspeed", "antlr4 runtime", "vLLM", "GPUs", "memory"])
def test_the_doctor_looks_at_everything_that_a_run_needs(capsys, package):
    main(["doctor"])
    assert package in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=huggingface", "model.path=nowhere/model", "model.max_length=64"], "model.path"),
        (["task=file", "task.data.path=nowhere/problems.jsonl", "task.prompt.max_tokens=24"], "nowhere/problems.jsonl"),
        (["device=cuda"], "device=cuda"),
        (["task.reward.parts=[{name: 'no_such_module:reward'}]"], "no_such_module"),
    ],
)
def test_a_mistake_of_a_person_is_one_line_before_the_engines_start(overrides, message, tmp_path, capsys):
    if message == "device=cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["train", *SMALL, f"output_dir={tmp_path}/run", *overrides]) == WRONG_USE
    complaint = [line for line in capsys.readouterr().err.splitlines() if line.startswith("grpo: ")]
    assert len(complaint) == 1 and message in complaint[0]
    assert not (tmp_path / "run").exists()


def test_a_dry_run_prints_the_tables_and_stops(tmp_path, capsys):
    assert main(["train", *SMALL, f"output_dir={tmp_path}/run", "dry_run=true"]) == 0
    printed = capsys.readouterr().out
    assert "completions per step" in printed and "KV cache" in printed
    assert "The first prompt has " in printed and "I am not sure." in printed
    assert not (tmp_path / "run").exists()


def model_folder(path, name="Llama", weights=False):
    """Writes a model's configuration and a tokenizer into a folder, and returns the overrides that name it."""
    tokenizer, config = byte_tokenizer(), config_of(name)
    config.vocab_size = len(tokenizer)
    if weights:
        AutoModelForCausalLM.from_config(config).save_pretrained(path)
    else:
        config.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return ["model=huggingface", f"model.path={path}", "model.max_length=64"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_dry_run_needs_no_weights_and_no_gpu_and_checks_the_reward(tmp_path, capsys):
    words = ["train", *SMALL, *model_folder(tmp_path / "model"), "task.prompt.max_tokens=50"]
    dry = [*words, "dry_run=true", "device=cuda", "task.reward.extract=boxed"]
    assert main([*dry, "task.reward.parts=[{name: format}]", "task.reward.format_pattern=never"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "so this is for another machine: the tables are those of one with 8 GPUs of 80 GiB" in printed
    assert "right answers are not rewarded more than wrong ones" in printed
    assert main([*dry, "task.reward.parts=[{name: 'nowhere.py:f'}]"]) == WRONG_USE
    assert "cannot import 'nowhere.py:f'" in capsys.readouterr().err
    assert main([*words, f"output_dir={tmp_path}/run"]) == WRONG_USE
    assert "has no model.safetensors" in capsys.readouterr().err


@pytest.mark.slow
def test_a_dry_run_counts_prompts_as_the_model_is_computed(tmp_path, capsys):
    def packed_tokens(name):
        model = model_folder(tmp_path / name, name, weights=True)
        model += ["task.prompt.chat=false", "dry_run=true"]
        assert main(["train", *SMALL, f"output_dir={tmp_path}/run", *model]) == 0
        [row] = [line for line in capsys.readouterr().out.splitlines() if "packed tokens per step" in line]
        return int(re.findall(r"[\d,]+", row)[-1].replace(",", ""))

    # 16 completions of 6 tokens, and prompts of 24: 4, or one before each completion.
    assert packed_tokens("Llama") == 96 + 4 * 24
    assert packed_tokens("LFM2") == 96 + 16 * 24


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    words = [str(tmp_path / name) for name in "ab"]
    assert main(["report", *words, f"output={tmp_path}/file"]) == WRONG_USE
    reason = f"cannot be written to, since {tmp_path}/file is no folder: choose another\n"
    assert capsys.readouterr().err == f"grpo: output={tmp_path}/file {reason}"
    assert main(["report", *words, f"output={tmp_path}/file/inside"]) == WRONG_USE
    assert capsys.readouterr().err == f"grpo: output={tmp_path}/file/inside {reason}"


@pytest.mark.parametrize("command", ["doctor", "train"])
def test_a_working_folder_that_was_deleted_is_one_line(command, tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main([command]) == 2
    assert capsys.readouterr().err == (
        "grpo: the working folder has been deleted: change to one that exists, such as with `cd`\n"
    )


def test_a_report_of_a_log_takes_the_column_of_the_pass_rate(tmp_path, capsys):
    rounds = "\n".join(f"{step},{0.4 if step < 20 else 1.2}" for step in range(40))
    (tmp_path / "mine.csv").write_text(f"step,score\n{rounds}\n")
    assert main(["report", f"{tmp_path}/mine.csv", "column=score", "scale=2"]) == 0
    assert "the pass rate went from 20.0% in the first 10 rounds to 60.0%" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "mine_dynamics.html").exists()


def test_an_output_that_a_full_disk_does_not_take_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "grpo.cli", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        WRONG_USE,
        "grpo: the output cannot be written: No space left on device\n",
    )
