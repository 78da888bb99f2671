"""A notebook shows one table that grows, in place of a line for each round."""

import re

from grpo.telemetry.notebook import NotebookDisplay
from tests.telemetry.test_console import METRICS, Clock


def cells(text, kind):
    return re.findall(f"<{kind}[^>]*>(.*?)</{kind}>", text)


def test_each_round_adds_a_row_to_one_table_whose_heads_say_what_they_mean():
    shown, clock = [], Clock()
    display = NotebookDisplay(80, 40, shown.append, clock)
    display.begin()
    clock.now += 10
    display.round(45, METRICS)
    clock.now += 10
    display.round(50, METRICS | {"pass_rate": 0.75, "policy/reference_kl": 0.004})
    assert cells(shown[0], "th") == ["step", "reward", "right", "silent", "len", "entropy"]
    assert cells(shown[0], "td") == ["45", "0.31", "25%", "50%", "143", "0.81"]
    assert '<progress value="50" max="80"></progress> step 50 of 80, 0:01:00 to go' in shown[1]
    assert cells(shown[1], "th") == ["step", "reward", "right", "silent", "len", "KL", "entropy"]
    assert cells(shown[1], "td") == [
        *("50", "0.31", "75%", "50%", "143", "0.004", "0.81"),
        *("45", "0.31", "25%", "50%", "143", "", "0.81"),
    ]
    assert re.search('title="distance from the reference model[^"]*">KL', shown[1])


def test_the_end_of_a_run_is_shown_in_place_of_the_remaining_time():
    shown, clock = [], Clock()
    display = NotebookDisplay(80, show=shown.append, clock=clock)
    display.close()
    assert shown == []
    display.begin()
    clock.now += 10
    display.round(5, METRICS)
    clock.now += 2
    display.close()
    assert "step 5 of 80, 0:02:30 to go" in shown[0] and "step 5 of 80, ended after 0:00:12<" in shown[1]
    assert cells(shown[1], "td") == cells(shown[0], "td")


def test_the_table_of_a_long_run_holds_its_last_rounds():
    shown = []
    display = NotebookDisplay(300, show=shown.append)
    for step in range(1, 251):
        display.round(step, METRICS)
    rows = [row for row in shown[-1].split("<tr>") if "<td>" in row]
    assert (len(rows), cells(rows[0], "td")[0], cells(rows[-1], "td")[0]) == (200, "250", "51")
