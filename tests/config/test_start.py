"""Each run has a folder of its own by default, all ranks of a run name the same one, and messages name earlier runs."""

import os
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from grpo.commands import launch
from grpo.config import UserError
from grpo.config.folder import refuse_several, resumable, runs_within
from grpo.config.hydra import as_yaml, compose_config
from grpo.config.start import begin_anew, named_by_start, of_a_moment, only_here, start
from grpo.config.validate import validate

ROOT = Path(__file__).resolve().parents[2]


def output_of(*words):
    return compose_config([*words]).output_dir


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    monkeypatch.delenv("GRPO_START", raising=False)


def run_in(folder, seconds, saved=True):
    """Makes the folder of a run that wrote its last round and checkpoint `seconds` after 1970."""
    (folder / "checkpoints").mkdir(parents=True)
    if saved:
        (folder / "checkpoints" / "step-00000002").mkdir()
        os.utime(folder / "checkpoints" / "step-00000002", (seconds, seconds))
    for name in ("config.json", "metrics.jsonl"):
        (folder / name).write_text("{}\n")
        os.utime(folder / name, (seconds, seconds))
    return folder


def test_the_default_folder_is_named_by_the_start_of_the_process_however_often_it_is_composed(monkeypatch):
    # Other tests have trained in this process before.
    monkeypatch.setattr("grpo.config.start._own_starts", [])
    output = output_of()
    moment, process = re.fullmatch(r"runs/default/(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)-(\d+)", output).groups()
    assert timedelta() <= datetime.now() - datetime.strptime(moment, "%Y-%m-%d_%H-%M-%S") < timedelta(hours=2)
    assert int(process) == os.getpid()
    assert output_of() == output
    assert output_of("experiment=tiny") == output.replace("default", "tiny")
    assert output_of("output_dir='mine/${start:}/x'") == output.replace("runs/default", "mine") + "/x"


def test_each_run_of_a_process_has_a_folder_of_its_own(monkeypatch):
    outputs = [output_of()]
    for _ in range(3):
        begin_anew()
        outputs.append(output_of())
    assert len({*outputs}) == 4 and all(map(only_here, outputs))
    assert all(named_by_start(Path(output)) for output in outputs)
    monkeypatch.setenv("GRPO_START", "job-17")
    begin_anew()
    assert output_of() == "runs/default/job-17"


def test_a_launcher_names_the_start_of_all_its_processes(monkeypatch):
    assert only_here(output_of()) and not only_here(output_of("output_dir=runs/mine"))
    monkeypatch.setenv("GRPO_START", "job-17")
    assert output_of("experiment=tiny") == "runs/tiny/job-17"
    assert not only_here(output_of())
    monkeypatch.setenv("GRPO_START", "")
    assert only_here(output_of())


@pytest.mark.parametrize("name", ["..", "a/b", "/", "-x", "a b", "a\nb", "${seed}", "x" * 101])
def test_a_start_that_is_no_plain_name_of_a_folder_is_refused(monkeypatch, name):
    monkeypatch.setenv("GRPO_START", name)
    with pytest.raises(UserError, match=r"^output_dir: the environment variable GRPO_START=.*is no plain name: unset"):
        compose_config(["experiment=tiny"])
    with pytest.raises(UserError, match="^the environment variable GRPO_START=.*is no plain name"):
        start()
    assert output_of("output_dir=runs/mine") == "runs/mine"


def test_a_printed_configuration_names_the_next_start_again():
    assert "output_dir: runs/tiny/${start:}\n" in as_yaml(["experiment=tiny"])


def test_the_older_form_of_a_name_with_the_time_is_still_known_and_is_another_one_in_each_process(monkeypatch):
    monkeypatch.setattr("grpo.config.start._own_moments", set())
    output = output_of("output_dir='runs/at-${now:%Y}'")
    assert re.fullmatch(r"runs/at-\d{4}", output) and not only_here("runs/mine")
    monkeypatch.setenv("GRPO_START", "job-17")
    assert only_here(output) and of_a_moment(output) and not only_here(output_of())


def test_a_launch_refuses_a_folder_that_a_file_names_by_the_moment(tmp_path, monkeypatch):
    monkeypatch.setattr("grpo.config.start._own_moments", set())
    lines = ["defaults: [train, {override experiment: tiny}, _self_]", "output_dir: ${oc.env:HOME}/${now:%H-%M-%S-%f}"]
    (tmp_path / "mine.yaml").write_text("\n".join(lines))
    words = ["--config-dir", str(tmp_path), "--config-name", "mine"]
    with pytest.raises(
        UserError, match=r"holds \$\{now:…\}, which is another moment in each process of the run: write"
    ):
        launch.run([*words, "dry_run=true"])
    # As a word it names one moment for all processes.
    assert launch.run([*words, f"output_dir='{tmp_path}/${{now:%H-%M-%S-%f}}'", "dry_run=true"]) == 0


def test_resuming_without_a_name_names_the_newest_run_that_has_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_in(Path("runs/tiny/a"), 1)
    run_in(Path("runs/tiny/b"), 3)
    run_in(Path("runs/tiny/c"), 2)
    run_in(Path("runs/tiny/d"), 4, saved=False)
    resumed = compose_config(["experiment=tiny", "checkpoint.resume=true"])
    with pytest.raises(
        UserError, match="nothing to resume in runs/tiny/.*: add output_dir=runs/tiny/b, the newest run"
    ):
        validate(resumed)
    validate(compose_config(["experiment=tiny", "checkpoint.resume=true", "output_dir=runs/tiny/b"]))
    # The folder around them, too, if somebody gives that.
    with pytest.raises(UserError, match="nothing to resume in runs/tiny: add output_dir=runs/tiny/b"):
        validate(compose_config(["experiment=tiny", "checkpoint.resume=true", "output_dir=runs/tiny"]))


def test_a_run_of_the_time_before_folders_had_times_is_found(tmp_path):
    assert resumable(run_in(tmp_path / "tiny", 1) / "new") == tmp_path / "tiny"
    assert resumable(tmp_path / "other" / "new") is None


def test_a_folder_that_holds_a_run_says_how_to_go_on_with_it(tmp_path):
    output = run_in(tmp_path / "mine", 1)
    with pytest.raises(UserError, match=f"continue it with its words and `checkpoint.resume=true output_dir={output}`"):
        validate(compose_config(["experiment=tiny", f"output_dir={output}"]))


def test_a_folder_of_runs_names_the_newest_ones(tmp_path):
    runs = [run_in(tmp_path / name, seconds) for seconds, name in enumerate("cadb")]
    assert runs_within(tmp_path) == runs
    expected = f"{tmp_path} is no run, but holds 4: give one of them, the newest first {tmp_path}/b, {tmp_path}/d, "
    with pytest.raises(UserError, match=re.escape(f"{expected}{tmp_path}/a, and 1 older one") + "$"):
        refuse_several(tmp_path)
    for folder in (runs[0], tmp_path / "none", runs[0] / "checkpoints"):
        refuse_several(folder)
    of_sweep = run_in(tmp_path / "sweep" / "cells" / "grpo-seed0", 5)
    with pytest.raises(UserError, match=f"is no run, but holds 1: give one of them, the newest first {of_sweep}"):
        refuse_several(tmp_path / "sweep")


def test_a_folder_of_a_model_or_another_framework_is_no_run(tmp_path):
    for name in ("checkpoint-5", "model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert runs_within(tmp_path) == []


def test_every_recipe_names_its_folder_by_its_start():
    for file in (ROOT / "configs" / "experiment").glob("*.yaml"):
        assert f"\noutput_dir: runs/{file.stem}/${{start:}}\n" in file.read_text()


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_that_resumes_where_it_can_is_valid_with_a_checkpoint_and_without_one(saved, tmp_path):
    output = run_in(tmp_path / "mine", 1, saved=saved)
    validate(compose_config(["experiment=tiny", "checkpoint.resume=auto", f"output_dir={output}"]))


def test_a_run_that_resumes_where_it_can_needs_a_folder_that_its_next_start_finds(monkeypatch):
    monkeypatch.delenv("GRPO_START", raising=False)
    with pytest.raises(UserError, match="=auto would never find a checkpoint, since output_dir=runs/tiny/.*: name out"):
        validate(compose_config(["experiment=tiny", "checkpoint.resume=auto"]))
    monkeypatch.setenv("GRPO_START", "job-17")
    validate(compose_config(["experiment=tiny", "checkpoint.resume=auto"]))
