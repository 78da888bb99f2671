import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from grpo.config import ModelConfig, UserError
from grpo.models.resolve import resolve
from grpo.models.tiny import character_tokenizer
from tests.learner.models import files_of


def no_examples():
    raise AssertionError("only the tiny model asks for examples")


def refusal(**config):
    with pytest.raises(UserError) as caught:
        resolve(ModelConfig(**config), no_examples)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    save_file({"w": torch.zeros(8)}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_relative_directory_becomes_absolute(checkpoint, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)
    assert resolve(ModelConfig(path=checkpoint.name), no_examples) == checkpoint


def test_a_directory_of_shards_is_complete_when_every_shard_is_there(checkpoint):
    (checkpoint / "model.safetensors").rename(checkpoint / "a.safetensors")
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "a.safetensors"}}))
    assert resolve(ModelConfig(path=str(checkpoint)), no_examples) == checkpoint
    index.write_text(json.dumps({"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}))
    assert "has no b.safetensors" in refusal(path=str(checkpoint))
    for torn in ("{", "[]", "{}", '{"weight_map": ["w"]}', '{"weight_map": {"w": 5}}'):
        index.write_text(torn)
        assert "damaged model.safetensors.index.json" in refusal(path=str(checkpoint))


def test_a_directory_without_configuration_is_refused(checkpoint):
    (checkpoint / "config.json").unlink()
    assert "has no config.json: give the directory that save_pretrained wrote" in refusal(path=str(checkpoint))
    (checkpoint / "model-q4.gguf").write_bytes(b"GGUF")
    assert "holds GGUF files, and those are not trained: give the folder of the model's safetensors" in refusal(
        path=str(checkpoint)
    )


def test_a_directory_without_weights_is_refused(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    assert "has no model.safetensors" in refusal(path=str(checkpoint))


def test_weights_that_git_has_not_fetched_are_named(checkpoint):
    (checkpoint / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "it is a pointer of Git LFS, so fetch the file by `git lfs pull`" in refusal(path=str(checkpoint))


def test_cut_off_weights_are_refused(checkpoint):
    whole = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(whole[:-1])
    assert "damaged model.safetensors: copy it again" in refusal(path=str(checkpoint))


def test_a_hub_at_no_address_is_one_line(monkeypatch):
    def download(*_, **__):
        raise TypeError("Request URL is missing a protocol.")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert "the download failed (Request URL is missing a protocol.): try again, or correct HF_ENDPOINT" in refusal(
        path="some/model"
    )


def test_an_empty_path_is_refused():
    assert "model.path is empty" in refusal(path="")


def test_an_unknown_source_is_refused():
    assert refusal(source="smollm") == "model.source=smollm is unknown: use huggingface, smollm2 or tiny"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.safetensors", "is a file: give the folder that it stands in, model.path="),
        ("model.gguf", "is a GGUF file, and those are not trained: give the folder of the model's safetensors"),
    ],
)
def test_a_file_in_place_of_a_models_folder_is_named(tmp_path, name, said):
    (tmp_path / name).touch()
    assert said in refusal(path=str(tmp_path / name))


def test_a_path_that_can_be_no_hub_name_is_called_missing():
    assert "there is no such directory" in refusal(path="runs/none/export")


def in_a_process_offline(path, hub_cache):
    """Returns the message that an offline user sees. It needs a process of its own, since huggingface_hub reads the
    variables only at import."""
    program = (
        "from grpo.config import ModelConfig, UserError\n"
        "from grpo.models.resolve import resolve\n"
        f"try: print(resolve(ModelConfig(path={path!r}), list))\n"
        "except UserError as error: print(error)\n"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub_cache), "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_an_address_of_the_hub_is_answered_with_the_name_in_it(tmp_path):
    line = in_a_process_offline("https://huggingface.co/Qwen/Qwen2.5-0.5B", tmp_path)
    assert line.endswith(
        "not a valid name of a model on the hub: correct model.path, as model.path=Qwen/Qwen2.5-0.5B\n"
    )


def test_offline_a_hub_name_outside_the_hub_cache_is_one_line(tmp_path):
    line = in_a_process_offline("someone/some-model", tmp_path)
    assert line.startswith("model.path=someone/some-model: it is neither a directory here nor in the hub's cache")
    assert line.count("\n") == 1


def test_offline_a_hub_name_in_the_hub_cache_is_its_snapshot(tmp_path):
    repository = tmp_path / "models--someone--some-model"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    (snapshot / "config.json").write_text("{}")
    save_file({"w": torch.zeros(8)}, snapshot / "model.safetensors")
    assert in_a_process_offline("someone/some-model", tmp_path) == f"{snapshot}\n"


def test_a_link_to_itself_in_a_models_folder_does_not_keep_its_settings_from_being_changed(checkpoint, monkeypatch):
    monkeypatch.setenv("GRPO_CACHE", str(checkpoint / "cache"))
    (checkpoint / "config.json").write_text('{"model_type": "llama"}')
    (checkpoint / "vocab.txt").symlink_to("vocab.txt")
    folder = resolve(ModelConfig(path=str(checkpoint), config={"rms_norm_eps": 1e-5}), no_examples)
    assert json.loads((folder / "config.json").read_text())["rms_norm_eps"] == 1e-5


def test_the_tiny_model_is_warmed_up_on_the_examples_and_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))
    config = ModelConfig(source="tiny")
    ones = resolve(config, lambda: [["1 + 1 =", "2"]])
    written = (ones / "model.safetensors").stat().st_mtime_ns
    assert resolve(config, lambda: [["1 + 1 =", "2"]]) == ones
    assert (ones / "model.safetensors").stat().st_mtime_ns == written
    assert resolve(config, lambda: [["1 + 2 =", "3"]]) != ones
    tokenizer = files_of(ones).tokenizer
    assert tokenizer.decode(tokenizer.encode("1 + 1 =")) == "1 + 1 ="


def test_where_no_weights_are_needed_the_tiny_model_is_not_warmed_up(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))
    config, taken = ModelConfig(source="tiny"), []
    monkeypatch.setattr("grpo.models.tiny._learn", lambda model, ids, labels, steps: taken.append(steps))
    first = resolve(config, lambda: [["1 + 1 =", "2"]], needs_weights=False)
    trained = resolve(config, lambda: [["1 + 1 =", "2"]])
    assert taken == [0, 600] and trained != first
    assert (first / "config.json").read_text() == (trained / "config.json").read_text()


def test_a_tokenizer_that_fails_at_its_first_text_is_one_line(tmp_path):
    character_tokenizer().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": "many"}))
    with pytest.raises(UserError, match=r"cannot load the tokenizer of .*: save one there with save_pretrained \("):
        _ = files_of(tmp_path).tokenizer


def test_a_directory_without_tokenizer_is_one_line(checkpoint):
    with pytest.raises(
        UserError, match="cannot load the tokenizer of .*: save one there with save_pretrained"
    ) as caught:
        _ = files_of(checkpoint).tokenizer
    assert "\n" not in str(caught.value)


def test_a_tokenizer_with_code_of_its_own_asks_for_trust(checkpoint):
    (checkpoint / "config.json").write_text(json.dumps({"auto_map": {"AutoConfig": "own.Config"}, "model_type": "own"}))
    (checkpoint / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}, "tokenizer_class": "OwnTokenizer"})
    )
    with pytest.raises(UserError, match="set model.trust_remote_code=true"):
        _ = files_of(checkpoint).tokenizer


def test_importing_the_package_imports_nothing_heavy():
    program = "import sys, grpo.models; print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
