"""A model card tells what a model was trained from, on what, how, and with what result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from grpo.config import TaskConfig, TrainConfig
from grpo.config.folder import CODE_FILE, EVALUATIONS_FILE
from grpo.telemetry import read_metrics

PIPE = r"\|"
"""A vertical bar within a cell of a Markdown table is written so."""


def card_of(run: Path, config: TrainConfig, step: int, adapter: bool = False) -> str:
    """Returns the card of the model, or of the adapter alone, that `run` had after `step` optimizer steps."""
    code = run / CODE_FILE
    versions = json.loads(code.read_text()) if code.exists() else {}
    evaluations = read_metrics(run / EVALUATIONS_FILE) if (run / EVALUATIONS_FILE).exists() else []
    return card(config, step, evaluations, versions, "peft" if adapter else "transformers")


def card(
    config: TrainConfig,
    step: int,
    evaluations: Sequence[Mapping[str, Any]],
    code: Mapping[str, Any],
    library: str = "transformers",
) -> str:
    """Returns the card as Markdown, with the header that the Hugging Face hub reads.

    `evaluations` are the rows of evaluations.jsonl, `code` the content of code.json. `library` loads the folder.
    """
    base = config.model.path or config.model.source
    sets = config.task.all_sets.values()
    header = ["---", f"library_name: {library}", "tags: [grpo, reinforcement-learning]"]
    header += [f"base_model: {base}"] if config.model.source == "huggingface" else []
    hub = [of_set.data.path for of_set in sets if of_set.data.source == "hub"]
    header += [f"datasets: [{', '.join(hub)}]"] if hub else []
    dynamics, objective, sampling = config.dynamics, config.objective, config.rollout.sampling
    normalization = config.normalization
    facts = [
        ("trained from", base),
        *(fact for of_set in sets for fact in _of_set(of_set)),
        ("optimizer steps", f"{step}"),
        ("completions a step", f"{dynamics.prompts_per_step} prompts × {dynamics.group_size}"),
        ("optimizer steps between refreshes", f"{dynamics.refresh_interval}"),
        (
            "normalization",
            f"{normalization.name}, exponents {normalization.exponent:g} of σ and "
            f"{normalization.mean_exponent:g} of the mean",
        ),
        ("objective", f"{objective.name}, {objective.aggregation.level}, KL coefficient {objective.kl.coefficient:g}"),
        ("learning rate", f"{config.learner.learning_rate:g}"),
        ("sampling", f"temperature {sampling.temperature:g}, at most {sampling.max_tokens} tokens"),
        ("LoRA rank", f"{config.model.lora.rank or 'none'}"),
        ("seed", f"{config.seed}"),
    ]
    lines = [*header, "---", "", f"# {base}, trained with GRPO on {config.task.name}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value.replace('|', PIPE)} |" for name, value in facts]
    lines += _results([row for row in evaluations if row["step"] <= step])
    lines += ["", "## How to train it again", "", *_versions(code)]
    again = replace(config, checkpoint=replace(config.checkpoint, resume=False))
    lines += [
        "Save the whole configuration as `again.yaml`, then run `grpo train again.yaml output_dir=runs/again`:",
        "",
        "```json",
        json.dumps({"defaults": ["schema", "_self_"], **asdict(again)}, indent=1),
        "```",
        "",
    ]
    return "\n".join(lines)


def _of_set(task: TaskConfig) -> list[tuple[str, str]]:
    """Returns the facts of a task, or of one of its sets."""
    return [
        ("problems", f"{task.name} ({task.data.path or task.data.source})"),
        ("reward", ", ".join(f"{part.name} × {part.weight:g}" for part in task.reward.parts)),
        ("prompt", f"`{json.dumps(task.prompt.template)}`"),
    ]


def _results(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the first and the last evaluation as lines, or a line that says that there is none."""
    if not evaluations:
        return ["", "The model was not evaluated on held-out problems while it was trained."]
    lines = ["", "## Held-out problems", "", "| after step | pass@1 | 95 % interval | problems |", "|---|---|---|---|"]
    for row in {row["step"]: row for row in (evaluations[0], evaluations[-1])}.values():
        rate = row["pass@1"]
        interval = f"[{rate['low']:.1%}, {rate['high']:.1%}]"
        lines.append(f"| {row['step']} | {rate['value']:.1%} | {interval} | {row['problems']} |")
    return lines


def _versions(code: Mapping[str, Any]) -> list[str]:
    """Returns the versions of the code that trained the model."""
    versions = ", ".join(f"{name} {version}" for name, version in code.get("versions", {}).items())
    commit = f", commit {code['commit']}" if code.get("commit") else ""
    return [f"It was trained with {versions}{commit}.", ""] if versions else []
