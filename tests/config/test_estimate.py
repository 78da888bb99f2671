from grpo.config import TrainConfig
from grpo.config.estimate import ModelShape, batch_table, memory_estimate

SEVEN_B = ModelShape(parameters=7_000_000_000, layers=28, width=3584, vocabulary=152_064, key_value_width=512)


def config():
    value = TrainConfig()
    value.dynamics.prompts_per_step, value.dynamics.group_size, value.dynamics.refresh_interval = 16, 8, 4
    value.rollout.sampling.max_tokens, value.task.prompt.max_tokens = 100, 50
    value.learner.micro_batch_tokens, value.num_steps = 1000, 10
    value.learner.precision = value.rollout.precision = "bfloat16"
    return value


def test_batch_table_counts_by_hand():
    rows = {name: numbers for name, *numbers in batch_table(config(), world_size=2)}
    assert rows["completions per step"] == [64, 128]
    assert rows["completion tokens per step, at most"] == [6400, 12800]
    # 12,800 completion tokens and 16 shared prompts of 50: 13,600 tokens, 6,800 a rank, 7 rows of 1,000
    assert rows["packed tokens per step, at most"] == [6800, 13600]
    assert rows["micro-batches per step, at most"] == [7, 14]
    assert rows["completions per round"] == [256, 512]
    assert rows["rounds"] == [3, 3]


def test_a_prompt_is_counted_once_per_completion_unless_shared():
    packed = config()
    packed.learner.layout = "packed"
    rows = {name: numbers for name, *numbers in batch_table(packed, world_size=1)}
    assert rows["packed tokens per step, at most"] == [128 * 150, 128 * 150]


def test_sharding_divides_what_each_stage_shards():
    def gib(stage):
        value = config()
        value.learner.zero_stage = stage
        return dict(memory_estimate(value, SEVEN_B, world_size=8))

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
    names = [name for name, _ in memory_estimate(value, SEVEN_B, world_size=8)]
    assert not any(name.startswith(("sampler", "KV")) for name in names)
    assert any(name.startswith("KV") for name, _ in memory_estimate(config(), SEVEN_B, world_size=8))


def test_ranks_that_compute_rows_together_pool_tokens_and_share_activations():
    def found(together):
        value = config()
        value.learner.sequence_parallel = together
        rows = {name: numbers for name, *numbers in batch_table(value, world_size=2)}
        memory = dict(memory_estimate(value, SEVEN_B, world_size=2))
        return rows["micro-batches per step, at most"][0], memory

    (alone, of_one), (pooled, of_two) = found(1), found(2)
    # 13,600 tokens in rows of 1,000: 7 on each of two ranks, or 14 on both.
    assert (alone, pooled) == (7, 14)
    assert of_two["activations of 500 tokens"] == of_one["activations of 1,000 tokens"] / 2
