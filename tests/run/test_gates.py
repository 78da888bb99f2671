"""These tests check which gates are refused before a run, and which models `grpo export` refuses."""

import json
from dataclasses import asdict

import pytest

from grpo.cli import main
from grpo.config import GateConfig, RewardConfig, RewardPartConfig, TaskConfig, TrainConfig, UserError
from grpo.config.hydra import compose_config
from grpo.config.validate import validate
from grpo.run.gates import RoundNumbers, broken_gates, check_gates
from grpo.types import Mean, RoundPlan, RoundStatistics, StepReport

TASK = TaskConfig(reward=RewardConfig(parts=[RewardPartConfig(name="math")]))


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"metric": "pass@1"}, r"gates\[0\].metric=pass@1 is no metric of a round or an evaluation"),
        ({"metric": "passrate"}, r"is no metric of a round or an evaluation \(did you mean pass_rate\?\)"),
        ({"metric": "pass_rate"}, r"gates\[0\] has no bound: give below=, above= or both"),
        ({"metric": "pass_rate", "below": 0.1, "then": "warn"}, "then=warn is none of stop, back, refuse_export"),
        ({"metric": "pass_rate", "below": 0.1, "rounds": 0}, "rounds=0 must be at least 1"),
        ({"metric": "pass_rate", "below": 0.1, "rounds": 101}, "rounds=101 must be at least 1, and at most num_steps"),
        ({"metric": "reward/mean", "below": 2.0, "above": 1.0}, "every value is below 2.0 or above 1.0: swap the two"),
        ({"metric": "reward/mean", "below": 1.0, "above": 1.0}, "or above 1.0: leave some room between them"),
        (
            {"metric": "pass_rate", "below": 0.02, "from_start": True},
            "would break at once, since pass_rate since the start is 0, below 0.02: a fall has a negative below",
        ),
        ({"metric": "pass_rate", "below": 60.0}, "pass_rate is a share, between 0 and 1: give a bound within, such as"),
        ({"metric": "evaluation/pass@1", "below": 0.0}, "pass@1 is a share, between 0 and 1"),
        ({"metric": "pass_rate", "below": -2.0, "from_start": True}, "whose change lies between -1 and 1"),
        ({"metric": "evaluation/pass@4", "below": 0.1}, r"is not measured with evaluation.pass_at=\[1\]: add it there"),
        ({"metric": "evaluation/aime/pass@1", "below": 0.1}, "evaluation.suite has no set aime: add it there"),
        ({"metric": "reward/part/exact", "below": 0.1}, "reward/part/exact: the reward's parts are math"),
        ({"metric": "memory/peak_rss_gib", "above": 9.0}, "on the first rank only: set then=refuse_export"),
        ({"metric": "energy/joules_per_token", "above": 9.0}, "on the first rank only: set then=refuse_export"),
        ({"metric": "source/web/length_p90", "above": 900.0}, "on the first rank only: set then=refuse_export"),
        ({"metric": "plan/next_reason", "above": 0.0}, "plan/next_reason is no metric of a round"),
        ({"metric": "policy/reference_kl", "above": 2.0}, "is measured with a reference only: set objective.kl.coeff"),
    ],
)
def test_a_gate_that_cannot_work_is_refused(gate, message):
    with pytest.raises(UserError, match=message):
        check_gates(TrainConfig(task=TASK, gates=[GateConfig(**gate)]), ["math500"])


def test_gates_of_documented_kinds_are_accepted():
    fall = "{metric: evaluation/math500/pass@1, below: -0.02, from_start: true}"
    config = compose_config(["experiment=tiny", f"gates=[{fall}, {{metric: reward/part/number, below: 0.1}}]"])
    validate(config)
    check_gates(config, ["math500"])


def test_a_way_back_without_checkpoints_is_refused():
    config = TrainConfig(gates=[GateConfig(metric="pass_rate", below=0.1, then="back")])
    check_gates(config)
    config.checkpoint.every_rounds = 0
    config_of_guard = TrainConfig()
    config_of_guard.dynamics.guard, config_of_guard.checkpoint.every_rounds = True, 0
    with pytest.raises(UserError, match="dynamics.guard=true needs checkpoints to go back to: set checkpoint.every_ro"):
        check_gates(config_of_guard)
    with pytest.raises(UserError, match="needs checkpoints to go back to: set checkpoint.every_rounds above 0"):
        check_gates(config)


@pytest.fixture
def run(tmp_path):
    """Writes a run's records: evaluations fall at step 4, and the second round repeats itself."""
    gates = [
        GateConfig(metric="evaluation/pass@1", below=-0.05, from_start=True, then="refuse_export"),
        GateConfig(metric="completions/repetition_fraction", above=0.2, rounds=2),
    ]
    rate = {0: 0.5, 2: 0.55, 4: 0.4}
    rows = [{"step": step, "pass@1": {"value": value, "low": 0.0, "high": 1.0}, "pass@k": {}, "samples_per_problem": 1,
             "mean_length": 3.0, "truncated_fraction": 0.0} for step, value in rate.items()]  # fmt: skip
    (tmp_path / "evaluations.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    rounds = [
        {"step": step, "completions/repetition_fraction": value} for step, value in ((2, 0.0), (4, 0.3), (6, 0.3))
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rounds))
    config = TrainConfig(gates=gates)
    for step in (2, 4):
        checkpoint = tmp_path / "checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "state.json").write_text(
            json.dumps({"config": asdict(config), "score": None, "progress": {"step": step}})
        )
    return tmp_path, config


def test_a_model_is_judged_by_the_numbers_of_its_own_policy(run):
    output, config = run
    assert broken_gates(output, config, 0) == broken_gates(output, config, 2) == []
    # The third round, which ended at step 6, was sampled by the policy of step 4.
    assert broken_gates(output, config, 4) == [
        "evaluation/pass@1 since the start is -0.1, below -0.05",
        "completions/repetition_fraction is 0.3, above 0.2",
    ]


def test_a_model_to_which_a_run_went_back_is_judged_anew(tmp_path):
    gate = GateConfig(metric="completions/repetition_fraction", above=0.2, rounds=2, then="back")
    values = ((2, 0.0, False), (4, 0.3, False), (6, 0.3, True), (8, 0.3, False))
    rows = [{"step": step, gate.metric: value, "run/went_back": float(back)} for step, value, back in values]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    broken = [broken_gates(tmp_path, TrainConfig(gates=[gate]), step) for step in (2, 4, 6, 8)]
    # The policy of step 4 made the run go back. That of step 6 was beyond the bound in one round since.
    assert broken == [[], ["completions/repetition_fraction is 0.3, above 0.2"], [], []]


def test_an_export_of_a_model_beyond_its_gates_is_refused_unless_it_is_asked_for(run, tmp_path, capsys):
    checkpoint = run[0] / "checkpoints" / "step-00000004"
    assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 2
    assert "the model of step 4" in (said := capsys.readouterr().err) and "despite_gates=true" in said
    # The next reason is another one: this model was never there.
    assert main(["export", str(checkpoint), str(tmp_path / "out"), "despite_gates=true"]) == 2
    assert "gates" not in capsys.readouterr().err
    assert main(["export", str(checkpoint.with_name("step-00000002")), str(tmp_path / "out")]) == 2
    assert "gates" not in capsys.readouterr().err


def test_gates_see_a_rounds_derived_numbers_and_the_evaluation_of_its_policy(capsys):
    means = {"completions/length_mean": Mean(10.0, 2.0), "prompts/length_mean": Mean(4.0, 1.0)}
    reports = (StepReport(3, True, 1.0, 1e-6, 1.0, {}), StepReport(4, True, 1.0, 1e-6, 1.0, {}))
    statistics = RoundStatistics(1, 4, RoundPlan(2, 2, 1), means, {(1, 2): 1}, {"round": 1.0}, reports)
    watched = ("pass_rate", "policy/reference_kl", "evaluation/pass@1", "evaluation/nothing", "memory/peak_rss_gib")
    numbers = RoundNumbers([GateConfig(metric=metric, above=0.9) for metric in watched])
    assert numbers(statistics)["pass_rate"] == 0.5 and "evaluation/pass@1" not in numbers(statistics)
    result = {"pass@1": {"value": 0.25, "low": 0.0, "high": 1.0}, "pass@k": {}, "samples_per_problem": 1,
              "mean_length": 3.0, "truncated_fraction": 0.0}  # fmt: skip
    numbers.evaluated = {2: result}.get
    assert capsys.readouterr().err.startswith("grpo: gates: policy/reference_kl was not measured in this round, and")
    assert numbers(statistics)["evaluation/pass@1"] == 0.25
    numbers(statistics)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("grpo: gates: evaluation/nothing was not measured in this round")


def test_rounds_before_a_resumption_that_nothing_judged_leave_no_pass_rate_after_it():
    statistics = RoundStatistics(1, 4, RoundPlan(2, 2, 1), {}, {(1, 2): 1}, {"round": 1.0}, ())
    rounds = ({"reward/mean": 0.4}, {"reward/mean": 1.0, "pass_rate": 1.0}, {"completions/length_mean": 3.0})
    for rows, judged in ((rounds, False), (rounds[1:], True), ((), True)):
        numbers = RoundNumbers()
        numbers.go_on(rows)
        assert numbers.judges(statistics) is judged
