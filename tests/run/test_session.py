"""These tests check what a run that was stopped says."""

from pathlib import Path

from grpo.run.session import way_on


def test_a_stopped_run_points_at_its_report_only_after_it_has_finished_a_round():
    stopped = "stopped at step {} of 9; continue with checkpoint.resume=true output_dir=runs/x"
    assert way_on(Path("runs/x"), 0, 9) == stopped.format(0)
    assert way_on(Path("runs/x"), 3, 9) == stopped.format(3) + "\ngrpo report runs/x shows how far it came"
