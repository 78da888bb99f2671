from grpo.dynamics.findings import Finding
from grpo.observers import Watch
from grpo.types import Progress, RoundPlan


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
