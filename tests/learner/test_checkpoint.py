"""Checkpoints appear whole or not at all, and the best one outlives the last few."""

import errno

import pytest

from grpo.config import UserError
from grpo.learner.checkpoint import CheckpointStore, read_state
from tests.fakes import SingleRank


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


def test_the_newest_up_to_the_good_step_is_kept_besides(store, tmp_path):
    for step, good in ((0, 0), (5, 3), (10, 3), (15, 3), (20, 12)):
        store.save(step, write("x"), {}, good_step=good)
        assert store.latest(up_to=good) is not None
    # Step 0 was kept while 3 was the good one, 10 since 12 is.
    assert names(tmp_path) == ["step-00000010", "step-00000015", "step-00000020"]
    assert store.latest(up_to=14).name == "step-00000010"
    assert store.latest(up_to=9) is None


def test_a_full_disk_leaves_the_last_good_checkpoint_and_says_so(store, tmp_path):
    store.save(5, write("good"), {})

    def full(folder):
        write("half")(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match=r"checkpoint of step 10 could not be written .*No space left.*make room"):
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
