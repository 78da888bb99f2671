"""This module implements `grpo eval`, which measures pass@1, pass@k and maj@k of a model on a task or a suite."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from grpo.config import TrainConfig
from grpo.config.errors import require
from grpo.config.folder import evaluation_name
from grpo.config.hydra import compose_suite
from grpo.evaluation import held_out
from grpo.host.alive import working
from grpo.host.disk import write_whole
from grpo.host.terminal import Terminal, say
from grpo.interfaces import Task
from grpo.rollout.grading_thread import GradingThread, sampled_and_graded
from grpo.run.measured_model import candidate

Result = Mapping[str, Any]


def run(config: TrainConfig) -> int:
    """Evaluates the model at `model.path`: a Hugging Face directory, a hub name, or a checkpoint folder of a run.

    The model gets `evaluation.num_problems` held-out problems, or all if there are fewer. Where nothing is held out
    (`task.data.held_out_fraction=0`), it gets that many problems of the set, each once, and with `evaluation.suite` all
    problems of each set. Prints tables, and writes `evaluation.json` into `output_dir`, or one file for each set of the
    suite. Files that are there already are refused before (`grpo.run.early_checks`). Returns the exit code.

    Raises `UserError` in the end for sets of which no problem could be graded. They have no file.
    """
    suite = compose_suite(config)
    model = candidate(config, suite or [config.task])
    output = Path(config.output_dir)
    output.mkdir(parents=True, exist_ok=True)

    def ask(task: Task, count: int) -> dict[str, Any]:
        settings = replace(config.evaluation, num_problems=count)
        num_problems = len(task.held_out_prompts(count))
        with (
            working(f"evaluating {num_problems} problems × {settings.samples_per_problem}"),
            GradingThread(task) as grading,
        ):
            drawn = partial(sampled_and_graded, model.sampler, model.clocks.evaluation_grading(grading))
            result = held_out.evaluate(task, drawn, settings, config.rollout.sampling, model.collective)
        return {"step": model.sampler.policy_version} | result

    if suite:
        results = held_out.evaluate_suite(model.tasks, model.load_task, ask)
    else:
        with model.load_task(model.tasks[0]) as task:
            some_left = any(of_set.data.held_out_fraction for of_set in config.task.all_sets.values())
            if some_left and not model.collective.rank:
                say(
                    f"grpo: only held-out problems are asked; {task.num_problems:,} more are left to training, and "
                    "evaluation.suite=[FILE] asks all of a file"
                )
            results = {config.task.name: ask(task, config.evaluation.num_problems)}
    if model.collective.rank:
        return 0
    ungraded = [name for name, result in results.items() if not held_out.is_graded(result)]
    results = {name: result for name, result in results.items() if name not in ungraded}
    files = {name: output / evaluation_name(name if suite else "") for name in results}
    for name, file in files.items():
        # A file that is there already is refused, so a kill must not leave half of one.
        write_whole(file, json.dumps(results[name], indent=1, ensure_ascii=False), "backslashreplace")
    for name, result in results.items():
        Terminal().print(result_table(name, result))
    for sets in (results, *(result["sources"] for result in results.values() if "sources" in result)):
        if len(sets) > 1:
            Terminal().print(suite_table(sets))
    for file in files.values():
        print(f"written to {file}")
    require(not ungraded, f"no problem of {', '.join(ungraded)} could be graded: {held_out.NOT_GRADED}")
    return 0


def result_table(name: str, result: Result) -> Table:
    """Makes the table of one evaluation."""
    table = Table("measure", "value", "95 % interval")
    rows = {f"pass@{k}": interval for k, interval in result["pass@k"].items()}
    if result["samples_per_problem"] > 2:
        rows[f"maj@{result['samples_per_problem']}"] = result["maj@k"]
    if "greedy" in result:
        rows["greedy"] = result["greedy"]
    for measure, interval in rows.items():
        table.add_row(measure, f"{interval['value']:.3f}", f"{interval['low']:.3f} – {interval['high']:.3f}")
    table.add_row("mean length, tokens", f"{result['mean_length']:.1f}", "")
    table.add_row("truncated", f"{result['truncated_fraction']:.1%}", "")
    if result["ungraded"]:
        table.add_row("not graded, left out", f"{result['ungraded']} problems", "")
    drawn = f"× {result['samples_per_problem']}, T = {result['temperature']}"
    if result["top_p"] < 1 or result["top_k"]:
        drawn += f", top_p = {result['top_p']}, top_k = {result['top_k']}"
    table.title = f"{name}: {result['problems']} problems {drawn}"
    return table


def suite_table(results: Mapping[str, Result]) -> Table:
    """Makes a table of pass@1 on every set, and of the mean over sets, each set weighed alike."""
    table = Table("set", "problems", "pass@1", "95 % interval")
    for name, result in results.items():
        rate = result["pass@1"]
        interval = f"{rate['low']:.3f} – {rate['high']:.3f}"
        table.add_row(name, str(result["problems"]), f"{rate['value']:.3f}", interval)
    mean = sum(result["pass@1"]["value"] for result in results.values()) / len(results)
    table.add_section()
    table.add_row("mean of sets", "", f"{mean:.3f}", "")
    return table
