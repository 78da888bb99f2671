"""These tests run a model by vLLM's transformers backend beside a learner's model of the same class, in one process."""

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.runs import SMALL as SMALL_RUN
from benchmarks.runs import rows
from benchmarks.small_models import ARCHITECTURES, SMALL, tiny_tokenizer
from tests import forked_servers

TOKENS = {"input_ids": torch.tensor([[3, 4, 5]]), "use_cache": False}


def smollm3():
    torch.manual_seed(0)
    config = AutoConfig.for_model("smollm3", **{**SMALL, **ARCHITECTURES["SmolLM3"][1], "head_dim": 32})
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.slow
def test_a_class_that_vllm_changes_is_as_before_and_the_engines_model_keeps_the_change():
    decorators = pytest.importorskip("vllm.compilation.decorators")
    from vllm.config import VllmConfig, set_current_vllm_config

    ours = smollm3()
    cls = type(ours.model)
    bases, attributes, expected = cls.__bases__, dict(vars(cls)), ours(**TOKENS).logits
    from grpo.rollout.model_classes import ModelClasses

    classes = ModelClasses()
    # As vLLM's Transformers backend does it, before it makes its model.
    decorators.support_torch_compile(dynamic_arg_dims={"input_ids": 1})(cls)
    config = VllmConfig()
    config.compilation_config.mode = 0
    with set_current_vllm_config(config):
        engines = nn.ModuleDict({"model": smollm3().model})
    with pytest.raises(AttributeError, match="do_not_compile"):
        ours(**TOKENS)
    changed = cls.__call__
    classes.part(engines)
    assert cls.__bases__ == bases and dict(vars(cls)) == attributes
    assert torch.equal(ours(**TOKENS).logits, expected)
    assert torch.equal(smollm3()(**TOKENS).logits, expected)
    own = type(engines["model"])
    assert own is not cls and issubclass(own, cls) and own.__call__ is changed
    assert engines["model"].do_not_compile
    hidden = ours.model(**TOKENS).last_hidden_state
    assert torch.equal(engines["model"](**TOKENS).last_hidden_state, hidden)


@pytest.mark.slow
@pytest.mark.parametrize("rollout", ["vllm", "vllm_server", "transformers"])
def test_a_model_that_vllm_has_no_code_for_is_trained(tmp_path, rollout):
    smollm3().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    run = tmp_path / "run"
    model = ["model=huggingface", f"model.path={tmp_path / 'model'}", "model.max_length=96", "task.prompt.chat=false"]
    # Half of what it writes at random has a digit.
    digits = ["task.reward.parts=[{name: format}]", "task.reward.format_pattern='[0-9]'"]
    words = [*SMALL_RUN, *model, *digits, f"rollout={rollout}", "num_steps=2", f"output_dir={run}"]
    done = forked_servers.grpo(tmp_path, "train", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = rows(run / "metrics.jsonl")
    assert len(steps) == 2 and all(row["learner/gradient_norm"] > 0 for row in steps)
    assert max(row["mismatch/mean_abs"] for row in steps) < 1e-5
