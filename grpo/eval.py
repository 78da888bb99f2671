"""`grpo eval`: pass@1, pass@k and maj@k of a model, on any task or a suite of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from grpo import evaluation
from grpo.config import TrainConfig
from grpo.config.hydra import compose_suite
from grpo.config.validate import validate_evaluation
from grpo.parts import candidate
from grpo.tasks import load_problems

Result = Mapping[str, Any]


def evaluate_model(config: TrainConfig) -> int:
    """Evaluates `model.path`: a Hugging Face directory, a hub name, or a checkpoint folder of a run.

    Asks `evaluation.num_problems` held-out problems, or the first of all where `task.data.held_out_fraction`
    is 0; of each set of `evaluation.suite`, all. Prints tables, and writes `evaluation.json` into `output_dir`, or a
    file for each set.
    """
    suite = compose_suite(config)
    tasks = suite or [config.task]
    for task in tasks:
        validate_evaluation(replace(config, task=task))
    sizes = [len(load_problems(task.data)[0]) for task in tasks]  # before the engine starts
    model = candidate(config)
    output = Path(config.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    results: dict[str, Result] = {}
    for task, size in zip(tasks, sizes, strict=True):
        asked = replace(config.evaluation, num_problems=size) if suite else config.evaluation
        with model.load_task(task) as loaded:
            found = evaluation.evaluate(loaded, model.sampler, asked, config.rollout.sampling, model.collective)
        if model.collective.rank == 0:
            results[task.name] = found
            file = output / (f"{task.name}.json" if suite else "evaluation.json")
            file.write_text(json.dumps(found, indent=1, ensure_ascii=False))
    for name, result in results.items():
        Console().print(result_table(name, result))
    if len(results) > 1:
        Console().print(suite_table(results))
    return 0


def result_table(name: str, result: Result) -> Table:
    """One evaluation."""
    table = Table("measure", "value", "95 % interval")
    rows = {f"pass@{k}": interval for k, interval in result["pass@k"].items()}
    if result["samples_per_problem"] > 2:
        rows[f"maj@{result['samples_per_problem']}"] = result["maj@k"]
    for measure, interval in rows.items():
        table.add_row(measure, f"{interval['value']:.3f}", f"{interval['low']:.3f} – {interval['high']:.3f}")
    table.add_row("mean length, tokens", f"{result['mean_length']:.1f}", "")
    table.add_row("truncated", f"{result['truncated_fraction']:.1%}", "")
    drawn = f"× {result['samples_per_problem']}, T = {result['temperature']}"
    table.title = f"{name}: {result['problems']} problems {drawn}"
    return table


def suite_table(results: Mapping[str, Result]) -> Table:
    """pass@1 of every set, and their mean, every set weighing the same."""
    table = Table("set", "problems", "pass@1", "95 % interval")
    for name, result in results.items():
        rate = result["pass@1"]
        interval = f"{rate['low']:.3f} – {rate['high']:.3f}"
        table.add_row(name, str(result["problems"]), f"{rate['value']:.3f}", interval)
    mean = sum(result["pass@1"]["value"] for result in results.values()) / len(results)
    table.add_section()
    table.add_row("mean of sets", "", f"{mean:.3f}", "")
    return table
