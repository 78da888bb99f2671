"""These tests copy runs to stores, which here are folders and memory, and go on from the copies."""

import json
import shutil
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from grpo.config import CheckpointConfig, UserError
from grpo.run.checkpoints import CheckpointStore
from grpo.run.upload import Upload, opened
from tests.fakes import SingleRank
from tests.runs import grpo


@pytest.fixture
def run(tmp_path):
    """Returns a function that saves a checkpoint of a run, which keeps the last two, and logs its step."""
    folder = tmp_path / "run"
    store = CheckpointStore(folder / "checkpoints", 2, SingleRank())

    def save(step):
        store.save(step, lambda writing: Path(writing, "shard").write_text(f"weights of {step}"), {"progress": {}})
        (folder / "prompts.jsonl").open("a").write(f'{{"step": {step}}}\n')
        (folder / "run.lock").touch()
        return folder

    return save


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_store_gets_what_the_run_keeps_and_a_new_machine_gets_the_newest_checkpoint(kind, run, tmp_path):
    address = f"{kind}://{tmp_path}/store/mine"
    with Upload(address, run(4)).copying():
        pass
    upload = Upload(address, run(8))
    # The checkpoint of step 4 is known to be there before the run removes it here.
    upload._copy(False)
    with upload.copying():
        run(12)
        upload.after_round(None)
    store, root = fsspec.core.url_to_fs(address)
    kept = sorted(path.rpartition("/")[2] for path in store.ls(f"{root}/checkpoints", detail=False))
    # The checkpoint of step 4 is kept, since another start has sent it.
    assert kept == ["step-00000004", "step-00000008", "step-00000012"]
    there = opened(CheckpointConfig(upload=address, resume="auto"), tmp_path / "new")
    there.fetch()
    new = files(tmp_path / "new")
    assert new == {
        name: content
        for name, content in files(tmp_path / "run").items()
        if name.startswith("checkpoints/step-00000012/") or name == "prompts.jsonl"
    }
    assert new["checkpoints/step-00000012/shard"] == b"weights of 12"
    with pytest.raises(UserError, match=r"holds a run's checkpoints already: .*checkpoint\.resume=auto"):
        opened(CheckpointConfig(upload=address), tmp_path / "other")


def test_a_new_machine_gets_the_best_checkpoint_too_which_the_run_may_export(run, tmp_path):
    with Upload(f"file://{tmp_path}/store", run(4)).copying():
        pass
    rate = {"low": 0.0, "high": 1.0}
    rows = [{"step": step, "problems": 8, "pass@1": {"value": value, **rate}} for step, value in ((4, 0.5), (8, 0.25))]
    (tmp_path / "run/evaluations.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run(8)
    with Upload(f"file://{tmp_path}/store", run(12)).copying():
        pass
    Upload(f"file://{tmp_path}/store", tmp_path / "new").fetch()
    names = sorted(path.name for path in (tmp_path / "new/checkpoints").iterdir())
    assert names == ["step-00000004", "step-00000012"]


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_store_and_a_new_machine_get_the_completions_of_each_round_once_unless_a_round_was_taken_again(
    kind, run, tmp_path, monkeypatch
):
    sent, put = [], Upload._put
    monkeypatch.setattr(Upload, "_put", lambda upload, file: (sent.append(file.name), put(upload, file)))
    folder = run(4) / "completions"
    folder.mkdir()
    for address in [f"{kind}://{tmp_path}/store/all"] * 2:
        upload = Upload(address, tmp_path / "run")
        for number in (1, 2):
            (folder / f"step-0000000{number}-rank-0.parquet").write_text(f"round {number}")
            upload._copy(True)
            upload._copy(True)
    # The second start has written both rounds anew, the first of them before it looked.
    names = [name for name in sent if name.endswith(".parquet")]
    assert names == [f"step-0000000{number}-rank-0.parquet" for number in (1, 2, 2)]
    Upload(address, tmp_path / "new").fetch()
    assert files(tmp_path / "new/completions") == files(folder)


def test_a_store_whose_names_lead_out_of_the_run_is_refused(tmp_path):
    store, folder = fsspec.filesystem("memory"), f"{tmp_path}/store/checkpoints/step-00000004"
    store.store[f"{folder}/SHA256SUMS"] = store.store[f"{folder}/../../out"] = store.open("/x", "wb")
    with pytest.raises(UserError, match=r"holds \.\./\.\./out, which leads out of the run"):
        Upload(f"memory://{tmp_path}/store", tmp_path / "new").fetch()
    assert not (tmp_path / "new/out").exists()


def test_half_a_checkpoint_is_not_fetched_and_one_that_the_run_has_removed_goes_there_too(run, tmp_path):
    upload = Upload(f"file://{tmp_path}/store", run(4))
    with upload.copying():
        for step in (8, 12):
            upload._copy(False)
            run(step)
    assert sorted(path.name for path in (tmp_path / "store/checkpoints").iterdir()) == [
        "step-00000008",
        "step-00000012",
    ]
    (tmp_path / "store/checkpoints/step-00000012/SHA256SUMS").unlink()
    Upload(f"file://{tmp_path}/store", tmp_path / "new").fetch()
    assert [path.name for path in (tmp_path / "new/checkpoints").iterdir()] == ["step-00000008"]


def test_a_store_that_fails_ends_no_run_and_gets_all_once_it_answers_again(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("grpo.run.upload.PAUSE_SECONDS", 0.0)
    upload, store = Upload(f"file://{tmp_path}/store", run(4)), tmp_path / "store"
    store.rmdir()
    store.write_text("a file where a folder was")
    with upload.copying():
        pass
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"grpo: checkpoint.upload: not all could be sent to file://{store} (")
    assert line.endswith(f"; it is in {tmp_path}/run alone")
    store.unlink()
    with Upload(f"file://{store}", tmp_path / "run").copying():
        pass
    assert (store / "checkpoints/step-00000004/shard").read_text() == "weights of 4"


def test_a_slow_store_gets_the_newest_checkpoint_first_and_is_reported(run, tmp_path, capsys, monkeypatch):
    steps, sent, put = iter(range(12, 60, 4)), [], LocalFileSystem.put_file

    def slowly(store, local, remote):
        if local.endswith("shard"):
            sent.append(int(Path(local).parent.name[-2:]))
            # The run saves two checkpoints meanwhile, and keeps two.
            for _ in range(2 * (len(sent) < 5)):
                run(next(steps))
        put(store, local, remote)

    monkeypatch.setattr(LocalFileSystem, "put_file", slowly)
    run(4)
    with Upload(f"file://{tmp_path}/store", run(8)).copying():
        pass
    assert sent == [8, 16, 24, 32, 40, 36]
    assert sorted(path.name for path in (tmp_path / "store/checkpoints").iterdir()) == [
        "step-00000036",
        "step-00000040",
    ]
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "takes longer for a checkpoint than the run, which has made step-00000032 while step-00000024 was sent: raise "
        "checkpoint.every_rounds"
    )


def test_a_store_that_refuses_a_file_once_at_the_end_gets_it_nonetheless(run, tmp_path, capsys, monkeypatch):
    put, refused = LocalFileSystem.put_file, []

    def refusing(store, local, remote):
        if local.endswith("shard") and not refused:
            refused.append(local)
            raise OSError("503 Slow Down")
        put(store, local, remote)

    monkeypatch.setattr(LocalFileSystem, "put_file", refusing)
    monkeypatch.setattr("grpo.run.upload.PAUSE_SECONDS", 0.0)
    with Upload(f"file://{tmp_path}/store", run(4)).copying():
        pass
    assert refused and (tmp_path / "store/checkpoints/step-00000004/shard").read_text() == "weights of 4"
    assert "not all could be sent" not in capsys.readouterr().err


@pytest.mark.parametrize("address", ["nosuch://bucket/run", "s3://bucket/run", "file:///proc/nowhere"])
def test_an_address_where_nothing_can_be_written_is_refused(address, tmp_path):
    with pytest.raises(UserError, match=f"^checkpoint.upload={address}: nothing can be written there"):
        Upload(address, tmp_path)


@pytest.mark.parametrize("place", ["/runs/mine", "/runs/mine/copy", "/runs", ""])
def test_a_copy_that_would_lie_among_the_runs_own_files_is_refused_and_leaves_nothing(place, tmp_path):
    run = tmp_path / "runs/mine"
    run.mkdir(parents=True)
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(UserError, match="mine itself: name a folder apart from it"):
        Upload(f"file://{tmp_path}{place}", tmp_path / "link")
    assert not files(tmp_path)
    Upload(f"file://{tmp_path}/runs/copy", run)


def test_a_bucket_whose_name_is_misspelt_is_refused_and_not_made(tmp_path, monkeypatch):
    class Buckets(MemoryFileSystem):
        protocol, store, pseudo_dirs = "s3", {}, ["", "/mine"]

        @classmethod
        def _strip_protocol(cls, path):
            return f"/{path.removeprefix('s3://').strip('/')}"

    monkeypatch.setitem(_registry, "s3", Buckets)
    with pytest.raises(UserError, match="^checkpoint.upload=s3://mien/run: there is no bucket mien: correct the addr"):
        Upload("s3://mien/run", tmp_path)
    assert Buckets.pseudo_dirs == ["", "/mine"]
    Upload("s3://mine/run", tmp_path)
    assert Buckets.pseudo_dirs == ["", "/mine", "/mine/run"]


@pytest.mark.slow
def test_a_run_goes_on_from_its_copy_where_its_own_folder_is_lost(tmp_path):
    words = [
        "train",
        "experiment=tiny",
        "rollout=transformers",
        "evaluation.num_problems=0",
        f"output_dir={tmp_path}/run",
    ]
    words += [f"checkpoint.upload=file://{tmp_path}/store", "checkpoint.resume=auto", "checkpoint.every_rounds=1"]
    first = grpo(*words, "num_steps=1")
    assert first.returncode == 0, first.stdout + first.stderr
    shutil.rmtree(tmp_path / "run")
    second = grpo(*words, "num_steps=2")
    assert second.returncode == 0, second.stdout + second.stderr
    assert f"fetching step-00000001 from file://{tmp_path}/store" in second.stderr
    assert "resuming from step-00000001" in second.stdout
    assert [json.loads(line)["step"] for line in (tmp_path / "run/metrics.jsonl").open()] == [1, 2]
    sent = files(tmp_path / "store")
    assert {name: files(tmp_path / "run").get(name) for name in sent if "step-00000001" not in name} == {
        name: content for name, content in sent.items() if "step-00000001" not in name
    }
    assert {"model/model.safetensors", "checkpoints/step-00000002/SHA256SUMS", "report.html"} <= sent.keys()
