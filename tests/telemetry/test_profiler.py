"""Chosen rounds leave a trace of what was computed in them, and no others do."""

import gzip
import json

import torch

from grpo.telemetry.phases import Phases
from grpo.telemetry.profiler import ProfiledRounds


class Clock:
    def begin_round(self):
        self.begun = True

    def end_round(self):
        return {"round": 1.5}


def run_rounds(folder, lines, first, count, chosen):
    clock = ProfiledRounds(Clock(), chosen, folder, rank=2, first_round=first, tell=lines.append)
    learn = Phases(label=torch.profiler.record_function).timed("learn", torch.cumsum, 60.0, "key")
    for _ in range(count):
        torch.ones(3).exp()
        clock.begin_round()
        learn(torch.ones(3), 0)
        assert clock.end_round() == {"round": 1.5}


def test_a_trace_of_a_chosen_round_shows_its_operations(tmp_path):
    lines = []
    run_rounds(tmp_path / "profile", lines, 5, 3, [3, 6])
    [trace] = (tmp_path / "profile").iterdir()
    assert trace.name == "round-00006-rank-2.json.gz"
    with gzip.open(trace, "rt") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"aten::cumsum", "learn"} <= names and "aten::exp" not in names
    assert len(lines) == 1 and lines[0].startswith(f"round 6 is profiled in {trace} (")


def test_a_trace_that_cannot_be_written_is_one_line_and_the_run_goes_on(tmp_path):
    (tmp_path / "profile").write_text("a file where the folder should be")
    lines = []
    run_rounds(tmp_path / "profile", lines, 0, 2, [0])
    assert len(lines) == 1 and "could not be written" in lines[0]
