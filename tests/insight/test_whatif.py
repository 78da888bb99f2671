import html
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from grpo.cli import main
from grpo.config.folder import CONFIG_FILE
from grpo.config.saved import from_dict
from grpo.dynamics.history import history_of
from grpo.dynamics.scheduler import batch_setting
from grpo.dynamics.step import BatchSetting
from grpo.insight.logs.logs import read_log
from grpo.insight.logs.run_log import RunLog, Series
from grpo.insight.pages.verdict import UNSURE
from grpo.insight.pages.whatif import (
    AGAIN,
    Answer,
    Budget,
    alternatives,
    course_within,
    lines,
    mood_of,
    noise_lines,
    scheduled_rate,
    verdicts,
)
from grpo.insight.plans.whatif import predict, stages_of
from tests.insight.runs import trl_log, write_run
from tests.insight.structure import assert_well_made, complaints


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path, 60)
    config = saved(tmp_path)
    config["dynamics"]["prompts_per_step"] = 32
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config))
    return tmp_path


def saved(run):
    return json.loads((run / CONFIG_FILE).read_text())


@pytest.mark.slow
def test_alternatives_are_compared_at_equal_tokens(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = ["dynamics.group_size=4,16", "normalization=dr_grpo"]
    assert main(["dynamics", "whatif", str(run), *words, "tokens=1e6"]) == 0
    printed = capsys.readouterr().out
    assert "each alternative spends 1,000,000 tokens" in printed and "wide guess" not in printed
    longer = lines(read_log(run), Budget("tokens", 1e6), [BatchSetting(8, 16, refresh_interval=4)])
    assert longer[-1].endswith("so what a longer one does is a wide guess")
    # exp(−4·(1/4 − 1/16)) = .47
    few = lines(read_log(run), Budget("tokens", 1e6), [BatchSetting(8, 16), BatchSetting(8, 4)])
    assert few[-1].startswith("a step with 4 prompts may be up to 53% slower")
    many = lines(read_log(run), Budget("tokens", 1e6), [BatchSetting(8, 256), BatchSetting(8, 64)])
    assert "slower" not in many[-1]
    # 20 + 8 × 100 tokens a group against 20 + 4 × 100 and 20 + 16 × 100.
    assert "0.51 ×" in printed and "1.98 ×" in printed and "1.00 ×" in printed
    assert "normalization=dr_grpo dynamics.group_size=16: " in printed and "with probability" in printed
    cells = {cell.strip() for cell in printed.split("│")}
    assert {"dr_grpo", "group_size=4", "group_size=16"} <= cells, "words are broken on a narrow terminal"
    assert " time " in printed, "a column is lost on a narrow terminal"
    page = (run / "whatif.html").read_text()
    assert "each setting spends 1,000,000 tokens" in page and page.count("<figure") == 2
    assert_well_made(page)
    row = '<th scope="row">dr_grpo\ngroup_size=4</th>'
    assert row in page.replace("<wbr>", "") and "the same again" in page
    assert "normalization=dr_grpo dynamics.group_size=4: " in page.replace("<wbr>", "")
    assert "Assumed: all settings learn along the same curve" in page and "<h2>Words on this page</h2>" in page


@pytest.mark.slow
def test_a_schedule_has_come_as_far_as_that_of_the_run_when_the_budget_is_spent(run):
    """The rate fell to 0 over the run's 60 steps. The same settings again follow it. With half of the tokens per step,
    twice as many steps have the same rates in turn, so the policy travels twice as far at its slower pace."""
    config = from_dict({**saved(run), "num_steps": 60}, ["learner.schedule=linear", "learner.learning_rate=1e-3"])
    log = read_log(run)
    rates = Series(np.arange(60.0), 1e-3 * (1 - np.arange(60.0) / 60))
    log = replace(log, series={**log.series, "learner/learning_rate": rates})
    stages, own = stages_of(log, batch_setting(config)), batch_setting(config)
    budget = Budget("tokens", float(np.median(predict(log, stages, own).at("steps", 60)["tokens"])))
    same = course_within(budget, config, log, stages, own, 0)
    measured = float(np.mean(log.history.values[25:36]))
    assert np.median(same.at("steps", 30)["rates"]) == pytest.approx(measured, abs=0.03)
    assert scheduled_rate(np.array([0.0, 60.0, 120.0]), config.learner, 120) == pytest.approx([1e-3, 5e-4, 0.0])
    half = course_within(budget, config, log, stages, replace(own, prompts_per_step=own.prompts_per_step // 2), 0)
    assert np.median(half.at("tokens", budget.amount)["steps"]) == pytest.approx(120, rel=0.02)
    # Until step 240 nothing is learned any more, and before the end it still is.
    at = {step: np.median(half.at("steps", step)["rates"]) for step in (60, 110, 121, 200)}
    assert at[60] < at[110] <= at[121] and at[200] == pytest.approx(at[121], abs=1e-3)


def test_a_word_may_choose_a_file_of_the_configuration(run):
    settings = alternatives(saved(run), ["normalization=dapo,maxrl", "dynamics.prompts_per_step=4"])
    dapo, maxrl = (settings[f"dynamics.prompts_per_step=4 normalization={name}"] for name in ("dapo", "maxrl"))
    assert dapo.refilled and dapo.exponent == 1.0 and not settings[AGAIN].refilled
    assert (maxrl.exponent, maxrl.mean_exponent, maxrl.prompts_per_step) == (0.0, 1.0, 4)


def test_a_run_that_went_back_shows_no_course_from_its_start(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[3]["run/went_back"] = 1.0
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["dynamics", "whatif", str(tmp_path / "run"), "dynamics.group_size=4"]) == 2
    assert "went back to an earlier policy, so it shows no course from its start on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name what to change, for example dynamics.group_size=4,16"),
        (["learner.learning_rate=1e-3"], "no prediction is made for learner.learning_rate; it is made for dynamics.g"),
        (["normalization=sgd"], "normalization has no 'sgd'; choose one of dapo, dial, dr_grpo, gdpo"),
        (["normalization=pass_at_k"], "no prediction is made for normalization.name"),
        (["dynamics.group_size=4", "dynamics.group_size=16"], "put its values into one word, dynamics.group_size=A,B"),
        (["dynamics.group_size=4", "steps=5", "tokens=6"], "give one budget, not steps=5 and tokens=6"),
        (["dynamics.group_size=4", "tokens=1e12"], "'dynamics.group_size=4' from 60 steps: ask for at most tokens="),
        (["dynamics.group_size=4", "tokens=-1"], "tokens='-1' is not valid: it must be a whole number above 0"),
        (["dynamics.group_size=0"], "dynamics.group_size=0 must be above 0"),
        (["dynamics.group_size=1"], "dynamics.group_size=1 must lie between 2 and 1024"),
        (["normalization.exponent=nan"], "normalization.exponent=nan must be a finite number"),
        # Told before any of them is composed, which would take minutes.
        (["dynamics.group_size=range(2,9000)"], "these are 8998 alternatives; ask for at most 23"),
    ],
)
def test_a_run_that_cannot_be_predicted_is_one_line(run, capsys, words, message):
    assert main(["dynamics", "whatif", str(run), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and len(complaints(error)) == 1


@pytest.mark.slow
def test_the_budget_that_a_refusal_names_is_accepted_and_the_page_may_lie_elsewhere(run, tmp_path, capsys):
    words = ["dynamics", "whatif", str(run), "dynamics.group_size=4,32"]
    assert main([*words, "tokens=1e12"]) == 2
    most = capsys.readouterr().err.rpartition("tokens=")[2].strip()
    assert main([*words, f"tokens={most}", f"output={tmp_path}/pages"]) == 0
    assert sorted(path.name for path in (tmp_path / "pages").iterdir()) == ["whatif.html"]


def test_another_frameworks_log_and_a_short_one_are_refused(tmp_path, capsys):
    trl_log(tmp_path / "trl")
    assert main(["dynamics", "whatif", str(tmp_path / "trl"), "dynamics.group_size=4"]) == 2
    assert "give the output_dir of a run" in capsys.readouterr().err
    write_run(tmp_path / "short", 3)
    assert main(["dynamics", "whatif", str(tmp_path / "short"), "dynamics.group_size=4"]) == 2
    assert "has 3 rounds; a prediction needs at least 6" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_has_not_learned_is_refused(run, capsys):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first = rows[0]["groups/counts"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row | {"groups/counts": first}) + "\n" for row in rows))
    assert main(["dynamics", "whatif", str(run), "dynamics.group_size=4"]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "has not surely learned: its pass rate was" in shown
    assert "so it does not show the course that other settings would take" in shown
    assert main(["dynamics", "whatif", str(run), "dynamics.group_size=abc"]) == 2
    assert "dynamics.group_size takes a whole number, not abc" in capsys.readouterr().err


def test_a_price_of_noise_that_is_not_measured_is_reported(run):
    stages = stages_of(read_log(run), BatchSetting(8, 32))
    assert noise_lines(stages)[0].startswith("in 8 of 8 parts of the run the products of its steps")
    assert noise_lines([replace(stage, heat=(0.0, 0.5)) for stage in stages]) == []


@pytest.mark.parametrize(("interval", "lag", "warned"), [(1, 0, True), (1, 1, True), (2, 0, False)])
def test_a_longer_interval_than_any_measured_is_reported_as_a_guess(interval, lag, warned):
    log = RunLog(history_of([(step, interval, lag, {(3, 8): 10}) for step in range(4, 30)]), {})
    said = " ".join(lines(log, Budget("tokens", 1e6), [BatchSetting(8, 16, 4)]))
    assert ("this run had no refresh interval above 1" in said) == warned


@pytest.mark.slow
def test_a_budget_of_steps_is_drawn_at_whole_steps(run):
    assert main(["dynamics", "whatif", str(run), "dynamics.group_size=4", "steps=37"]) == 0
    charts = re.findall(r'data-values="([^"]*)"', (run / "whatif.html").read_text())
    shown = [point[2] for one in json.loads(html.unescape(charts[0]))["series"] for point in one["points"]]
    assert "37" in shown and not [step for step in shown if "." in step]


def test_a_reward_that_knows_more_than_right_and_wrong_is_named_beside_the_expected_silence(run):
    def said(silent):
        log, steps = read_log(run), np.arange(1.0, 61.0)
        shares = {"silent": silent, "all_wrong": 0.2, "all_correct": 0.1}
        log.series.update({f"groups/{name}_fraction": Series(steps, np.full(60, of)) for name, of in shares.items()})
        return [line for line in lines(log, Budget("tokens", 1e6), [BatchSetting(8, 16)]) if "equal rewards" in line]

    assert said(0.3) == []
    assert said(0.1) == [
        "“silent” counts the groups that are all right or all wrong, 30% of this run's; 10% had equal rewards, since "
        "its reward knows more than right and wrong"
    ]


def test_ends_that_are_equal_decide_for_neither_setting():
    end = {"rates": np.full(8, 0.9), "beyond": np.zeros(8)}
    same, other = (Answer(name, 1.0, end, np.ones(8)) for name in ("the same again", "G=4"))
    assert verdicts([same, other])[0] == "G=4: not decided (better with probability 50%)"
    assert mood_of([same, other]) == UNSURE
