"""rollout.engine=transformers pads shorter prompts only where that changes nothing."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.small_models import EXPERTS, SMALL, config_of, tiny_tokenizer
from grpo.config import SamplingConfig, TrainConfig, UserError
from grpo.config.parts import SamplerSettings
from grpo.interfaces import Draw
from grpo.learner.collective import TorchCollective
from grpo.rollout import transformers_sampler
from grpo.rollout.transformers_sampler import ALIKE, ALONE, PADDED, TransformersSampler
from grpo.run.padding import exact_way
from grpo.run.parts import build_sampler
from grpo.types import Problem, Prompt
from tests.learner.models import files_of

RECURRENT = {"lru_width": 64, "attention_window_size": 8, "block_types": ["recurrent", "recurrent", "attention"],
             "num_hidden_layers": 3}  # fmt: skip
SPARSE = {**EXPERTS, "layer_types": ["minimax_m3_sparse"] * 4}
XLM = {"emb_dim": 64, "n_layers": 2, "n_heads": 4, "causal": True}


def written(model_type, special, path):
    torch.manual_seed(3)
    settings = {**SMALL, **special} if model_type != "xlm" else {"vocab_size": 96, **special}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
    for parameter in model.parameters():
        parameter.data.mul_(4) if parameter.dim() > 1 else parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("model_type", "special", "way"),
    [
        ("llama", {}, PADDED),
        ("gpt_oss", EXPERTS, PADDED),
        ("mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "expand": 2}, PADDED),
        ("recurrent_gemma", RECURRENT, ALIKE),
        ("minimax_m3_vl_text", SPARSE, ALIKE),
        # Its state is shared by the rows of a batch.
        ("rwkv", {"attention_hidden_size": 64, "context_length": 256}, ALONE),
    ],
)
def test_prompts_are_batched_in_the_quickest_way_that_is_exact(model_type, special, way, tmp_path):
    settings = {**SMALL, **special}
    AutoConfig.for_model(model_type, **settings).save_pretrained(tmp_path)
    state = torch.random.get_rng_state()
    assert exact_way(files_of(tmp_path)) == way
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_model_that_transformers_does_not_sample_as_it_computes_it_is_refused(tmp_path):
    AutoConfig.for_model("xlm", vocab_size=96, **XLM).save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match=r"rollout.engine=transformers does not sample what the model computes .* off by"
    ):
        exact_way(files_of(tmp_path))


def test_a_model_without_a_small_copy_is_sampled_one_completion_at_a_time(tmp_path, monkeypatch):
    config_of("Llama").save_pretrained(tmp_path)
    monkeypatch.setattr("grpo.learner.proof.LARGEST", 0)
    assert exact_way(files_of(tmp_path)) == ALONE


def test_a_recurrent_model_samples_prompts_of_all_lengths_with_its_own_probabilities(tmp_path):
    path = written("recurrent_gemma", RECURRENT, tmp_path)
    config, tokenizer, device = TrainConfig(), tiny_tokenizer(), torch.device("cpu")
    config.rollout.engine, config.rollout.precision = "transformers", "float32"
    config.rollout.sampling = SamplingConfig(max_tokens=6)
    prompts = [Prompt(Problem(f"p{length}", "q", "a"), tuple(range(3, 3 + length))) for length in (4, 15, 4, 9)]
    own = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")

    def worst(groups):
        differences = []
        for group in groups:
            for completion in group.completions:
                ids = torch.tensor([group.prompt.token_ids + completion.token_ids])
                with torch.no_grad():
                    logits = own(input_ids=ids, use_cache=False).logits[0, len(group.prompt.token_ids) - 1 : -1]
                logprobs = logits.log_softmax(-1).gather(-1, torch.tensor(completion.token_ids)[:, None]).squeeze(-1)
                differences.append((logprobs - torch.tensor(completion.sampler_logprobs)).abs().max().item())
        return max(differences)

    sampler, lines = build_sampler(config, files_of(path, tokenizer), device, TorchCollective(device)), []
    groups = sampler.generate(Draw(prompts, [2, 1, 2, 1]), on_group=lambda place, group: lines.append((place, group)))
    assert [group.prompt for group in groups] == prompts
    assert [len(group.completions) for group in groups] == [2, 1, 2, 1]
    assert sorted(lines, key=lambda pair: pair[0]) == list(enumerate(groups))
    assert worst(groups) < 1e-4
    assert (
        worst(
            TransformersSampler(SamplerSettings.of(config), files_of(path, tokenizer), device, PADDED).generate(
                Draw(prompts, 2)
            )
        )
        > 0.01
    )


def test_rows_of_one_length_share_a_batch_and_no_batch_is_larger_than_allowed():
    lengths = [5, 3, 5, 5, 3]
    assert transformers_sampler.batches(lengths, 2, PADDED) == [[0, 1], [2, 3], [4]]
    assert transformers_sampler.batches(lengths, 2, ALIKE) == [[1, 4], [0, 2], [3]]
    assert transformers_sampler.batches(lengths, 2, ALONE) == [[0], [1], [2], [3], [4]]
