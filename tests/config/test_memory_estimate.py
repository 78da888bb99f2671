import re
from dataclasses import replace

import pytest
import torch

from grpo.config import ModelConfig, TrainConfig
from grpo.config.directory import config_directory
from grpo.config.hydra import compose_config
from grpo.config.memory_estimate import (
    BYTES,
    GIB,
    ModelShape,
    activation_bytes,
    at_its_largest,
    batch_table,
    engine_weights,
    least_sleep,
    memory_estimate,
    offloaded_bytes,
)
from grpo.learner.loading import load_policy
from grpo.run.tables import model_shape
from grpo.types import Tree
from tests.learner.models import files_of, tiny_llama

SEVEN_B = ModelShape(
    parameters=7_000_000_000,
    layers=28,
    width=3584,
    inner_width=18_944,
    vocabulary=152_064,
    query_width=3584,
    key_value_width=512,
)


def config():
    value = TrainConfig()
    value.dynamics.prompts_per_step, value.dynamics.group_size, value.dynamics.refresh_interval = 16, 8, 4
    value.rollout.sampling.max_tokens, value.task.prompt.max_tokens = 100, 50
    value.learner.micro_batch_tokens, value.num_steps = 1000, 10
    value.learner.precision = value.rollout.precision = "bfloat16"
    return value


def learning(config, world_size):
    """Returns the estimated GiB on a CPU while the learner works, by component."""
    return {name: gib for name, _, gib in memory_estimate(config, SEVEN_B, world_size)}


def test_batch_table_counts_by_hand():
    rows = {name: numbers for name, *numbers in batch_table(config(), world_size=2)}
    assert rows["completions per step"] == [64, 128]
    assert rows["completion tokens per step, at most"] == [6400, 12800]
    # 12,800 completion tokens and 16 shared prompts of 50: 13,600 tokens, 6,800 a rank, 7 rows of 1,000
    assert rows["packed tokens per step, at most"] == [6800, 13600]
    assert rows["micro-batches per step, about"] == [7, 14]
    assert rows["completions per round"] == [256, 512]
    assert rows["rounds"] == [3, 3]


def test_a_schedule_is_estimated_at_its_largest_batch():
    value = config()
    assert at_its_largest(value) is value
    value.dynamics.name, value.dynamics.adaptive.most_prompts = "adaptive", 32
    value.dynamics.adaptive.smallest_group, value.dynamics.adaptive.largest_group = 2, 64
    largest = at_its_largest(value).dynamics
    assert (largest.prompts_per_step, largest.group_size) == (32, 64)
    value.rollout.budget.enabled = True
    assert at_its_largest(value).dynamics.group_size == value.rollout.budget.largest == 32
    assert (value.dynamics.prompts_per_step, value.dynamics.group_size) == (16, 8)


def test_a_prompt_is_counted_once_per_completion_unless_shared():
    packed = config()
    packed.learner.layout = "packed"
    rows = {name: numbers for name, *numbers in batch_table(packed, world_size=1)}
    assert rows["packed tokens per step, at most"] == [128 * 150, 128 * 150]


def test_memory_counts_a_prompt_as_often_as_the_batch_table():
    def names(layout):
        value = config()
        value.learner.layout, value.learner.micro_batch_tokens = layout, 100_000
        return [name for name, *_ in memory_estimate(value, SEVEN_B, world_size=8)]

    # Two prompts of a rank with eight completions each.
    assert "activations of 1,700 tokens" in names("shared")
    assert "activations of 2,400 tokens" in names("packed")


def test_sharding_divides_what_each_stage_shards():
    def gib(stage):
        value = config()
        value.learner.zero_stage = stage
        return learning(value, world_size=8)

    one, two, three = gib(1), gib(2), gib(3)
    weights = 2 * 7e9 / 2**30
    assert one["learner weights"] == weights
    assert three["learner weights"] == weights / 8
    assert one["learner gradients (float32)"] == 2 * weights
    assert two["learner gradients (float32)"] == 2 * weights / 8
    assert one["optimizer moments and masters"] == 6 * weights / 8
    assert three["in all"] == sum(amount for name, amount in three.items() if name != "in all")


def test_servers_take_nothing_of_a_learners_memory():
    value = config()
    value.rollout.engine = "vllm_server"
    names = [name for name, *_ in memory_estimate(value, SEVEN_B, world_size=8)]
    assert not any(name.startswith(("sampler", "KV")) for name in names)
    assert any(name.startswith("KV") for name in learning(config(), world_size=8))


# An H100 with 80 GB has this much.
GPU_GIB = 79.6
# Qwen2.5's own numbers.
QWEN = {
    "7b": ModelShape(7_615_616_512, 28, 3584, 18_944, 152_064, 3584, 512),
    "1_5b": ModelShape(1_543_714_304, 28, 1536, 8960, 151_936, 1536, 256),
}
# By hand, in GiB. 7B on eight GPUs under ZeRO-3: weights 1.8, gradients 3.5 and optimizer 10.6 are 16.0 always.
# Sampling adds 0.65 of the GPU, 51.7, and 1.5 of runtime. Learning adds, for 16,384 tokens that are computed again,
# inputs of 28 layers 3.1 and one whole layer 3.5, logits 27.8, the output layer's gradient 3.0, gathered embeddings
# 2.0 and layers 1.9, a bucket 0.9 and the runtime 1.5.
# 1.5B on one GPU: weights 2.9, gradients 5.8 and optimizer 17.3 are 25.9. Sampling adds 39.8 and 1.5. Learning adds,
# for 8,192 tokens, 28 layers 22.8, logits 13.9, the output layer's gradient 1.3, a bucket 0.9 and 1.5.
BY_HAND = {"bigmath_qwen2_5_7b": (8, 69.2, 59.8), "bigmath_qwen2_5_1_5b": (1, 67.2, 66.3)}
# The shapes of the models of recipes that name their memory, and the number of their ranks.
LLAMA = {
    "3b": ModelShape(3_212_749_824, 28, 3072, 8192, 128_256, 3072, 1024),
    "8b": ModelShape(8_030_261_248, 32, 4096, 14_336, 128_256, 4096, 1024),
}
QWEN3_4B = ModelShape(4_022_468_096, 36, 2560, 9728, 151_936, 4096, 1024)
RECIPES = {
    # By hand: adapters of rank 16 on the seven matrices of each layer have 36 · 16 · 57,344 weights.
    "alphabet_sort_qwen3_4b": (replace(QWEN3_4B, adapters=33_030_144), 1),
    "bigmath_qwen2_5_1_5b": (QWEN["1_5b"], 1),
    "gsm8k_qwen2_5_1_5b": (QWEN["1_5b"], 1),
    "math_python_qwen2_5_1_5b": (QWEN["1_5b"], 1),
    "bigmath_llama3_2_3b": (LLAMA["3b"], 8),
    "bigmath_llama3_1_8b": (LLAMA["8b"], 8),
    "bigmath_qwen2_5_7b": (QWEN["7b"], 8),
    "gsm8k_qwen2_5_7b": (QWEN["7b"], 8),
    "code_qwen2_5_7b": (QWEN["7b"], 8),
    "dapo_math_qwen3_4b": (QWEN3_4B, 8),
    "deepscaler_r1_distill_1_5b": (ModelShape(1_777_088_000, 28, 1536, 8960, 151_936, 1536, 256), 8),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_says_what_it_takes_of_a_gpu_and_leaves_a_tenth(recipe):
    chosen = compose_config([f"experiment={recipe}"])
    chosen.learner.precision = chosen.rollout.precision = "bfloat16"
    needed = max(memory_estimate(chosen, *RECIPES[recipe], GPU_GIB)[-1][1:])
    text = (config_directory() / "experiment" / f"{recipe}.yaml").read_text()
    assert float(re.search(r"(\d+) GiB a GPU by the memory estimate", text)[1]) == pytest.approx(needed, abs=0.8)
    assert needed < 0.9 * GPU_GIB


@pytest.mark.parametrize(
    ("recipe", "words", "gib", "expected"),
    [
        # The learner takes 66 GiB, and the engine's weights 3 GiB of its share. A tenth of the GPU is left.
        ("gsm8k_qwen2_5_1_5b", ["rollout.gpu_memory_fraction=0.35"], 139.8, "never"),
        ("gsm8k_qwen2_5_1_5b", ["rollout.gpu_memory_fraction=0.45"], 139.8, "cache"),
        ("gsm8k_qwen2_5_1_5b", [], GPU_GIB, "cache"),
        ("gsm8k_qwen2_5_1_5b", [], 60.0, "all"),
        ("gsm8k_qwen2_5_1_5b", ["learner.offload_states=true"], 139.8, "all"),
    ],
)
def test_an_engine_gives_back_no_more_than_the_learner_beside_it_needs(recipe, words, gib, expected):
    chosen = compose_config([f"experiment={recipe}", *words])
    chosen.learner.precision = chosen.rollout.precision = "bfloat16"
    assert least_sleep(chosen, *RECIPES[recipe], gib) == expected
    rows = {}
    for sleep in ("never", "cache", "all", "auto"):
        rows[sleep] = memory_estimate(
            replace(chosen, rollout=replace(chosen.rollout, sleep=sleep)), *RECIPES[recipe], gib
        )
    weights = engine_weights(chosen, RECIPES[recipe][0]) / GIB
    share = chosen.rollout.gpu_memory_fraction * gib
    learning = {sleep: table[-1][2] for sleep, table in rows.items()}
    assert learning["all"] == learning["auto"]
    assert learning["cache"] - learning["all"] == pytest.approx(weights)
    assert learning["never"] - learning["all"] == pytest.approx(share)
    # An engine that is awake takes no more while it samples.
    assert len({table[-1][1] for table in rows.values()}) == 1


@pytest.mark.parametrize("recipe", BY_HAND)
def test_a_gpu_is_shared_in_turn_as_counted_by_hand(recipe):
    world_size, sampling, learns = BY_HAND[recipe]
    chosen = compose_config([f"experiment={recipe}"])
    chosen.learner.precision = chosen.rollout.precision = "bfloat16"
    shape = QWEN[recipe.split("qwen2_5_")[1]]
    *rows, total = memory_estimate(chosen, shape, world_size, GPU_GIB)
    assert total == ("in all", pytest.approx(sampling, rel=0.03), pytest.approx(learns, rel=0.03))
    assert total[1:] == tuple(pytest.approx(sum(row[column] for row in rows)) for column in (1, 2))
    assert max(total[1:]) < GPU_GIB


def test_an_engine_of_several_ranks_and_states_that_leave_are_counted_by_hand():
    # Qwen2.5-14B on eight GPUs under ZeRO-3, an engine for four of them.
    shape = ModelShape(14_770_033_664, 48, 5120, 13_824, 152_064, 5120, 1024)
    words = ["learner.zero_stage=3", "learner.offload_states=true", "learner.gradient_checkpointing=true"]
    words += ["rollout.tensor_parallel=4", "rollout.gpu_memory_fraction=0.85", "learner.micro_batch_tokens=8192"]
    words += ["dynamics.prompts_per_step=64", "dynamics.group_size=8", "rollout.sampling.max_tokens=1024"]
    words += ["task.prompt.max_tokens=256", "model.max_length=1280", "learner.logit_chunk_tokens=4096"]
    chosen = compose_config(["experiment=bigmath_qwen2_5_7b", *words])
    chosen.learner.precision = chosen.rollout.precision = "bfloat16"
    chosen.objective.kl.coefficient = 0.0
    *rows, total = memory_estimate(chosen, shape, 8, GPU_GIB)
    # In GiB. While sampling the engine's 0.85 of the GPU, 67.7, and 1.5 of runtime: no state is left.
    assert total[1] == pytest.approx(67.7 + 1.5, abs=0.1)
    # While learning an eighth of the weights 3.4, gradients 6.9 and optimizer 20.6; of 8,192 tokens inputs 3.8 and one
    # layer 1.7; logits 7.0 of 4,096; the output layer's gradient 4.4; gathered 4.8; a bucket 0.9; runtime 1.5.
    assert total[2] == pytest.approx(3.4 + 6.9 + 20.6 + 3.8 + 1.7 + 7.0 + 4.4 + 4.8 + 0.9 + 1.5, rel=0.03)
    # The engine's share holds a quarter of the weights, and the rest is cache.
    engine = {name: sampling for name, sampling, _ in rows if name.startswith("sampler")}
    assert engine["sampler weights"] == pytest.approx(6.9, abs=0.1)
    assert engine["sampler's KV cache and graphs"] == pytest.approx(67.7 - 6.9, abs=0.1)
    # Main memory has what is away: 30.9 of each rank.
    assert offloaded_bytes(chosen, shape, 8) / 2**30 == pytest.approx(30.9, abs=0.1)


def test_an_optimizer_in_main_memory_takes_none_of_a_gpu():
    chosen = config()
    with_optimizer = memory_estimate(chosen, SEVEN_B, 1, GPU_GIB)[-1]
    chosen.learner.offload_optimizer = True
    without = memory_estimate(chosen, SEVEN_B, 1, GPU_GIB)[-1]
    assert [a - b for a, b in zip(with_optimizer[1:], without[1:], strict=True)] == [12 * 7e9 / 2**30] * 2


def test_states_that_leave_a_gpu_take_none_of_it_while_sampling_and_main_memory_instead():
    chosen = config()
    chosen.learner.zero_stage = 3
    staying = memory_estimate(chosen, SEVEN_B, 8, GPU_GIB)[-1]
    chosen.learner.offload_states = True
    leaving = memory_estimate(chosen, SEVEN_B, 8, GPU_GIB)[-1]
    # Weights of two bytes, gradients of four, masters and moments of twelve, of an eighth of the numbers.
    states = 18 * 7e9 / 8
    assert staying[1] - leaving[1] == pytest.approx(states / 2**30) and staying[2] == leaving[2]
    assert offloaded_bytes(chosen, SEVEN_B, 8) == states
    # A CPU has one memory.
    assert memory_estimate(chosen, SEVEN_B, 8)[-1][1] > states / 2**30


def test_ranks_that_compute_rows_together_pool_tokens_and_share_activations():
    def planned(together):
        value = config()
        value.learner.sequence_parallel = together
        rows = {name: numbers for name, *numbers in batch_table(value, world_size=2)}
        memory = learning(value, world_size=2)
        return rows["micro-batches per step, about"][0], memory

    (alone, of_one), (pooled, of_two) = planned(1), planned(2)
    # 13,600 tokens in rows of 1,000: 7 on each of two ranks, or 14 on both.
    assert (alone, pooled) == (7, 14)
    assert of_two["activations of 500 tokens"] == of_one["activations of 1,000 tokens"] / 2


def kept_bytes(policy, tokens):
    """Returns the bytes that autograd keeps for the backward pass of a row with one tree. Weights are left out, and
    every storage counts once."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in policy.parameters()}
    kept = {}

    def keep(tensor):
        # With the tensor, lest its storage be freed and its address taken again.
        kept[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
        return tensor

    row = torch.randint(3, 64, (tokens,)), torch.arange(tokens), (Tree(0, tokens // 2, (tokens // 4,) * 2),)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy._hidden(*row)
    return sum(size for address, (size, _) in kept.items() if address not in weights)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_activations_are_what_autograd_keeps(precision, checkpointing, tmp_path):
    kept, estimated = [], []
    for layers in (2, 6):
        path = tiny_llama(tmp_path / str(layers), layers=layers)
        policy = load_policy(files_of(path), ModelConfig(), precision, chunk=512).train()
        if checkpointing:
            policy.language_model.gradient_checkpointing_enable({"use_reentrant": False})
        kept.append(kept_bytes(policy, 128))
        # A CPU attends in float32.
        estimated.append(
            128 * activation_bytes(model_shape(files_of(path)), BYTES[precision], checkpointing, attended=4)
        )
    # The difference is what a layer adds. Embeddings, positions and the last norm, which a row has once, are not
    # estimated.
    assert kept[1] - kept[0] == pytest.approx(estimated[1] - estimated[0], rel=0.02)
    assert kept[0] < 1.3 * estimated[0]
