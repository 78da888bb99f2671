"""This module writes the page of one run, which may be finished, interrupted, failed or still going on.

`write_report` adds tables and the paths of the files on the terminal, and curves as a picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from grpo.config import TrainConfig
from grpo.config.errors import require
from grpo.config.folder import CONFIG_FILE, CURVES_FILE, METRICS_FILE, PAGE_FILE, REPORT_FILE, SAMPLES_FILE
from grpo.config.leaves import leaves
from grpo.config.start import run_name
from grpo.dynamics.history import FEWEST_POINTS
from grpo.evaluation.held_out import both_unjudged
from grpo.host.environment import hidden_command
from grpo.host.terminal import Terminal, clean
from grpo.insight.diagnosis.diagnostics import diagnose
from grpo.insight.diagnosis.findings import Finding
from grpo.insight.logs.logs import read_evaluations, read_log, run_config
from grpo.insight.pages import page
from grpo.insight.pages.course import describe_state, how_often, resumed_at, resumptions_table, unfinished
from grpo.insight.pages.curves import Curves, panels_of, plot_run
from grpo.insight.pages.dynamics import analysed, print_findings, write_page
from grpo.insight.pages.glossary import meanings, setting
from grpo.insight.pages.run_facts import about, run_facts
from grpo.insight.pages.small_charts import small_charts
from grpo.insight.pages.summary import (
    comparable,
    conditions,
    samples_table,
    summary_rows,
    summary_table,
    write_markdown,
)
from grpo.insight.pages.verdict import BAD, judge
from grpo.telemetry.completions import is_graded, is_unjudged, kind_of, score_of, whole_completions
from grpo.telemetry.ending import FAILED, read_ending, read_resumptions
from grpo.telemetry.json_lines import Row, read_metrics
from grpo.types import metrics as m

NOTHING_FOUND = "The checks found no problem."
BEFORE_THE_END = "The checks found no problem in the rounds before the run failed."
TOO_FEW = "Nothing was found so far. Most checks need more rounds than the run has."
# The words that the page explains.
WORDS = (
    *("pass rate", "pass@1", "maj@k", "greedy", "held-out problems", "95 % interval", "percentage point", "p"),
    *("optimizer step", "round", "group", "silent group", "entropy", "gradient norm", "cut off"),
)
# Groups to show are chosen from this many of the latest ones, and at most this many of each kind are shown.
LOOKED_AT = 64
SHOWN = {"mixed": 3, "wrong": 1, "right": 1, "ungraded": 1}
# A group shows at most `EACH_SIDE` right and as many wrong completions, each up to `EXCERPT` characters.
EACH_SIDE, EXCERPT = 4, 2000
# The columns of the tables by difficulty and by source: a metric's name, its heading and its format.
SCORES = {m.PASS_RATE: ("right", "{:.1%}"), "reward_mean": ("mean reward", "{:.3f}")}
SIZES = {"length_mean": ("mean length, tokens", "{:,.1f}"), "truncated_fraction": ("cut off", "{:.1%}")}
BANDS = {"none": "none right", "some": "below half right", "most": "half or more right", "all": "all right"}
NUM_SAMPLES = 4


def write_run_page(
    output: Path,
    metrics: Sequence[Row],
    evaluations: Sequence[Row],
    findings: Sequence[Finding],
    left_out: Sequence[str] = (),
) -> Path:
    """Writes the page of the run in `output`, and returns its path.

    `metrics` and `evaluations` are the rows of metrics.jsonl and evaluations.jsonl, and `left_out` says which of these
    evaluations are missing, in sentences.
    """
    resumptions = read_resumptions(output)
    verdict, curves = judge(metrics, evaluations, findings), Curves(metrics, evaluations, resumed_at(resumptions))
    config = run_config(output) if (output / CONFIG_FILE).exists() else {}
    groups = shown_groups(whole_completions(output)) if (output / SAMPLES_FILE).exists() else []
    state, ending, path = describe_state(output, metrics, config), read_ending(output), output / PAGE_FILE
    failed = ending is not None and ending.state == FAILED
    beginning, _, reason = state.partition(": ")
    verdict_lines = [f"The run {beginning}.", page.sentence(reason), *verdict.lines] if failed else [*verdict.lines]
    if not failed:
        verdict_lines += unfinished("The run", state)
    verdict_lines += [*how_often(resumptions), *left_out]
    small_panels, small_notes = small_charts(curves)
    page.write_page(
        "run.html",
        path,
        name=run_name(output),
        verdict=verdict_lines,
        mood=BAD if failed else verdict.mood,
        numbers=verdict.numbers,
        state=beginning if failed else state,
        about=about(config),
        findings=findings,
        nothing=(BEFORE_THE_END if failed else NOTHING_FOUND) if len(metrics) >= FEWEST_POINTS else TOO_FEW,
        pictures=page.pictures([partial(panel, run=curves) for panel in panels_of(curves)]),
        small_pictures=[page.picture(partial(panel, run=curves), page.SMALL_INCHES) for panel in small_panels],
        small_notes=small_notes,
        facts=run_facts(output, config),
        tables=resumptions_table(resumptions) | run_tables(metrics, evaluations),
        groups=groups,
        about_groups=(
            "These are whole groups of the last rounds: all completions of one prompt, some of each kind. "
            "grpo samples shows more of them."
        ),
        settings=settings(config),
        meanings=meanings(*WORDS),
    )
    return path


def settings(config: Row) -> list[tuple[str, str]]:
    """Returns a table of the settings that differ from the defaults. Each of `task.sets` has the defaults of `task`."""
    defaults = dict(leaves(asdict(TrainConfig())))
    rows = [
        (name, setting(value))
        for name, value in leaves(config)
        if value != defaults.get(re.sub(r"^task\.sets\.[^.]+", "task", name))
    ]
    return [("key", "value"), *rows]


def shown_groups(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Chooses a few of the latest groups to show, groups with both right and wrong completions first.

    `rows` are completions, those of the last round first.
    """
    groups_of: dict[str, list[dict[str, Any]]] = {kind: [] for kind in SHOWN}
    for group in islice(_groups(rows), LOOKED_AT):
        kind = kind_of(group)
        if len(groups_of[kind]) < SHOWN[kind]:
            groups_of[kind].append(_group(group))
        if all(len(groups_of[kind]) == SHOWN[kind] for kind in SHOWN):
            break
    return [group for kind in SHOWN for group in groups_of[kind]]


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    for _, group in groupby(rows, key=lambda row: (row["step"], row["prompt_id"])):
        yield list(group)


def _group(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the values for the page's section on a group, with right completions before wrong ones."""
    shown_rows = [row for side in (True, False) for row in [row for row in rows if row["correct"] is side][:EACH_SIDE]]
    first, unjudged = rows[0], is_unjudged(rows)
    source = f" Source: {first['source']}." if first.get("source") else ""
    how_many_shown = f" {len(shown_rows)} of {len(rows)} completions are shown." if len(shown_rows) < len(rows) else ""
    return {
        "score": score_of(rows),
        "question": clean(first["question"]),
        "answer": clean(str(first["answer"])),
        "about": f"Step {first['step']:,}, prompt {first['prompt_id']}.{source}{how_many_shown}",
        "rows": [
            {
                **{"graded": is_graded(row), "judged": not unjudged, "correct": row["correct"]},
                **{"facts": _facts(row), "text": clean(_cut(row["completion"]))},
            }
            for row in shown_rows
        ],
    }


def _facts(row: Row) -> str:
    facts = [f"reward {row['reward']:g}"] if is_graded(row) else []
    facts += [f"{row['tokens']} tokens"]
    facts += ["cut off at the token limit"] if row.get("truncated") else []
    facts += [row["outcome"].replace("_", " ") + " in grading"] if row["outcome"] != "graded" else []
    return " · ".join(facts)


def _cut(text: str) -> str:
    if len(text) <= EXCERPT:
        return text
    return f"{text[: EXCERPT // 2]}\n… {len(text) - EXCERPT:,} characters left out …\n{text[-EXCERPT // 2 :]}"


def run_tables(metrics: Sequence[Row], evaluations: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Returns a run's tables with captions: held-out problems, completions by difficulty, completions by source.

    Tables without rows are left out.
    """
    last_rows = metrics[-max(1, len(metrics) // 4) :]
    rounds = f"Means over the last {len(last_rows):,} of {len(metrics):,} rounds."
    tables: dict[str, dict[str, Any]] = {}
    if len(evaluations) > 1:
        before, after = evaluations[0], evaluations[-1]
        tables["Held-out problems"] = {"caption": conditions(before, after) + ".", "rows": summary_rows(before, after)}
    names = {name: f"{m.BY_PASS_RATE}{name}" for name in BANDS}
    tables["Completions by difficulty"] = {
        "caption": f"{rounds} A prompt is hard where few of its completions are right.",
        "rows": _parts(
            "of the prompt's completions", {BANDS[name]: prefix for name, prefix in names.items()}, last_rows
        ),
    }
    prefix = m.SOURCE
    sources = sorted(
        {name.removeprefix(prefix).rpartition("/")[0] for row in last_rows for name in row if name.startswith(prefix)}
    )
    tables["Completions by source"] = {
        "caption": rounds,
        "rows": _parts("source", {name: prefix + name for name in sources}, last_rows, SCORES),
    }
    return {title: part for title, part in tables.items() if len(part["rows"]) > 1}


def _parts(
    heading: str, prefixes: Mapping[str, str], rows: Sequence[Row], scores: Mapping[str, tuple[str, str]] | None = None
) -> list[list[str]]:
    """Returns a table with a row for each kind of completions: their share, `scores`, mean length and truncation.

    `prefixes` maps the kinds to the prefixes of their metrics. A round without completions of a kind counts as 0 in the
    mean of its share, and is left out of its other means, which are weighted by the share.
    """
    columns, lines = {**(scores or {}), **SIZES}, []
    for name, prefix in prefixes.items():
        rows_with_part = [row for row in rows if f"{prefix}/share" in row]
        shares = [row[f"{prefix}/share"] for row in rows_with_part]
        if not (total := sum(shares)):
            continue
        weighted_rows = [*zip(shares, rows_with_part, strict=True)]
        cells = [
            form.format(sum(share * row.get(f"{prefix}/{key}", 0.0) for share, row in weighted_rows) / total)
            for key, (_, form) in columns.items()
        ]
        lines.append([name, f"{total / len(rows):.1%}", *cells])
    return [[heading, "share of completions", *(title for title, _ in columns.values())], *lines]


def write_report(output: Path, model_folder: Path | None, console: Terminal | None = None) -> None:
    """Reports on the run in `output`: draws its curves, compares its first and last evaluation, and diagnoses it.

    The report is printed, and written into `output`. `model_folder` is the folder of the exported model, if any.
    """
    console = console or Terminal()
    metrics = read_metrics(output / METRICS_FILE)
    evaluations, left_out = comparable(read_evaluations(output))
    config = run_config(output) if (output / CONFIG_FILE).exists() else {}
    heading = f"{run_name(output)}: {describe_state(output, metrics, config)}"
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
