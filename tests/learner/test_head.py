"""These tests hold that `model.head_precision` gives the output layer float32, in the learner and in samplers alike."""

import torch
from transformers import AutoModelForCausalLM

from benchmarks.small_models import config_of, tiny_tokenizer
from grpo.algorithm.packing import Branch, LooseTree, pack
from grpo.config import ModelConfig, SamplingConfig, TrainConfig
from grpo.config.parts import SamplerSettings
from grpo.interfaces import Draw
from grpo.learner.loading import load_policy
from grpo.learner.policy import base_model
from grpo.learner.proof import example_row
from grpo.rollout.engine_arguments import engine_arguments
from grpo.rollout.transformers_sampler import TransformersSampler
from grpo.types import Problem, Prompt
from tests.learner.models import files_of, tiny_llama


def logprobs_of(path, head_precision):
    policy = load_policy(files_of(path), ModelConfig(max_length=64, head_precision=head_precision), "bfloat16", 64)
    micro, _ = example_row()
    with torch.no_grad():
        hidden = policy._hidden(micro.token_ids, micro.position_ids, micro.trees)[micro.predictors].double()
        head = base_model(policy.language_model).get_output_embeddings().weight.double()
        exact = (hidden @ head.T).log_softmax(-1).gather(-1, micro.targets[:, None]).squeeze(-1)
        return policy(micro, 1.0)[0] - exact


def test_a_learners_head_in_float32_adds_no_rounding_to_that_of_the_layers_before(tmp_path):
    model = AutoModelForCausalLM.from_config(config_of("Llama"))
    model.lm_head.weight.data.mul_(30)
    model.save_pretrained(tmp_path)
    assert logprobs_of(tmp_path, "float32").abs().max() < 1e-5
    assert logprobs_of(tmp_path, "model").abs().mean() > 1e-3
    # Resolved before a model is loaded; whoever does not, has the model's own.
    assert torch.equal(logprobs_of(tmp_path, "auto"), logprobs_of(tmp_path, "model"))


def test_vllm_is_asked_for_the_same():
    config = TrainConfig()
    config.rollout.precision, config.model.head_precision = "bfloat16", "float32"
    assert engine_arguments(SamplerSettings.of(config), "model", on_gpu=True)["hf_overrides"] == {
        "head_dtype": "float32"
    }
    config.model.head_precision = "model"
    assert "hf_overrides" not in engine_arguments(SamplerSettings.of(config), "model", on_gpu=True)


def test_so_is_transformers(tmp_path):
    path = tiny_llama(tmp_path / "model")
    config = TrainConfig()
    config.rollout.precision, config.rollout.sampling = "bfloat16", SamplingConfig(max_tokens=8)
    config.model = ModelConfig(max_length=64, head_precision="float32")
    sampler = TransformersSampler(SamplerSettings.of(config), files_of(path, tiny_tokenizer()), torch.device("cpu"))
    assert sampler._model(torch.tensor([[3, 4, 5]])).logits.dtype == torch.float32
    [group] = sampler.generate(Draw([Prompt(Problem("p", "q", "a"), (3, 4, 5))], 2))
    assert len(group.completions) == 2


def test_transformers_samples_with_the_soft_caps_of_the_learner(tmp_path):
    model = AutoModelForCausalLM.from_config(config_of("Gemma 2"))
    for parameter in model.parameters():
        parameter.data.mul_(4) if parameter.dim() > 1 else None
    model.save_pretrained(tmp_path)
    config = TrainConfig()
    config.rollout.precision, config.rollout.sampling = "float32", SamplingConfig(max_tokens=8)
    config.model = ModelConfig(max_length=64)
    sampler = TransformersSampler(SamplerSettings.of(config), files_of(tmp_path, tiny_tokenizer()), torch.device("cpu"))
    group = sampler.generate(Draw([Prompt(Problem("p", "q", "a"), tuple(range(3, 15)))], 2))[0]
    policy = load_policy(files_of(tmp_path), config.model, "float32", 64)
    branches = tuple(Branch(completion, 0.0, 0.0) for completion in group.completions)
    micro = pack([LooseTree(group.prompt.token_ids, branches)])
    torch.testing.assert_close(policy(micro, 1.0)[0].detach(), micro.sampler_logprobs, rtol=0, atol=1e-5)
