"""This module has the cases that test_resume.py and its worker share, as plain values."""

LORA = {"model__lora__rank": 4}
BFLOAT16 = {"precision": "bfloat16"}
RADAM, NADAM = ({"learner__deepspeed": {"optimizer": {"type": name}}} for name in ("RAdam", "NAdam"))
OVERLAPPED = {"learner__deepspeed": {"optimizer": {"type": "NAdam"}, "zero_optimization": {"overlap_comm": True}}}
TOGETHER, COPIES = {"learner__sequence_parallel": 2}, {"learner__hpz_partition_size": 2}

# How a checkpoint was saved, and how it is read.
CHANGES = [
    ({"stage": 1}, {"stage": 2}),
    ({"stage": 2}, {"stage": 1}),
    ({"stage": 1}, {"stage": 1, **TOGETHER}),
    ({"stage": 3, **TOGETHER}, {"stage": 3}),
    ({"stage": 3}, {"stage": 3, **COPIES}),
    ({"stage": 3, **COPIES}, {"stage": 3}),
    ({"stage": 1}, {"stage": 1, "learner__offload_optimizer": True}),
    ({"stage": 2, **BFLOAT16}, {"stage": 1}),
    ({"stage": 3, **BFLOAT16}, {"stage": 3, **COPIES}),
    ({"stage": 1, **LORA}, {"stage": 2, **LORA, **BFLOAT16}),
    ({"stage": 3, **LORA, **BFLOAT16}, {"stage": 3, **LORA}),
    ({"stage": 1, **RADAM}, {"stage": 2, **RADAM, **BFLOAT16}),
    ({"stage": 1, **LORA, **RADAM}, {"stage": 2, **LORA, **RADAM, **BFLOAT16}),
    ({"stage": 3, **LORA, **NADAM, **BFLOAT16}, {"stage": 3, **LORA, **OVERLAPPED, **BFLOAT16}),
    ({"stage": 1}, {"stage": 1, **BFLOAT16}),
    ({"stage": 3}, {"stage": 3, **BFLOAT16}),
]

# How a checkpoint was saved, and how a new run is configured that starts from it.
STARTS = [
    ({"stage": 1}, {"stage": 3}),
    ({"stage": 2, **BFLOAT16}, {"stage": 1, **BFLOAT16}),
    ({"stage": 3, **COPIES}, {"stage": 2}),
    ({"stage": 3, **BFLOAT16}, {"stage": 3, **BFLOAT16}),
    ({"stage": 1, **LORA}, {"stage": 3, **LORA}),
    ({"stage": 2, **LORA, **BFLOAT16}, {"stage": 2, **LORA, **BFLOAT16}),
    ({"stage": 3, **LORA}, {"stage": 1, **LORA, **TOGETHER}),
]

# How a checkpoint was saved, how it is read, what was done to it, and what is said.
REFUSED = [
    ({"stage": 1}, {"stage": 3}, "", "continue with learner.zero_stage=1"),
    ({"stage": 3}, {"stage": 2}, "", "continue with learner.zero_stage=3"),
    (
        {"stage": 1},
        {"stage": 1, **LORA},
        "",
        "90,432 trained parameters, this one has 8,960: give the words of the run again",
    ),
    (
        {"stage": 3, **LORA},
        {"stage": 3},
        "",
        "8,960 trained parameters, this one has 90,432: give the words of the run again",
    ),
    ({"stage": 1, **NADAM}, {"stage": 1}, "", "learns with AdamW: set learner.deepspeed.optimizer.type=NAdam"),
    ({"stage": 1, **NADAM}, {"stage": 1, **NADAM, **BFLOAT16}, "", "of NAdam, which DeepSpeed does not convert: conti"),
    ({"stage": 1}, {"stage": 1}, "damaged layout", "layout.json is damaged"),
    ({"stage": 1}, {"stage": 1}, "no layout", "has lost layout.json"),
]

# Stage, the shards in which a parameter gets another name, and the name.
CRAFTED = [
    (1, "*optim_states.pt", "../../../../escaped-1"),
    (1, "mp_rank*", "../../../../escaped-2"),
    (3, "*model_states.pt", "../../../../escaped-3"),
    (3, "*model_states.pt", ".."),
]

# Stage, a rank whose files are limited, and to how many bytes: its shard, its first file, the last of all.
LATER = [(1, 1, 100_000), (2, 0, 1_000), (3, 1, 100_000), (3, 0, 300_000)]
