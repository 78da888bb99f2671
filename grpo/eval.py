"""`grpo eval`: pass@1 and pass@k of a model, on any task."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from grpo import evaluation, launch_check, models
from grpo.config import TrainConfig
from grpo.config.saved import from_dict
from grpo.config.validate import validate_evaluation
from grpo.learner.checkpoint import STATE_FILE, read_state
from grpo.learner.collective import TorchCollective
from grpo.parts import build_sampler, load_checkpoint, load_task, warm_start_examples


def evaluate_model(config: TrainConfig) -> int:
    """Evaluates `model.path`: a Hugging Face directory, a hub name, or a checkpoint folder of a run.

    Asks `evaluation.num_problems` held-out problems, or the first of all where `task.data.held_out_fraction`
    is 0. Prints a table, and writes `evaluation.json` into `output_dir`.
    """
    validate_evaluation(config)
    checkpoint = Path(config.model.path)
    trained = checkpoint if (checkpoint / STATE_FILE).exists() else None
    if trained:
        saved = from_dict(read_state(trained)["config"])
        config.model, config.learner = saved.model, saved.learner
    elif config.model.path:
        config.model.source = "huggingface"
    device = launch_check.device(config)
    config = launch_check.with_precision(config)
    path = models.resolve(config.model, lambda: warm_start_examples(config))
    tokenizer = models.load_tokenizer(path, config.model)
    with load_task(config, tokenizer) as task:
        collective = TorchCollective(device)
        sampler = build_sampler(config, path, tokenizer, device, collective)
        if trained:
            load_checkpoint(config, path, trained, sampler, device)
        result = evaluation.evaluate(task, sampler, config.evaluation, config.rollout.sampling, collective)
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
