"""These tests check how a run's end is written into its folder."""

import errno

import pytest

from grpo.config import UserError
from grpo.config.errors import EndedElsewhere
from grpo.config.folder import LOCK_FILE
from grpo.telemetry.ending import FAILED, FINISHED, INTERRUPTED, Ending, read_ending, recording_failure, write_ending


def test_a_failure_after_a_run_has_finished_leaves_it_finished(tmp_path):
    with pytest.raises(RuntimeError), recording_failure(tmp_path):
        write_ending(tmp_path, Ending(FINISHED, 3))
        raise RuntimeError("the report has no font")
    assert read_ending(tmp_path) == Ending(FINISHED, 3)
    # A run that goes on forgets its earlier end.
    with pytest.raises(RuntimeError), recording_failure(tmp_path):
        raise RuntimeError("the\ndisk is full")
    assert read_ending(tmp_path) == Ending(FAILED, 0, "the disk is full")


def test_a_run_that_ctrl_c_ends_while_it_loads_has_not_failed(tmp_path):
    with pytest.raises(KeyboardInterrupt), recording_failure(tmp_path):
        raise KeyboardInterrupt
    assert read_ending(tmp_path) == Ending(INTERRUPTED, 0)


def test_a_folder_that_was_moved_and_a_rank_that_was_lost_are_reported(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / LOCK_FILE).touch()
    lost = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:51340"
    with pytest.raises(EndedElsewhere), recording_failure(run):
        raise RuntimeError(lost)
    assert read_ending(run) == Ending(FAILED, 0, "the connection to another rank has broken: that rank has failed")
    with pytest.raises(UserError, match=f"{run} was moved or removed while the run"), recording_failure(run):
        run.rename(tmp_path / "moved")
        raise FileNotFoundError("Failed to open local file")
    assert not run.exists()


@pytest.mark.parametrize(
    "text",
    [
        "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv",
        "Application timeout caused pair closure",
    ],
)
def test_a_rank_that_waits_in_vain_for_one_that_hangs_says_so(text, tmp_path):
    """The rank that hangs says nothing, so nobody would."""
    with pytest.raises(UserError, match="another rank does not answer") as failed, recording_failure(tmp_path):
        raise RuntimeError(text)
    assert not isinstance(failed.value, EndedElsewhere) and text in str(failed.value)


def test_a_process_that_may_open_too_few_files_is_no_dead_rank(tmp_path):
    with (
        pytest.raises(UserError, match="may open too few files: raise the limit, as by `ulimit"),
        recording_failure(tmp_path),
    ):
        raise RuntimeError("[enforce fail at gloo/transport/tcp/loop.cc:48] rv != -1. pipe: Too many open files")


def test_a_disk_that_is_full_is_reported_with_its_folder_though_the_end_cannot_be_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("grpo.telemetry.ending.write_ending", full)
    said = rf"\(No space left on device; .* GiB are free under {tmp_path}\): free some"
    with pytest.raises(UserError, match=said), recording_failure(tmp_path):
        full()
    # Another error is not hidden by the end that cannot be written.
    with pytest.raises(RuntimeError, match="no font"), recording_failure(tmp_path):
        raise RuntimeError("no font")


def test_a_rank_whose_disk_is_full_says_so_and_leaves_the_end_to_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(UserError, match="free some space or mend the disk"), recording_failure(tmp_path):
        raise OSError(errno.EIO, "Input/output error")
    assert list(tmp_path.iterdir()) == []
