"""These tests give real engines LoRA adapters, and compare what they compute with a reference in float64."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.small_models import tiny_tokenizer
from grpo.config import LoraConfig, SamplingConfig, TrainConfig
from grpo.config.parts import SamplerSettings
from grpo.interfaces import Draw
from grpo.types import Problem, Prompt
from grpo.types.weights import ADAPTERS, BASE, MERGED
from grpo.weight_sync.refresh import CheckedSync, WeightSyncError
from tests.learner.models import files_of, tiny_llama

DEVICE = torch.device("cpu")
PROMPTS = [Prompt(Problem(f"p{length}", "q", "a"), tuple(range(3, 3 + length))) for length in (3, 40, 7)]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tiny_llama(tmp_path_factory.mktemp("model"), tied=True)
    tiny_tokenizer().save_pretrained(directory)
    return directory


def config_of(rank, targets, **rollout):
    config = TrainConfig()
    config.model.lora = LoraConfig(rank=rank, alpha=2.0 * rank, target_modules=targets)
    config.model.max_length = 64
    config.learner.precision = config.rollout.precision = "float32"
    config.rollout.kv_cache_gib = 0.0625
    config.rollout.sampling = SamplingConfig(max_tokens=12)
    for name, value in rollout.items():
        setattr(config.rollout, name, value)
    return config


def learner_of(model, config):
    """Makes a learner that only holds adapted weights. `forms` are those in which it has sent them."""
    from grpo.learner.loading import load_policy
    from grpo.learner.weights import weight_buckets

    policy = load_policy(files_of(model), config.model, "float32", 64, lora_seed=0)

    def buckets(form=MERGED):
        learner.forms.append(form)
        # Small buckets, so that the halves of an adapter come in several.
        return weight_buckets(policy, 20_000, torch.float32, form)

    learner = SimpleNamespace(policy=policy, forms=[], num_steps=3, weight_buckets=buckets)
    return learner


def draw_adapters(learner, seed):
    """Gives the adapters numbers as after long training: they change every weight by about its own size."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in learner.policy.named_parameters():
        if "lora_" in name:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)


def largest_gap(learner, groups, model):
    """Returns the largest difference in nats from the model with the adapters added to its weights, all in float64."""
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    for name, layer in learner.policy.language_model.get_base_model().named_modules():
        if hasattr(layer, "lora_A"):
            change = layer.lora_B["default"].weight.double() @ layer.lora_A["default"].weight.double()
            reference.get_submodule(name).weight.data += 2 * change
    gaps = []
    for group in groups:
        for completion in group.completions:
            row = torch.tensor([[*group.prompt.token_ids, *completion.token_ids]])
            with torch.no_grad():
                logprobs = reference(row, use_cache=False).logits[0].log_softmax(-1)
            written = row[0, -len(completion.token_ids) :, None]
            expected = logprobs[len(group.prompt.token_ids) - 1 : -1].gather(1, written)[:, 0]
            gaps.append((expected - torch.tensor(completion.sampler_logprobs)).abs().max().item())
    return max(gaps)


def sampler_of(engine, config, model):
    files = files_of(model, tiny_tokenizer())
    if engine == "transformers":
        from grpo.rollout.transformers_sampler import TransformersSampler

        return TransformersSampler(SamplerSettings.of(config), files, DEVICE)
    from grpo.rollout.vllm_sampler import VllmSampler

    return VllmSampler(SamplerSettings.of(config), files)


@pytest.mark.parametrize(
    ("engine", "rank", "targets"),
    [("vllm", 4, "all-linear"), ("vllm", 12, "v_proj,down_proj"), ("transformers", 12, "k_proj,up_proj")],
)
def test_an_engine_computes_adapters_as_float64_does_and_is_sent_them_alone_after_the_first_refresh(
    engine, rank, targets, model
):
    config = config_of(rank, targets)
    learner, sampler, sync = learner_of(model, config), sampler_of(engine, config, model), CheckedSync(0.5)
    for seed in range(3):
        draw_adapters(learner, seed)
        sync.refresh(learner, sampler)
        groups = sampler.generate(Draw(PROMPTS, 2))
        assert largest_gap(learner, groups, model) < 2e-5
    draw_adapters(learner, 9)
    assert largest_gap(learner, groups, model) > 0.1, "adapters change nothing: the test shows nothing"
    assert learner.forms == [BASE, ADAPTERS, ADAPTERS]
    load = sampler.load_weights
    sampler.load_weights = lambda bucket: load([(name, half + 1e-3 * name.endswith("lora_B")) for name, half in bucket])
    with pytest.raises(WeightSyncError, match=r"hold different weights in .*layers.0"):
        sync.refresh(learner, sampler)
    sampler.close()


def test_an_engine_to_which_adapters_are_merged_is_sent_whole_weights(model):
    config = config_of(4, "all-linear", merge_adapters=True)
    learner, sampler = learner_of(model, config), sampler_of("transformers", config, model)
    draw_adapters(learner, 1)
    CheckedSync(0.5).refresh(learner, sampler)
    assert learner.forms == [MERGED]
    assert largest_gap(learner, sampler.generate(Draw(PROMPTS, 2)), model) < 2e-5
