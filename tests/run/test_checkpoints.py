"""Checkpoints appear whole or not at all, damage to them is noticed, and the best one outlives the last few."""

import errno
import json
import os
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from grpo.config import UserError
from grpo.config.saved import read_config, read_state
from grpo.run import checksums
from grpo.run.checkpoints import CheckpointStore, read_progress, require_whole, saved_random_state
from grpo.types import Progress, RoundPlan
from tests.fakes import SingleRank, on_ranks


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", keep_last=2, collective=SingleRank())


def names(tmp_path):
    return sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


def write(text):
    def into(folder):
        with open(f"{folder}/weights", "w") as file:
            file.write(text)

    return into


def test_the_last_few_are_kept_and_the_newest_is_found(store, tmp_path):
    assert store.latest() is None
    for step in (5, 10, 15):
        store.save(step, write(str(step)), {"step": step})
    assert names(tmp_path) == ["step-00000010", "step-00000015"]
    assert read_state(store.latest()) == {"step": 15, "score": None}


def test_the_best_evaluated_checkpoint_is_kept_besides(store, tmp_path):
    for step, score in ((5, 0.2), (10, 0.9), (15, 0.5), (20, None), (25, 0.6)):
        store.save(step, write("x"), {}, score)
    assert names(tmp_path) == ["step-00000010", "step-00000020", "step-00000025"]


def test_the_best_is_chosen_by_scores_that_are_known_later_and_can_be_compared(store, tmp_path):
    # The first was measured under easier settings; the second when the run had been resumed after its checkpoint.
    for step, score, scores in (
        (5, 0.9, {5: 0.9}),
        (10, None, {5: 0.9}),
        (15, 0.5, {10: 0.7, 15: 0.5}),
        (20, 0.6, {10: 0.7, 15: 0.5, 20: 0.6}),
        (25, 0.4, {10: 0.7, 15: 0.5, 20: 0.6, 25: 0.4}),
    ):
        store.save(step, write("x"), {}, score, scores=scores)
    assert names(tmp_path) == ["step-00000010", "step-00000020", "step-00000025"]


def test_the_newest_up_to_the_good_step_is_kept_besides(store, tmp_path):
    for step, good in ((0, 0), (5, 3), (10, 3), (15, 3), (20, 12)):
        store.save(step, write("x"), {}, good_step=good)
        assert store.latest(up_to=good) is not None
    # Step 0 was kept while 3 was the good one, 10 since 12 is.
    assert names(tmp_path) == ["step-00000010", "step-00000015", "step-00000020"]
    assert store.latest(up_to=14).name == "step-00000010"
    assert store.latest(up_to=9) is None


def test_one_checkpoint_in_so_many_rounds_is_kept_for_good(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep_last=1, collective=SingleRank(), keep_every=4)
    for rounds in range(0, 12, 2):
        store.save(10 * rounds, write("x"), {"progress": {"round_index": rounds}})
    assert names(tmp_path) == ["step-00000040", "step-00000080", "step-00000100"]


def test_a_full_disk_leaves_the_last_good_checkpoint_and_says_so(store, tmp_path):
    store.save(5, write("good"), {})

    def full(folder):
        write("half")(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match=r"checkpoint of step 10 could not be written .*No space left.*free some space"):
        store.save(10, full, {})
    assert names(tmp_path) == ["step-00000005"]
    assert (store.latest() / "weights").read_text() == "good"


def test_a_half_written_checkpoint_of_a_killed_run_is_not_taken_for_one(store, tmp_path):
    store.save(5, write("good"), {})
    half = tmp_path / "checkpoints" / ".writing-00000010"
    half.mkdir()
    (half / "weights").write_text("half")
    assert store.latest().name == "step-00000005"
    store.save(10, write("whole"), {})
    assert (store.latest() / "weights").read_text() == "whole"


@pytest.mark.parametrize("file", ["weights", "state.json", "rng-0.pt", "SHA256SUMS"])
def test_one_flipped_bit_is_noticed_and_the_checkpoint_before_is_taken(store, capsys, file):
    store.save(5, write("good"), {})
    newest = store.save(10, write("better"), {})
    assert store.whole() == newest and capsys.readouterr().err == ""
    content = bytearray((newest / file).read_bytes())
    content[len(content) // 2] ^= 1
    (newest / file).write_bytes(content)
    assert store.whole().name == "step-00000005"
    [line] = capsys.readouterr().err.splitlines()
    assert "step-00000010" in line and "damaged" in line and "trying the checkpoint before it" in line
    with pytest.raises(UserError, match="damaged"):
        require_whole(newest, SingleRank())


def test_files_that_are_cut_off_or_gone_are_noticed_and_none_may_be_left(tmp_path, capsys):
    store = CheckpointStore(tmp_path, 3, SingleRank())
    for step, file in ((5, "weights"), (10, "state.json")):
        checkpoint = store.save(step, write("x"), {})
        (checkpoint / file).unlink()
    cut = store.save(15, write("a longer text"), {})
    os.truncate(cut / "weights", 3)
    assert store.whole() is None
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_file_outside_the_checkpoint_is_none_of_its_own(store, tmp_path):
    checkpoint = store.save(5, write("x"), {})
    (tmp_path / "elsewhere").write_text("")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    *lines, _ = (checkpoint / "SHA256SUMS").read_text().splitlines()
    lines.append(f"{empty}  ../../elsewhere")
    (checkpoint / "SHA256SUMS").write_text("\n".join([*lines, checksums._seal(lines)]))
    with pytest.raises(UserError, match="elsewhere is damaged"):
        require_whole(checkpoint, SingleRank())


def test_a_link_to_itself_is_damage(store):
    checkpoint = store.save(5, write("x"), {})
    (checkpoint / "state.json").unlink()
    (checkpoint / "state.json").symlink_to("state.json")
    with pytest.raises(UserError, match="state.json is damaged: it differs from what was saved"):
        require_whole(checkpoint, SingleRank())


def test_other_tools_can_check_a_checkpoint(store):
    checkpoint = store.save(5, write("x"), {})
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=checkpoint, check=True)


def newest_of_two(store):
    store.save(5, write("good"), {})
    newest = store.save(10, learner_files, {})
    return newest, newest / "SHA256SUMS"


def learner_files(folder):
    (Path(folder) / "learner").mkdir()
    for name in ("learner/weights.pt", "learner/optimizer.pt", "reference.safetensors"):
        (Path(folder) / name).write_text(name)


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (slice(1), "SHA256SUMS is damaged"),
        (slice(1, None), "SHA256SUMS is damaged"),
        (slice(1, None, 2), "SHA256SUMS is damaged"),
        (slice(0), "SHA256SUMS is damaged"),
    ],
)
def test_a_list_of_checksums_that_has_lost_lines_is_damaged_itself(store, capsys, keep, said):
    newest, sums = newest_of_two(store)
    assert store.whole() == newest and capsys.readouterr().err == ""
    sums.write_text("".join(sums.read_text().splitlines(keepends=True)[keep]))
    assert store.whole().name == "step-00000005"
    assert said in capsys.readouterr().err


def test_a_file_that_is_read_and_not_listed_is_damage_and_a_note_is_none(store, capsys):
    newest, _ = newest_of_two(store)
    (newest / "notes.txt").write_text("the one for the paper")
    assert store.whole() == newest
    (newest / "learner" / "another.pt").write_text("x")
    assert store.whole().name == "step-00000005"
    assert f"{newest}/learner/another.pt has no checksum in SHA256SUMS" in capsys.readouterr().err
    # So is a folder of them that lies elsewhere.
    (newest / "learner" / "another.pt").rename(newest / "another.pt")
    (newest / "learner" / "more").symlink_to(newest.parent, target_is_directory=True)
    assert store.whole().name == "step-00000005"


def test_a_checkpoint_without_its_list_of_checksums_is_not_taken(store, capsys):
    newest, sums = newest_of_two(store)
    sums.unlink()
    assert store.whole().name == "step-00000005"
    said = f"{newest} has lost SHA256SUMS, so nothing proves that it is whole; trying the checkpoint before it"
    assert capsys.readouterr().err == f"grpo: {said}\n"


def test_the_checkpoint_before_one_that_a_run_cannot_go_on_from_is_taken(store, capsys):
    newest, _ = newest_of_two(store)

    def check(checkpoint):
        if checkpoint == newest:
            raise UserError(f"{checkpoint}/state.json is damaged: progress.step must be a whole number, not 'x'")

    assert store.whole(check=check).name == "step-00000005"
    said = "state.json is damaged: progress.step must be a whole number, not 'x'; trying the checkpoint before it"
    assert said in capsys.readouterr().err


def test_a_damaged_state_of_a_random_generator_is_one_line(store):
    checkpoint = store.save(5, write("x"), {})
    for other in (torch.zeros(3, dtype=torch.uint8), torch.get_rng_state().float(), {"state": 1}):
        torch.save(other, checkpoint / "rng-0.pt")
        with pytest.raises(UserError, match=r"rng-0\.pt is damaged: it holds no state of torch's random generator"):
            saved_random_state(checkpoint, 0)
    assert saved_random_state(checkpoint, 1) is None


def test_ranks_share_the_checksums_and_agree_on_what_is_damaged(tmp_path):
    def save(collective):
        def into(folder):
            for part in "abc":
                with open(f"{folder}/shard-{part}-{collective.rank}", "w") as file:
                    file.write(part)

        store = CheckpointStore(tmp_path / "checkpoints", 2, collective)
        store.save(5, into, {})
        return store.save(10, into, {}), store.whole()

    [(newest, whole), other] = on_ranks(2, save)
    assert whole == newest == other[1]
    # The file lists three shards and a generator of each rank, the state, and the line that seals the others.
    lines = (newest / "SHA256SUMS").read_text().splitlines()
    assert len(lines) == 2 * 4 + 1 + 1 and lines[-1].startswith("# 9 files; SHA-256 of the lines above: ")
    (newest / "shard-b-1").write_text("B")
    by_rank = on_ranks(2, lambda collective: CheckpointStore(tmp_path / "checkpoints", 2, collective).whole())
    assert [path.name for path in by_rank] == ["step-00000005"] * 2


def test_a_file_that_one_rank_cannot_write_is_reported_on_all(tmp_path):
    def save(collective):
        def into(folder):
            if collective.rank == 1:
                raise OSError(errno.ENOSPC, "No space left on device")

        CheckpointStore(tmp_path / "checkpoints", 2, collective).save(5, into, {})

    assert [str(error).count("No space left") for error in on_ranks(2, save)] == [1, 1]
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_one_line_on_all(tmp_path):
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    errors = on_ranks(2, lambda ranks: CheckpointStore(tmp_path / "checkpoints", 2, ranks).save(5, write("x"), {}))
    for error in errors:
        assert isinstance(error, UserError) and "make it writable" in str(error) and "\n" not in str(error)


def test_memory_that_runs_out_is_not_called_a_full_disk(store):
    def gather(folder):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(UserError, match=r"no memory left .* lower learner.micro_batch_tokens"):
        store.save(5, gather, {})


@pytest.mark.parametrize("name", [".writing-00000005", ".removing-step-00000001", "step-00000005"])
@pytest.mark.parametrize("leads_to", ["kept", "nowhere"])
def test_a_link_in_the_folder_is_no_obstacle_and_what_it_leads_to_stays(store, tmp_path, name, leads_to):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mine").write_text("")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / name).symlink_to(tmp_path / leads_to, target_is_directory=True)
    store.save(5, write("x"), {})
    store.save(6, write("x"), {})
    assert names(tmp_path) == ["step-00000005", "step-00000006"]
    assert store.whole(5).resolve() == tmp_path / "checkpoints" / "step-00000005"
    assert (tmp_path / "kept" / "mine").exists()


def test_odd_names_in_the_folder_are_left_alone(store, tmp_path):
    folder = tmp_path / "checkpoints"
    store.save(4, write("x"), {})
    shutil.copytree(folder / "step-00000004", folder / "step-00000004-backup")
    (folder / "step-notes.txt").write_text("")
    # A run killed while it wrote one, and while it removed one, in this version and in those before.
    (folder / ".writing-00000005").mkdir()
    (folder / ".removing-step-00000002").mkdir()
    (folder / "step-00000003").mkdir()
    (folder / "step-00000005").mkdir()
    (folder / "step-00000005" / "state.json").write_text("")
    assert store.whole().name == "step-00000004"
    for step in (6, 7):
        store.save(step, write("x"), {})
    assert names(tmp_path) == ["step-00000004-backup", "step-00000006", "step-00000007", "step-notes.txt"]


def test_a_damaged_checkpoint_of_a_later_step_makes_none_go(store, tmp_path):
    for step in (5, 10):
        store.save(step, write("x"), {})
    (tmp_path / "checkpoints" / "step-00000010" / "weights").write_text("y")
    assert store.whole().name == "step-00000005"
    for step in (6, 7):
        store.save(step, write("x"), {})
    assert names(tmp_path) == ["step-00000006", "step-00000007", "step-00000010"]
    # A checkpoint that is saved again takes the place of the damaged one.
    store.save(10, write("z"), {})
    assert store.whole().name == "step-00000010"


def test_progress_is_read_as_it_was_saved():
    progress = Progress(3, 6, 24, RoundPlan(8, 2, 4, learning_rate_factor=0.5), {"spent": {"samples": 64.0}})
    assert read_progress(json.loads(json.dumps(asdict(progress)))) == progress


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step": "x"}, "progress.step must be a whole number, not 'x'"),
        ({"step": True}, "progress.step must be a whole number, not True"),
        ({"cursor": 2**63}, "progress.cursor must be a whole number, not 9223372036854775808"),
        ({"scheduler": []}, r"progress.scheduler must be keys and values, not \[\]"),
        ({"plan": None}, "progress.plan must be keys and values, not None"),
        ({"plan": {"group_size": 8}}, "progress.plan lacks refresh_interval"),
        ({"later": 1}, "progress has 'later', which this version does not know"),
    ],
)
def test_progress_of_another_kind_is_named(changes, said):
    values = asdict(Progress(3, 6, 24, RoundPlan(8, 2, 4), {"spent": {}}))
    with pytest.raises(ValueError, match=said):
        read_progress(values | changes)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 101 + "1" + "}" * 101, '["' + "]" * 90, "NaN", "\x00"])
def test_a_state_that_is_no_json_object_is_one_line(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(UserError, match=r"^[^\n]*state.json is damaged[^\n]*$"):
        read_state(tmp_path)


def test_a_configuration_is_read_as_deep_as_json_may_be_nested_and_no_deeper(tmp_path):
    def write(levels):
        inner = '{"a":' * levels + "1" + "}" * levels
        (tmp_path / "state.json").write_text('{"config": {"learner": {"deepspeed": ' + inner + "}}}")

    write(37)
    assert read_config(tmp_path).learner.deepspeed["a"]["a"]
    write(38)
    with pytest.raises(UserError, match=r"state\.json is damaged \(its brackets are nested deeper than 40\)"):
        read_config(tmp_path)


def test_a_checkpoint_without_a_configuration_is_one_line(tmp_path):
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"state.json is damaged: it holds no configuration"):
        read_config(tmp_path)
