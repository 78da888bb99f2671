"""These tests check what a run does with a folder in which an earlier run left something."""

from grpo.run.starting import set_aside


def test_what_a_run_without_a_checkpoint_logged_is_kept_and_nothing_else_is_touched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "metrics.jsonl").write_text("")
    assert set_aside(tmp_path) is None, "no round was finished"
    for number in (1, 2):
        (tmp_path / "metrics.jsonl").write_text(f'{{"step": {number}}}\n')
        (tmp_path / "completions").mkdir()
        (tmp_path / "completions" / "step-1.parquet").write_text(str(number))
        assert set_aside(tmp_path) == tmp_path / f"earlier-{number}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier-1", "earlier-2", "notes.txt"]
    assert (tmp_path / "earlier-1" / "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert (tmp_path / "earlier-2" / "completions" / "step-1.parquet").read_text() == "2"
