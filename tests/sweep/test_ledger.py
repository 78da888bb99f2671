"""The folder of a sweep may come from a stranger: what its ledger says leads nowhere else, and damage is one line."""

import fcntl
import json
import threading

import pytest

from grpo.config import UserError
from grpo.sweep.cells import Cell
from grpo.sweep.ledger import INTERRUPTED, RUNNING, State, begin_ledger, open_ledger

CELL = {"name": "a-seed0", "variant": "a", "seed": 0, "overrides": ["seed=0"], "verb": "train"}


def ledger_of(folder, *cells):
    (folder / "sweep.json").write_text(json.dumps({"command": ["grpo"], "cells": cells}))


def test_those_who_look_at_a_sweep_do_not_keep_a_run_from_starting(tmp_path):
    ledger_of(tmp_path, CELL)
    ledger = open_ledger(tmp_path)
    [cell] = ledger.cells
    ledger.path(cell).mkdir(parents=True)
    ledger.record(cell, State(RUNNING))
    file = tmp_path / "cells" / "a-seed0" / ".lock"
    with file.open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        # Another one that looks knows that nothing runs there.
        assert ledger.state(cell).state == INTERRUPTED
        threading.Timer(0.1, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with ledger.lock(cell):
            assert ledger.state(cell).state == RUNNING
    with file.open("w") as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError), ledger.lock(cell):
            pass


@pytest.mark.parametrize("name", ["../../elsewhere", "/elsewhere", "..", ".", "", "a/b"])
def test_a_run_whose_name_is_a_path_is_refused(tmp_path, name):
    ledger_of(tmp_path, CELL, CELL | {"name": name})
    with pytest.raises(UserError, match="sweep.json is damaged: .* is no name of a run, but a path"):
        open_ledger(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "[]", "{", '{"cells": [3], "command": []}', '{"cells": [{}], "command": []}', '{"cells": []}'],
)
def test_a_damaged_ledger_is_one_line(tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(UserError, match=r"^[^\n]*sweep.json is damaged[^\n]*: restore it from a copy$"):
        open_ledger(tmp_path)


def test_a_damaged_state_of_a_run_is_one_line_and_its_lock_is_no_link(tmp_path):
    ledger_of(tmp_path, CELL)
    ledger, folder, victim = open_ledger(tmp_path), tmp_path / "cells" / "a-seed0", tmp_path / "victim"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text('{"state": "done", "seconds": 3}')
    assert ledger.state(ledger.cells[0]).state == "done"
    (folder / "state.json").write_text('{"stat": "done"}')
    with pytest.raises(UserError, match="a-seed0/state.json is damaged"):
        ledger.state(ledger.cells[0])
    (folder / "state.json").write_text('{"state": "running"}')
    victim.write_text("mine")
    (folder / ".lock").symlink_to(victim)
    with pytest.raises(UserError, match="a-seed0/.lock is a link, and nothing is written through links"):
        ledger.state(ledger.cells[0])
    assert victim.read_text() == "mine"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("seed=0", "amount=5"), "num_steps=3 is missing"),
        (("seed=0", "num_steps=4", "amount=5"), "num_steps=4 differs"),
        (("seed=0", "amount=5", "num_steps=3"), "their order differs"),
    ],
)
def test_a_sweep_that_is_continued_with_other_words_names_the_first_of_them(tmp_path, overrides, said):
    begin_ledger(tmp_path, [Cell("a-seed0", "a", 0, ("seed=0", "num_steps=3", "amount=5"))], ["grpo"])
    with pytest.raises(UserError, match=f"has other settings .{said}.: choose another output_dir"):
        begin_ledger(tmp_path, [Cell("a-seed0", "a", 0, overrides)], ["grpo"])
