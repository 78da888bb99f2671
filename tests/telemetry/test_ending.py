"""These tests check how a run's end is written into its folder."""

import pytest

from grpo.telemetry import FAILED, FINISHED, Ending, read_ending, told_failure, write_ending


def test_what_fails_after_a_run_has_finished_leaves_it_finished(tmp_path):
    with pytest.raises(RuntimeError), told_failure(tmp_path):
        write_ending(tmp_path, Ending(FINISHED, 3))
        raise RuntimeError("the report has no font")
    assert read_ending(tmp_path) == Ending(FINISHED, 3)
    # A run that goes on forgets its earlier end.
    with pytest.raises(RuntimeError), told_failure(tmp_path):
        raise RuntimeError("the\ndisk is full")
    assert read_ending(tmp_path) == Ending(FAILED, 0, "the disk is full")
