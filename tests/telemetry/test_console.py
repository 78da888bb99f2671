import io
import re

from rich.console import Console

from grpo.telemetry.console import RunDisplay

METRICS = {
    "reward/mean": 0.3125,
    "pass_rate": 0.25,
    "groups/silent_fraction": 0.5,
    "completions/length_mean": 143.4,
    "policy/entropy": 0.8123,
    "mismatch/mean_abs": 0.0021,
    "time/sample_seconds": 3.21,
    "time/grade_seconds": 0.01,
    "time/learn_seconds": 5.0,
    "time/round_seconds": 8.3,
    "throughput/sample_tokens_per_second": 1812.3,
}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def logged(action, first_step: int = 0) -> str:
    output = io.StringIO()
    clock = Clock()
    display = RunDisplay(80, Console(file=output), first_step, clock)
    clock.now += 10.0
    action(display)
    display.close()
    return output.getvalue()


def test_a_log_file_gets_one_plain_line_a_round_below_what_its_numbers_mean():
    *meanings, line = logged(lambda display: display.round(5, METRICS)).splitlines()
    assert line == (
        "step  5/80  reward 0.31  right 25%  silent 50%  len 143  entropy 0.81  ETA 0:02:30  round 8.3 s  "
        "sample 3.2 s (1,812 tok/s)  learn 5.0 s"
    )
    assert meanings[0].startswith("Each line is a round: the model writes completions")
    assert [text.split()[0] for text in meanings[1:]] == ["reward", "right", "silent", "len", "entropy"]


def test_tokens_to_go_are_those_of_the_rounds_before_and_the_expected_gain_has_its_price():
    round_of = {
        "completions/length_mean": 50.0, "completions/num_sampled": 20.0,
        "forecast/gain": 0.0321, "forecast/gain_per_hour": 0.25, "forecast/gain_per_money": 0.125,
    }  # fmt: skip
    line = logged(lambda display: display.round(20, round_of)).splitlines()[-1]
    assert (
        "3,000 tokens to go  expected gain to go +3.21 points (an hour +25 points, a unit of money +12.5 points)"
        in line
    )


def test_a_gain_an_hour_of_more_than_all_points_is_left_out():
    gains = {"forecast/gain": 0.0469, "forecast/gain_per_hour": 234.0}
    *_, line = logged(lambda display: display.round(5, METRICS | gains)).splitlines()
    assert "expected gain to go +4.69 points  round 8.3 s" in line


def test_a_blank_divides_a_long_label_from_its_meaning():
    lines = logged(lambda display: display.round(5, METRICS | {"episodes/failed_calls_fraction": 0.25})).splitlines()
    assert "  failed calls share of calls that raised an exception" in lines
    assert "  reward  mean reward of the round's completions" in lines


def test_money_and_energy_are_counted_and_extrapolated_like_time_where_they_are_known():
    output, clock = io.StringIO(), Clock()
    display = RunDisplay(80, Console(file=output, width=400), clock=clock, per_hour=36.0)
    for step in (10, 20):
        clock.now += 50.0
        display.round(step, {"reward/mean": 0.5, "energy/round_joules": 3.6e6})
    display.close()
    first, second = output.getvalue().splitlines()[-2:]
    assert "ETA 0:05:50  cost 0.50, 3.50 to go  energy 1 kWh, 7 to go" in first
    assert "ETA 0:05:00  cost 1.00, 3.00 to go  energy 2 kWh, 6 to go" in second


def test_each_number_is_explained_once_when_it_first_appears():
    def two_rounds(display):
        display.round(5, METRICS | {"policy/reference_kl": 0.0})
        display.round(6, METRICS | {"policy/reference_kl": 0.004, "mismatch/mean_abs": 0.03, "policy/loss": -0.5})

    lines = logged(two_rounds).splitlines()
    assert sum(line.startswith("  ") for line in lines) == 5 + 3
    assert "KL" not in lines[6] and "gap" not in lines[6]
    assert "KL 0.004  loss -0.500  gap 0.030" in lines[-1]


def test_a_number_that_was_shown_once_is_shown_from_then_on():
    def two_rounds(display):
        display.round(5, METRICS | {"policy/loss": -0.5, "policy/reference_kl": 0.0})
        display.round(6, METRICS | {"policy/loss": 0.01, "policy/reference_kl": 0.0})

    last = logged(two_rounds).splitlines()[-1]
    assert "loss +0.010" in last and "KL" not in last


def test_completions_that_are_left_out_are_reported_in_the_rounds_that_have_some():
    def two_rounds(display):
        display.round(5, METRICS | {"completions/raised_fraction": 0.0, "completions/unanswered_fraction": 0.0})
        display.round(6, METRICS | {"completions/raised_fraction": 0.25, "completions/unanswered_fraction": 0.125})

    lines = logged(two_rounds).splitlines()
    assert "right 25%  silent 50%" in lines[6]
    assert "right 25%  raised 25%  unanswered 12%  silent 50%" in lines[-1]
    assert "left out since a reward function raised an exception" in lines[7]


MORE = {"completions/truncated_fraction": 0.25, "learner/gradient_norm": 1.4, "learner/learning_rate": 3e-4}
EVERY = METRICS | MORE


def on_terminal(num_steps: int, width: int, *rounds) -> str:
    """Returns what a terminal of this width shows of rounds, (step, metrics) each, without its control sequences."""
    output = io.StringIO()
    display = RunDisplay(num_steps, Console(file=output, force_terminal=True, width=width))
    for step, metrics in rounds:
        display.round(step, metrics)
    display.close()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue()).replace("\r", "\n")


def test_a_line_fits_a_terminal_of_a_hundred_columns():
    further = {"policy/reference_kl": 0.25, "policy/loss": -0.5, "mismatch/mean_abs": 0.1}
    plain = on_terminal(100, 100, (100, EVERY), (100, EVERY | further))
    rounds = [line for line in plain.splitlines() if line.startswith("step ")]
    assert len(rounds) == 2 and max(map(len, rounds)) <= 100
    assert rounds[0].endswith("cut 25%  entropy 0.81  grad 1.4  lr 3e-04")


def test_a_line_on_eighty_columns_marks_that_numbers_are_left_out():
    plain = on_terminal(400, 80, (100, EVERY))
    [line] = [line for line in plain.splitlines() if line.startswith("step ")]
    assert line == "step 100/400  reward 0.31  right 25%  silent 50%  len 143  cut 25%  …"


def test_a_narrow_terminal_explains_only_the_numbers_that_it_shows():
    plain = on_terminal(80, 60, (5, METRICS), (6, METRICS | {"completions/length_mean": 4.0, "policy/entropy": 0.5}))
    assert "step  5/80  reward 0.31  right 25%  silent 50%  len 143  …\n" in plain
    assert plain.count("  …       there are more numbers, for which this terminal is") == 1
    explained = [line.split()[0] for line in plain.splitlines() if re.match(r"  \w+ ", line)]
    assert explained == ["reward", "right", "silent", "len"]


def test_a_number_that_has_not_fitted_once_does_not_come_back():
    plain = on_terminal(80, 60, (5, METRICS), (6, {name: METRICS[name] for name in ("reward/mean", "policy/entropy")}))
    assert "step  6/80  reward 0.31  …\n" in plain
    assert "entropy" not in plain


def test_ranks_that_wait_for_the_busiest_are_reported():
    uneven = logged(lambda display: display.round(5, METRICS | {"throughput/imbalance": 1.312}))
    assert uneven.endswith("learn 5.0 s  busiest rank 1.31 × mean\n")
    sampling = {"throughput/sample_imbalance": 1.2, "throughput/logprobs_imbalance": 1.11}
    uneven = logged(lambda display: display.round(5, METRICS | sampling))
    assert uneven.endswith("learn 5.0 s  busiest rank sampling 1.20 × mean  busiest rank scoring 1.11 × mean\n")
    assert "busiest" not in logged(lambda display: display.round(5, METRICS | {"throughput/imbalance": 1.04}))


def test_numbers_that_were_not_measured_are_left_out():
    shown = logged(lambda display: display.round(80, {"pass_rate": 1.0})).splitlines()
    assert len(shown) == 3 and shown[-1] == "step 80/80  right 100%  ETA 0:00:00"


def test_time_to_go_of_a_resumed_run_counts_its_own_steps_only():
    # Five steps in 10 s, 20 to go; counted from step 0 it would be 3 s.
    line = logged(lambda display: display.round(60, {}), first_step=55)
    assert line == "step 60/80  ETA 0:00:40\n"


def test_time_to_go_counts_from_the_first_round_and_not_from_the_evaluation_before_it():
    def evaluate_first(display):
        display.begin()
        display.round(40, {})

    # All of the ten seconds went by before `begin`.
    assert logged(evaluate_first) == "step 40/80  ETA 0:00:00\n"


def test_no_step_done_yet_has_no_time_to_go():
    assert logged(lambda display: display.round(0, {})) == "step  0/80  ETA ?\n"


def test_a_note_is_printed_as_it_is():
    text = "checkpoint [/b] " + "x" * 200
    assert logged(lambda display: display.note(text)) == text + "\n"


def test_a_terminal_keeps_the_line_and_shows_costs_in_the_bar():
    output = io.StringIO()
    display = RunDisplay(80, Console(file=output, force_terminal=True, width=120))
    display.round(5, METRICS)
    display.close()
    shown = output.getvalue()
    assert "step  5/80  reward 0.31" in shown
    assert "learn 5.0 s" in shown
    assert "mismatch 2.1e-03  ETA" not in shown
