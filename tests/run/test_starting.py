"""These tests check what a run does with a folder in which an earlier run left something."""

from types import SimpleNamespace

from grpo.config.errors import EndedElsewhere, UserError
from grpo.run.resume import require_same_problems, set_aside
from tests.fakes import on_ranks


def test_logs_of_a_run_without_a_checkpoint_are_kept_and_nothing_else_is_touched(tmp_path):
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


def test_ranks_that_have_read_different_problems_are_refused_by_one_line():
    """A machine may have an older copy of the file, or a script may shuffle its rows on every rank anew."""

    def begin(identities):
        tasks = [SimpleNamespace(identity=identity) for identity in identities]
        return on_ranks(len(tasks), lambda ranks: require_same_problems(tasks[ranks.rank], ranks))

    assert begin(["a", "a"]) == [None, None]
    refused, *others = begin(["a", "b", "a"])
    assert type(refused) is UserError and "the problems of rank 1 differ from those of rank 0" in str(refused)
    assert [type(error) for error in others] == [EndedElsewhere] * 2
