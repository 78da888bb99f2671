"""Long waits print that they go on."""

import threading

from grpo.host import alive
from grpo.host.alive import slow, working


def test_what_takes_long_is_told_of_again_and_again(monkeypatch):
    monkeypatch.setattr(alive, "FIRST_MOMENTS", (0.001, 0.002))
    told, twice = [], threading.Event()

    def tell(text):
        told.append(text)
        if len(told) == 2:
            twice.set()

    with working("starting the sampler", tell):
        assert twice.wait(10)
    assert told == ["grpo: starting the sampler …"] * 2


def test_what_a_run_does_again_and_again_is_told_of_once_a_minute(monkeypatch):
    monkeypatch.setattr(alive, "A_MINUTE", 0.001)
    told, once = [], threading.Event()
    with working("taking an optimizer step", lambda text: (told.append(text), once.set()), seldom=True):
        assert once.wait(10)
    assert told[0] == "grpo: taking an optimizer step …"


def test_a_function_that_may_be_slow_gives_what_it_gave():
    assert slow("taking an optimizer step", max)(3, 6) == 6


def test_what_is_quick_says_nothing(capsys):
    with working("reading the problems"):
        pass
    assert capsys.readouterr().err == ""


def test_only_the_first_rank_speaks(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(alive, "FIRST_MOMENTS", (0.0, 0.0, 0.0))
    told = []
    with working("starting the sampler", told.append):
        threading.Event().wait(0.05)
    assert told == []
