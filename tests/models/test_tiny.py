import json
import math

import pytest
import torch
from safetensors.torch import load_file

from grpo.config import UserError
from grpo.models import tiny
from grpo.models.cache import sha256
from grpo.models.tiny import build_tiny, cache_entry
from tests.learner.models import files_of

EXAMPLES = [(f"{a} + {b} =", str(a + b)) for a in range(4) for b in range(4)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    build_tiny(path, EXAMPLES, seed=0)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory):
    return files_of(directory).tokenizer


@pytest.fixture(scope="module")
def model(directory):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory)


def chat(tokenizer, question):
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def test_every_printable_character_is_one_token_and_comes_back(tokenizer):
    text = "".join(map(chr, range(32, 127))) + "\n  two  spaces ."
    token_ids = tokenizer.encode(text)
    assert len(token_ids) == len(text)
    assert tokenizer.decode(token_ids) == text
    assert tokenizer.unk_token_id not in token_ids


def test_another_character_is_unknown(tokenizer):
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a\u00e9b")) == ["a", "<|unknown|>", "b"]


def test_the_chat_template_ends_where_the_answer_begins(tokenizer):
    token_ids = chat(tokenizer, "3 + 4 =")
    assert tokenizer.decode(token_ids) == "<|user|>3 + 4 =<|assistant|>"
    assert len(token_ids) == 9


def test_the_chat_template_ends_past_answers_as_the_model_does(tokenizer):
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<|system|>S<|user|>Q<|assistant|>A<|eos|>"


def test_end_of_sequence_and_padding_are_two_tokens(tokenizer, model):
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|eos|>", "<|pad|>")
    assert tokenizer.eos_token_id != tokenizer.pad_token_id
    assert model.generation_config.eos_token_id == model.config.eos_token_id == tokenizer.eos_token_id


def test_it_is_a_tied_llama_with_the_head_size_that_every_engine_supports(directory, model):
    config = json.loads((directory / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert model.config.head_dim == 32
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.dtype == torch.float32
    assert sum(p.numel() for p in model.parameters()) < 1_000_000


def test_the_warm_start_ends_at_a_third_right_with_the_rule_found(tokenizer, model):
    probabilities, greedy = [], 0
    for question, answer in EXAMPLES:
        prompt, target = chat(tokenizer, question), tokenizer.encode(answer + "<|eos|>")
        with torch.no_grad():
            logits = model(torch.tensor([prompt + target])).logits[0, len(prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1)[range(len(target)), target]
        probabilities.append(math.exp(logprobs.sum().item()))
        greedy += logits.argmax(-1).tolist() == target
    assert sum(probabilities) / len(probabilities) == pytest.approx(0.35, abs=1e-4)
    assert max(probabilities) < 0.95
    assert greedy >= 14


def test_a_model_that_has_not_got_there_is_not_flattened(tmp_path):
    build_tiny(tmp_path, EXAMPLES, num_steps=1)
    norm = load_file(tmp_path / "model.safetensors")["model.norm.weight"]
    assert norm.mean().item() == pytest.approx(1.0, abs=0.01)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        build_tiny(tmp_path / name, EXAMPLES, seed, num_steps=2)
    a, b, c = (sha256(tmp_path / name / "model.safetensors") for name in "abc")
    assert a == b != c


def test_building_leaves_the_callers_random_numbers_alone(tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    build_tiny(tmp_path, EXAMPLES, num_steps=1)
    assert torch.equal(torch.rand(3), expected)


def test_the_cache_entry_is_another_one_for_other_arguments(monkeypatch):
    names = [
        cache_entry(EXAMPLES),
        cache_entry(EXAMPLES[1:]),
        cache_entry(EXAMPLES, seed=1),
        cache_entry(EXAMPLES, num_steps=1),
    ]
    monkeypatch.setattr(tiny, "FORMAT_VERSION", tiny.FORMAT_VERSION + 1)
    names.append(cache_entry(EXAMPLES))
    assert len(set(names)) == 5


def test_without_examples_there_is_one_line(tmp_path):
    with pytest.raises(UserError, match="there are none: check task.data"):
        build_tiny(tmp_path, [])
