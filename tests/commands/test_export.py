"""`grpo export` refuses what it cannot write before it loads anything."""

import json
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import HTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled
from safetensors.numpy import save_file

from grpo.cli import main
from grpo.config import ModelConfig, TrainConfig, UserError
from grpo.config.folder import step_of
from grpo.config.saved import read_step
from grpo.run import exporting
from grpo.run.export_source import best_checkpoint, records_of
from grpo.run.exporting import as_asked


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x"], "needs a checkpoint or a run's folder, and a folder to write"),
        (["x", "y", "dtype=fp16"], "dtype='fp16' is not valid: it must be bfloat16, float16 or float32"),
        (["x", "y", "dtype=float32", "adapter=true"], "as it was trained: leave out dtype="),
        (["x", "y", "public=true"], "public= is read with upload=USER/NAME only: give both"),
        (["x", "y", "upload=name"], "upload=name must be a user or an organization and a name"),
        (["x", "y", "upload="], "upload= must be a user or an organization and a name, like upload=me/my-model"),
        (["x", "y", "upload=me/a b"], "upload=me/a b: that is no valid name"),
        (["x", "y"], "there is no folder"),
        (["full", "y"], "full has no checkpoint in checkpoints/: give a run's folder, or one of its checkpoints"),
        (["model", "y"], "model is a model already, which needs no export: give a run's folder, or one of its"),
        (["checkpoint", "file"], "file is not an empty folder: give a new one"),
        (["checkpoint", "full"], "full is not an empty folder: give a new one"),
        (["checkpoint", "checkpoint/learner/out"], "which it would damage: give a folder elsewhere"),
    ],
)
def test_a_folder_that_cannot_be_exported_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("checkpoint/state.json", "full/of", "file"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setitem(sys.modules, "grpo.run.exporting", None)  # nothing heavy is imported before
    assert main(["export", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("place", "inside"), [(".", "model"), ("../disk", "../disk/model")])
def test_a_folder_whose_place_nothing_can_take_is_refused_before_anything_is_loaded(
    place, inside, tmp_path, monkeypatch, capsys
):
    for name in ("checkpoint", "here", "disk"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint/state.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "disk")
    monkeypatch.setitem(sys.modules, "grpo.run.exporting", None)
    assert main(["export", "../checkpoint", place]) == 2
    assert f"{place} is the working folder or that of a whole disk: give a new one in it, as {inside}" in (
        capsys.readouterr().err
    )


def test_an_empty_folder_beside_which_nothing_can_be_written_is_refused_before_anything_is_loaded(
    tmp_path, monkeypatch, capsys
):
    for name in ("checkpoint", "others/mine"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "checkpoint/state.json").write_text("{}")
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "others")
    monkeypatch.setitem(sys.modules, "grpo.run.exporting", None)
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "others/mine")]) == 2
    assert f"since {tmp_path}/others is read-only here: choose another" in capsys.readouterr().err


def test_links_to_themselves_are_no_folders(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "grpo.run.exporting", None)
    Path("loop").symlink_to("loop")
    Path("checkpoint").mkdir()
    Path("checkpoint/state.json").write_text("{}")
    assert main(["export", "loop", "model"]) == main(["export", "checkpoint", "loop"]) == 2
    assert "there is no folder" in (said := capsys.readouterr().err) and "loop is no folder: choose another" in said


def test_the_best_checkpoint_is_that_of_the_best_evaluation_which_may_have_come_later(tmp_path):
    def evaluated(step, value, temperature):
        rate = {"value": value, "low": 0.0, "high": 1.0}
        numbers = {"samples_per_problem": 1, "mean_length": 1.0, "truncated_fraction": 0.0}
        return {"step": step, "temperature": temperature, "per_problem": [], "pass@1": rate, **numbers}

    for step, score in ((2, 0.9), (4, None), (6, 0.5)):
        (folder := tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"score": score}))
    assert step_of(best_checkpoint(tmp_path)) == 2
    # The first was measured at another temperature, the second once the run had been resumed.
    rows = [evaluated(2, 0.9, 0.1), evaluated(4, 0.7, 1.0), evaluated(6, 0.5, 1.0)]
    (tmp_path / "evaluations.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert step_of(best_checkpoint(tmp_path)) == 4


def test_a_checkpoint_says_itself_at_which_step_it_was_saved(tmp_path, monkeypatch):
    (copy := tmp_path / "another" / "mine" / "kept").mkdir(parents=True)
    # The records of another run tell nothing of a copy in its folder.
    (tmp_path / "another" / "evaluations.jsonl").write_text("{}\n")
    (copy / "state.json").write_text(json.dumps({"progress": {"step": 12}}))
    monkeypatch.setattr(exporting, "to_export", lambda *_: (copy, TrainConfig()))
    monkeypatch.setattr(exporting, "with_precision", lambda config, samples: config)
    monkeypatch.setattr(exporting, "model_files", lambda *_, **__: SimpleNamespace(path=tmp_path, tokenizer=None))
    for name in ("check_start", "load_policy"):
        monkeypatch.setattr(exporting, name, lambda *_, **__: None)
    written = []
    monkeypatch.setattr(exporting, "_write_into", lambda folder, *_: written.append(folder.texts["README.md"]))
    exporting.export_checkpoint(copy, tmp_path / "model")
    assert "| optimizer steps | 12 |" in written[0]
    assert records_of(tmp_path / "run" / "checkpoints" / "kept") == tmp_path / "run"
    (copy / "state.json").write_text("{}")
    with pytest.raises(UserError, match="kept/state.json is damaged: it does not say at which step it was saved"):
        read_step(copy)


def test_the_template_by_which_a_run_asks_is_exported(tmp_path, capsys):
    config, tokenizer = TrainConfig(), SimpleNamespace(chat_template="own")
    assert as_asked(tokenizer, config) is tokenizer
    (tmp_path / "mine.jinja").write_text("mine")
    config.task.prompt.chat_template = str(tmp_path / "mine.jinja")
    assert as_asked(tokenizer, config).chat_template == "mine" and tokenizer.chat_template == "own"
    (tmp_path / "mine.jinja").unlink()
    assert as_asked(tokenizer, config).chat_template == "own"
    assert "written with the chat template of the model that it was trained from" in capsys.readouterr().err


def test_a_model_that_is_gone_is_reported_before_anything_heavy_is_imported(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    config = TrainConfig(model=ModelConfig(source="huggingface", path=str(gone)))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "state.json").write_text(json.dumps({"config": asdict(config)}))
    monkeypatch.setitem(sys.modules, "grpo.run.exporting", None)
    assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert str(gone) in said and said.count("\n") == 1


class Hub:
    """This stands in for `huggingface_hub.HfApi` and records the calls of its methods."""

    def __init__(self, failure=None):
        self.asked, self.failure = [], failure

    def __call__(self):
        return self

    def whoami(self):
        self.asked.append("whoami")
        if self.failure:
            raise self.failure
        return {"name": "me"}

    def create_repo(self, name, private, exist_ok):
        self.asked.append((name, private, exist_ok))
        return f"https://huggingface.co/{name}"

    def upload_folder(self, repo_id, folder_path, commit_message):
        self.asked.append((repo_id, sorted(path.name for path in folder_path.iterdir())))


@pytest.fixture
def exported(monkeypatch, tmp_path):
    """Replaces the export by one that writes a single file, and returns the words of a `grpo export` command."""

    def write(place, directory, dtype, adapter, trust_remote_code):
        directory.mkdir()
        (directory / "model.safetensors").write_bytes(bytes(2048))
        return place

    monkeypatch.setattr("grpo.run.exporting.export_checkpoint", write)
    monkeypatch.setattr("grpo.commands.export.to_export", lambda *_: None)
    return ["export", "run", f"{tmp_path}/model"]


@pytest.mark.parametrize("words", [[], ["model.trust_remote_code=true"]])
def test_code_that_a_checkpoint_trusts_runs_only_if_this_command_does_too(words, tmp_path, capsys):
    base, checkpoint, witness = tmp_path / "base", tmp_path / "step-00000004", tmp_path / "witness"
    for folder in (base, checkpoint):
        folder.mkdir()
    (base / "config.json").write_text('{"model_type": "strange", "auto_map": {"AutoConfig": "its_own.Config"}}')
    (base / "its_own.py").write_text(f"open({str(witness)!r}, 'w').close()\nraise ValueError('its code ran')\n")
    save_file({}, base / "model.safetensors")
    saved = TrainConfig(model=ModelConfig(path=str(base), trust_remote_code=True))
    saved.learner.precision = "float32"
    (checkpoint / "state.json").write_text(json.dumps({"config": asdict(saved)}))
    with suppress(ValueError):
        main(["export", str(checkpoint), str(tmp_path / "out"), *words])
    assert witness.exists() == bool(words)
    assert words or "set model.trust_remote_code=true" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "private"), [([], True), (["public=true"], False)])
def test_an_upload_sends_the_folder_and_is_private_unless_asked(words, private, exported, monkeypatch, capsys):
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", hub)
    assert main([*exported, "upload=me/mine", *words]) == 0
    assert hub.asked == ["whoami", ("me/mine", private, True), ("me/mine", ["model.safetensors"])]
    printed = capsys.readouterr().out
    assert "(2 KiB)" in printed and "it is uploaded to https://huggingface.co/me/mine" in printed


def test_nothing_is_uploaded_without_being_asked(exported, monkeypatch):
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", hub)
    assert main(exported) == 0
    assert hub.asked == []


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (LocalTokenNotFoundError("none"), "nobody is logged in on this machine: run `hf auth login`"),
        (OfflineModeIsEnabled("offline"), "the hub is not reachable (offline): leave out upload="),
        (HTTPError("no route"), "the hub is not reachable (no route): leave out upload="),
    ],
)
def test_an_upload_that_cannot_be_is_one_line_before_anything_is_written(
    failure, message, exported, monkeypatch, capsys
):
    hub = Hub(failure)
    monkeypatch.setattr("huggingface_hub.HfApi", hub)
    assert main([*exported, "upload=me/mine"]) == 2
    said = capsys.readouterr().err
    assert f"grpo: upload=me/mine: {message}" in said and said.count("\n") == 1
    assert hub.asked == ["whoami"] and not Path(exported[-1]).exists()
