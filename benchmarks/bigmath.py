"""This script measures seconds and memory to load, select, encode and share out 251,122 rows in Big-Math's shape.

    python benchmarks/bigmath.py FOLDER [ours|datasets]

Without a second word both are measured, each in a process of its own. "datasets" is what one would write by hand with
Hugging Face's library: load, filter by solve rate, drop repeated questions, render and count the tokens of each prompt,
shuffle, take a shard. The questions have Big-Math's sources in its proportions, and random lengths about 230
characters. A tenth of the rows has no solve rate, and one in a hundred repeats another.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from grpo.config import ModelConfig
from grpo.config.hydra import compose_config
from grpo.models.files import ModelFiles
from grpo.models.resolve import resolve
from grpo.tasks.curriculum import Grouping
from grpo.tasks.task import build_task, loaded_task

SOURCES = {
    "orca_math": 83215, "cn_k12": 63609, "olympiads": 33485, "math": 9257, "aops_forum": 5740, "gsm8k": 3254,
    "harp": 2996, "omnimath": 2478, "amc_aime": 78, "big_math": 47010,
}  # fmt: skip
WORDS = str.split(
    "a the of is find number what how many if and each in with for are total after $x$ $n$ $\\frac{1}{2}$ $2x+3=7$ "
    "triangle integer positive apples dollars hours value sum ratio area circle equation function real such that"
)
TASK = ["task=bigmath", "task.data.source=file", "task.reward.workers=1", "task.data.selection.solve_rate=[0.1,0.9]"]
RANKS = 8


def make(path: Path) -> None:
    random = np.random.default_rng(0)
    total = sum(SOURCES.values())
    lengths = np.clip(random.lognormal(3.6, 0.5, total).astype(int), 6, 400)
    questions = [" ".join(random.choice(WORDS, length)) for length in lengths]
    for index in range(0, total, 100):
        questions[index] = questions[index - 1]
    rates = random.integers(0, 65, total) / 64
    table = pyarrow.table(
        {
            "problem": questions,
            "answer": [str(number) for number in random.integers(-100, 10**4, total)],
            "source": [name for name, count in SOURCES.items() for _ in range(count)],
            "domain": [["Mathematics -> Algebra -> Prealgebra", "Mathematics -> Applied Mathematics"]] * total,
            "llama8b_solve_rate": pyarrow.array(rates, mask=random.random(total) < 0.1),
        }
    )
    pyarrow.parquet.write_table(table, path)


def tokenizer():
    config = ModelConfig(source="smollm2")
    return ModelFiles(resolve(config, lambda: [])).tokenizer


def ours(path: Path) -> int:
    config = compose_config([*TASK, f"task.data.path={path}"])
    loaded = loaded_task(config.task, tokenizer())
    with build_task(
        loaded, tokenizer(), seed=0, max_tokens=1024, grouping=Grouping(8), rank=3, world_size=RANKS
    ) as task:
        task.next_prompts(1024)
        return task.num_problems


def plain(path: Path) -> int:
    from datasets import Dataset

    encode, seen = tokenizer(), set()
    rows = Dataset.from_parquet(str(path), cache_dir=str(path.parent / "cache"))
    rows = rows.filter(lambda rate: rate is not None and 0.1 <= rate <= 0.9, input_columns="llama8b_solve_rate")
    rows = rows.filter(lambda text: not (text in seen or seen.add(text)), input_columns="problem")

    def prompt(row):
        text = row["problem"] + "\n\nThink step by step, then give the final answer within \\boxed{}."
        return {"ids": encode.apply_chat_template([{"role": "user", "content": text}], return_dict=False)}

    rows = rows.map(prompt).filter(lambda ids: len(ids) <= 512, input_columns="ids")
    total = len(rows)
    rows.shuffle(seed=0).shard(RANKS, 3)[:128]
    return total


def main(folder: str, which: str = "") -> None:
    path = Path(folder) / "bigmath.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        make(path)
    if not which:
        for way in ("ours", "datasets"):
            subprocess.run([sys.executable, __file__, folder, way], check=True)
        return
    tokenizer()
    start, before = time.perf_counter(), time.process_time()
    problems = {"ours": ours, "datasets": plain}[which](path)
    result = {
        "which": which,
        "problems": problems,
        "seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(time.process_time() - before, 1),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
