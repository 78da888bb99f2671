"""A run goes on from the newest checkpoint that it can go on from, and each one that it cannot use is one line."""

import json
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo.config import RewardPartConfig, TrainConfig, UserError
from grpo.config.errors import EndedElsewhere
from grpo.models.files import ModelFiles
from grpo.run.checkpoints import CheckpointStore
from grpo.run.early_checks import check
from grpo.run.records import open_files
from grpo.run.resume import asked_of, check_start, goes_on, keep_model, require_same_inputs, saved_run, set_aside
from grpo.telemetry.ending import FINISHED, KILLED, Resumption
from grpo.telemetry.trackers import Trackers
from grpo.types import Progress, RoundPlan
from tests.fakes import SingleRank, on_ranks

ROW = {"step": 4, "cursor": 8, "prompt_ids": ["a@0", "b@0"], "correct": [[1, 4], [0, 4]], "lengths": [2.0, 3.5]}


@pytest.fixture
def config(tmp_path):
    config = TrainConfig(output_dir=str(tmp_path / "run"))
    config.checkpoint.resume, config.num_steps = True, 100
    return config


def save(config, step, change=lambda state: None):
    """Saves a checkpoint whose state is changed before its checksums are made, as a stranger would."""
    progress = Progress(step, step, 8 * step, RoundPlan(8, 1, 8), {"spent": {"samples": 64.0}, "inner": None})
    state = json.loads(json.dumps({"progress": asdict(progress), "config": asdict(config), "base": None}))
    change(state)
    CheckpointStore(Path(config.output_dir, "checkpoints"), 9, SingleRank()).save(step, lambda folder: None, state)
    Path(config.output_dir, "prompts.jsonl").write_text(json.dumps(ROW) + "\n")


def resumed(config):
    return saved_run(config, Path(), SimpleNamespace(identity="x"), SingleRank())


def test_a_damaged_start_is_a_line_with_a_remedy(config):
    save(config, 10)
    checkpoint = Path(config.output_dir, "checkpoints", "step-00000010")
    (checkpoint / "SHA256SUMS").unlink()
    config.model.start = str(checkpoint)
    with pytest.raises(UserError, match="nothing proves that it is whole; restore it from a copy, or give another"):
        check_start(config, Path(), SingleRank())


def setting(*keys, value):
    def change(state):
        *outer, last = keys
        for key in outer:
            state = state[key]
        state[last] = value

    return change


def test_another_start_is_named_as_what_it_is_to_a_resumed_run(config, capsys):
    save(config, 10)
    config.model.start = "runs/other/checkpoints/step-00000002"
    resumed(config)
    assert "which a resumed run does not read: its weights are the checkpoint's" in capsys.readouterr().out
    config.objective.kl.coefficient = 0.1
    resumed(config)
    assert "which a resumed run takes as the reference of its KL alone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (setting("progress", value=[]), "progress must be keys and values"),
        (setting("progress", "step", value="x"), "progress.step must be a whole number, not 'x'"),
        (setting("progress", "step", value=12), "progress.step=12 and its other counts are not those of step-00000010"),
        (setting("progress", "cursor", value=-1), "progress.step=10 and its other counts are not those of"),
        (setting("progress", "new", value=1), "progress has 'new', which this version does not know"),
        (setting("progress", "scheduler", value=[]), "progress.scheduler must be keys and values, not []"),
        (setting("progress", "scheduler", "spent", value=3), "scheduler.spent must be keys and values, not 3"),
        (setting("progress", "scheduler", "inner", value=[1]), "scheduler.inner must be keys and values, not [1]"),
        (setting("progress", "plan", "group_size", value=10**9), "progress.plan is none that its configuration allows"),
        (setting("progress", "plan", "passes", value=0), "progress.plan is none that its configuration allows"),
        (setting("progress", "plan", "learning_rate_factor", value=float("nan")), "progress.plan is none"),
        (setting("base", value={"sha256": 5}), "base lacks path"),
        (setting("config", value=None), "it holds no configuration"),
        (setting("config", "num_steps", value="many"), "in its configuration"),
    ],
)
def test_a_checkpoint_with_an_odd_state_is_one_line_and_the_one_before_it_is_taken(config, capsys, change, said):
    save(config, 5)
    save(config, 10, change)
    saved = resumed(config)
    assert saved.checkpoint.name == "step-00000005" and saved.progress.cursor == 40
    [line] = capsys.readouterr().err.splitlines()
    assert "step-00000010/state.json is damaged: " in line and said in line
    assert line.endswith("; trying the checkpoint before it")


def test_a_run_that_has_taken_more_steps_than_it_may_is_not_resumed(config):
    save(config, 10)
    config.num_steps, config.task.data.source = 9, "arithmetic"
    config.task.reward.parts = [RewardPartConfig(name="number")]
    for refusing in (resumed, lambda config: check("train", config)):
        with pytest.raises(UserError, match="num_steps=9 is less than the 10 steps that the run in .* has taken"):
            refusing(config)
    config.num_steps = 10
    assert resumed(config).progress.step == 10


@pytest.mark.parametrize(
    ("left", "resume", "continues"),
    [("step-00000005", "auto", True), (".writing-00000005", "auto", False), ("", "auto", False), ("", True, True)],
)
def test_a_run_goes_on_where_it_may_only_from_a_checkpoint_that_was_written_to_its_end(left, resume, continues, config):
    config.checkpoint.resume = resume
    Path(config.output_dir, "checkpoints", left).mkdir(parents=True)
    assert goes_on(config, SingleRank()) is continues


@pytest.mark.parametrize(("num_steps", "kept"), [(10, True), (11, False)])
def test_settings_of_a_run_without_a_step_left_stay_those_that_it_was_made_with(config, num_steps, kept):
    save(config, 10)
    written = Path(config.output_dir, "config.json")
    written.write_text("those before")
    config.num_steps = num_steps
    with open_files(config, Trackers(()), resumed(config)):
        assert (written.read_text() == "those before") == kept


def test_an_adaptive_schedulers_state_is_checked_by_its_types(config, capsys):
    config.dynamics.name = "adaptive"
    inner = {"longest": 8, "rounds": [], "counts": [], "guard": {}}
    save(config, 5, setting("progress", "scheduler", "inner", value=inner))
    save(config, 10, setting("progress", "scheduler", "inner", value=inner | {"counts": [[1, 2]]}))
    assert resumed(config).progress.scheduler.inner.longest == 8
    assert "scheduler.counts[0] must be a list of 3, not [1, 2]" in capsys.readouterr().err


def test_a_plan_beyond_the_present_limits_begins_anew_and_is_reported(config, capsys):
    config.dynamics.name, config.dynamics.adaptive.largest_group = "adaptive", 10**9
    inner = {"longest": 8}

    def change(state):
        setting("progress", "scheduler", "inner", value=inner)(state)
        setting("progress", "plan", "group_size", value=10**9)(state)

    save(config, 5, change)
    now = deepcopy(config)
    now.dynamics.adaptive.largest_group = 64
    assert resumed(now).progress.plan == RoundPlan(8, 1, 8)
    assert "  group size: 1000000000 → 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompt_ids": None}, "prompt_ids must be a list, not None"),
        ({"correct": [[1, 4], [0]]}, r"correct\[1\] must be a list of 2, not \[0\]"),
        ({"cursor": "8"}, "cursor must be a whole number, not '8'"),
        ({"lengths": [1.0]}, "has lists of different lengths under prompt_ids, correct and lengths"),
    ],
)
def test_a_line_of_prompts_that_is_damaged_is_named_before_anything_is_loaded(config, changes, said):
    save(config, 5)
    log = Path(config.output_dir, "prompts.jsonl")
    log.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW | changes) + "\n")
    with pytest.raises(UserError, match=rf"line 2 of {log}[ .]{said}: delete that line"):
        resumed(config)


def test_records_that_end_before_the_checkpoint_are_reported(config, capsys):
    save(config, 4)
    Path(config.output_dir, "metrics.jsonl").write_text(json.dumps({"step": 4}) + "\n")
    resumed(config)
    assert "ends at step" not in capsys.readouterr().out
    Path(config.output_dir, "prompts.jsonl").write_text("")
    Path(config.output_dir, "metrics.jsonl").unlink()
    resumed(config)
    lines = [
        line for line in capsys.readouterr().out.splitlines() if "ends at step 0, and the checkpoint is of s" in line
    ]
    assert ["prompts.jsonl" in lines[0], "metrics.jsonl" in lines[1], len(lines)] == [True, True, 2]


def test_a_line_of_prompts_without_their_names_is_named():
    with pytest.raises(UserError, match=r"line 1 of prompts\.jsonl lacks prompt_ids: delete that line"):
        asked_of([{name: value for name, value in ROW.items() if name != "prompt_ids"}])


def test_logs_of_a_run_without_a_checkpoint_are_kept_and_nothing_else_is_touched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model").mkdir()
    (tmp_path / "metrics.jsonl").write_text("")
    assert set_aside(tmp_path) is None, "no round was finished"
    for number in (1, 2):
        (tmp_path / "metrics.jsonl").write_text(f'{{"step": {number}}}\n')
        (tmp_path / "completions").mkdir()
        (tmp_path / "completions" / "step-1.parquet").write_text(str(number))
        assert set_aside(tmp_path) == tmp_path / f"earlier-{number}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier-1", "earlier-2", "notes.txt"]
    assert (tmp_path / "earlier-1" / "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert (tmp_path / "earlier-1" / "model").is_dir()
    assert (tmp_path / "earlier-2" / "completions" / "step-1.parquet").read_text() == "2"


def test_a_model_that_a_killed_run_had_begun_to_write_is_removed(tmp_path):
    for name in (".writing-step-00000008", "step-00000004"):
        (tmp_path / "models" / name).mkdir(parents=True)
    keep_model(tmp_path, Resumption(8, "step-00000008", 8, KILLED))
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["step-00000004"]


def test_the_model_of_a_finished_run_that_goes_on_is_not_taken_for_that_of_its_last_step(tmp_path, capsys):
    model, kept = tmp_path / "model", tmp_path / "models" / "step-00000008"
    model.mkdir()
    (model / "config.json").touch()
    keep_model(tmp_path, Resumption(8, "step-00000008", 12, KILLED))
    assert model.exists(), "nobody knows of which step it is"
    keep_model(tmp_path, Resumption(8, "step-00000008", 8, FINISHED))
    assert not model.exists() and (kept / "config.json").exists()
    assert capsys.readouterr().out == f"the model of step 8 is now in {kept}\n"
    model.mkdir()
    keep_model(tmp_path, Resumption(8, "step-00000008", 8, FINISHED))
    assert not model.exists() and (kept / "config.json").exists()


def test_ranks_that_have_read_different_problems_are_refused_by_one_line():
    """A machine may have an older copy of the file, or a script may shuffle its rows on every rank anew."""

    def begin(identities):
        tasks, model = [SimpleNamespace(identity=identity) for identity in identities], SimpleNamespace(identity=[])
        return on_ranks(len(tasks), lambda ranks: require_same_inputs(tasks[ranks.rank], model, ranks))

    assert begin(["a", "a"]) == [None, None]
    refused, *others = begin(["a", "b", "a"])
    assert type(refused) is UserError and "the problems of rank 1 differ from those of rank 0" in str(refused)
    assert [type(error) for error in others] == [EndedElsewhere] * 2


def test_ranks_that_have_other_files_of_the_model_are_refused_by_one_line(tmp_path):
    def folder(name, weights, text="{}"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
        (tmp_path / name / "model.safetensors").symlink_to(weights)
        return ModelFiles(tmp_path / name)

    def begin(*models):
        task = SimpleNamespace(identity="a")
        return on_ranks(len(models), lambda ranks: require_same_inputs(task, models[ranks.rank], ranks))

    # The hub's cache names files by their digests. These have the same size.
    (tmp_path / "blobs").mkdir()
    old, new = tmp_path / "blobs" / "d1", tmp_path / "blobs" / "d2"
    for blob in (old, new):
        blob.write_text("weights")
    first = folder("first", old)
    assert begin(first, folder("same", old)) == [None, None]
    refused = begin(first, folder("moved", new))[0]
    assert type(refused) is UserError and "files of the model of rank 1 differ from those of rank 0" in str(refused)
    assert begin(first, folder("configured", old, '{"hidden_size": 8}')) != [None, None]
