"""This module makes the page of one run, which may be finished, interrupted, failed or still going on."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from grpo.config import TrainConfig, UserError
from grpo.config.folder import CONFIG_FILE, DYNAMICS_PAGE_FILE, METRICS_FILE, PAGE_FILE, SAMPLES_FILE
from grpo.config.leaves import leaves
from grpo.config.start import run_name
from grpo.dynamics.history import FEWEST_POINTS
from grpo.host.environment import hidden_command
from grpo.host.terminal import Terminal, clean
from grpo.insight.diagnosis.diagnostics import diagnose
from grpo.insight.diagnosis.findings import Finding
from grpo.insight.logs.logs import read_evaluations, read_log, run_config
from grpo.insight.logs.run_log import RunLog
from grpo.insight.pages.conversation import Said, conversation, ending, opening, unseen
from grpo.insight.pages.course import describe_state, how_often, resumed_at, resumptions_table, unfinished
from grpo.insight.pages.curves import Curves, panels_of
from grpo.insight.pages.dynamics import analysed, decisions_table, dynamics_page
from grpo.insight.pages.glossary import setting
from grpo.insight.pages.page import PAGE, SMALL, Block, Kind, Page, publish, write_html
from grpo.insight.pages.run_facts import about, run_facts
from grpo.insight.pages.small_charts import small_charts
from grpo.insight.pages.summary import before_and_after, comparable
from grpo.insight.pages.verdict import BAD, judge, left, nothing_found
from grpo.telemetry.completions import is_graded, is_unjudged, kind_of, score_of, whole_completions
from grpo.telemetry.ending import FAILED, read_ending, read_resumptions
from grpo.telemetry.json_lines import Row, read_metrics
from grpo.types import metrics as m

BEFORE_THE_END = "The checks found no problem in the rounds before the run failed."
TOO_FEW = "The run is too short for most checks, and the others found no problem."
ABOUT_GROUPS = (
    "These are groups of late rounds that the run kept, some of each kind. A group is the completions of one prompt. "
    "grpo samples shows more of them, and groups whole."
)
ABOUT_EPISODES = (
    " Shaded messages come from the prompt, a tool, the environment or an agent. The model read them, and nothing is "
    "learned from them."
)
ABOUT_SETTINGS = "These settings differ from the defaults. config.json holds all of them."
NO_COMPLETIONS = "The run kept no completions."
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


def run_page(
    output: Path,
    metrics: Sequence[Row],
    evaluations: Sequence[Row],
    log: RunLog,
    findings: Sequence[Finding],
    left_out: Sequence[str] = (),
) -> Page:
    """Returns the page of the run in `output`.

    `metrics` and `evaluations` are the rows of metrics.jsonl and evaluations.jsonl, and `left_out` says which of these
    evaluations are missing, in sentences.
    """
    resumptions = read_resumptions(output)
    verdict, curves = judge(metrics, evaluations, findings), Curves(metrics, evaluations, resumed_at(resumptions))
    config = run_config(output) if (output / CONFIG_FILE).exists() else {}
    groups = shown_groups(whole_completions(output)) if (output / SAMPLES_FILE).exists() else []
    state, ending = describe_state(output, metrics, config), read_ending(output)
    failed = ending is not None and ending.state == FAILED
    beginning, _, reason = state.partition(": ")
    ended = [f"The run {beginning}.", reason] if failed else []
    over = failed or not unfinished("The run", state)
    # After only a few rounds, "no problem" would prove nothing.
    nothing = (BEFORE_THE_END if failed else nothing_found(log)) if len(metrics) >= FEWEST_POINTS else TOO_FEW
    small_panels, small_notes = small_charts(curves)
    small_panels = [partial(panel, run=curves) for panel in small_panels]
    return Page(
        *("Training run", run_name(output)),
        verdict=[
            *(*ended, *verdict.lines, *([] if over else unfinished("The run", state))),
            *(*how_often(resumptions), *left_out),
        ],
        mood=BAD if failed else verdict.mood,
        blocks=[
            *before_and_after(evaluations),
            Block(Kind.DIAGNOSIS, findings, "Diagnosis", nothing=nothing),
            Block(Kind.CHARTS, [partial(panel, run=curves) for panel in panels_of(curves)], "Charts"),
            Block(Kind.CHARTS, small_panels, "Numbers of training", " ".join(small_notes), layout=SMALL),
            decisions_table(log),
            *resumptions_table(resumptions),
            *run_tables(metrics),
            Block(Kind.COMPLETIONS, groups, "Completions", _about(groups), nothing=NO_COMPLETIONS),
            Block(Kind.TABLE, run_facts(output, config), "How it was run", only=PAGE),
            Block(Kind.TABLE, settings(config), "Settings", ABOUT_SETTINGS, PAGE),
        ],
        numbers=[*verdict.numbers, *([] if over else left(metrics, config.get("num_steps", 0)))],
        state=beginning if failed else state,
        about=about(config),
        words=WORDS,
    )


def settings(config: Row) -> list[tuple[str, str]]:
    """Returns a table of the settings that differ from the defaults. Each of `task.sets` has the defaults of `task`."""
    defaults = dict(leaves(asdict(TrainConfig())))
    rows = [
        (name, setting(value))
        for name, value in leaves(config)
        if value != defaults.get(re.sub(r"^task\.sets\.[^.]+", "task", name))
    ]
    return [("key", "value"), *rows]


def _about(groups: Sequence[Mapping[str, Any]]) -> str:
    episodes = any(row["conversation"] for group in groups for row in group["rows"])
    return (ABOUT_GROUPS + (ABOUT_EPISODES if episodes else "")) if groups else ""


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
    spoken = [_conversation(row) for row in shown_rows]
    shared = opening(spoken)
    how_many_shown = f" {len(shown_rows)} of {len(rows)} completions are shown." if len(shown_rows) < len(rows) else ""
    return {
        "score": score_of(rows),
        "question": clean(first["question"]),
        "answer": clean(str(first["answer"])),
        "about": f"Step {first['step']:,}, prompt {first['prompt_id']}.{source}{how_many_shown}",
        "opening": spoken[0][:shared],
        "rows": [
            {
                **{"graded": is_graded(row), "judged": not unjudged, "correct": row["correct"]},
                **{"facts": _facts(row), "text": clean(_cut(row["completion"])), "conversation": said[shared:]},
            }
            for row, said in zip(shown_rows, spoken, strict=True)
        ],
    }


def _conversation(row: Row) -> list[Said]:
    return [Said(clean(name), clean(_cut(text)), read) for name, text, read in conversation(row)]


def _facts(row: Row) -> str:
    facts = [f"reward {row['reward']:g}"] if is_graded(row) else []
    facts += [f"{row['tokens']} tokens"]
    facts += ["cut off" if ending(row) else "cut off at the token limit"] if row.get("truncated") else []
    facts += [f"turns {row['turns']}, calls {row['calls']}"] if {"turns", "calls"} <= row.keys() else []
    facts += [words for words in (unseen(row), ending(row)) if words]
    facts += [row["outcome"].replace("_", " ") + " in grading"] if row["outcome"] != "graded" else []
    return " · ".join(facts)


def _cut(text: str) -> str:
    if len(text) <= EXCERPT:
        return text
    return f"{text[: EXCERPT // 2]}\n… {len(text) - EXCERPT:,} characters left out …\n{text[-EXCERPT // 2 :]}"


def run_tables(metrics: Sequence[Row]) -> list[Block]:
    """Returns tables of the completions of a run by difficulty and by source, without tables that have no rows."""
    last_rows = metrics[-max(1, len(metrics) // 4) :]
    rounds = f"Means over the last {len(last_rows):,} of {len(metrics):,} rounds."
    bands = {words: f"{m.BY_PASS_RATE}{name}" for name, words in BANDS.items()}
    names = {name.removeprefix(m.SOURCE) for row in last_rows for name in row if name.startswith(m.SOURCE)}
    sources = {name: f"{m.SOURCE}{name}" for name in sorted({name.rpartition("/")[0] for name in names})}
    hard = f"{rounds} A prompt is hard where few of its completions are right."
    by_difficulty, by_source = (
        _parts("of the prompt's completions", bands, last_rows),
        _parts("source", sources, last_rows, SCORES),
    )
    tables = [("Completions by difficulty", hard, by_difficulty), ("Completions by source", rounds, by_source)]
    return [Block(Kind.TABLE, rows, title, note, PAGE) for title, note, rows in tables if len(rows) > 1]


def _parts(
    heading: str, prefixes: Mapping[str, str], rows: Sequence[Row], scores: Mapping[str, tuple[str, str]] | None = None
) -> list[list[str]]:
    """Returns a table with a row for each kind of completions: their share, `scores`, mean length and truncation.

    `prefixes` maps the kinds to the prefixes of their metrics. A round without completions of a kind counts as 0 in the
    mean of its share, and is left out of its other means, which are weighted by the share. So is a round from a mean
    that it lacks, such as a pass rate where nothing could be graded.
    """
    columns, lines = {**(scores or {}), **SIZES}, []
    for name, prefix in prefixes.items():
        rows_with_part = [row for row in rows if f"{prefix}/share" in row]
        shares = [row[f"{prefix}/share"] for row in rows_with_part]
        if not (total := sum(shares)):
            continue
        cells = []
        for key, (_, form) in columns.items():
            of_key = f"{prefix}/{key}"
            pairs = [(row[f"{prefix}/share"], row[of_key]) for row in rows_with_part if of_key in row]
            weight = sum(share for share, _ in pairs)
            cells.append(form.format(sum(share * value for share, value in pairs) / weight) if weight else "")
        lines.append([name, f"{total / len(rows):.1%}", *cells])
    return [[heading, "share of completions", *(title for title, _ in columns.values())], *lines]


def write_report(
    output: Path, model_folder: Path | None, console: Terminal | None = None, also: Collection[str] = ()
) -> None:
    """Reports on the run in `output`: compares its first and last evaluation, diagnoses it, and draws its curves.

    The report is printed, and written into `output` as a page and in the formats of `also`. `model_folder` is the
    folder of the exported model, if any.
    """
    console, metrics = console or Terminal(), read_metrics(output / METRICS_FILE)
    if not metrics:
        config = run_config(output) if (output / CONFIG_FILE).exists() else {}
        state = describe_state(output, metrics, config)
        raise UserError(f"{run_name(output)}: {state}; it has finished no round, so there is nothing to report on")
    evaluations, left_out = comparable(read_evaluations(output))
    log, more = read_log(output), []
    findings = diagnose(log)
    # The curve may be shorter than the run, since it begins anew after the run went back to an earlier policy.
    if len(log.history) >= FEWEST_POINTS:
        write_html(dynamics_page(analysed(log, output), findings, output), output / DYNAMICS_PAGE_FILE)
        more.append(f"report  {output / DYNAMICS_PAGE_FILE}")
    more += [f"model   {model_folder}  (loads in transformers and in vLLM)"] if model_folder else []
    more += [f"command {command}" for command in [hidden_command()] if command]
    run = run_page(output, metrics, evaluations, log, findings, left_out)
    publish(run, output / PAGE_FILE, console, also, more=more)
