"""This script measures a machine's speed in whole training runs: sampling, learning, sending weights, and the rest.

    python benchmarks/throughput.py FOLDER SHAPE [overrides of grpo train]

SHAPE is small (two CPU cores), qwen2.5-1.5b or qwen2.5-7b: random weights of that size under a tokenizer of characters,
so that nothing is downloaded; completions then run to their limit. Rewards are all equal, and computed nevertheless.

The sampler is held against the memory-bandwidth roofline: each step of decoding reads all weights and the cache of all
completions once, at the bandwidth of a copy measured here. Learning is held against the device's dense bfloat16 peak.
The first two rounds, slow for other reasons, are left out; numbers are medians of the others. Writes
FOLDER/result.json.
"""

import json
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from grpo.host import device_memory, environment
from grpo.models.files import ModelFiles
from grpo.run.preparing import with_precision
from grpo.run.tables import model_shape

environment.prepare()

import torch
from rich.console import Console
from rich.table import Table
from transformers import Qwen2ForCausalLM

from benchmarks.runs import command, rows
from grpo.config.hydra import compose_config
from grpo.host import ranks
from grpo.models import tiny
from grpo.prove.bench import ROWS, Room, config_of, fitting_rows, lacking
from grpo.prove.sampling import step_bytes
from grpo.telemetry.ending import write_code
from grpo.telemetry.hardware import peak_tflops

WARM_UP = 2
# (width, layers, heads, heads of keys and values, inner width, vocabulary, tied); (completions of a prompt, prompts,
# tokens) of a round that suits it, and the rounds that are measured. Those of real sizes take up to a minute each.
SHAPES = {
    "small": ((256, 4, 8, 4, 688, 49152, True), (8, 4, 64), 5),
    "qwen2.5-1.5b": ((1536, 28, 12, 2, 8960, 151936, True), (16, 32, 1024), 3),
    "qwen2.5-7b": ((3584, 28, 28, 4, 18944, 152064, False), (16, 16, 1024), 3),
}


def build(shape, folder):
    """Writes a model of random weights into the folder, unless the folder has one already."""
    if (folder / "config.json").exists():
        return
    *widths, tied = shape
    config = config_of(tuple(widths), tie_word_embeddings=tied)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
        model = Qwen2ForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    tiny.character_tokenizer().save_pretrained(folder)
    model.save_pretrained(folder)
    del model
    if device == "cuda":
        # The run is another process, and wants this memory.
        torch.cuda.empty_cache()


def fitting(words):
    """Returns a run's words with the longest learner rows that fit into a GPU's free memory, unless the words set the
    row length."""
    config = with_precision(compose_config(words))
    if ranks.device(config.device).type != "cuda" or any(word.startswith(f"{ROWS}=") for word in words):
        return words
    shape = model_shape(ModelFiles(Path(config.model.path)), adapted=config.model)
    room = Room(device_memory.device_gib(config.device), device_memory.available_gib(config.device))
    tokens = fitting_rows(config, shape, 1, room)
    words = [*words, f"{ROWS}={tokens}"] if tokens else words
    needs = lacking(with_precision(compose_config(words)), shape, room, steps=True)
    assert not needs, needs
    return words


def bandwidth(device):
    """Measures the bytes that a copy reads and writes per second."""
    source = torch.ones(2**30 if device.type == "cuda" else 2**27, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(8):
        begun = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return 2 * len(source) / median(seconds)


def rounds_of(words, output, count):
    """Trains `count` rounds, and returns the rows of the run's metrics and the wall-clock seconds of each round. Then
    kills the run, which would save all states at its end: tens of gigabytes for a real size."""
    shutil.rmtree(output, ignore_errors=True)
    process = subprocess.Popen(command("train", *words), stdout=sys.stderr)
    ends = []
    while process.poll() is None and len(ends) < count:
        while len(rows(output / "metrics.jsonl")) > len(ends):
            ends.append(time.perf_counter())
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert len(ends) == count, "the run failed: see above"
    walls = [after - before for before, after in pairwise(ends)]
    return rows(output / "metrics.jsonl")[1:], walls


def settings_of(folder, name, overrides):
    """Builds the shape's model in the folder, and returns the words of its run."""
    shape, (group_size, prompts, max_tokens), num_rounds = SHAPES[name]
    build(shape, folder / name)
    settings = [
        *("model=huggingface", f"model.path={folder / name}", "task=tiny_arithmetic", "normalization=dr_grpo"),
        *(f"dynamics.group_size={group_size}", f"dynamics.prompts_per_step={prompts}"),
        *(f"rollout.sampling.max_tokens={max_tokens}", "task.prompt.max_tokens=128", "model.max_length=2048"),
        *("learner.skip_silent_groups=false", "evaluation.num_problems=0", "checkpoint.every_rounds=0"),
        *(
            "checkpoint.export=false",
            f"num_steps={num_rounds + WARM_UP}",
            f"rollout.max_concurrent={group_size * prompts}",
        ),
        *("dynamics.refresh_interval=1", f"output_dir={folder / 'run'}", *overrides),
    ]
    return fitting(settings)


def main(folder, name="small", *overrides):
    folder = Path(folder)
    shape, (group_size, prompts, _), num_rounds = SHAPES[name]
    settings = settings_of(folder, name, overrides)
    config = with_precision(compose_config(settings))
    device = ranks.device(config.device)
    measured, walls = rounds_of(settings, folder / "run", num_rounds + WARM_UP)
    measured, walls = measured[WARM_UP - 1 :], walls[WARM_UP - 1 :]

    def middle(key):
        return median(row.get(key, 0.0) for row in measured)

    known = model_shape(ModelFiles(folder / name))
    size = {"bfloat16": 2, "float32": 4}[config.rollout.precision]
    at_once, speed = group_size * prompts, bandwidth(device)
    length = middle("prompts/length_mean") + middle("completions/length_mean") / 2
    roofline = at_once * speed / step_bytes(known, size, at_once, length, tied=shape[-1])
    sampled = middle("throughput/sample_tokens_per_second")
    useful = [row["time/sample_seconds"] + row["time/learn_seconds"] for row in measured]
    busy = [seconds / wall for seconds, wall in zip(useful, walls, strict=True)]
    peak = peak_tflops(device)
    result = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "parameters": known.parameters,
        "precision": config.learner.precision,
        "completions at once": at_once,
        "completion length": middle("completions/length_mean"),
        "copy bandwidth, GB/s": speed / 1e9,
        "sampled tokens/s": sampled,
        "share of the roofline": sampled / roofline,
        "learned TFLOP/s": middle("throughput/learn_tflops"),
        "MFU": middle("throughput/learn_tflops") / peak if peak else None,
        "weights sent in, s": middle("time/sync_seconds"),
        "round, s": median(walls),
        "neither sampling nor learning": 1 - median(busy),
        "largest memory, GiB": max(row.get("memory/peak_cuda_gib", row["memory/peak_rss_gib"]) for row in measured),
    }
    write_code(folder)
    (folder / "result.json").write_text(json.dumps(result, indent=1))
    table = Table("what", name)
    for key, value in result.items():
        table.add_row(key, f"{value:,.4g}" if isinstance(value, float) else str(value))
    Console().print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
