from grpo.dynamics.findings import Finding
from grpo.learner.checkpoint import CheckpointStore
from grpo.observers import Rewinder, Watch
from grpo.types import Progress, RoundPlan
from tests.fakes import SingleRank


def test_findings_are_looked_for_every_so_often_and_told_once():
    told, looked = [], []
    found = [Finding("truncated", "warning", "80% cut off", "rollout.sampling.max_tokens=64")]

    def findings():
        looked.append(True)
        return found

    watch = Watch(5, findings, told.append)
    for index in range(1, 21):
        if index == 15:
            found.append(Finding("unstable", "critical", "fell by 0.4", "dynamics.refresh_interval=1"))
        watch.after_round(None, None, Progress(index, 2 * index, 0, RoundPlan(8, 2, 8), {}))
    assert len(looked) == 4
    assert told == [
        "step 10: warning: truncated: 80% cut off ⇒ rollout.sampling.max_tokens=64",
        "step 30: critical: unstable: fell by 0.4 ⇒ dynamics.refresh_interval=1",
    ]


def test_never_looks_when_told_so():
    looked = []
    watch = Watch(0, lambda: looked.append(True) or [], print)
    for index in range(1, 5):
        watch.after_round(None, None, Progress(index, index, 0, RoundPlan(8, 1, 8), {}))
    assert looked == []


class Calls:
    """A learner and a weight sync that note what is asked of them."""

    def __init__(self):
        self.made = []

    def rewind(self, directory):
        self.made.append(directory.rsplit("/", 1)[1])

    def refresh(self, learner, sampler):
        self.made.append("refresh")


def test_a_rollback_takes_the_newest_checkpoint_that_is_trusted_and_refreshes_the_sampler(tmp_path, capsys):
    store, calls = CheckpointStore(tmp_path, 5, SingleRank()), Calls()
    for step in (4, 8, 12):
        store.save(step, lambda folder: None, {})
    rewinder = Rewinder(store, calls, None, calls)

    def after(**plan):
        rewinder.after_round(None, None, Progress(3, 14, 0, RoundPlan(8, 1, 8, **plan), {}))

    after(good_step=9)
    assert calls.made == []
    after(good_step=9, rollback=True)
    assert calls.made == ["step-00000008", "refresh"]
    after(good_step=3, rollback=True)
    assert calls.made == ["step-00000008", "refresh"]
    assert "no checkpoint up to step 3: the policy stays" in capsys.readouterr().err
