"""These tests check what a sweep runs, what it runs again, and what a kill leaves. The runs are stand-ins, except the
last ones."""

import errno
import fcntl
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.runs import command
from grpo.cli import main
from grpo.commands.sweep import ledger_table
from grpo.config import UserError
from grpo.config.hydra import compose_config, compose_sweep
from grpo.host.terminal import Terminal
from grpo.sweep.cell_process import gpus_here, run_cells, side_by_side
from grpo.sweep.cells import Cell, cells_of
from grpo.sweep.ledger import DONE, FAILED, INTERRUPTED, RUNNING, WAITING, State, begin_ledger, open_ledger
from tests import warm
from tests.runs import grpo

# Real runs in processes whose imports are done.
FORKED = f"{sys.executable} -SP {warm.__file__} run {','.join(warm.TRAIN)} -m grpo.cli"
STAND_IN = f"{sys.executable} {Path(__file__).with_name('stand_in.py')}"
PRESET = "variants: {grpo: [normalization=grpo], dr_grpo: [normalization=dr_grpo]}"


@pytest.fixture
def words(tmp_path):
    (tmp_path / "two.yaml").write_text(PRESET)
    output = tmp_path / "sweep"
    output.mkdir()
    return [f"sweep={tmp_path}/two.yaml", "seeds=2", "experiment=tiny", f"output_dir={output}", f"command={STAND_IN}"]


def states(words):
    ledger = open_ledger(Path(words[3].partition("=")[2]))
    return {cell.name: ledger.state(cell) for cell in ledger.cells}


def ran(words, name):
    return (Path(words[3].partition("=")[2]) / "cells" / name / "ran.txt").read_text().splitlines()


@pytest.mark.slow
def test_every_cell_is_run_once_with_its_overrides(words):
    assert main(["sweep", *words]) == 0
    assert {name: state.state for name, state in states(words).items()} == dict.fromkeys(
        ["grpo-seed0", "dr_grpo-seed0", "grpo-seed1", "dr_grpo-seed1"], DONE
    )
    assert main(["sweep", *words]) == 0
    (line,) = ran(words, "dr_grpo-seed1")
    assert line.startswith("train experiment=tiny normalization=dr_grpo seed=1 output_dir=")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("seeds=[1", "cannot read 'seeds=[1': its brackets and quotation marks come in pairs"),
        ("variants={a: [num_steps=4]}", "variants stand in a file of yours, sweep=FILE.yaml, as variants: {NAME: ["),
    ],
)
def test_a_word_that_is_no_setting_of_a_sweep_is_answered_in_a_line(word, line, capsys):
    assert main(["sweep", "sweep=seeds", "experiment=tiny", "output_dir=x", word]) == 2
    assert capsys.readouterr().err.startswith(f"grpo: {line}")


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ('command=grpo "', 'command=grpo ": No closing quotation: close it, or leave it out'),
        ("command=/no/such/grpo", "command=/no/such/grpo: there is no program /no/such/grpo here: correct its name"),
        ("output_dir=/dev/null", "output_dir=/dev/null cannot be written to, since /dev/null is no folder: choose"),
    ],
)
def test_a_sweep_that_could_start_nothing_is_refused_in_a_line(word, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "sweep=seeds", "experiment=tiny", word]) == 2
    assert capsys.readouterr().err.startswith(f"grpo: {line}")


def test_a_sweep_prints_each_runs_log_its_pass_rate_and_the_time_to_go(words, capfd):
    assert main(["sweep", *words]) == 0
    printed = capfd.readouterr().out.splitlines()
    folder = words[3].partition("=")[2]
    assert printed[1] == f"grpo-seed0 runs, and its log is {folder}/cells/grpo-seed0/log.txt"
    assert re.fullmatch(r"1 of 4 done · grpo-seed0 done after \d s · pass@1 100.0% · about 1 min to go", printed[2])
    assert re.fullmatch(r"4 of 4 done · dr_grpo-seed1 done after \d s · pass@1 100.0%", printed[8])


@pytest.mark.slow
def test_variants_of_an_earlier_sweep_in_the_folder_are_refused_and_further_ones_are_not(words, tmp_path, capsys):
    assert main(["sweep", *words]) == 0
    (tmp_path / "three.yaml").write_text(f"{PRESET[:-1]}, maxrl: [normalization=maxrl]}}")
    assert main(["sweep", f"sweep={tmp_path}/three.yaml", *words[1:]]) == 0
    assert len(states(words)) == 6
    assert main(["sweep", *words]) == 2
    assert capsys.readouterr().err == (
        f"grpo: {words[3].partition('=')[2]} holds a sweep with other variants, such as 'maxrl': choose another "
        "output_dir, or name its variants too\n"
    )
    assert len(states(words)) == 6


def test_a_table_on_eighty_columns_tells_variants_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = ["run normalization=grpo learning_rate=0.0003", "run normalization=dr_grpo learning_rate=0.0003"]
    cells = [Cell(f"{index}-seed0", name, 0, ()) for index, name in enumerate(names)]
    output = io.StringIO()
    Terminal(file=output).print(ledger_table(begin_ledger(tmp_path / "dial", cells, ["grpo"])))
    rows = [line.split("│")[1].strip() for line in output.getvalue().splitlines() if line.startswith("│")]
    assert rows == ["grpo", "dr_grpo"]


@pytest.mark.slow
def test_a_cell_of_several_ranks_is_launched(words):
    assert main(["sweep", *words[:1], "seeds=1", *words[2:], "hardware.ranks_per_node=2"]) == 0
    (line,) = ran(words, "grpo-seed0")
    assert line.startswith("launch experiment=tiny hardware.ranks_per_node=2 normalization=grpo seed=0 output_dir=")


@pytest.mark.slow
def test_a_run_that_fails_says_why_stops_no_other_and_is_the_only_one_run_again(words, capsys):
    output = Path(words[3].partition("=")[2])
    (output / "dr_grpo-seed0.wish").write_text("fail")
    assert main(["sweep", *words]) == 1
    after = states(words)
    assert after["dr_grpo-seed0"].state == FAILED
    assert after["dr_grpo-seed0"].why == "exit code 2, the disk is full"
    assert after["dr_grpo-seed1"].state == DONE
    assert "the disk is full" in capsys.readouterr().out
    # Both starts write into one log.
    (output / "dr_grpo-seed0.wish").write_text("crash")
    assert main(["sweep", *words]) == 1
    assert states(words)["dr_grpo-seed0"].why == "exit code 1, ValueError: no such port"
    (output / "dr_grpo-seed0.wish").unlink()
    assert main(["sweep", *words]) == 0
    assert [len(ran(words, name)) for name in after] == [1, 3, 1, 1]


def test_a_word_that_is_nearly_one_of_a_commands_own_leads_to_it(capsys):
    assert main(["sweep", "sweep=seeds", "job=2"]) == 2
    assert capsys.readouterr().err == "grpo: unknown key job; did you mean jobs?\n"
    assert main(["prove", "parts=attention"]) == 2
    assert capsys.readouterr().err == "grpo: unknown key parts; did you mean part?\n"


def test_flags_and_files_that_a_sweep_does_not_read_are_refused_as_such(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("defaults: [train, _self_]")
    for word in (f"{tmp_path}/mine.yaml", "--cfg=job", "--config-name=mine"):
        assert main(["sweep", "sweep=seeds", word]) == 2
        assert "grpo sweep takes no configuration file and no --cfg: put your keys" in capsys.readouterr().err
    assert main(["sweep", "sweep=seeds", "--config-dir=nowhere"]) == 2
    assert "--config-dir: there is no folder" in capsys.readouterr().err


def test_every_run_of_a_sweep_reads_the_folder_of_config_dir(words, tmp_path):
    (tmp_path / "mine/experiment").mkdir(parents=True)
    text = "# @package _global_\ndefaults: [tiny, _self_]\nnum_steps: 7\n"
    (tmp_path / "mine/experiment/sums.yaml").write_text(text)
    words[2] = "experiment=sums"
    assert main(["sweep", "--config-dir", str(tmp_path / "mine"), *words]) == 0
    cells = open_ledger(tmp_path / "sweep").cells
    assert [compose_config([*cell.overrides]).num_steps for cell in cells] == [7, 7, 7, 7]


@pytest.mark.slow
def test_a_sweep_that_is_killed_takes_its_run_along_and_goes_on(words):
    output = Path(words[3].partition("=")[2])
    (output / "dr_grpo-seed0.wish").write_text("wait")
    process = subprocess.Popen(command("sweep", *words), stdout=subprocess.DEVNULL)
    started = output / "cells" / "dr_grpo-seed0" / "ran.txt"
    deadline = time.monotonic() + 60
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert states(words)["dr_grpo-seed0"].state == RUNNING
    process.send_signal(signal.SIGKILL)
    process.wait()
    while states(words)["dr_grpo-seed0"].state == RUNNING and time.monotonic() < deadline:
        time.sleep(0.1)
    after = {name: state.state for name, state in states(words).items()}
    assert after == {
        "grpo-seed0": DONE,
        "dr_grpo-seed0": INTERRUPTED,
        "grpo-seed1": WAITING,
        "dr_grpo-seed1": WAITING,
    }
    (output / "dr_grpo-seed0.wish").unlink()
    assert main(["sweep", *words]) == 0
    assert [len(ran(words, name)) for name in after] == [1, 2, 1, 1]


@pytest.mark.slow
def test_runs_side_by_side_end_with_the_sweep(words):
    output = Path(words[3].partition("=")[2])
    names = ["grpo-seed0", "dr_grpo-seed0"]
    for name in names:
        (output / f"{name}.wish").write_text("wait")
    process = subprocess.Popen(command("sweep", *words, "jobs=2"), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while not all((output / "cells" / name / "ran.txt").exists() for name in names) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = time.monotonic()
    while any(states(words)[name].state == RUNNING for name in names) and time.monotonic() < killed + 30:
        time.sleep(0.1)
    assert [states(words)[name].state for name in names] == [INTERRUPTED] * 2


def run_in(folder, jobs, gpus, cells, program):
    """Runs cells as programs that get their words after `program`. Returns the ledger."""
    ledger = begin_ledger(folder, cells, [sys.executable, "-c", program])
    run_cells(ledger, ledger.cells, jobs, gpus)
    return ledger


MEET = """
import os, sys, time
folder = sys.argv[-1].partition("=")[2]
with open(folder + "/gpus.txt", "w") as file: file.write(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
others = os.path.join(os.path.dirname(folder), "{other}", "gpus.txt")
deadline = time.monotonic() + 30
while not os.path.exists(others) and time.monotonic() < deadline: time.sleep(0.05)
sys.exit(0 if os.path.exists(others) else 5)
"""


def test_runs_side_by_side_get_gpus_of_their_own(tmp_path):
    """Each of the two runs ends only once the other has begun."""
    cells = [Cell(f"v-seed{seed}", "v", seed, (), gpus=2) for seed in range(2)]
    program = MEET.replace("{other}", "v-seed1") + "\n"
    ledger = run_in(tmp_path, 2, ["0", "1", "2", "3"], cells, program)
    assert [ledger.state(cell).state for cell in cells] == [DONE] * 2
    assert [(ledger.path(cell) / "gpus.txt").read_text() for cell in cells] == ["0,1", "2,3"]


def test_runs_one_after_another_see_all_gpus(tmp_path):
    cells = [Cell(f"v-seed{seed}", "v", seed, ()) for seed in range(2)]
    ledger = run_in(tmp_path, 1, [], cells, MEET.replace("{other}", "v-seed0"))
    assert [(ledger.path(cell) / "gpus.txt").read_text() for cell in cells] == ["all", "all"]


@pytest.mark.parametrize(
    ("gpus", "num_gpus", "at_once"), [([1] * 20, 8, 8), ([1] * 3, 8, 3), ([2, 4], 8, 2), ([4] * 9, 8, 2)]
)
def test_runs_fill_the_gpus_of_a_machine(gpus, num_gpus, at_once):
    cells = [Cell(f"v-seed{seed}", "v", seed, (), gpus=count) for seed, count in enumerate(gpus)]
    assert side_by_side(cells, num_gpus) == at_once


@pytest.mark.parametrize(("gpus", "num_gpus"), [([1, 1], 0), ([16], 8), ([0, 1], 8)])
def test_runs_go_one_after_another_on_a_cpu_where_one_needs_more_and_where_one_uses_other_machines(gpus, num_gpus):
    assert side_by_side([Cell("v", "v", 0, (), gpus=count) for count in gpus], num_gpus) == 1


@pytest.mark.parametrize("preset", ["papers", "sizes"])
def test_a_preset_has_the_same_samples_for_each_variant(preset):
    cells = cells_of(compose_sweep(preset, ["seeds=1"]), ["experiment=tiny"])
    assert len(cells) == {"papers": 4, "sizes": 3}[preset]
    assert {word for cell in cells for word in cell.overrides if word.startswith("limits")} == {"limits.samples=5120"}


def test_more_runs_side_by_side_than_gpus_are_refused(tmp_path):
    cells = [Cell("v-seed0", "v", 0, (), gpus=2)]
    with pytest.raises(UserError, match="jobs=3 runs of 2 GPUs each need 6, and this machine shows 4: set jobs=2"):
        run_in(tmp_path, 3, ["0", "1", "2", "3"], cells, "")
    with pytest.raises(UserError, match="uses other machines, so runs go one after another: jobs=1"):
        run_in(tmp_path / "b", 2, ["0", "1"], [Cell("v-seed0", "v", 0, (), gpus=0, elsewhere=True)], "")


def test_runs_on_the_cpu_go_side_by_side_beside_gpus_that_they_do_not_use(tmp_path):
    words = ["experiment=tiny", "device=cpu"]
    cells = [replace(cell, overrides=()) for cell in cells_of(compose_sweep("seeds", ["seeds=2"]), words)]
    assert [(cell.gpus, cell.elsewhere) for cell in cells] == [(0, False)] * 2
    ledger = run_in(tmp_path, 2, ["0"], cells, MEET.replace("{other}", cells[1].name) + "\n")
    assert [ledger.state(cell).state for cell in cells] == [DONE] * 2
    [far] = cells_of(compose_sweep("seeds", ["seeds=1"]), ["experiment=tiny", "hardware.learner_nodes=2"])
    assert far.elsewhere


def test_a_run_that_another_sweep_has_done_meanwhile_is_not_run_again(tmp_path):
    """The first run records the second one as done, as the same sweep on another machine would."""
    cells = [Cell(f"v-seed{seed}", "v", seed, ()) for seed in range(2)]
    program = (
        "import sys, pathlib; folder = pathlib.Path(sys.argv[-1].partition('=')[2]); (folder / 'ran').touch(); "
        "(folder.parent / 'v-seed1' / 'state.json').write_text('{\"state\": \"done\"}')"
    )
    ledger = run_in(tmp_path, 1, [], cells, program)
    assert [(ledger.path(cell) / "ran").exists() for cell in cells] == [True, False]
    assert [ledger.state(cell).state for cell in cells] == [DONE] * 2


@pytest.mark.parametrize(
    ("names", "shown"),
    [("GPU-a, 3", ["GPU-a", "3"]), ("", []), ("-1", []), ("NoDevFiles", []), ("0,-1,1", ["0"])],
)
def test_gpus_of_this_machine_are_those_that_it_shows(names, shown, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    assert gpus_here() == shown


def test_gpus_that_are_divided_keep_their_numbers(monkeypatch, tmp_path):
    lines = ["GPU 0: H100 (UUID: GPU-a)", "  MIG 3g.40gb Device 0: (UUID: MIG-b)", "GPU 1: H100 (UUID: GPU-c)"]
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus_here() == ["0", "1"]


def test_a_cell_that_another_sweep_is_at_is_left_to_it(words):
    assert main(["sweep", *words[:1], "seeds=1", *words[2:]]) == 0
    ledger = open_ledger(Path(words[3].partition("=")[2]))
    (ledger.path(ledger.cells[0]) / "state.json").write_text(json.dumps({"state": RUNNING}))
    with ledger.lock(ledger.cells[0]):
        assert ledger.state(ledger.cells[0]).state == RUNNING
        assert ledger.pending() == []
    assert ledger.pending() == [0]


def test_sweeps_that_begin_in_one_folder_at_once_keep_each_others_cells(tmp_path):
    def begin(name):
        return begin_ledger(tmp_path, [Cell(f"{name}-seed{seed}", name, seed, ()) for seed in range(20)], ["grpo"])

    names = [f"variant{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as pool:
        ledgers = list(pool.map(begin, names))
    whole = open_ledger(tmp_path).cells
    assert sorted({cell.variant for cell in whole}) == names and len(whole) == 160
    # A run is started by its place in the ledger, which must not change.
    assert all(ledger.cells == whole[: len(ledger.cells)] for ledger in ledgers)


def test_a_killed_sweep_leaves_a_whole_ledger(tmp_path, monkeypatch):
    first, second = (Cell(f"grpo-seed{seed}", "grpo", seed, ()) for seed in range(2))
    begin_ledger(tmp_path, [first], ["grpo"])

    def killed(path, text, **how):
        path.open("w").write(text[: len(text) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        begin_ledger(tmp_path, [first, second], ["grpo"])
    assert open_ledger(tmp_path).cells == (first,)


def test_the_folder_of_a_run_is_refused(tmp_path):
    (tmp_path / "checkpoints" / "step-00000002").mkdir(parents=True)
    with pytest.raises(UserError, match="already holds a run: choose another output_dir"):
        begin_ledger(tmp_path, [Cell("a-seed0", "a", 0, ())], ["grpo"])
    assert not (tmp_path / "sweep.json").exists()


def test_a_file_system_without_locks_is_reported_and_no_obstacle(tmp_path, monkeypatch, capsys):
    def missing(file, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    cell = Cell("grpo-seed0", "grpo", 0, ())
    ledger = begin_ledger(tmp_path, [cell], ["grpo"])
    with ledger.lock(cell):
        ledger.record(cell, State(RUNNING))
    assert ledger.state(cell).state == INTERRUPTED
    assert capsys.readouterr().err == (
        f"grpo: cannot lock {tmp_path} (Function not implemented), so do not start this sweep twice at once\n"
    )


@pytest.mark.slow
def test_more_seeds_join_and_other_overrides_are_refused(words, capsys):
    assert main(["sweep", *words[:1], "seeds=1", *words[2:]]) == 0
    assert main(["sweep", *words]) == 0
    assert len(states(words)) == 4
    assert main(["sweep", *words, "num_steps=3"]) == 2
    expected = "holds a sweep whose run grpo-seed0 has other settings (num_steps=3 differs): choose another output_dir"
    assert expected in capsys.readouterr().err


@pytest.mark.slow
def test_real_runs_of_two_variants_end_in_a_report(tmp_path):
    (tmp_path / "two.yaml").write_text(PRESET)
    small = ["experiment=tiny", "dynamics.prompts_per_step=4", "dynamics.group_size=4", "checkpoint.export=false"]
    small += [
        "rollout.engine=transformers",
        "evaluation.num_problems=8",
        "evaluation.samples_per_problem=2",
        "evaluation.pass_at=[1]",
    ]
    output = tmp_path / "sweep"
    words = [f"sweep={tmp_path}/two.yaml", "seeds=1", "budget=samples", "amount=64", *small, f"output_dir={output}"]
    done = grpo("sweep", *words, f"command={FORKED}", timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (output / "cells" / "grpo-seed0" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 4, "64 samples are four steps of 4 × 4"
    reported = grpo("report", str(output), "also=md")
    assert reported.returncode == 0, reported.stderr
    text = (output / "report.md").read_text()
    assert "| normalization.exponent | 1.0 | 0.0 |" in text
    assert "8 held-out problems and 1 seed" in text
    assert "<svg" in (output / "report.html").read_text()
