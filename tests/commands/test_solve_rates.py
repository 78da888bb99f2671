"""These tests run `grpo solve-rates` on the tiny model, and check what follows from measured rates."""

import json
import shlex
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from benchmarks.runs import rows
from grpo.commands.solve_rates import _begun, _measure, _require_same
from grpo.config import DataConfig, SelectionConfig, TrainConfig, UserError
from grpo.config.hydra import compose_config
from grpo.dynamics.difficulty import Difficulty
from grpo.insight.pages.solve_rates import analysed, mass, reasons, recommended, silent_share, write_solve_rates
from grpo.insight.plans.planning import balanced_exponent, speaking_band
from grpo.run.clocks import Clocks
from grpo.run.measured_model import Candidate
from grpo.tasks.problem_selection import select
from grpo.tasks.solve_rates import read_solve_rates
from grpo.tasks.sources import load_problems
from grpo.telemetry.phases import Phases
from grpo.types import Grade, Problem, ScoredGroup
from tests import warm
from tests.fakes import ScriptedSampler, ScriptedTask, SingleRank, on_ranks
from tests.full_disk import files_up_to
from tests.insight.structure import assert_well_made
from tests.runs import grpo

# Sums of 0 to 8.
WORDS = ["experiment=tiny", "evaluation.samples_per_problem=4", "task.data.options.max=8"]


def measured(config, sampler, collective):
    return Candidate(sampler, Clocks(config, Phases(collective.rank)), collective, [], None)


@pytest.mark.parametrize("done", [0, 1, 2, 4])
def test_rows_are_in_the_streams_order_wherever_three_ranks_begin(tmp_path, done):
    config = TrainConfig(output_dir=str(tmp_path))
    config.evaluation.samples_per_problem = 2

    def measure(collective):
        task = ScriptedTask([(1, 0)] * 9, collective.rank, collective.world_size)
        task.num_problems = 9
        _measure(task, measured(config, ScriptedSampler(), collective), config, done)

    on_ranks(3, measure)
    assert [row["problem_id"] for row in rows(tmp_path / "solve_rates.jsonl")] == [f"p{i}" for i in range(done, 9)]


@pytest.mark.parametrize(
    ("left", "kept", "done"),
    [('{"a": 1}\n{"a": 2}\n{"a', '{"a": 1}\n{"a": 2}\n', 2), ('{"a', "", 0), ('{"a": 1}\n', '{"a": 1}\n', 1)],
)
def test_a_command_that_goes_on_cuts_off_half_a_line_also_where_the_disk_is_full(tmp_path, left, kept, done):
    config = TrainConfig(output_dir=str(tmp_path))
    assert _begun(tmp_path, config) == 0
    rates = tmp_path / "solve_rates.jsonl"
    rates.write_text(left)
    with files_up_to(1):
        assert _begun(tmp_path, config) == done
    assert rates.read_text() == kept


def test_rates_that_were_begun_with_other_problems_are_not_continued(tmp_path):
    rates = tmp_path / "solve_rates.jsonl"
    rates.write_text('{"problem_id": "a", "answer": "1"}\n{"problem_id": "b"}\n')
    _require_same(rates, {("a", "1"), ("b", ""), ("c", "3")})
    with pytest.raises(
        UserError, match="was begun with other problems: a had the answer '1', and the data have no such"
    ):
        _require_same(rates, {("a", "2"), ("b", "")})


def test_rates_that_were_begun_with_other_settings_are_not_continued(tmp_path):
    config = TrainConfig(output_dir=str(tmp_path))
    _begun(tmp_path, config)
    (tmp_path / "solve_rates.jsonl").write_text('{"a": 1}\n')
    config.evaluation.temperature = 0.5
    with pytest.raises(UserError, match="was begun with evaluation.temperature=1.0, but now it is 0.5: choose"):
        _begun(tmp_path, config)
    config.evaluation.temperature, config.task.limits.turns = 1.0, 2
    with pytest.raises(UserError, match="was begun with task.limits.turns=8, but now it is 2"):
        _begun(tmp_path, config)
    config.task.limits.turns, config.num_steps = 8, 7
    assert _begun(tmp_path, config) == 1


def test_settings_that_could_not_be_written_to_their_end_are_not_left_in_part(tmp_path):
    with pytest.raises(OSError), files_up_to(100):
        _begun(tmp_path, TrainConfig(output_dir=str(tmp_path)))
    assert not [*tmp_path.iterdir()]
    assert _begun(tmp_path, TrainConfig(output_dir=str(tmp_path))) == 0


class AskedOnce(ScriptedTask):
    """This task asks `problems` in order. The last one's group cannot be graded."""

    def __init__(self, problems):
        super().__init__([(1, 0)] * len(problems))
        self.problems, self.num_problems = problems, len(problems)

    def next_prompts(self, count):
        return [
            replace(prompt, problem=self.problems[place]) for place, prompt in enumerate(super().next_prompts(count))
        ]

    def grade(self, groups):
        places = [self.problems.index(group.prompt.problem) for group in groups]
        grades = [
            tuple(
                Grade(0.0, place == 0 and sample == 0, {}, "unanswered" if place == 2 else "graded")
                for sample in (0, 1)
            )
            for place in places
        ]
        return [ScoredGroup(group, own, (True, True)) for group, own in zip(groups, grades, strict=True)]


def test_the_file_of_rates_asks_the_same_problems_and_has_no_rate_of_what_could_not_be_graded(tmp_path):
    config = TrainConfig(output_dir=str(tmp_path))
    config.evaluation.samples_per_problem = 2
    talk = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"})
    problems = [
        # The data's answers stand in another column, and so does a day, which JSON does not know.
        Problem("a", "1 + 1?", "2", {"answer": "1 + 1 is 2", "problem": "sums", "day": date(2026, 11, 23)}),
        Problem("b", "2 + 2?", "4", {}, talk),
        Problem("c", "3 + 3?", "6"),
    ]
    _measure(AskedOnce(problems), measured(config, ScriptedSampler(), SingleRank()), config, done=0)
    path = tmp_path / "solve_rates.jsonl"
    assert [row["solve_rate"] for row in rows(path)] == [0.5, 0.0, None]
    read, _ = load_problems(DataConfig(path=str(path), id_column="problem_id"))
    asked = [(problem.problem_id, problem.question, problem.answer, problem.messages) for problem in problems]
    assert [(problem.problem_id, problem.question, problem.answer, problem.messages) for problem in read] == asked
    assert read_solve_rates(path)[:3] == ([0.5, 0.0], 1, 2)
    write_solve_rates([*rows(path), rows(path)[1] | {"solve_rate": 0.5}], path, "solve_rate", 1.0)
    assert "2 + 2?" in (tmp_path / "solve_rates.html").read_text()
    with pytest.raises(UserError, match="no problem of .* has a rate, since none could be graded"):
        write_solve_rates(rows(path)[2:], path, "solve_rate", 1.0)


@pytest.mark.slow
def test_rates_are_written_row_by_row_and_a_stopped_run_goes_on(tmp_path):
    output = tmp_path / "rates"
    done = grpo("solve-rates", *WORDS, f"output_dir={output}", timeout=500)
    assert done.returncode == 0, done.stderr
    path = output / "solve_rates.jsonl"
    whole = path.read_text()
    table = rows(path)
    assert len({row["problem_id"] for row in table}) == len(table) == 81
    assert all(row["solve_rate"] == row["solve_rate_correct"] / 4 for row in table)
    assert all(row["solve_rate_low"] <= row["solve_rate"] <= row["solve_rate_high"] for row in table)
    assert 0.1 < np.mean([row["solve_rate"] for row in table]) < 0.6, "the tiny model starts at about a third"
    assert "<svg" in (output / "solve_rates.html").read_text()

    lines = whole.splitlines(keepends=True)
    path.write_text("".join(lines[:64]) + lines[64][:40])
    again = warm.ranks(2, ["-m", "grpo.cli", "solve-rates", *WORDS, f"output_dir={output}"], timeout=500)
    assert again.returncode == 0, again.stderr
    assert path.read_text() == whole, "the same samples in the same order, whether stopped or not, on one rank or two"


def hard_and_even(hard):
    return Difficulty(np.array([hard, 0.5]), np.array([0.5, 0.5]))


def test_the_band_is_where_half_of_the_groups_speak():
    low, high = speaking_band(8)
    assert low**8 + (1 - low) ** 8 == pytest.approx(0.5, abs=0.005)
    assert low == pytest.approx(0.083, abs=0.001)
    assert high == 1 - low


def test_the_exponent_rises_until_hard_problems_get_their_share():
    # α = 0: .1·.9 = .09 against .25: 26 % for the hard half. α = 1: .3 against .5: 37.5 %, at G = 64 nearly so.
    assert balanced_exponent(hard_and_even(0.1), 64) == 1.5
    assert balanced_exponent(hard_and_even(0.3), 64) == 0.0
    assert balanced_exponent(hard_and_even(0.5), 64) == 0.0


def test_silence_and_gradient_are_those_of_the_difficulties_behind_the_counts():
    random = np.random.default_rng(0)
    rates = random.choice([0.05, 0.5, 0.95], 4000)
    difficulties = analysed([(int(k), 16) for k in random.binomial(16, rates)], exponent=1.0)
    # (.05⁸ + .95⁸ + .5⁷ + .95⁸ + .05⁸) / 3 = .4449
    assert silent_share(difficulties, 8) == pytest.approx(0.445, abs=0.02)
    shares = mass(difficulties, 0.0, 64)
    # p(1−p): .0475 at both ends, .25 in the middle.
    assert shares[2:4].sum() == pytest.approx(0.25 / 0.345, abs=0.05)
    assert shares.sum() == pytest.approx(1.0)
    # MaxRL: (1−p) − (1−p)⁶⁴ is .9125, .5 and .05.
    hard = mass(difficulties, 0.0, 64, mean_exponent=1.0)
    assert hard[:2].sum() == pytest.approx(0.9125 / 1.4625, abs=0.05)


def test_problems_that_few_samples_have_failed_by_bad_luck_are_not_to_be_left_out():
    """Every problem is solved at a rate of .35. So .65⁴ + .35⁴ = 19 % of them seem never or always solved."""
    correct = np.random.default_rng(0).binomial(4, 0.35, 900)
    even = analysed([(int(k), 4) for k in correct], exponent=1.0)
    assert even.kept == pytest.approx(0.806, abs=0.03) and even.within > 0.95
    assert not any("selection" in word for word in recommended(even, "rate", Path("rates.jsonl")))
    assert "would leave out" in reasons(even)[1] and "most of them by bad luck" in reasons(even)[1]
    hard = np.concatenate([correct, np.zeros(900, int)])
    uneven = analysed([(int(k), 4) for k in hard], exponent=1.0)
    words = recommended(uneven, "rate", Path("rates.jsonl"))
    assert uneven.within < 0.7 and "'task.data.selection.solve_rate=[0.083,0.917]'" in words


@pytest.mark.slow
def test_the_page_says_what_to_do_with_the_rates(tmp_path, capsys):
    counts = Counter({0: 10, 3: 20, 6: 15, 8: 5})
    table = [
        {"problem": f"q {k}", "answer": "1", "solve_rate": k / 8, "solve_rate_correct": k, "solve_rate_samples": 8}
        for k, number in counts.items()
        for _ in range(number)
    ]
    path = tmp_path / "solve_rates.jsonl"
    path.write_text("\n".join(map(json.dumps, table)))
    write_solve_rates(table, path, "solve_rate", 1.0)
    printed = capsys.readouterr().out
    assert "50 problems × 8 samples: mean pass rate 47.5%, 20.0% never and 10.0% always solved" in printed
    assert "recommended settings: dynamics.group_size=" in printed
    page = (tmp_path / "solve_rates.html").read_text()
    assert page.count("<svg") == 4 and "q 3" in page and "http" not in page.replace("http://www.w3.org", "")
    assert_well_made(page)


def test_recommended_words_can_follow_the_measured_words(tmp_path, capsys):
    """The data have other columns than the file of rates, and a reason before each answer."""
    (tmp_path / "my rates").mkdir()
    path = tmp_path / "my rates" / "solve_rates.jsonl"
    table = [{"problem": f"{k} + 0", "answer": f"{k}", "solve_rate": 0.0 if k < 9 else 0.5} for k in range(18)]
    counts = [{"solve_rate_correct": int(8 * row["solve_rate"]), "solve_rate_samples": 8} for row in table]
    path.write_text("\n".join(json.dumps(row | count) for row, count in zip(table, counts, strict=True)))
    write_solve_rates(rows(path), path, "solve_rate", 1.0)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("recommended settings: "))
    for measured_words in (["task=gsm8k"], ["task=arithmetic"], ["experiment=tiny"]):
        config = compose_config([*measured_words, *shlex.split(line.partition(": ")[2])])
        kept, _ = select(load_problems(config.task.data, config.task.reward)[0], config.task.data.selection)
        assert [problem.answer for problem in kept] == [f"{k}" for k in range(9, 18)]


def test_rates_of_a_sample_each_recommend_nothing(tmp_path, capsys):
    table = [{"problem": f"q {k}", "answer": "1", "solve_rate": float(k % 2)} for k in range(30)]
    table = [row | {"solve_rate_correct": int(row["solve_rate"]), "solve_rate_samples": 1} for row in table]
    write_solve_rates(table, tmp_path / "solve_rates.jsonl", "solve_rate", 1.0)
    printed, page = capsys.readouterr().out, (tmp_path / "solve_rates.html").read_text()
    said = "Too few samples to say which problems are worth training on: 1 of each problem."
    assert said in printed and said in page and "evaluation.samples_per_problem=8" in page
    assert "recommended" not in printed and "Recommended" not in page and page.count("<svg") == 2
    assert "30 problems × 1 sample" in page and "0% of the problems are worth" not in page


def test_weighted_training_reads_the_column(tmp_path):
    problems = [Problem(f"p-{k}", f"q {k}", "1", {"solve_rate": k / 8}) for k in range(9)]
    kept, _ = select(problems, SelectionConfig(solve_rate_column="solve_rate", solve_rate=[0.25, 0.75]))
    assert [problem.problem_id for problem in kept] == ["p-2", "p-3", "p-4", "p-5", "p-6"]
    with pytest.raises(UserError, match="needs a column 'rates'"):
        select(problems, SelectionConfig(solve_rate_column="rates", solve_rate=[0.25, 0.75]))
