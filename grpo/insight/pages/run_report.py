"""This module reports on a run at its end: tables, curves, samples, diagnosis, and the paths of the files."""

from __future__ import annotations

from pathlib import Path

from grpo.config.errors import require
from grpo.config.folder import CONFIG_FILE, CURVES_FILE, METRICS_FILE, REPORT_FILE
from grpo.config.start import run_name
from grpo.dynamics.identify import FEWEST_POINTS
from grpo.evaluation.held_out import both_unjudged
from grpo.host.environment import hidden_command
from grpo.host.terminal import Terminal
from grpo.insight.diagnosis.diagnostics import diagnose
from grpo.insight.logs.logs import read_evaluations, read_log, run_config
from grpo.insight.pages.course import how_often, standing
from grpo.insight.pages.curves import plot_run
from grpo.insight.pages.dynamics import analysed, print_findings, write_page
from grpo.insight.pages.run_page import write_run_page
from grpo.insight.pages.summary import comparable, samples_table, summary_table, write_markdown
from grpo.insight.pages.verdict import judge
from grpo.telemetry.ending import read_resumptions
from grpo.telemetry.json_lines import read_metrics

NUM_SAMPLES = 4


def write_report(output: Path, model_folder: Path | None, console: Terminal | None = None) -> None:
    """Reports on the run in `output`: draws its curves, compares its first and last evaluation, and diagnoses it.

    The report is printed, and written into `output`. `model_folder` is the folder of the exported model, if any.
    """
    console = console or Terminal()
    metrics = read_metrics(output / METRICS_FILE)
    evaluations, left_out = comparable(read_evaluations(output))
    config = run_config(output) if (output / CONFIG_FILE).exists() else {}
    heading = f"{run_name(output)}: {standing(output, metrics, config)}"
    require(bool(metrics), f"{heading}; it has finished no round, so there is nothing to report on")
    console.print(heading, soft_wrap=True)
    for line in (*how_often(read_resumptions(output)), *left_out):
        console.print(line, soft_wrap=True)
    plot_run(metrics, evaluations, output / CURVES_FILE)
    written_files = []
    if len(evaluations) > 1:
        before, after = evaluations[0], evaluations[-1]
        rows = before["per_problem"], after["per_problem"]
        console.print(samples_table(*rows, NUM_SAMPLES, both_unjudged(before, after)))
        console.print(summary_table(before, after))
        write_markdown(output / REPORT_FILE, before, after, output / CURVES_FILE, NUM_SAMPLES)
        written_files.append(f"text    {output / REPORT_FILE}")
    log = read_log(output)
    findings = diagnose(log)
    for line in judge(metrics, evaluations, findings).lines:
        console.print(line, soft_wrap=True)
    # After only a few rounds, "no finding" would prove nothing, so it is not printed.
    if findings or len(metrics) >= FEWEST_POINTS:
        print_findings(findings, log, console)
    # The curve may be shorter than the run, since it begins anew after the run went back to an earlier policy.
    if len(log.history) >= FEWEST_POINTS:
        write_page(analysed(log, output), findings, output, console)
    page = write_run_page(output, metrics, evaluations, findings, left_out)
    written_files += [f"curves  {output / CURVES_FILE}", f"report  {page}  (opens in a browser)"]
    written_files += [f"model   {model_folder}  (loads in transformers and in vLLM)"] if model_folder else []
    written_files += [f"command {command}" for command in [hidden_command()] if command]
    console.print("\n".join(written_files), soft_wrap=True)
