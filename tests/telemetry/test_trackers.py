import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from grpo.config import TrackingConfig, UserError
from grpo.telemetry.ending import write_code
from grpo.telemetry.json_lines import JsonlTracker, read_metrics
from grpo.telemetry.trackers import (
    MlflowTracker,
    TensorBoardTracker,
    Trackers,
    WandbTracker,
    service_trackers,
    wandb_mode,
)
from tests.full_disk import files_up_to

INTERVAL = {"value": 0.5, "low": 0.25, "high": 0.75}
EVALUATION = {
    "samples_per_problem": 4,
    "pass@1": INTERVAL,
    "pass@k": {"1": INTERVAL, "4": INTERVAL},
    "maj@k": INTERVAL,
    "mean_length": 8.0,
    "truncated_fraction": 0.0,
    "per_problem": [{"problem_id": "a"}],
}


OFFLINE = TrackingConfig(wandb="offline")


def sums(uri):
    return TrackingConfig(mlflow=uri, project="sums", tags=["night"])


def write_three_steps(directory):
    tracker = JsonlTracker(directory)
    for step in (1, 2, 3):
        tracker.log({"reward/mean": step / 10}, step)
        tracker.samples([{"text": f"a{step}"}, {"text": f"b{step}"}], step)
    tracker.close()


def test_each_call_is_one_line_that_can_be_read_before_the_run_ends(tmp_path):
    tracker = JsonlTracker(tmp_path)
    tracker.log({"reward/mean": 0.5}, 1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "reward/mean": 0.5}\n'
    tracker.close()


def test_lines_go_into_a_new_file_if_somebody_removes_the_folder(tmp_path, caplog):
    tracker = JsonlTracker(tmp_path / "run")
    tracker.log({"reward": 0.1}, 1)
    shutil.rmtree(tmp_path / "run")
    tracker.log({"reward": 0.2}, 2)
    tracker.log({"reward": 0.3}, 3)
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [2, 3]
    [warning] = caplog.messages
    assert "metrics.jsonl was removed while the run wrote into it: lines from step 2 on go into a new one" in warning


def test_any_completion_survives_on_one_line(tmp_path):
    text = 'a\nb\r\u2028 "q" \ud800 ünï'
    tracker = JsonlTracker(tmp_path)
    tracker.samples([{"text": text}], 1)
    tracker.close()
    assert read_metrics(tmp_path / "samples.jsonl") == [{"step": 1, "text": text}]


def test_resuming_drops_later_steps_and_then_appends(tmp_path):
    write_three_steps(tmp_path)
    tracker = JsonlTracker(tmp_path, resume_step=2)
    tracker.log({"reward/mean": 0.9}, 3)
    tracker.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 1, "reward/mean": 0.1},
        {"step": 2, "reward/mean": 0.2},
        {"step": 3, "reward/mean": 0.9},
    ]
    assert [row["text"] for row in read_metrics(tmp_path / "samples.jsonl")] == ["a1", "b1", "a2", "b2"]


def test_resuming_leaves_no_temporary_file(tmp_path):
    write_three_steps(tmp_path)
    JsonlTracker(tmp_path, resume_step=2).close()
    assert sorted(os.listdir(tmp_path)) == ["evaluations.jsonl", "metrics.jsonl", "samples.jsonl"]


def test_a_full_disk_is_no_obstacle_to_resuming(tmp_path):
    write_three_steps(tmp_path)
    with files_up_to(1):
        JsonlTracker(tmp_path, resume_step=2).close()
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]
    assert [row["text"] for row in read_metrics(tmp_path / "samples.jsonl")] == ["a1", "b1", "a2", "b2"]


def test_a_last_line_that_lacks_nothing_but_its_end_is_kept(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}')
    tracker = JsonlTracker(tmp_path, resume_step=2)
    tracker.log({}, 3)
    tracker.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'


def test_a_new_run_begins_new_files(tmp_path):
    write_three_steps(tmp_path)
    JsonlTracker(tmp_path).close()
    assert read_metrics(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("resume_step", [None, 1])
def test_a_log_that_is_a_link_is_refused_and_its_file_stays(tmp_path, resume_step):
    victim = tmp_path / "victim"
    victim.write_text('{"step": 1}\n{"step": 2}\n')
    (tmp_path / "metrics.jsonl").symlink_to(victim)
    with pytest.raises(UserError, match="metrics.jsonl is a link"):
        JsonlTracker(tmp_path, resume_step)
    assert victim.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_torn_last_line_is_forgotten_when_read_and_when_resumed(tmp_path):
    write_three_steps(tmp_path)
    path = tmp_path / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 4, "rew')
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]
    tracker = JsonlTracker(tmp_path, resume_step=4)
    tracker.log({}, 5)
    tracker.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 5]


def test_a_killed_process_leaves_every_line_it_logged(tmp_path):
    script = (
        "import os, signal, sys; from grpo.telemetry.json_lines import JsonlTracker\n"
        "tracker = JsonlTracker(sys.argv[1])\n"
        "for step in range(1, 6): tracker.log({}, step)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]


def test_rows_share_their_names_in_memory(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a/name": 0.5}\n{"step": 2, "a/name": 0.25}\n')
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    assert first == {"step": 1, "a/name": 0.5} and second == {"step": 2, "a/name": 0.25}
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_damage_before_the_last_line_names_file_and_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"line 2 of .*metrics\.jsonl is not JSON"):
        read_metrics(path)


def test_a_missing_file_names_what_to_give_instead(tmp_path):
    with pytest.raises(UserError, match="output_dir"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_several_trackers_all_get_rows_that_can_be_read_once_only(tmp_path):
    trackers = Trackers([JsonlTracker(tmp_path / name) for name in ("one", "two")])
    trackers.log({"pass_rate": 1.0}, 1)
    trackers.samples(({"text": text} for text in "xy"), 1)
    trackers.close()
    for name in ("one", "two"):
        assert read_metrics(tmp_path / name / "metrics.jsonl") == [{"step": 1, "pass_rate": 1.0}]
        assert [row["text"] for row in read_metrics(tmp_path / name / "samples.jsonl")] == ["x", "y"]


@pytest.mark.slow
def test_wandb_offline_writes_a_run_without_key_or_network(tmp_path):
    tracker = WandbTracker({"num_steps": 1}, OFFLINE, tmp_path)
    tracker.log({"reward/mean": 0.5}, 1)
    tracker.samples([{"prompt": "p", "text": "t", "reward": 1.0}], 1)
    tracker.close()
    assert len(list(tmp_path.glob("wandb/wandb/offline-run-*/run-*.wandb"))) == 1


@pytest.mark.slow
def test_a_resumed_run_is_the_same_run_for_wandb_and_a_new_one_another(tmp_path):
    for resume in (False, True, False):
        WandbTracker({}, OFFLINE, tmp_path, resume).close()
    names = [path.stem.removeprefix("run-") for path in sorted(tmp_path.glob("wandb/wandb/offline-run-*/run-*.wandb"))]
    assert len(names) == 3 and len(set(names)) == 2


def test_wandb_online_without_a_key_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    # Nothing listens here: the test cannot reach a server even where there is a network.
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="`wandb login`, or set tracking.wandb=offline"):
        WandbTracker({}, TrackingConfig(wandb="online"), tmp_path)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("WANDB_MODE", "sometimes", "the environment variable WANDB_MODE=sometimes is neither online nor offline, and"),
        ("WANDB_INIT_TIMEOUT", "soon", "wandb did not start (1 validation error for Settings init_timeout Input"),
    ],
)
def test_wandb_with_a_variable_that_it_does_not_know_did_not_start(variable, value, message, tmp_path):
    # wandb reads its variables once in a process.
    code = (
        "from pathlib import Path; from grpo.config import TrackingConfig; "
        "from grpo.telemetry.trackers import service_trackers; "
        f"service_trackers(TrackingConfig(wandb='online'), {{}}, Path({str(tmp_path)!r}), None)"
    )
    environment = {**os.environ, variable: value}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"grpo.config.errors.UserError: {message}")
    assert last.endswith((": unset it, or set tracking.wandb=off", "correct that, or set tracking.wandb=offline"))


def scalars(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_shows_rounds_evaluations_and_a_resumed_run_as_one(tmp_path):
    tracker = TensorBoardTracker({"num_steps": 3}, tmp_path)
    for step in (1, 2, 3):
        tracker.log({"pass_rate": step / 4, "groups/counts": [[1, 2, 3]]}, step)
    tracker.evaluation(EVALUATION, 3)
    tracker.samples([{"prompt": "p", "text": "t"}], 3)
    tracker.close()
    resumed = TensorBoardTracker({}, tmp_path, resume_step=2)
    resumed.log({"pass_rate": 1.0}, 3)
    resumed.close()
    shown = scalars(tmp_path)
    assert shown["pass_rate"] == [(1, 0.25), (2, 0.5), (3, 1.0)]
    assert "groups/counts" not in shown


def test_tensorboard_shows_a_new_run_without_what_an_earlier_one_left_in_its_folder(tmp_path):
    for rates in ((0.1, 0.2, 0.3), (0.5,)):
        tracker = TensorBoardTracker({}, tmp_path)
        for step, rate in enumerate(rates):
            tracker.log({"pass_rate": rate}, step)
        tracker.close()
    assert scalars(tmp_path)["pass_rate"] == [(0, 0.5)]


class Refusing:
    """This tracker fails in all calls, and counts them."""

    calls, service = 0, "MLflow"

    def log(self, *arguments):
        self.calls += 1
        raise ConnectionError("the server\nis gone")

    evaluation = samples = close = log


def test_a_service_that_fails_is_reported_once_and_ends_no_run(capsys):
    refusing = Refusing()
    tracker = Trackers([refusing])
    tracker.log({"pass_rate": 0.5}, 7)
    tracker.evaluation(EVALUATION, 8)
    tracker.samples([], 8)
    tracker.close()
    assert refusing.calls == 4
    assert capsys.readouterr().err == (
        "grpo: MLflow failed at step 7 (the server is gone): the run goes on and tries it again; the run's own files "
        "hold all numbers\n"
    )


@pytest.mark.slow
def test_mlflow_keeps_parameters_metrics_samples_and_code_of_one_run(tmp_path):
    import mlflow

    uri = f"file:{tmp_path}/mlruns"
    (tmp_path / "code.json").write_text('{"commit": "abc"}')
    for resume in (False, True):
        tracker = MlflowTracker(
            {"num_steps": 3, "learner": {"rate": 0.1, "new (2025)": 4}}, sums(uri), tmp_path, resume
        )
        step = 2 if resume else 1
        tracker.log({"pass_rate": step / 4, "source//a (b), c/share": 1.0}, step)
        tracker.evaluation(EVALUATION, step)
        tracker.samples([{"text": "t"}], step)
        tracker.close()
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("sums").experiment_id])
    assert run.data.tags["night"] == "true"
    assert run.data.params == {"num_steps": "3", "learner.rate": "0.1", "learner.new _2025_": "4"}
    assert run.data.metrics["evaluation/pass_at_4_high"] == 0.75
    assert run.data.metrics["source/_/a _b__ c/share"] == 1.0
    assert [metric.value for metric in client.get_metric_history(run.info.run_id, "pass_rate")] == [0.25, 0.5]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["code.json", "samples"]
    assert run.info.status == "FINISHED"


def test_a_run_that_crashes_is_shown_as_failed(tmp_path):
    import mlflow

    uri = f"file:{tmp_path}/mlruns"
    with pytest.raises(ZeroDivisionError), Trackers([MlflowTracker({}, sums(uri), tmp_path)]) as trackers:
        trackers.log({"pass_rate": 1 / 0}, 1)
    # It is closed once: what comes later does not make it a success.
    trackers.close()
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("sums").experiment_id])
    assert run.info.status == "FAILED"


def records(path):
    """Returns the whole records in the file of an offline run. The file begins with seven other bytes. Each record
    comes after its checksum, length and kind, and the last record may be half written."""
    from wandb.proto.wandb_internal_pb2 import Record

    written, place, whole = path.read_bytes(), 7, []
    while place + 7 <= len(written):
        _, length, _ = struct.unpack_from("<IHB", written, place)
        start, place = place + 7, place + 7 + length
        if place <= len(written):
            whole.append(Record.FromString(written[start:place]))
    return whole


def record_of(path, name):
    """Waits for the first record of this kind, and returns it. wandb's own process writes, and may be a moment late."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for record in records(path):
            if record.HasField(name):
                return getattr(record, name)
        time.sleep(0.05)
    raise AssertionError(f"{path} holds no {name}")


@pytest.mark.slow
def test_wandb_learns_where_a_run_belongs(tmp_path):
    place = {"entity": "team", "project": "sums", "group": "dial", "job_type": "sweep", "tags": ["gsm8k", "lora"]}
    WandbTracker({}, TrackingConfig(wandb="offline", **place), tmp_path).close()
    [path] = tmp_path.glob("wandb/wandb/offline-run-*/run-*.wandb")
    run = record_of(path, "run")
    assert (run.entity, run.project, run.run_group, run.job_type) == ("team", "sums", "dial", "sweep")
    assert list(run.tags) == ["gsm8k", "lora"] and run.display_name == tmp_path.name


@pytest.mark.slow
def test_rows_of_several_kinds_share_a_table_of_wandb(tmp_path):
    tracker, tables = WandbTracker({}, OFFLINE, tmp_path), []
    tracker._table = lambda columns, data: tables.append((columns, data)) or len(data)
    tracker.samples([{"a": 1}, {"a": 2, "turns": 3}], 1)
    tracker.close()
    assert tables == [(["a", "turns"], [[1, None], [2, 3]])]


@pytest.mark.slow
@pytest.mark.parametrize("failed", [True, False])
def test_wandb_learns_how_a_run_ended(failed, tmp_path):
    WandbTracker({}, OFFLINE, tmp_path).close(failed)
    [path] = tmp_path.glob("wandb/wandb/offline-run-*/run-*.wandb")
    assert record_of(path, "exit").exit_code == int(failed)


@pytest.mark.slow
def test_mlflow_without_a_server_says_how_to_go_on(tmp_path):
    with pytest.raises(UserError, match='did not start .* set tracking.mlflow=""'):
        MlflowTracker({}, sums("http://127.0.0.1:9"), tmp_path)
    with pytest.raises(UserError, match="MLflow at nonsense://x did not start"):
        MlflowTracker({}, sums("nonsense://x"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "configured", "mode"),
    [
        ("WANDB_MODE", "disabled", "online", "off"),
        ("WANDB_DISABLED", "true", "offline", "off"),
        ("WANDB_MODE", "offline", "online", "offline"),
        ("WANDB_MODE", "offline", "off", "off"),
        ("WANDB_MODE", "online", "offline", "offline"),
        ("WANDB_MODE", "dryrun", "online", "offline"),
        ("WANDB_MODE", "run", "online", "online"),
        ("WANDB_MODE", "sometimes", "offline", "offline"),
    ],
)
def test_wandb_obeys_its_own_variables(name, value, configured, mode, monkeypatch):
    monkeypatch.setenv(name, value)
    assert wandb_mode(TrackingConfig(wandb=configured)) == mode


def test_a_run_that_is_to_stay_offline_does_so_whatever_the_variable_says(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with Trackers(service_trackers(TrackingConfig(wandb="offline"), {}, tmp_path, None)):
        assert [*tmp_path.glob("wandb/wandb/offline-run-*")]


@pytest.mark.slow
def test_projects_and_names_that_the_services_own_variables_give_are_taken(tmp_path, monkeypatch):
    variables = {"WANDB_PROJECT": "mine", "WANDB_NAME": "first", "MLFLOW_EXPERIMENT_NAME": "ours"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    asked = TrackingConfig(wandb="offline", mlflow=f"file:{tmp_path}/mlruns")
    trackers = wandb, mlflow = service_trackers(asked, {}, tmp_path / "a", None)
    assert (wandb._run.project, wandb._run.name) == ("mine", "first")
    assert mlflow._client.get_experiment_by_name("ours") and not mlflow._client.get_experiment_by_name("grpo")
    Trackers(trackers).close()
    trackers = service_trackers(replace(asked, project="typed"), {}, tmp_path / "b", None)
    assert trackers[0]._run.project == "typed" and trackers[1]._client.get_experiment_by_name("typed")
    Trackers(trackers).close()


def test_services_are_those_that_are_asked_for(tmp_path):
    assert service_trackers(TrackingConfig(), {}, tmp_path, None) == []
    asked = TrackingConfig(wandb="offline", tensorboard=True, mlflow=f"file:{tmp_path}/mlruns")
    trackers = service_trackers(asked, {}, tmp_path, None)
    assert [type(tracker) for tracker in trackers] == [WandbTracker, TensorBoardTracker, MlflowTracker]
    Trackers(trackers).close()


def test_a_package_that_is_missing_is_named_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r"mlflow is not installed .* in a clone of grpo: pip install '\.\[trackers\]'"):
        MlflowTracker({}, sums("file:mlruns"), tmp_path)


def test_a_run_says_which_code_it_ran(tmp_path):
    (tmp_path / "code.patch").write_text("of an earlier commit")
    write_code(tmp_path)
    code = json.loads((tmp_path / "code.json").read_text())
    assert {"torch", "transformers", "deepspeed"} <= code["versions"].keys()
    if "commit" in code:
        assert re.fullmatch("[0-9a-f]{40}", code["commit"])
        assert (tmp_path / "code.patch").exists() == code["changed"]


def test_a_run_says_with_which_command_where_and_when_it_began(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/grpo", "train", "task.prompt.system=be brief", "seed=1"])
    write_code(tmp_path)
    start = json.loads((tmp_path / "code.json").read_text())["start"]
    assert start["command"] == "grpo train 'task.prompt.system=be brief' seed=1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d", start["time"])
    assert re.match(r"\d+ cores", start["processors"]) and start["host"]
    monkeypatch.setattr(sys, "argv", ["mine.py", "--model=x"])
    write_code(tmp_path)
    assert "command" not in json.loads((tmp_path / "code.json").read_text())["start"]


def test_a_change_in_any_encoding_is_kept(tmp_path, monkeypatch):
    def git(*words):
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *author, *words], check=True, capture_output=True)

    git("init")
    (tmp_path / "mine.yaml").write_text("a: 1\n")
    git("add", "mine.yaml")
    git("commit", "-m", "first")
    (tmp_path / "mine.yaml").write_bytes("a: größer τ\n".encode() + "b: größer\n".encode("latin-1"))
    monkeypatch.setattr("grpo.telemetry.ending.SOURCES", tmp_path)
    write_code(tmp_path)
    patch = (tmp_path / "code.patch").read_text(encoding="utf-8")
    assert "+a: größer τ\n+b: gr" in patch


def test_the_commit_of_a_project_that_grpo_is_installed_below_is_not_taken_for_grpos(tmp_path, monkeypatch):
    installed = tmp_path / "venv" / "grpo"
    installed.mkdir(parents=True)
    (tmp_path / "mine.py").write_text("")
    (installed / "loop.py").write_text("")
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init",), ("add", "mine.py"), (*author, "commit", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    monkeypatch.setattr("grpo.telemetry.ending.SOURCES", installed)
    write_code(tmp_path)
    assert not {"commit", "changed"} & json.loads((tmp_path / "code.json").read_text()).keys()


def test_a_database_that_cannot_be_opened_is_reported_at_once(tmp_path):
    pytest.importorskip("mlflow")
    (tmp_path / "text.db").write_text("no database, but text that is long enough for a header of one")
    for file, why in (
        (tmp_path / "none" / "x.db", "unable to open database file"),
        (tmp_path / "text.db", "not a data"),
    ):
        with pytest.raises(UserError, match=f"tracking.mlflow=sqlite:///{file}: .*{why}"):
            MlflowTracker({}, TrackingConfig(mlflow=f"sqlite:///{file}"), tmp_path)


@pytest.mark.parametrize("line", ["[1]", "3", '{"loss": 1}', '{"step": NaN}', '{"step": "4"}'])
def test_a_line_that_is_no_row_of_a_run_is_named(line, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(UserError, match="line 2 of .* is no JSON object with a step: delete that line"):
        read_metrics(tmp_path / "metrics.jsonl")
