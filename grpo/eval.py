"""`grpo eval`: pass@1 and pass@k of a model, on any task."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from grpo import evaluation
from grpo.config import TrainConfig
from grpo.config.validate import validate_evaluation
from grpo.parts import model_under_test


def evaluate_model(config: TrainConfig) -> int:
    """Evaluates `model.path`: a Hugging Face directory, a hub name, or a checkpoint folder of a run.

    Asks `evaluation.num_problems` held-out problems, or the first of all where `task.data.held_out_fraction`
    is 0. Prints a table, and writes `evaluation.json` into `output_dir`.
    """
    validate_evaluation(config)
    with model_under_test(config) as (task, sampler, collective):
        result = evaluation.evaluate(task, sampler, config.evaluation, config.rollout.sampling, collective)
        if collective.rank:
            return 0
    print_result(result)
    output = Path(config.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    (output / "evaluation.json").write_text(json.dumps(result, indent=1, ensure_ascii=False))
    return 0


def print_result(result: dict) -> None:
    """The table of one evaluation."""
    table = Table("measure", "value", "95 % interval")
    for k, interval in result["pass@k"].items():
        table.add_row(f"pass@{k}", f"{interval['value']:.3f}", f"{interval['low']:.3f} – {interval['high']:.3f}")
    table.add_row("mean length, tokens", f"{result['mean_length']:.1f}", "")
    table.add_row("truncated", f"{result['truncated_fraction']:.1%}", "")
    table.title = f"{result['problems']} problems × {result['samples_per_problem']}, T = {result['temperature']}"
    Console().print(table)
