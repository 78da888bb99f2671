"""These tests check what a launched run's exit code is, whichever of its parts ends first."""

from types import SimpleNamespace

import pytest

from grpo.launch import supervise


class Part:
    """This stands for a held seat whose process gives `codes` one after another when asked. It repeats the last one."""

    def __init__(self, role, *codes):
        self.seat = SimpleNamespace(role=role, name=f"{role}-0", machine=SimpleNamespace(name="here"))
        self.log, self.begin, self.orders, self._codes = None, 0, [], list(codes)
        self.process = SimpleNamespace(poll=lambda: self._codes.pop(0) if len(self._codes) > 1 else self._codes[0])

    def ask_to_stop(self):
        self.orders.append("stop")

    def kill(self):
        self.orders.append("kill")

    def wait(self):
        return self._codes[-1]


@pytest.fixture
def waited(monkeypatch):
    """Returns the exit code of a run of these parts, which nobody asks to stop."""
    monkeypatch.setattr(supervise, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(supervise, "unread", lambda: False)
    monkeypatch.setattr(supervise, "last_word", lambda log, begin: "no room")
    return lambda *parts: supervise.wait(parts, SimpleNamespace(count=0))


def test_a_run_has_succeeded_when_its_learners_have_also_if_the_server_ends_in_the_same_moment(waited):
    assert waited(Part("learner", None, 0), Part("server", None, 1)) == 0
    assert waited(Part("learner", None, 0), Part("server", None)) == 0


def test_a_run_that_loses_its_last_server_stops_and_fails(waited, capsys):
    learner = Part("learner", None, None, None, 0)
    assert waited(learner, Part("server", None, 9), Part("server", None, None, 7)) == 7
    assert learner.orders == ["stop"]
    assert capsys.readouterr().err.count("grpo: server-0 on here ended with 7: no room") == 2


def test_a_learner_that_fails_ends_the_others(waited):
    other = Part("learner", None)
    assert waited(Part("learner", None, 3), other) == 3
    assert other.orders == ["kill"]
