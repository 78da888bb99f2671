"""The end of a run: table, plot, samples, and where everything is."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from grpo.report.curves import plot_run
from grpo.report.summary import samples_table, summary_table, write_markdown
from grpo.telemetry import read_metrics

PLOT_FILE = "curves.png"
MARKDOWN_FILE = "report.md"
NUM_SAMPLES = 4


def write_report(output: Path, exported: Path | None, console: Console | None = None) -> None:
    """Draws the run in `output` into a PNG, compares its first and last evaluation, prints and writes both."""
    console = console or Console()
    metrics = read_metrics(output / "metrics.jsonl")
    found = output / "evaluations.jsonl"
    evaluations = read_metrics(found) if found.exists() else []
    plot_run(metrics, evaluations, output / PLOT_FILE)
    if len(evaluations) > 1:
        before, after = evaluations[0], evaluations[-1]
        console.print(samples_table(before["per_problem"][:NUM_SAMPLES], after["per_problem"]))
        console.print(summary_table(before, after))
        write_markdown(output / MARKDOWN_FILE, before, after, output / PLOT_FILE, NUM_SAMPLES)
        console.print(f"report  {output / MARKDOWN_FILE}", soft_wrap=True)
    console.print(f"curves  {output / PLOT_FILE}", soft_wrap=True)
    if exported:
        console.print(f"model   {exported}  (loads in transformers and in vLLM)", soft_wrap=True)
