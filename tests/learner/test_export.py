"""An exported model is loaded by others as it was, and what is interrupted leaves nothing that looks whole."""

import errno
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DeepseekV3Config

from grpo.config import ModelConfig, UserError
from grpo.config.engines import LoraConfig
from grpo.config.saved import described
from grpo.learner.export import EXPORT_DTYPES as DTYPES
from grpo.learner.export import Folder, export, export_adapter
from grpo.learner.loading import load_policy
from grpo.learner.policy import base_model
from grpo.models.tiny import character_tokenizer
from tests.fakes import SingleRank
from tests.learner.models import files_of, tiny_llama


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def policy(base):
    return load_policy(files_of(base), ModelConfig(path=str(base)), "float32", 64)


def folder_at(path, tokenizer=lambda folder: None):
    return Folder(path, SimpleNamespace(save_pretrained=tokenizer), {"README.md": "# A card"})


@pytest.mark.parametrize(("dtype", "kind"), [("float16", torch.float16), ("float32", torch.float32)])
def test_a_model_is_written_in_the_dtype_that_is_asked_for(dtype, kind, policy, base, tmp_path):
    export(policy, dtype, folder_at(tmp_path / "model"), SingleRank())
    stored = load_file(tmp_path / "model" / "model.safetensors")
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto").state_dict()
    before = AutoModelForCausalLM.from_pretrained(base).state_dict()
    assert written.keys() == before.keys() and {weight.dtype for weight in stored.values()} == {kind}
    # Config and weights name the same type, in which others load the model.
    assert {weight.dtype for weight in written.values()} == {kind}
    # A number is rounded up or down, by less than a step.
    step = {torch.float16: 2**-10, torch.float32: 0.0}[kind]
    assert all(torch.allclose(written[name].float(), before[name], step, 1e-7) for name in before)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_routers_bias_is_written_as_it_was_though_nothing_trains_it(rank, tmp_path):
    config = DeepseekV3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, n_routed_experts=8, n_group=2, topk_group=1,
        num_experts_per_tok=2, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=8, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model, name = AutoModelForCausalLM.from_config(config), "model.layers.1.mlp.gate.e_score_correction_bias"
    dict(model.named_buffers())[name].copy_(torch.arange(8) / 7)
    model.save_pretrained(tmp_path / "base")
    of_base = ModelConfig(path=str(tmp_path / "base"), lora=LoraConfig(rank=rank))
    policy = load_policy(files_of(tmp_path / "base"), of_base, "float32", 64)
    export(policy, "bfloat16", folder_at(tmp_path / "model"), SingleRank())
    written, info = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not info["missing_keys"] and torch.equal(dict(written.named_buffers())[name], torch.arange(8) / 7)


def test_weights_that_float16_cannot_hold_are_refused_by_name(base, tmp_path):
    policy = load_policy(files_of(base), ModelConfig(path=str(base)), "float32", 64)
    with torch.no_grad():
        policy.language_model.model.norm.weight[0] = 1e5
    with pytest.raises(UserError, match=r"model.norm.weight has weights above 65504, .*: give dtype=bfloat16"):
        export(policy, "float16", folder_at(tmp_path / "model"), SingleRank())
    assert [*tmp_path.iterdir()] == []
    export(policy, "bfloat16", folder_at(tmp_path / "model"), SingleRank())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_small_change_of_float32_weights_survives_in_a_coarser_dtype(dtype, base, tmp_path):
    policy = load_policy(files_of(base), ModelConfig(path=str(base)), "float32", 64)
    weights, change = dict(base_model(policy.language_model).named_parameters()), {}
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(weight.to(DTYPES[dtype]))
            change[name] = 1e-5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)).sign()
        before = {name: weight.clone() for name, weight in weights.items()}
        for name, weight in weights.items():
            weight += change[name]
    export(policy, dtype, folder_at(tmp_path / "model"), SingleRank())
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).state_dict()
    arrived = sum(float(((written[name] - before[name]) * change[name]).sum()) for name in change)
    assert arrived / sum(float(one.square().sum()) for one in change.values()) == pytest.approx(1, abs=0.1)
    card = tmp_path / "model" / "README.md"
    assert card.read_text() == "# A card"
    assert {path.stat().st_mode for path in (tmp_path / "model").iterdir()} == {card.stat().st_mode}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_full_disk_is_one_line_and_leaves_what_was_there(policy, tmp_path):
    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "earlier").write_text("")
    with pytest.raises(UserError, match=r"could not be written to .*No space left.*GiB are free: free some space"):
        export(policy, "float32", folder_at(tmp_path / "model", full), SingleRank())
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["model", "model/earlier"]


def test_a_place_that_takes_no_folder_brings_no_line_about_space(policy, tmp_path):
    def in_the_way(folder):
        raise OSError(errno.EEXIST, "File exists")

    with pytest.raises(UserError, match=r"could not be written to .*model \(.*File exists\): give another folder$"):
        export(policy, "float32", folder_at(tmp_path / "model", in_the_way), SingleRank())


def test_a_kill_in_the_middle_leaves_no_folder_that_looks_whole(policy, tmp_path):
    target = tmp_path / "model"
    child = os.fork()
    if child == 0:
        # The weights are there by then.
        export(policy, "float32", folder_at(target, lambda folder: os.kill(os.getpid(), signal.SIGKILL)), SingleRank())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [".writing-model"]
    assert (tmp_path / ".writing-model" / "model.safetensors").exists()
    export(policy, "float32", folder_at(target), SingleRank())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_all_who_may_read_the_card_may_read_the_files_and_the_folder_of_a_tokenizers_further_templates(tmp_path):
    tokenizer = character_tokenizer()
    tokenizer.chat_template = {"default": "{{ messages }}", "tools": "{{ tools }}"}
    (folder := folder_at(tmp_path / "model", tokenizer.save_pretrained)).fill(
        lambda writing: os.close(os.open(writing / "weights", os.O_CREAT, 0o600))
    )
    card = folder.path / "README.md"
    for path in folder.path.rglob("*"):
        assert path.stat().st_mode == (folder.path if path.is_dir() else card).stat().st_mode, path
    assert (folder.path / "additional_chat_templates").is_dir()


def test_an_adapter_is_trained_on_as_it_was_left(base, tmp_path):
    adapted = ModelConfig(path=str(base), lora=LoraConfig(rank=4, alpha=8.0, target_modules="q_proj,down_proj"))
    policy = load_policy(files_of(base), adapted, "float32", 64, lora_seed=0)
    drawn = {name: torch.randn(p.shape) for name, p in policy.named_parameters() if p.requires_grad}
    policy.load_state_dict(drawn, strict=False)
    export_adapter(policy, folder_at(tmp_path / "adapter"), SingleRank())
    model = described(ModelConfig(path=str(tmp_path / "adapter")))
    assert (model.path, model.lora.rank, model.lora.alpha) == (str(base), 4, 8.0)
    again = dict(load_policy(files_of(base), model, "float32", 64, lora_seed=1).named_parameters())
    assert drawn and all(torch.equal(again[name], weight) for name, weight in drawn.items())


def test_an_adapter_of_another_model_is_refused(base, tmp_path):
    lora = LoraConfig(rank=4, target_modules="q_proj")
    policy = load_policy(files_of(base), ModelConfig(path=str(base), lora=lora), "float32", 64, lora_seed=0)
    export_adapter(policy, folder_at(tmp_path / "adapter"), SingleRank())
    deeper = tiny_llama(tmp_path / "deeper", layers=3)
    model = described(ModelConfig(path=str(deeper), start=str(tmp_path / "adapter")))
    with pytest.raises(UserError, match="is an adapter of another model, which differs in 2 weights"):
        load_policy(files_of(deeper), model, "float32", 64, lora_seed=0)
