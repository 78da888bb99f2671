import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig, Mamba2Config, Qwen3MoeConfig

from grpo.algorithm.packing import Branch, LooseTree, pack
from grpo.config import ModelConfig
from grpo.learner.flops import FlopCount, flop_count
from grpo.learner.loading import load_policy
from grpo.types import Completion
from tests.learner.models import files_of, tiny_llama


def test_matrix_products_are_those_that_torch_counts(tmp_path):
    policy = load_policy(files_of(tiny_llama(tmp_path / "model", tied=False)), ModelConfig(), "float32", 64)
    count = flop_count(policy.language_model, policy.head.weight)
    branches = tuple(Branch(Completion((5,) * length, (-1.0,) * length, "", False), 1.0, 1.0) for length in (6, 4))
    micro = pack([LooseTree((3, 4, 5), branches)])
    with FlopCounterMode(display=False) as counter:
        logprobs, _ = policy(micro, 1.0)
        logprobs.sum().backward()
    counted = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    # 3 + 5 + 3 packed tokens, 6 + 4 targets.
    assert counted == 11 * count.per_token + 10 * count.per_target
    assert count.per_target == 6 * 64 * 64


def test_experts_count_as_far_as_a_token_is_sent_to_them():
    config = Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, intermediate_size=48,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    attention, router, expert = 2 * 32 * 32 + 2 * 32 * 16, 32 * 8, 3 * 32 * 16
    count = flop_count(model, model.get_output_embeddings().weight)
    assert count.per_token == 6 * 2 * (attention + router + 2 * expert)


def test_attention_counts_the_pairs_that_are_attended():
    one = torch.nn.Module()
    one.config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=3, head_dim=16)
    one.get_input_embeddings = lambda: torch.nn.Embedding(5, 8)
    # 2·(scores and values)·(1 forward + 2 backward) on 3 layers of 2 heads of width 16.
    assert flop_count(one, torch.nn.Parameter(torch.ones(5, 8))).per_pair == 2 * 2 * 3 * 3 * 2 * 16


def test_a_model_without_attention_has_no_pairs():
    one = torch.nn.Module()
    one.config = Mamba2Config(hidden_size=64, num_hidden_layers=2, num_heads=8, head_dim=16, expand=2)
    one.get_input_embeddings = lambda: torch.nn.Embedding(5, 64)
    assert flop_count(one, torch.nn.Parameter(torch.ones(5, 64))).per_pair == 0


def test_the_operations_of_runs_add_up_to_those_of_their_row():
    count = FlopCount(per_token=100.0, per_target=10.0, per_pair=1.0)
    branches = tuple(Branch(Completion((5,) * length, (-1.0,) * length, "", False), 1.0, 1.0) for length in (6, 4, 1))
    row = pack([LooseTree((3, 4, 5), branches)])
    assert count.of(row) == count.of_run(0, 3) + count.of_run(3, 5) + count.of_run(3, 3) + count.of_run(3, 0)
