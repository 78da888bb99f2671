import json
import re
from functools import partial

import numpy as np
import pytest
from matplotlib.figure import Figure

from grpo.cli import main
from grpo.config import UserError
from grpo.config.run import TrainConfig
from grpo.dynamics.replay import statistics_of
from grpo.insight.diagnosis.diagnostics import diagnose
from grpo.insight.logs.logs import counts_of, num_completions, read_log
from grpo.insight.pages.dynamics import analysed, write_fit
from grpo.insight.pages.dynamics_panels import _within_0_and_1, draw_gradient_mass, draw_reward, draw_silent, panels
from grpo.insight.pages.pictures import picture
from grpo.tasks.solve_rates import read_solve_rates
from grpo.telemetry.ending import KILLED, Resumption, add_resumption
from grpo.types import Mean
from tests.insight.runs import trl_log, verl_log, write_run
from tests.insight.structure import assert_well_made, complaints


@pytest.mark.slow
def test_a_run_is_fitted_printed_drawn_and_made_a_page(tmp_path, capsys):
    write_run(tmp_path, 100)
    add_resumption(tmp_path, Resumption(40, "step-00000040", 43, KILLED))
    assert main(["dynamics", "fit", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "forecast for step 200: pass rate 0.8" in printed
    page = (tmp_path / "dynamics.html").read_text()
    said = "The run was resumed after step 40: it had been killed"
    assert said in printed and said in page
    # The first chart is there twice, over the whole width and for a phone, and so is the last one, which is alone.
    assert page.count("<figure") == 6
    assert_well_made(page)
    assert 'src="http' not in page and "gain from now, in percentage points" in page


def test_many_evaluations_are_a_line_and_few_have_bars(tmp_path):
    write_run(tmp_path, 40)
    for every, bars in ((1, 0), (10, 1)):
        rows = [{"step": step, "problems": 9, "pass@1": {"value": 0.5, "low": 0.4, "high": 0.6}} for step in range(40)]
        (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[::every]))
        axes = Figure().add_subplot()
        draw_reward(axes, analysed(read_log(tmp_path), tmp_path))
        held_out = [one for one in axes.containers if one.get_label() == "held out, 95 % interval"]
        assert len(held_out) == bars and "held out, 95 % interval" in axes.get_legend_handles_labels()[1]


def test_held_out_evaluations_above_the_training_curve_are_seen_whole(tmp_path):
    write_run(tmp_path, 60)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for index, row in enumerate(rows):  # the pass rate in training stays at 0.25
        row |= {"pass_rate": 0.25, "groups/counts": [[1 + index % 3, 8, 32]]}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = {"step": 0, "problems": 99, "pass@1": {"value": 0.9, "low": 0.85, "high": 0.95}}
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(row | {"step": step}) + "\n" for step in (0, 9)))
    axes = Figure().add_subplot()
    draw_reward(axes, analysed(read_log(tmp_path), tmp_path))
    assert axes.get_ylim()[1] > 0.95


def test_a_forecast_is_printed_with_the_way_there(tmp_path, capsys):
    write_run(tmp_path, 30)
    assert main(["dynamics", "forecast", str(tmp_path), "last_step=300"]) == 0
    printed = capsys.readouterr().out
    assert "forecast for step 300" in printed and "more than 0.02 with probability" in printed
    # From the last round, by the number that the log has for it, to step 300.
    assert all(f"│  {step} │" in printed for step in (" 30", " 98", "165", "232", "300"))
    assert "from step 59 on it reaches further ahead than the log is long and is mostly a guess" in printed
    assert main(["dynamics", "forecast", str(tmp_path), "last_step=59"]) == 0
    assert "mostly a guess" not in capsys.readouterr().out


def test_a_forecast_of_the_next_steps_has_a_row_for_each_of_them_and_none_of_what_has_been(tmp_path, capsys):
    write_run(tmp_path, 30)
    assert main(["dynamics", "forecast", str(tmp_path), "last_step=32"]) == 0
    assert re.findall(r"│ +(\d+) │", capsys.readouterr().out) == ["30", "31", "32"]
    assert main(["dynamics", "forecast", str(tmp_path), "last_step=30"]) == 2
    assert "which is 30: give a later one" in capsys.readouterr().err


def test_a_run_that_is_too_short_for_a_verdict_may_be_forecast(tmp_path, capsys):
    write_run(tmp_path, 7)
    assert main(["dynamics", "diagnose", str(tmp_path)]) == 0
    said = "verdict: too early to say: 7 rounds are too few to tell a trend of the pass rate from luck, and 20 are"
    assert said in capsys.readouterr().out
    assert main(["dynamics", "forecast", str(tmp_path)]) == 0


@pytest.mark.slow
def test_words_beside_a_forecast_are_of_the_same_steps(tmp_path, capsys):
    """The run stands, and so little is to be gained soon. Nobody knows that of twenty times as many steps."""
    rows = [{"step": step, "pass_rate": 0.97 + 0.01 * (-1) ** step} for step in range(1, 61)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for last_step, expected in ((90, True), (1200, False)):
        assert main(["dynamics", "fit", str(path), f"last_step={last_step}"]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert f"forecast for step {last_step}" in printed and "of a run of 60 optimizer steps" in printed
        assert (f"until step {last_step} has" in printed) == ("on the plateau" in printed) == expected


def test_a_forecast_of_what_has_been_is_refused_and_its_step_may_be_written_with_an_exponent(tmp_path, capsys):
    write_run(tmp_path, 30)
    assert main(["dynamics", "forecast", str(tmp_path), "last_step=3"]) == 2
    message = f"last_step=3 does not lie after the last step of {tmp_path}, which is 30: give a later one"
    assert message in capsys.readouterr().err
    assert main(["dynamics", "forecast", str(tmp_path), "last_step=1e6"]) == 2
    assert f"1000 times as far ahead as {tmp_path} is long, which no log can foretell: give at most 29030" in (
        capsys.readouterr().err
    )
    assert main(["dynamics", "forecast", str(tmp_path), "last_step=6e1"]) == 0
    assert "forecast for step 60" in capsys.readouterr().out


def test_held_out_points_are_forecast_with_the_gap_to_training(tmp_path, capsys):
    write_run(tmp_path, 60)
    rows = []
    for step in range(0, 60, 10):
        value = 0.8 - 0.6 * np.exp(-step / 20) - 0.05
        rows.append({"step": step, "pass@1": {"value": value, "low": value - 0.04, "high": value + 0.04}})
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read_log(tmp_path)
    assert log.held_out_error == pytest.approx(0.08 / 3.92)
    assert [bound.values[0] for bound in log.held_out_bounds] == pytest.approx([0.11, 0.19])
    assert main(["dynamics", "forecast", str(tmp_path), "last_step=80"]) == 0
    printed = capsys.readouterr().out
    middle, low, high = map(
        float, re.search(r"held out at step 80: pass rate (.+) \[(.+), (.+)\], gain", printed).groups()
    )
    assert low < 0.74 < high and high - low < 0.45 and 0.65 < middle < 0.85
    gap = float(re.search(r"training was (.+) ± .* above held out over the last 3 evaluations", printed)[1])
    assert gap == pytest.approx(0.05, abs=0.03)


def test_too_short_a_run_no_run_and_wrong_words_are_one_line(tmp_path, capsys):
    write_run(tmp_path, 3)
    with pytest.raises(UserError, match="3 rounds; the dynamics need at least 6"):
        write_fit(tmp_path)
    for words, message in (
        (["dynamics", "fit", str(tmp_path / "nowhere")], "there is no"),
        (["dynamics", "fit"], "needs a path"),
        (
            ["dynamics", "guess", "x"],
            "grpo dynamics has no 'guess': choose one of fit, forecast, diagnose, replay, whatif, plan",
        ),
        (
            ["dynamics", "fit", str(tmp_path), "last_step=soon"],
            "last_step='soon' is not valid: it must be a whole number",
        ),
        (["dynamics", "diagnose", str(tmp_path), "depth=3"], "unknown key 'depth'"),
        (["dynamics", "replay", str(tmp_path), "dynamics.adaptive.nonsense=1"], "nonsense"),
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert message in error and len(complaints(error)) == 1


def test_rounds_are_read_as_they_were_measured(tmp_path):
    write_run(tmp_path, 10)
    log = read_log(tmp_path)
    assert log.history.steps.tolist() == list(range(10))
    assert 0.1 < log.history.values[0] < 0.3
    assert sum(log.counts[0].values()) == 32
    assert log.num_steps == 200


def write_run_of(folder, normalization):
    """Writes a run with the given normalization settings."""
    write_run(folder, 12)
    config = json.loads((folder / "config.json").read_text())
    config["normalization"] |= normalization
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("settings", "drawn"),
    [({}, True), ({"name": "pass_at_k"}, False), ({"parts": "each"}, False), ({"scope": "batch"}, True)],
)
def test_the_gradient_by_difficulty_is_drawn_for_the_dials_only(tmp_path, settings, drawn):
    write_run_of(tmp_path, settings)
    assert (draw_gradient_mass in panels(analysed(read_log(tmp_path), tmp_path))) == drawn


@pytest.mark.parametrize(
    ("settings", "learned"),
    [({}, False), ({"name": "pass_at_k"}, False), ({"parts": "each"}, True), ({"name": "reinforce_plus_plus"}, True)],
)
def test_a_log_knows_whether_groups_of_equal_rewards_are_learned_from(tmp_path, settings, learned):
    write_run_of(tmp_path, settings)
    assert read_log(tmp_path).learns_from_equal == learned


def test_a_log_of_pass_rates_alone_gets_the_number_of_checks_that_could_be_made(tmp_path, capsys):
    path = tmp_path / "log.jsonl"
    rows = [{"step": step, "pass_rate": 0.3 + 0.05 * (step % 3)} for step in range(1, 41)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["dynamics", "diagnose", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "diagnosis: 6 of 33 checks could be made, and they found no problem; a change of less than " in printed
    assert " points could be luck here: go on, or raise the number of prompts per step" in printed
    assert (
        "if training goes on, the pass rate at step 60 will be between " in printed
        and "% (with 90 % certainty)" in printed
    )
    assert "27 of 33 checks need what the log lacks: lengths, held-out scores, mean rewards, " in printed


def test_a_run_that_went_back_has_one_curve_since_and_all_its_series(tmp_path):
    write_run(tmp_path, 100)
    path = tmp_path / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[39]["run/went_back"] = 1.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read_log(tmp_path)
    assert log.history.steps.tolist() == list(range(40, 100))
    assert len(log.counts) == 60 and len(log["pass_rate"]) == 100
    # The curve begins at the level of step 40, 0.8 − 0.6·e^(−2) = 0.72.
    assert log.history.values[:5].mean() == pytest.approx(0.72, abs=0.05)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("decide_every=0", "dynamics.adaptive.decide_every=0 must be above 0"),
        ("smallest_group=100", "dynamics.adaptive.smallest_group=100 must lie between 2 and"),
        ("fewest_prompts=9", "dynamics.prompts_per_step=8 must lie between dynamics.adaptive.fewest_prompts=9 and"),
        ("cost=nothing", "dynamics.adaptive.cost='nothing' is unknown: choose one of tokens | seconds"),
    ],
)
def test_a_replay_by_rules_that_training_refuses_is_refused(tmp_path, capsys, word, expected):
    write_run(tmp_path, 2)
    assert main(["dynamics", "replay", str(tmp_path), f"dynamics.adaptive.{word}"]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.slow
def test_a_replay_shows_what_the_scheduler_would_have_done(tmp_path, capsys):
    write_run(tmp_path, 40)
    path = tmp_path / "metrics.jsonl"
    cool = {"step/gain": 1e-3, "step/cosine": 0.3, "step/length": 0.05}
    cool |= {"path/gain": 9e-4, "path/cosine": 0.3, "path/steps": 15.0}
    path.write_text("".join(json.dumps(json.loads(line) | cool) + "\n" for line in path.read_text().splitlines()))
    assert main(["dynamics", "replay", str(tmp_path), "dynamics.adaptive.smallest_group=4"]) == 0
    printed = capsys.readouterr().out
    assert "8→4" in printed and "no round shows the effect of an earlier decision" in printed


def test_a_replay_decides_for_the_learner_ranks_of_the_run(tmp_path, capsys):
    write_run(tmp_path, 20)
    assert main(["dynamics", "replay", str(tmp_path), "hardware.ranks_per_node=4"]) == 0
    assert "decided for 4 learner ranks" in capsys.readouterr().out
    assert main(["dynamics", "replay", str(tmp_path), "hardware.ranks_per_node=3"]) == 2
    assert "dynamics.prompts_per_step=8" in capsys.readouterr().err


@pytest.mark.slow
def test_a_plan_from_solve_rates(tmp_path, capsys):
    generator = np.random.default_rng(0)
    rates = generator.binomial(64, generator.beta(2, 2, 500)) / 64
    path = tmp_path / "rates.jsonl"
    rows = [{"problem": "p", "llama8b_solve_rate": rate} for rate in rates] + [{"llama8b_solve_rate": None}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["dynamics", "plan", str(path), "budget_tokens=1e8"]) == 0
    printed = capsys.readouterr().out
    assert "500 problems, mean pass rate 5" in printed and "1 without a pass rate are left out" in printed
    # 128 prompts × (100 + 8 × 500) tokens fit 190 times into 1e8.
    assert "dynamics.group_size=8 dynamics.refresh_interval=1 dynamics.prompts_per_step=128 num_steps=190" in printed
    why = "G = 8: in real runs no choice of the size did better than 8. At G = 3 tokens are expected"
    assert why in " ".join(printed.split())
    page = (tmp_path / "plan.html").read_text()
    assert "Proposed: G = 8 completions of each prompt, and τ = 1 step on them." in page and "num_steps=190" in page
    assert "silent groups" in page and ">8 (proposed)<" in page and "τ = 1: only training shows" in page
    # 128 prompts × (100 + 3 × 500) tokens fit 488 times into 1e8.
    assert main(["dynamics", "plan", str(path), "budget_tokens=1e8", "smallest=2", "largest=64"]) == 0
    assert "dynamics.group_size=3 dynamics.refresh_interval=1 dynamics.prompts_per_step=128 num_steps=488" in (
        capsys.readouterr().out
    )
    # 7 is no rung of the ladder of sizes, and is taken where nothing else is allowed.
    assert main(["dynamics", "plan", str(path), "smallest=7", "largest=7", f"output={tmp_path}/plans"]) == 0
    assert "7 (proposed)" in re.findall(r'<th scope="row">([^<]+)</th>', (tmp_path / "plans" / "plan.html").read_text())
    assert "dynamics.group_size=7 " in capsys.readouterr().out
    assert main(["dynamics", "plan", str(path), "budget_tokens=1000"]) == 2
    assert "budget_tokens=1000 does not suffice for one step at G = 8: give more tokens" in capsys.readouterr().err
    for word in ("prompts_per_step=0", "tried=0", "budget_tokens=nan", "completion_tokens=0"):
        assert main(["dynamics", "plan", str(path), word]) == 2
        assert f"{word.replace('=', '=' + chr(39))}' is not valid: it must be a" in capsys.readouterr().err
    assert main(["dynamics", "plan", str(path), "column=nothing"]) == 2
    assert "its columns are: llama8b_solve_rate, problem. Choose one with column=NAME" in capsys.readouterr().err


@pytest.mark.parametrize("column", ["solve_rate_samples", "prompt_tokens", "completion_tokens"])
@pytest.mark.parametrize("value", ["x", -8, float("nan"), [8], 1e300])
def test_a_plan_names_a_number_of_samples_or_tokens_that_is_none(tmp_path, capsys, column, value):
    path = tmp_path / "solve_rates.jsonl"
    path.write_text(json.dumps({"solve_rate": 0.5, column: value}) + "\n")
    assert main(["dynamics", "plan", str(path)]) == 2
    said = f"the column {column} holds {value!r}, which is no number from 1 to 1e+09"
    assert complaints(capsys.readouterr().err) == [f"grpo: {said}"]


@pytest.mark.parametrize("words", [["smallest=1"], ["smallest=128"], ["smallest=32", "largest=8"], ["largest=1000000"]])
def test_a_plan_refuses_what_is_no_range_of_group_sizes(tmp_path, capsys, words):
    path = tmp_path / "solve_rates.jsonl"
    path.write_text(json.dumps({"solve_rate": 0.5}) + "\n")
    assert main(["dynamics", "plan", str(path), *words]) == 2
    assert "are no range of group sizes: give at least 2, and at most 16,384" in capsys.readouterr().err


@pytest.mark.slow
def test_a_plan_reads_what_grpo_solve_rates_has_measured(tmp_path, capsys):
    path = tmp_path / "solve_rates.jsonl"
    row = {"llama8b_solve_rate": 0.9, "solve_rate_samples": 16, "prompt_tokens": 20, "completion_tokens": 60.0}
    path.write_text("".join(json.dumps(row | {"solve_rate": rate}) + "\n" for rate in (0.25, 0.5, 0.75) * 20))
    known = read_solve_rates(path)
    assert (known.tried, known.tokens) == (16, {"prompt_tokens": 20.0, "completion_tokens": 60.0})
    assert main(["dynamics", "plan", str(path), "budget_tokens=1e6"]) == 0
    printed = capsys.readouterr().out
    assert "60 problems, mean pass rate 5" in printed
    # A step has no more prompts than there are problems. 60 × (20 + 8 × 60) tokens fit 33 times into 1e6.
    assert "dynamics.group_size=8 dynamics.refresh_interval=1 dynamics.prompts_per_step=60 num_steps=33" in printed
    assert main(["dynamics", "plan", str(path)]) == 0
    assert "num_steps" not in capsys.readouterr().out
    assert main(["dynamics", "plan", str(path), "prompts_per_step=61"]) == 2
    assert "prompts_per_step=61 is more than the 60 problems that have a pass rate" in capsys.readouterr().err


@pytest.mark.slow
def test_logs_of_trl_are_read(tmp_path, capsys):
    trl_log(tmp_path / "checkpoint-60")
    log = read_log(tmp_path)
    assert log["groups/silent_fraction"].values[0] == 0.25
    assert log["policy/clip_high_fraction"].values[0] == 0.01
    assert log["reward/part/accuracy_reward"].steps[-1] == 60
    assert log.held_out.values.tolist() == [0.25, 0.5]
    assert len(log.history) == 60 and 0.01 < log.history.errors[0] < 0.05
    assert main(["dynamics", "fit", str(tmp_path / "checkpoint-60" / "trainer_state.json")]) == 0
    assert "forecast for step 90: pass rate 0.58 " in capsys.readouterr().out


def test_logs_of_verl_are_read_and_diagnosed(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    verl_log(path)
    log = read_log(path)
    assert log["completions/length_mean"].values[0] == 400.0
    assert log.held_out.values.tolist() == [0.25, 0.5]
    assert main(["dynamics", "diagnose", str(path)]) == 0
    # Its completions are all truncated and nothing is learned.
    assert "truncated" in capsys.readouterr().out


def test_verls_scores_are_pass_rates_only_within_0_and_1(tmp_path):
    notes = []
    for right, wrong in ((1.0, 0.0), (1.0, -1.0)):
        path = tmp_path / f"{wrong}.jsonl"
        scores = [wrong + (right - wrong) * (0.1 + step / 600) for step in range(1, 61)]
        rows = [{"step": i, "data": {"critic/score/mean": score}} for i, score in enumerate(scores, 1)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        log = read_log(path)
        notes.append((len(log["pass_rate"]), log.notes[0].split(":")[0], {finding.name for finding in diagnose(log)}))
    assert notes[0][:2] == (60, "critic/score/mean is taken for the pass rate")
    # Scores of −1 to 1 were said to be "prompts too hard, pass rate −0.64".
    assert notes[1] == (0, "no column is a pass rate, so what needs one is left out", set())


def test_a_csv_with_a_column_of_its_own(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("Step,accuracy,reward\n" + "".join(f"{step},{step / 20},{step}\n" for step in range(1, 11)))
    log = read_log(path, "accuracy")
    assert log["pass_rate"].values.tolist() == [step / 20 for step in range(1, 11)]
    scaled = read_log(path, "reward", 10.0)
    assert scaled["pass_rate"].values.tolist() == [step / 10 for step in range(1, 11)]
    with pytest.raises(UserError, match=r"reward of .* goes from 1 to 10, beyond \[0, 2\]: give its value"):
        read_log(path, "reward", 2.0)
    with pytest.raises(UserError, match="no column speed with numbers; those that have some are: accuracy, reward"):
        read_log(path, "speed")


def test_a_reward_that_is_no_pass_rate_is_diagnosed_without_one(tmp_path, capsys):
    generator = np.random.default_rng(0)
    path = tmp_path / "log.jsonl"
    rows = [{"step": step, "reward": 3 * generator.standard_normal(), "completions/clipped_ratio": 0.9,
             "eval/accuracy": 0.5} for step in range(1, 81)]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read_log(path)
    assert not len(log.history) and not len(log["pass_rate"]) and len(log.held_out) == 80
    assert main(["dynamics", "diagnose", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "no column is a pass rate, so what needs one is left out" in printed
    assert "column=NAME scale=NUMBER names one of reward, eval/accuracy\n" in printed
    assert "verdict: no clear change yet; the reward went from" in printed and "truncated" in printed
    assert "checks need what the log lacks: pass rates, " in printed
    assert "│ Many" in printed
    assert main(["dynamics", "forecast", str(path)]) == 2
    assert "column=NAME" in capsys.readouterr().err


def test_the_part_that_grades_answers_is_found_and_scaled(tmp_path):
    """Old TRL and Unsloth log `rewards/x` without /mean, `completion_length`, and 2 for a right answer."""
    rows = [{"step": step, "reward": 1.5 * step / 20, "completion_length": 90.0, "rewards/format_func": 0.5,
             "rewards/correctness_reward_func": step / 20} for step in range(1, 31)]  # fmt: skip
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows, "max_steps": 250}))
    log = read_log(path)
    assert log["pass_rate"].values[-1] == 0.75 and log.num_steps == 250
    assert log.notes[0].startswith("rewards/correctness_reward_func ÷ 2 is taken for the pass rate")
    assert log["completions/length_mean"].values[0] == 90.0
    named = read_log(path, "rewards/correctness_reward_func", 3.0)
    assert named["pass_rate"].values[-1] == 0.5


def test_defaults_of_a_saved_config_fill_what_it_lacks():
    from grpo.config.saved import from_dict

    config = from_dict({"num_steps": 7, "dynamics": {"group_size": 4}}, ["dynamics.adaptive.decide_every=2"])
    assert (config.num_steps, config.dynamics.group_size, config.dynamics.adaptive.decide_every) == (7, 4, 2)
    assert config.learner == TrainConfig().learner
    # Keys of earlier versions that decided nothing are gone, and their configurations are read.
    old = {"dynamics": {"adaptive": {"staleness": "fresh", "max_gain_share": 0.5, "max_shortfall": 0.25}}}
    assert from_dict(old).dynamics == TrainConfig().dynamics


def test_rounds_of_which_nothing_could_be_graded_are_no_points_of_the_curve(tmp_path):
    write_run(tmp_path, 30)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for row in rows[10:14]:
        del row["pass_rate"], row["groups/silent_fraction"]
        row |= {"groups/counts": [], "groups/num_sampled": 32.0, "completions/num_sampled": 256.0}
        row["completions/unanswered_fraction"] = 1.0
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read_log(tmp_path)
    assert len(log.history) == len(log.counts) == len(log["pass_rate"]) == 26
    # Their cost still counts; rows without `num_sampled` take it from the counts.
    assert [num_completions(row) for row in rows] == [256] * 30
    means = statistics_of(rows[12], {}, {}, 12).means
    assert means["completions/length_mean"] == Mean(25_600, 256) and means["prompts/length_mean"] == Mean(640, 32)
    assert statistics_of(rows[0], counts_of(rows[0]), {}, 0).means["completions/length_mean"] == Mean(25_600, 256)
    assert not {"unstable", "prompts too hard"} & {finding.name for finding in diagnose(log)}


def points_of(panel, analysis):
    values = json.loads(picture(partial(panel, analysis=analysis))["values"])
    return {one["name"]: [point[2:] for point in one["points"]] for one in values["series"]}


@pytest.mark.parametrize("interval", [1, 4])
def test_rounds_have_the_steps_of_the_log_in_every_chart(tmp_path, interval):
    write_run(tmp_path, 30)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {"step": interval * row["step"], "plan/refresh_interval": interval, "staleness/mean": (interval - 1) / 2}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluations = [{"step": step, "pass@1": {"value": 0.5, "low": 0.4, "high": 0.6}} for step in (0, 30 * interval)]
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evaluations))
    analysis = analysed(read_log(tmp_path), tmp_path)
    drawn = points_of(draw_reward, analysis)
    rounds = drawn["rounds, with standard errors"]
    assert [step for step, _ in rounds] == [f"{row['step']:,}" for row in rows]
    assert all(text.startswith(f"{row['pass_rate']:.1%} ") for (_, text), row in zip(rounds, rows, strict=True))
    assert drawn["held out, 95 % interval"][-1][0] == rounds[-1][0] == f"{30 * interval}"
    ahead = drawn["forecast, 90 % interval"]
    assert (ahead[0][0], ahead[-1][0]) == (f"{30 * interval}", "200")
    parts = [step for step, _ in points_of(draw_silent, analysis)["expected from the difficulty"]]
    assert parts[0] == f"{interval} to {5 * interval}" and parts[-1] == f"{26 * interval} to {30 * interval}"
    texts = [step for series in drawn.values() for step, _ in series]
    assert not [step for step in texts if "." in step], "no step is a fraction"


def test_silent_groups_are_those_of_equal_rewards_also_where_parts_tell_right_answers_apart(tmp_path):
    write_run(tmp_path, 20)
    caption = draw_silent(Figure().add_subplot(), analysed(read_log(tmp_path), tmp_path))
    assert caption.startswith("The rewards of a silent group are equal. Where only right and wrong count, ")


def test_ticks_of_all_charts_stand_at_whole_steps(tmp_path):
    write_run(tmp_path, 20)
    analysis = analysed(read_log(tmp_path), tmp_path)
    for panel in panels(analysis):
        axes = Figure((5, 3)).add_subplot()
        panel(axes, analysis)
        if axes.get_xlabel() == "optimizer step":
            assert all(tick == round(tick) for tick in axes.get_xticks()), panel.__name__


def test_error_bars_of_a_round_stay_within_0_and_100_percent():
    low, high = _within_0_and_1([0.05, 0.5, 1.0], [0.1, 0.1, 0.1])
    assert low.tolist() == [0.05, 0.1, 0.1] and high.tolist() == [0.1, 0.1, 0.0]
