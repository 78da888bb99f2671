"""This module implements `grpo prove`, which shows whether an installation is correct and fast on this machine."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from grpo.commands.words import typed
from grpo.config import UserError
from grpo.config.complaints import refuse_misspelt
from grpo.config.errors import first_line, require
from grpo.config.hydra import compose_config
from grpo.config.rewording import path_word
from grpo.config.validate import validate
from grpo.host import ranks
from grpo.host.terminal import Terminal, say
from grpo.prove.facts import Fact, Report
from grpo.prove.sizes import SIZES, WAYS, check_size, words_of

if TYPE_CHECKING:
    from grpo.prove.bench import Bench

    Measure = Callable[[Bench], Report | Iterable[Report]]

USAGE = """usage: grpo prove [part=attention,learner] [size=tiny|1.5b|7b] [ways=ZeRO-1,checkpointing]
                  [output_dir=runs/prove] [key=value ...]

Measures whether what is installed here is right and fast, all parts or those that are named:

  attention   attention over packed rows against float64, completion by completion
  learner     gradients against float64; tokens/s, MFU and peak memory of every way to save memory, each in a process
  round       a whole run of six rounds, and what is neither sampling nor learning
  servers     a run with two vLLM servers, of which one is killed in the middle of a weight transfer
  sync        a refresh with its checksums; a flipped bit has to be noticed; log-probabilities of both sides; the
              channel between devices
  sampler     tokens/s by completions at once, against the memory's bandwidth; what sleep frees
  determinism   whether the same rounds have the same bits with deterministic=true, and what that costs on a GPU; runs
              only where it is named

Models have random weights, and no network is needed. Other words are keys of a run, e.g. learner.zero_stage=3. Without
a size it is tiny on a CPU and 1.5b on a GPU. ways= chooses among the learner's ways to save memory: ZeRO-1, ZeRO-2,
ZeRO-3, checkpointing and offload. Ends with a table, and 1 where something is wrong or slow. A bound that no machine
has set yet is a guess, and a number outside of it (look) does not count for that. Parts that were measured before stay
in output_dir/prove.json. Once learner, sync and sampler are there, it also prints the settings that this machine asks
for; grpo dynamics plan takes the file as machine=. The name of the folder holds no time, because the parts come
together in it."""

PARTS = ("attention", "learner", "round", "servers", "sync", "sampler")
NAMED = ("determinism",)
"""These parts run only where they are named."""
OWN_WORDS = ("part", "size", "ways", "output_dir")
NEED_VLLM = ("round", "servers", "sync", "sampler", "determinism")
COLORS = {"fine": "green", "wrong": "red", "slow": "yellow", "look": "yellow", "skipped": "dim"}


def run(words: Sequence[str] = ()) -> int:
    """Measures the chosen parts, prints the table and writes prove.json. Returns 1 for anything wrong or slow, else 0.

    Raises UserError for wrong words, before torch is imported.
    """
    options, overrides = _options(words)
    names = _names("part", options.get("part", ",".join(PARTS)), PARTS + NAMED)
    ways = _names("ways", options.get("ways", ",".join(WAYS)), WAYS)
    _require_read(options, overrides, names)
    # Most shells leave the ~ of output_dir=~/proof as it is.
    folder = Path(os.path.expanduser(options.get("output_dir", "runs/prove")))
    config = compose_config([*words_of(SIZES["tiny"], folder, overrides), path_word("output_dir", folder)])
    validate(config, config.hardware.ranks)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output_dir={folder} cannot be written to: {error}") from error

    import torch

    from grpo.prove import computation, determinism, exchange, learning, link, lost_server, sampling
    from grpo.prove.bench import Bench
    from grpo.prove.record import write_record
    from grpo.telemetry.ending import write_code

    # Measurements in separate processes come first, before engines take this one's memory.
    parts = {
        "attention": [computation.attention],
        "learner": [computation.gradients, computation.whole_step, partial(learning.learner, ways=ways)],
        "round": [exchange.whole_round],
        "servers": [lost_server.servers],
        "sync": [link.channel],
        "sampler": [sampling.without_graphs],
        "determinism": [determinism.determinism],
    }
    engines = {"sync": exchange.sync, "sampler": sampling.sampler}
    size = options.get("size", "1.5b" if ranks.on_gpu(config.device) else "tiny")
    bench = Bench(size, folder.absolute(), overrides)
    bench.build()
    device = torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "CPU"
    about = {"device": device, "size": size, "words": overrides}
    about["parameters"] = bench.shape.parameters
    if further_words := bench.overrides[1 + len(overrides) :]:
        say(f"grpo: {' '.join(further_words)}, for which this GPU has memory")
    runnable = [name for name in names if name not in NEED_VLLM or find_spec("vllm")]
    measures = [(name, measure) for name in parts if name in runnable for measure in parts[name]]
    measures += [(name, engines[name]) for name in engines if name in runnable]
    reports: list[Report] = []
    for report in _measured(measures, bench):
        reports.append(report)
        # A proof that is ended before its time leaves its record so far.
        write_record(folder, about, reports)
    reports += [Report([Fact(name, "all of it", None, needs="needs vLLM")]) for name in names if name not in runnable]
    record = write_record(folder, about, reports)
    write_code(folder)
    facts = [fact for report in reports for fact in report.facts]
    _print(f"{device}, {size}", sorted(facts, key=lambda fact: list(parts).index(fact.part)), record["settings"])
    return int(any(fact.verdict in ("wrong", "slow") for fact in facts))


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Returns the values of `OWN_WORDS`, and the words that are keys of a run."""
    for word in (word for word in words if word in PARTS + NAMED):
        raise UserError(f"a part is written part={word}")
    own = [word for word in words if word.partition("=")[0] in OWN_WORDS]
    overrides = [word for word in words if word not in own]
    refuse_misspelt(overrides, OWN_WORDS)
    return typed(own, **dict.fromkeys(OWN_WORDS, str)), overrides


def _require_read(options: Mapping[str, str], overrides: Sequence[str], names: Sequence[str]) -> None:
    """Raises UserError for an unknown size, and for words that the parts `names` do not read."""
    require("ways" not in options or "learner" in names, "ways= are those of the part learner, which part= leaves out")
    own_model = next((word for word in overrides if re.match(r"(model|experiment|task|model\.path)=", word)), "")
    require(not own_model, f"prove measures models of its own with random weights: leave out {own_model}")
    if "size" in options:
        check_size(options["size"])


def _names(key: str, value: str, known: Collection[str]) -> list[str]:
    """Returns the names in the value of a word. Raises UserError for one that is unknown."""
    names = value.split(",")
    for name in names:
        require(name in known, f"{key}={name} is unknown: choose among {', '.join(known)}")
    return names


def _measured(measures: Sequence[tuple[str, Measure]], bench: Bench) -> Iterator[Report]:
    """Yields the reports of `measures`, each with its part's name, as they come, and prints the facts of each."""
    for part, measure in measures:
        name = getattr(measure, "__name__", part).replace("_", " ")
        say(f"grpo: measuring {name}")
        for report in _to_the_end(part, name, measure, bench):
            for fact in report.facts:
                say("grpo:   " + "  ".join(filter(None, fact.row())))
            yield report


def _to_the_end(part: str, name: str, measure: Measure, bench: Bench) -> Iterator[Report]:
    """Yields what `measure` reports. If it fails, the failure is a fact, so that the other parts are measured too."""
    try:
        outcome = measure(bench)
        yield from [outcome] if isinstance(outcome, Report) else outcome
    except Exception as error:  # whatever a library or a kernel raises on a machine that was never tried
        if not isinstance(error, UserError):
            traceback.print_exc()
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        yield Report([Fact(part, name, None, error=kind + first_line(error))])


def _print(title: str, facts: Sequence[Fact], settings: Sequence[Mapping[str, str]]) -> None:
    """Prints the table of measured facts, and overrides that suit this machine, each with its reason."""
    terminal = Terminal()
    table = Table("what", "measured", "expected", "verdict", title=title, title_justify="left", box=SIMPLE_HEAD)
    for part, part_facts in groupby(facts, key=lambda fact: fact.part):
        table.add_section()
        table.add_row(Text(part, style="bold"))
        for fact in part_facts:
            *cells, verdict = fact.row()
            table.add_row(*map(Text, cells), Text(verdict, style=COLORS.get(verdict, "")))
    terminal.print(table)
    if settings:
        title = "Settings that this machine asks for"
        reasons = Table("override", "because", title=title, title_justify="left", box=SIMPLE_HEAD)
        for setting in settings:
            reasons.add_row(setting["word"], setting["reason"])
        terminal.print(reasons)
        words = [setting["word"] for setting in settings]
        # `grpo train` is one rank.
        command = "launch" if any(word.startswith("hardware.") for word in words) else "train"
        terminal.print(f"grpo {command} … " + " ".join(words))
