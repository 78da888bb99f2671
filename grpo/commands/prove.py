"""This module implements `grpo prove`, which shows whether an installation is right and fast on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from grpo.config import UserError
from grpo.host.terminal import Terminal

USAGE = """usage: grpo prove [part=attention,learner] [size=tiny|1.5b|7b] [output_dir=runs/prove] [key=value ...]

Measures whether what is installed here is right and fast, all parts or those that are named:

  attention   attention over packed rows against float64, completion by completion
  learner     gradients against float64; tokens/s, MFU, and peak memory against the estimate
  sampler     tokens/s against the memory's bandwidth; what sleep frees
  sync        a refresh with its checksums; a flipped bit has to be noticed; log-probabilities of both sides
  round       a whole run of six rounds, and what is neither sampling nor learning

Models have random weights, and no network is needed. Other words are keys of a run, e.g. learner.zero_stage=3. Without
a size it is tiny on a CPU and 1.5b on a GPU. Ends with a table, and 1 where something is wrong or slow."""

COLORS = {"fine": "green", "wrong": "red", "slow": "yellow"}


def run(words: Sequence[str] = ()) -> int:
    """Measures the parts in order, prints the table and writes prove.json. Returns 0 when all is fine, else 1."""
    import torch

    from grpo.prove import computation, exchange, speed
    from grpo.prove.bench import Bench
    from grpo.prove.record import write_record
    from grpo.run import preflight
    from grpo.telemetry.code import write_code

    # A run in a process of its own comes before engines take this one's memory.
    parts = {
        "attention": [computation.attention],
        "round": [exchange.whole_round],
        "learner": [computation.gradients, speed.learner],
        "sync": [exchange.sync],
        "sampler": [speed.sampler],
    }
    given = dict(word.partition("=")[::2] for word in words if word.partition("=")[0] in ("part", "size", "output_dir"))
    chosen = given.get("part", ",".join(parts)).split(",")
    for name in chosen:
        if name not in parts:
            raise UserError(f"part={name} is unknown: choose among {', '.join(parts)}")
    overrides = [word for word in words if word.partition("=")[0] not in ("part", "size", "output_dir")]
    folder = Path(given.get("output_dir", "runs/prove"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output_dir={folder} cannot be written to: {error}") from error
    size = given.get("size", "1.5b" if torch.cuda.is_available() else "tiny")
    bench = Bench(size, folder.absolute(), overrides)
    reports = [measure(bench) for name in parts if name in chosen for measure in parts[name]]
    facts = [fact for report in reports for fact in report.facts]
    device = torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "CPU"
    bench.build()
    about = {"device": device, "size": size, "words": overrides}
    about["parameters"] = preflight.model_shape(bench.path).parameters
    write_record(folder, about, reports)
    write_code(folder)
    table = Table("part", "what", "measured", "expected", "verdict", title=f"{device}, {size}", title_justify="left")
    for fact in facts:
        *cells, verdict = fact.row()
        table.add_row(*map(Text, cells), Text(verdict, style=COLORS.get(verdict, "")))
    Terminal().print(table)
    return int(any(fact.verdict in ("wrong", "slow") for fact in facts))
