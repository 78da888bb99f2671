"""This part takes the same few rounds twice, and says whether they have the same bits, and what that costs."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from grpo.config.folder import METRICS_FILE, SAMPLES_FILE
from grpo.config.rewording import path_word
from grpo.prove.bench import Bench
from grpo.prove.facts import Fact, Report
from grpo.prove.own_process import exit_code
from grpo.telemetry.json_lines import read_metrics
from grpo.types import metrics as m

ROUNDS = 3
ASKED = ("deterministic=true",)
COMPARED = (m.LOSS, m.GRADIENT_NORM, m.ENTROPY, m.LENGTH, m.REWARD, m.GAP)
"""Bits that differ anywhere in sampling, learning or refreshing show in one of these numbers of a later round."""


def determinism(bench: Bench) -> Report:
    """Takes rounds twice with `deterministic=true`. On a GPU it also takes them as they are configured, to measure the
    price."""
    bench.build()
    first, second = (_rounds(bench, name, ASKED) for name in ("first", "second"))
    facts = [
        Fact("determinism", "rounds finished twice", min(len(first), len(second)), low=ROUNDS),
        Fact("determinism", "rounds with other bits", _differing(first, second), high=0),
    ]
    if bench.device.type != "cuda":
        return Report([*facts, Fact("determinism", "price in time", None, needs="needs a GPU")])
    plain, again = (_rounds(bench, name, ()) for name in ("plain", "again"))
    facts.append(Fact("determinism", "… without being asked", _differing(plain, again)))
    if first and plain:
        facts.append(Fact("determinism", "price in time", _seconds(first) / _seconds(plain)))
    return Report(facts)


def _rounds(bench: Bench, name: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """Runs a few rounds of `grpo train` and returns their rows, each with its samples, or nothing if the run failed."""
    output = bench.folder / f"determinism-{name}"
    shutil.rmtree(output, ignore_errors=True)
    settings = [*bench.words, *words, f"num_steps={ROUNDS}", path_word("output_dir", output)]
    if exit_code([sys.executable, "-m", "grpo.cli", "train", *settings]):
        return []
    return _rows(output)


def _rows(output: Path) -> list[dict[str, Any]]:
    samples = read_metrics(output / SAMPLES_FILE)
    return [{**row, "samples": [sample["completion"] for sample in samples if sample["step"] == row["step"]]}
            for row in read_metrics(output / METRICS_FILE)]  # fmt: skip


def _differing(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> int:
    """Counts the rounds in which two runs differ, to the last bit."""
    names = (*COMPARED, "samples")
    pairs = zip(first, second, strict=False)
    return sum(any(one.get(name) != other.get(name) for name in names) for one, other in pairs)


def _seconds(rows: list[dict[str, Any]]) -> float:
    """Returns the seconds of a round, without the first, which compiles."""
    return median(row[m.ROUND_SECONDS] for row in rows[1:] or rows)
