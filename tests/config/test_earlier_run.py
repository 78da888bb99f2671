"""These tests hold that an earlier run's files say what model it is, and that what does not fit is one early line."""

import json
from dataclasses import asdict

import pytest

from grpo.cli import main
from grpo.config import ModelConfig, TrainConfig, UserError
from grpo.config.engines import LoraConfig
from grpo.config.saved import described, is_checkpoint

PLAIN = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["v_proj", "q_proj"]}


@pytest.fixture
def checkpoint(tmp_path):
    """Returns a function that makes a checkpoint of a run with the given model settings."""

    def make(**settings):
        config = TrainConfig(model=ModelConfig(**settings))
        folder = tmp_path / "run" / "checkpoints" / "step-00000004"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"config": asdict(config)}))
        return folder

    return make


@pytest.fixture
def adapter(tmp_path):
    """Returns a function that makes the folder of an adapter with the given settings."""

    def make(**settings):
        (tmp_path / "adapter_config.json").write_text(json.dumps(PLAIN | settings))
        (tmp_path / "adapter_model.safetensors").write_bytes(b"")
        return str(tmp_path)

    return make


def test_a_model_of_the_hub_and_one_in_a_folder_are_what_they_were(tmp_path):
    hub = ModelConfig(path="some/model", source="huggingface")
    assert described(hub) is hub
    assert described(ModelConfig(path=str(tmp_path), source="tiny")).source == "huggingface"


def test_a_run_stands_for_the_model_that_it_left(tmp_path, checkpoint):
    newest, run = checkpoint(), tmp_path / "run"
    with pytest.raises(UserError, match=f"has left no model/.* give its newest checkpoint, {newest}"):
        described(ModelConfig(path=str(run)))
    with pytest.raises(UserError, match=f"run/checkpoints holds checkpoints: give one of them, such as .*, {newest}"):
        described(ModelConfig(path=str(run / "checkpoints")))
    (run / "model").mkdir()
    assert described(ModelConfig(path=str(run), source="tiny")) == ModelConfig(path=str(run / "model"))


def test_a_checkpoint_brings_its_model_and_adapters_but_no_code_of_its_own(checkpoint):
    lora = LoraConfig(rank=4, alpha=8.0)
    folder = str(checkpoint(path="some/base", lora=lora, trust_remote_code=True, max_length=99, head_precision="model"))
    model = described(ModelConfig(path=folder, source="tiny", max_length=32))
    assert model == ModelConfig(path="some/base", start=folder, lora=lora, max_length=32, head_precision="model")
    assert described(model) == model and is_checkpoint(model.start)


def test_a_model_beside_a_checkpoint_of_another_one_is_refused(checkpoint):
    folder = str(checkpoint(path="some/base"))
    assert described(ModelConfig(path="some/base", start=folder)).path == "some/base"
    with pytest.raises(UserError, match="is a checkpoint of some/base, so model.path=other/base has no effect"):
        described(ModelConfig(path="other/base", start=folder))


@pytest.mark.parametrize(
    ("saved", "given", "said"),
    [
        ({}, {"rank": 8}, "rank 8, .* has no adapters: .*`grpo export .*step-00000004 DIRECTORY`"),
        ({"rank": 4}, {"rank": 8}, "has adapters of rank 4, alpha 32 on all-linear: leave out model.lora"),
        ({"rank": 4}, {"rank": 4, "alpha": 1.0}, "asks for rank 4, alpha 1 on"),
        ({"rank": 4}, {"alpha": 8.0}, "asks for rank 0, alpha 8 on"),
    ],
)
def test_other_adapters_than_those_of_the_start_are_refused(saved, given, said, checkpoint):
    folder = str(checkpoint(lora=LoraConfig(**saved)))
    with pytest.raises(UserError, match=said):
        described(ModelConfig(path=folder, lora=LoraConfig(**given)))


def test_an_adapter_names_its_base_unless_another_is_given(adapter):
    folder = adapter(base_model_name_or_path="some/base", revision="v2")
    model = described(ModelConfig(path=folder, source="smollm2"))
    lora = LoraConfig(rank=4, alpha=8.0, target_modules="q_proj,v_proj")
    assert model == ModelConfig(path="some/base", revision="v2", start=folder, lora=lora)
    assert described(model) == model and not is_checkpoint(model.start)
    assert described(ModelConfig(path="my/copy", start=folder)).path == "my/copy"
    assert described(ModelConfig(path=folder, revision="v3")).revision == "v3"
    assert described(ModelConfig(start=folder, source="smollm2")) == model
    # A rank-stabilized adapter has another scale: 8 / √4 = 16 / 4.
    folder = adapter(base_model_name_or_path="some/base", use_rslora=True)
    assert described(ModelConfig(path=folder)).lora.alpha == 16.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "IA3"}, "is an adapter of the kind IA3; only LORA is trained"),
        ({"use_dora": True}, "has use_dora=True, which is not trained here: merge it"),
        (
            {"init_lora_weights": "pissa_niter_4"},
            "has init_lora_weights=pissa_niter_4, which is not trained here: merge",
        ),
        ({"modules_to_save": ["lm_head"]}, "has modules_to_save"),
        ({"alora_invocation_tokens": [1, 2]}, "has alora_invocation_tokens"),
        ({"bias": "all"}, "has bias=all"),
        ({"target_modules": ".*_proj"}, "names its target_modules by the pattern"),
        ({"base_model_name_or_path": None}, "names no base model: set model.path to it, and model.start="),
        (
            {"base_model_name_or_path": "/gone/base"},
            "names the base model /gone/base, which is not here: set model.path",
        ),
        ({"peft_type": "PREFIX_TUNING", "r": None}, "is an adapter of the kind PREFIX_TUNING; only LORA is trained"),
        ({"r": "four"}, r"adapter_config.json is damaged \(.*\): restore it from a copy"),
    ],
)
def test_an_adapter_that_would_be_another_one_here_is_refused(settings, said, adapter):
    folder = adapter(**{"base_model_name_or_path": "some/base"} | settings)
    with pytest.raises(UserError, match=said) as refusal:
        described(ModelConfig(path=folder))
    assert "\n" not in str(refusal.value)


def test_a_start_that_is_none_is_named(tmp_path):
    for folder, said in (("nowhere", "there is no such folder"), (str(tmp_path), "no checkpoint and no adapter")):
        with pytest.raises(UserError, match=said):
            described(ModelConfig(start=folder))


def test_a_checkpoint_whose_configuration_is_damaged_is_named(checkpoint):
    folder = checkpoint()
    (folder / "state.json").write_text('{"config": {"model": "x"}}')
    with pytest.raises(UserError, match="state.json is damaged: in its configuration model takes keys and values"):
        described(ModelConfig(path=str(folder)))
    (folder / "state.json").unlink()
    with pytest.raises(UserError, match="has lost state.json: restore it from a copy, or give another one"):
        described(ModelConfig(path=str(folder)))


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_resumption_with_other_adapters_is_refused_before_torch_is_loaded(checkpoint, dry_run, capsys):
    saved = checkpoint(source="tiny")
    words = [f"output_dir={saved.parent.parent}", "checkpoint.resume=true", f"dry_run={str(dry_run).lower()}"]
    assert main(["train", "experiment=tiny", *words, "model.lora.rank=4"]) == 2
    line = "model.lora.rank=4 does not go on from a checkpoint of model.lora.rank=0, which trained other weights"
    assert line in capsys.readouterr().err
