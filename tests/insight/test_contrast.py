"""These tests compare variants on runs whose truth is known."""

import json
import re
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy import stats

from grpo.cli import main
from grpo.config import UserError
from grpo.config.run import TrainConfig
from grpo.evaluation.pass_rates import crossed_difference
from grpo.insight.logs.finished_runs import load
from grpo.insight.pages.contrast import _level, contrast, not_below, over_seeds
from grpo.insight.pages.contrast_page import conclusion, courses, differently_asked, numbers, samples, write_contrast
from grpo.insight.pages.contrast_panels import PANELS, differences, learning
from grpo.insight.pages.contrast_tables import CAPTIONS, by_quarter, health, results, settings
from grpo.insight.pages.page import SHEET_INCHES
from grpo.insight.pages.pictures import picture
from grpo.insight.pages.style import STYLE
from grpo.insight.pages.yardstick import PASS_RATE
from grpo.sweep.cells import Cell
from grpo.sweep.ledger import DONE, State, begin_ledger
from grpo.telemetry.ending import FINISHED, INTERRUPTED, KILLED, Ending, Resumption, add_resumption, write_ending
from grpo.types import Interval
from tests.insight.structure import assert_well_made

pytestmark = pytest.mark.slow

NUM_PROBLEMS, TRIES = 40, 8
STEPS = (0, 10, 20, 30)


def write_run(folder, final, seed, exponent=1.0):
    """Writes a run of 30 steps of 8 × 4 completions, whose held-out pass rate goes in a straight line from .2 to
    `final`."""
    random = np.random.default_rng((seed, int(1000 * final), int(10 * exponent)))
    folder.mkdir(parents=True)
    config = asdict(TrainConfig())
    config["normalization"]["exponent"], config["seed"] = exponent, seed
    (folder / "config.json").write_text(json.dumps(config))
    rates = 0.2 + (final - 0.2) * np.arange(1, 31) / 30
    with (folder / "metrics.jsonl").open("w") as file:
        for step, rate in enumerate(rates, start=1):
            correct, groups = np.unique(random.binomial(4, rate, 8), return_counts=True)
            counts = [[int(k), 4, int(n)] for k, n in zip(correct, groups, strict=True)]
            row = {"step": step, "groups/counts": counts, "completions/length_mean": 100.0, "pass_rate": rate}
            row |= {"plan/refresh_interval": 1.0, "plan/group_size": 4.0, "time/sample_seconds": 2.0}
            file.write(json.dumps(row | {"policy/entropy": 0.5}) + "\n")
    with (folder / "evaluations.jsonl").open("w") as file:
        for step in STEPS:
            rate = 0.2 + (final - 0.2) * step / 30
            hardness = np.linspace(-0.15, 0.15, NUM_PROBLEMS)
            correct = random.binomial(TRIES, np.clip(rate + hardness, 0, 1))
            problems = [
                {"problem_id": f"p-{i}", "question": f"q {i}", "answer": "1", "correct": int(k), "total": TRIES}
                | {"completion": f"text {i}", "tokens": 80, "truncated": 0}
                for i, k in enumerate(correct)
            ]
            value = float(correct.mean() / TRIES)
            result = {"step": step, "pass@1": {"value": value, "low": value, "high": value}}
            result |= {"pass@k": {"1": {"value": value, "low": value, "high": value}}, "per_problem": problems}
            result |= {"samples_per_problem": TRIES, "mean_length": 80.0, "truncated_fraction": 0.0}
            file.write(json.dumps(result) + "\n")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    finals = {"base": 0.5, "same": 0.5, "better": 0.8, "worse": 0.3}
    return [
        load(write_run(root / f"{name}-seed{seed}", final, seed, exponent=0.0 if name == "same" else 1.0), name)
        for name, final in finals.items()
        for seed in range(5)
    ]


@pytest.fixture(scope="module")
def compared(runs):
    return contrast(runs)


def test_intervals_stay_within_what_is_possible_and_need_three_seeds():
    assert over_seeds([0.1, 0.9], 0.0, 1.0) == Interval(0.5, 0.5, 0.5)
    assert over_seeds([0.0, 0.5, 1.0], 0.0, 1.0) == Interval(0.5, 0.0, 1.0)
    few = over_seeds([0.4, 0.5, 0.6], 0.0, 1.0)
    assert (few.low, few.high) == (
        pytest.approx(0.5 - 4.3027 * 0.1 / 3**0.5, abs=1e-4),
        pytest.approx(0.7484, abs=1e-4),
    )


def test_every_panel_has_labels_and_no_legend_over_what_it_shows(compared):
    for panel in PANELS:
        figure = Figure(layout="constrained")
        axes = figure.add_subplot()
        panel(axes, compared)
        figure.draw_without_rendering()
        assert axes.get_xlabel() and axes.get_ylabel(), axes.get_title(loc="left")
        legend = axes.get_legend()
        assert legend is None or legend.get_window_extent().y1 < axes.get_window_extent().y0
        assert legend or axes.texts or panel is differences


def test_the_names_of_many_variants_have_room(compared):
    first, second, *_ = compared.variants
    others = [replace(second, name=f"reinforce_plus_plu{number:02}") for number in range(16)]
    with rc_context(STYLE):
        figure = Figure(figsize=(SHEET_INCHES[0], 2 * SHEET_INCHES[1]), layout="constrained")
        grid = dict(zip(PANELS[:4], figure.subplots(2, 2).flat, strict=True))
        for panel, axes in grid.items():
            panel(axes, replace(compared, variants=(first, *others)))
        figure.draw_without_rendering()
    for axes in grid.values():
        legend = axes.get_legend()
        assert legend is None or legend.get_window_extent().y0 >= 0
    labels = [label.get_window_extent() for label in grid[differences].get_yticklabels()]
    heights = sorted(label.y0 for label in labels)
    assert min(high - low for low, high in pairwise(heights)) > 0.7 * labels[0].height


def test_every_table_says_what_its_columns_mean(compared, tmp_path):
    write_contrast(compared, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert all(caption.split(".")[0] in page for caption in CAPTIONS.values())
    assert "Variants compared<br>base, same, better, worse" in page
    assert_well_made(page)


def test_spending_adds_up_round_by_round(runs):
    spent = runs[0].spent
    assert spent["samples"].tolist() == [0, 320, 640, 960]
    assert spent["tokens"].tolist() == [0, 32_000, 64_000, 96_000]
    assert spent["seconds"].tolist() == [0, 20, 40, 60]


def test_a_first_variant_that_gained_nothing_sets_no_level_to_reach(runs, tmp_path):
    down = [load(write_run(tmp_path / f"down-seed{seed}", 0.05, seed), "down") for seed in range(3)]
    shown = contrast([*down, *(run for run in runs if run.variant == "better")])
    header, *rows = results(shown)
    assert header[-2:] == ("reached", "tokens to there, ÷ down") and {row[-2:] for row in rows} == {("", "")}
    assert "with fewer sampled tokens" not in " ".join(conclusion(shown))
    axes = Figure().add_subplot()
    assert "dotted line" not in learning(axes, shown, "steps")
    assert not any(line.get_linestyle() == ":" for line in axes.lines)


def test_cost_is_read_off_the_monotone_curve(runs):
    values = (0.2, 0.3, 0.5, 0.4)  # monotone: .2, .3, .45, .45
    evaluations = [{"step": step, "pass@1": {"value": value}} for step, value in zip(STEPS, values, strict=True)]
    run = replace(runs[0], evaluations=evaluations)
    assert run.cost(0.4, "samples") == (pytest.approx(320 + 320 * 2 / 3), True)
    assert run.cost(0.46, "samples") == (960.0, False)
    assert run.cost(0.2, "tokens") == (0.0, True)


def test_a_better_variant_is_distinguished_from_an_equal_one(runs, compared):
    against = {variant.name: variant.against for variant in compared.variants[1:]}
    assert compared.base.name == "base" and compared.base.against is None
    assert against["better"].p < 0.01 and against["better"].difference.value == pytest.approx(0.3, abs=0.05)
    assert against["worse"].p < 0.01 and against["worse"].difference.value == pytest.approx(-0.2, abs=0.05)
    assert against["same"].p > 0.05
    assert against["same"].difference.low < 0 < against["same"].difference.high
    for one in against.values():
        assert (one.p < 0.05) == (not one.difference.low <= 0 <= one.difference.high)
        assert (one.tokens_p < 0.05) == (not one.tokens.low <= 1 <= one.tokens.high)
    first, last = (np.mean([run.held_out[index] for run in runs[:5]]) for index in (0, -1))
    assert compared.level == pytest.approx(first + 0.75 * (last - first))
    # Three quarters of the way to .5 at twice the speed: half of the tokens.
    assert against["better"].tokens.value == pytest.approx(0.5, abs=0.08)
    assert [variant.arrived for variant in compared.variants[2:]] == [5, 0]


def test_quarters_of_difficulty_are_of_the_rate_before_training(compared):
    for variant in compared.variants:
        changes = [quarter.value for quarter in variant.quarters]
        assert np.mean(changes) == pytest.approx(variant.last.value - variant.first, abs=1e-9)
    better = compared.variants[2].against.quarters
    assert all(quarter.low > 0 and quarter.value == pytest.approx(0.3, abs=0.12) for quarter in better)


def test_silence_agrees_with_its_law(compared):
    for variant in compared.variants:
        assert variant.silent == pytest.approx(variant.law, abs=0.05)


def test_the_conclusion_says_who_won_and_how_sure(compared):
    said = " ".join(conclusion(compared))
    assert re.search(r"better ended highest, at [78]\d\.\d% \[.*\], clearly above all others\.", said)
    assert re.search(r"clearly higher than base: better by \+[23]\d\.\d \[.*\] points \(5 of 5 seeds, p = ", said)
    assert re.search(r"clearly lower than base: worse by -[12]\d\.\d \[.*\] points \(5 of 5 seeds, p = ", said)
    assert "No clear difference from base (in points): same" in said
    assert "The comparison has 40 held-out problems and 5 seeds." in said
    assert "corrected for the 3 comparisons (Holm)" in said
    assert "by their signs alone nothing is sure, since all 5 agree by chance in 6.2% of cases" in said


def test_a_winner_that_others_may_equal_is_no_winner(runs, compared):
    groups = {name: [run for run in runs if run.variant == name] for name in ("base", "same", "better", "worse")}
    problems = sorted(runs[0].rates(-1))
    assert not_below(groups, "better", problems) == ()
    assert not_below({name: groups[name] for name in ("base", "same", "worse")}, "same", problems) == ("base",)
    two_seeds = {name: members[:2] for name, members in groups.items()}
    assert not_below(two_seeds, "better", problems) == ("base", "same", "worse")
    first = conclusion(replace(compared, rivals=("same",)))[0]
    assert first.endswith("These may be as good, since they are not clearly below it: same.")
    assert "but that decides nothing" in conclusion(replace(compared, rivals=("base", "same", "worse")))[0]


def test_a_seed_that_ends_level_agrees_with_neither_side(runs):
    worse = [run for run in runs if run.variant == "worse"]
    level = replace(next(run for run in runs if run.variant == "base" and run.seed == 4), variant="worse")
    shown = contrast([*(run for run in runs if run.variant == "base"), *worse[:4], level])
    assert (shown.variants[1].against.higher, shown.variants[1].against.lower) == (0, 4)
    assert "4 of 5 seeds" in " ".join(conclusion(shown))


def test_two_seeds_are_too_few_to_say(compared):
    first, *others = compared.variants
    few = [replace(variant, against=replace(variant.against, seeds=2)) for variant in others]
    said = " ".join(conclusion(replace(compared, variants=(first, *few))))
    assert "clearly higher" not in said and "clearly lower" not in said and "No clear difference" not in said
    assert "Nothing is decided: 2 seeds cannot show whether another would agree." in said
    ended = re.search(r"In held-out pass@1 same (.*) base and better (.*) base and worse (.*) base\. At least 3", said)
    assert [side.split()[-1] for side in ended.groups()] in (["above", "above", "below"], ["below", "above", "below"])


def test_one_seed_has_no_intervals_over_seeds(runs):
    alone = contrast([run for run in runs if run.seed == runs[0].seed])
    tokens = {row[0]: row[-1] for row in results(alone)[1:]}
    assert tokens["base"] == "1" and "[" not in tokens["better"]
    assert tokens["worse"].startswith("≥ "), "it never came so far"
    assert "[" not in by_quarter(alone)[1][1]
    assert "Reach" not in " ".join(conclusion(alone))


def test_only_the_settings_that_differ_are_shown(compared):
    assert settings(compared) == [
        ("key", "base", "same", "better", "worse"),
        ("normalization.exponent", "1.0", "0.0", "1.0", "1.0"),
    ]


def test_where_the_gradient_comes_from_is_said_of_the_dials_only(tmp_path):
    normalizations = {
        "grpo": {},
        "dr_grpo": {"exponent": 0.0},
        "batch": {"scope": "batch"},
        "best_of_k": {"name": "pass_at_k"},
        "gdpo": {"parts": "each"},
    }
    runs = []
    for name, changed in normalizations.items():
        folder = write_run(tmp_path / name, 0.5, 0)
        config = json.loads((folder / "config.json").read_text())
        config["normalization"] |= changed
        (folder / "config.json").write_text(json.dumps(config))
        runs.append(load(folder, name))
    header, *rows = health(contrast(runs))
    column = header.index("gradient from p < 0.1 or > 0.9")
    grpo, dr_grpo, batch, best_of_k, gdpo = (row[column] for row in rows)
    assert dr_grpo == batch != grpo != "", "a σ that all groups share weighs none of them"
    assert best_of_k == gdpo == ""


def test_results_have_a_row_a_variant_and_samples_each_ones_text(compared):
    header, *rows = results(compared)
    assert [row[0] for row in rows] == ["base", "same", "better", "worse"]
    assert len(set(map(len, [header, *rows]))) == 1
    for sample in samples(compared):
        writers = [text["facts"].partition(":")[0] for text in sample["rows"]]
        assert writers == ["before training", "base", "same", "better", "worse"]


def test_runs_on_other_problems_are_not_compared(runs, tmp_path):
    other = write_run(tmp_path / "other-seed0", 0.5, 0)
    lines = (other / "evaluations.jsonl").read_text().replace('"p-0"', '"q-0"')
    (other / "evaluations.jsonl").write_text(lines)
    with pytest.raises(UserError, match="other problems"):
        contrast([runs[0], load(other, "other")])


def test_a_problem_that_one_run_could_not_grade_is_left_out_of_all(runs):
    few = [run for run in runs if run.variant in ("base", "better")]
    *rows, last = few[-1].evaluations
    graded, lost = last["per_problem"][1:], last["per_problem"][:1]
    last = last | {"per_problem": graded, "ungraded_problems": lost, "ungraded": 1}
    shown = contrast([*few[:-1], replace(few[-1], evaluations=[*rows, last])])
    assert shown.problems == NUM_PROBLEMS - 1
    assert samples(shown)


def test_a_variant_has_the_pass_at_k_that_all_of_its_runs_have(runs):
    first, *others = [run for run in runs if run.variant == "base"]
    last = first.evaluations[-1]
    more = last | {"pass@k": last["pass@k"] | {"4": last["pass@1"]}}
    shown = contrast([replace(first, evaluations=[*first.evaluations[:-1], more]), *others])
    assert [*shown.base.pass_at] == ["1"]


def test_a_run_counts_once_where_several_have_its_seed(runs):
    two = [replace(run, seed=0) for run in runs if run.variant in ("base", "better") and run.seed < 2]
    against = contrast(two).variants[1].against
    assert (against.seeds, against.higher, against.telling) == (2, 2, False)


def test_variants_without_a_common_seed_are_not_paired(runs, tmp_path):
    alone = load(write_run(tmp_path / "alone-seed9", 0.5, 9), "alone")
    with pytest.raises(UserError, match="no seed in common"):
        contrast([runs[0], alone])


def test_the_command_compares_folders_and_names_variants_by_them(runs, tmp_path, capsys):
    folders = [str(run.folder) for run in runs if run.variant in ("base", "better") and run.seed < 2]
    assert main(["report", *folders, f"output={tmp_path}/out", "also=png,md"]) == 0
    assert "better" in capsys.readouterr().out
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| better | 2 |" in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert "http" not in page.replace("http://www.w3.org", ""), "a page that needs nothing else"
    assert (tmp_path / "out" / "report.png").stat().st_size > 10_000


def test_a_sweep_names_its_variants_without_what_they_share(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = ("run normalization=grpo lr=0.001", "run normalization=dr_grpo lr=0.001")
    cells = [Cell(f"{index}-seed0", name, 0, ()) for index, name in enumerate(names)]
    ledger = begin_ledger(tmp_path / "dial", cells, ["grpo"])
    for cell, final in zip(cells, (0.5, 0.8), strict=True):
        ledger.path(cell).rmdir()
        write_run(ledger.path(cell), final, 0)
        ledger.record(cell, State(DONE))
    assert main(["report", str(tmp_path / "dial"), "also=md"]) == 0
    printed = capsys.readouterr().out
    assert "dr_grpo" in printed and "normalization" not in printed
    text = (tmp_path / "dial" / "report.md").read_text()
    assert "| grpo | 1 |" in text and "| dr_grpo | 1 |" in text and "minus grpo" in text


def test_runs_in_folders_of_their_start_are_seeds_of_the_folder_around_them_or_variants(tmp_path, capsys):
    folders = [
        write_run(tmp_path / name / f"2026-11-23_19-02-1{seed}-4711", final, seed)
        for name, final in (("base", 0.5), ("better", 0.8))
        for seed in (0, 1)
    ]
    # This one has the same seed as another, so it is no further seed.
    changed = [
        write_run(tmp_path / "changed" / f"2026-11-23_19-02-1{index}-4711", 0.5, 0, exponent=index) for index in (0, 1)
    ]
    assert main(["report", *map(str, folders + changed), f"output={tmp_path}/out", "also=md"]) == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| base | 2 |" in text and "| better | 2 |" in text
    assert all(f"| changed/{folder.name} | 1 |" in text for folder in changed)
    assert main(["report", str(tmp_path / "base")]) == 2
    assert f"; `grpo report {tmp_path}/base/*` compares them" in capsys.readouterr().err


def test_runs_whose_names_end_in_numbers_are_seeds_only_if_nothing_but_the_seed_differs(tmp_path):
    other = [write_run(tmp_path / f"tau{value}", 0.5, 0, exponent=value) for value in (1, 4)]
    alike = [write_run(tmp_path / f"same{seed}", 0.5, seed) for seed in (0, 1)]
    assert main(["report", *map(str, other + alike), f"output={tmp_path}/out", "also=md"]) == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| tau1 | 1 |" in text and "| tau4 | 1 |" in text and "| same | 2 |" in text


def test_runs_that_were_resumed_or_have_not_finished_are_named(tmp_path):
    folders = [write_run(tmp_path / f"x-seed{seed}", 0.5, seed) for seed in range(3)]
    for folder, state in zip(folders, (FINISHED, INTERRUPTED, FINISHED), strict=True):
        write_ending(folder, Ending(state, 30))
    for step in (10, 20):
        add_resumption(folders[2], Resumption(step, f"step-{step:08d}", step, KILLED))
    assert courses(contrast([load(folder, "x") for folder in folders])) == [
        "Of 3 runs 1 had to be resumed: x-seed2 after steps 10 and 20.",
        "x-seed1 was interrupted at step 30 of 100; checkpoint.resume=true goes on.",
    ]


def test_variants_that_were_evaluated_differently_or_took_other_steps_are_not_compared_in_silence(tmp_path):
    folders = [write_run(tmp_path / name, final, 0) for name, final in (("a", 0.5), ("b", 0.8))]
    for folder, temperature in zip(folders, (1.0, 0.5), strict=True):
        write_ending(folder, Ending(FINISHED, 30))
        rows = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
        kept = rows if temperature == 1.0 else rows[:-1]
        (folder / "evaluations.jsonl").write_text(
            "".join(json.dumps(row | {"temperature": temperature}) + "\n" for row in kept)
        )
    compared = contrast([load(folder, folder.name) for folder in folders])
    said = (
        "The variants were evaluated differently, which alone may make a difference: temperature is 1.0 of a, 0.5 of b."
    )
    assert differently_asked(compared) == [said]
    header, *rows = results(compared)
    assert [row[header.index("p")] for row in rows] == ["", ""], "one seed says nothing of others"
    assert courses(compared) == ["The number of optimizer steps is 30 of a, 20 of b."]
    write_contrast(compared, tmp_path)
    assert f'<div class="verdict unsure"><p>{said}</p></div>' in (tmp_path / "report.html").read_text()


def test_a_folder_that_is_no_run_is_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "is the folder of no sweep, and of no run that has finished a round" in capsys.readouterr().err
    (tmp_path / "b").mkdir()
    assert main(["report", str(tmp_path), str(tmp_path / "b")]) == 2
    assert "give the output_dir of a run" in capsys.readouterr().err


def test_seconds_are_those_of_rounds_whatever_ran_beside_them_or_came_between(tmp_path):
    folder = write_run(tmp_path / "run", 0.5, 0)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    beside = {"time/round_seconds": 3.0, "time/wait_seconds": 1.0, "time/learn_seconds": 2.0, "time/save_seconds": 9.0}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row | beside) + "\n" for row in lines))
    assert load(folder, "run").spent["seconds"].tolist() == [0, 30, 60, 90]


def test_a_line_over_seconds_ends_where_its_runs_end_on_average_however_quick_one_was(runs):
    """The second of two seeds took twice as long."""
    fast, slow = [run for run in runs if run.variant == "base"][:2]
    slow = replace(slow, rows=[row | {"time/sample_seconds": 4.0} for row in slow.rows])
    figure = Figure()
    axes = figure.add_subplot()
    learning(axes, contrast([fast, slow]), "seconds")
    line = next(line for line in axes.lines if line.get_label() == "base")
    seconds, rates = line.get_data()
    assert seconds.tolist() == [0, 30, 60, 90], "the means of 0, 20, 40, 60 and of 0, 40, 80, 120"
    assert rates[-1] == pytest.approx((fast.held_out[-1] + slow.held_out[-1]) / 2)


def test_rounds_of_a_comparison_tell_whole_steps_with_their_own_values(compared):
    values = json.loads(picture(partial(PANELS[5], contrast=compared))["values"])
    assert [point[2] for point in values["series"][0]["points"]] == [str(step) for step in range(1, 31)]
    steps = json.loads(picture(partial(learning, contrast=compared, unit="steps"))["values"])
    assert [point[2] for point in steps["series"][0]["points"]] == ["0", "10", "20", "30"]


def test_the_second_number_says_what_the_best_is_ahead_of_also_where_the_best_is_the_first(compared):
    first, *others = compared.variants
    lead = numbers(replace(compared, variants=(first, *others), best="better"))[1]
    assert lead.name == "points above base" and lead.value.startswith("+")
    worse = next(variant for variant in others if variant.name == "worse")
    lead = numbers(replace(compared, variants=(first, worse), best="base"))[1]
    assert lead.name == "points above worse" and float(lead.value) == pytest.approx(20, abs=5)
    assert lead.note.startswith("95 % interval +1")
    assert numbers(replace(compared, variants=(first,)))[1].name == "change, in percentage points"


def test_a_comparison_links_to_the_reports_of_its_runs(compared, tmp_path):
    folder = compared.base.runs[0].folder
    (folder / "report.html").write_text("<nav></nav>")
    write_contrast(compared, folder.parent)
    assert f'<a href="{folder.name}/report.html">{folder.name}</a>' in (folder.parent / "report.html").read_text()
    assert '<a href="../report.html">' in (folder / "report.html").read_text()


def test_curves_that_hide_each_other_are_one_line_with_both_names(compared):
    first, *_ = compared.variants
    twin = replace(first, name="twin", against=compared.variants[1].against)
    axes = Figure().add_subplot()
    learning(axes, replace(compared, variants=(first, twin)), "steps")
    assert axes.get_legend_handles_labels()[1] == ["base = twin"] and axes.get_legend()


def test_the_interval_of_one_of_several_differences_is_corrected_as_its_p_value_is(runs, compared):
    alone = contrast([run for run in runs if run.variant in ("base", "worse")]).variants[1].against
    among = compared.variants[3].against
    width, wider = (one.difference.high - one.difference.low for one in (alone, among))
    factor = among.p / alone.p
    assert factor == pytest.approx(2) or factor == pytest.approx(3)
    # Five seeds leave four degrees of freedom.
    expected = stats.t.ppf(1 - 0.025 / factor, 4) / stats.t.ppf(0.975, 4)
    assert wider / width == pytest.approx(expected)


def test_a_difference_that_the_correction_leaves_open_has_an_interval_with_0():
    cells = np.array([[0.06], [0.10], [0.02], [0.09], [0.05]]) + np.linspace(-0.2, 0.2, 30)
    _, p = crossed_difference(cells)
    for corrected_p in (p, min(1.0, 10 * p), min(1.0, 40 * p)):
        interval, _ = crossed_difference(cells, _level(p, corrected_p))
        assert (corrected_p < 0.05) == (not interval.low <= 0 <= interval.high)


def write_rewarded_run(folder, seed, gain):
    """Writes a run whose problems have no answers. On problem i it earns i − 3 before training, and about `gain` more
    after it: 2 % less with seed 0, and 2 % more with seed 2."""
    write_run(folder, 0.5, seed)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {"groups/counts": [], "reward/mean": 1.5, "groups/silent_fraction": 0.25}
        del row["pass_rate"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluations = []
    for step in (0, 30):
        rewards = [i - 3 + gain * (1 + 0.02 * (seed - 1)) * (step > 0) for i in range(8)]
        problems = [
            {"problem_id": f"p{i}", "question": f"q {i}", "answer": "", "correct": 4, "total": 4, "reward": reward}
            | {"completion": f"text {i}", "tokens": 12, "truncated": 0}
            for i, reward in enumerate(rewards)
        ]
        evaluation = {"step": step, "problems": 8, "pass@1": {"value": 1.0}, "pass@k": {}, "per_problem": problems}
        evaluation |= {"mean_reward": sum(rewards) / 8, "samples_per_problem": 4, "mean_length": 3.0}
        evaluations.append(evaluation | {"truncated_fraction": 0.0})
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evaluations))
    return folder


def test_runs_whose_rewards_do_not_say_which_completions_are_right_are_compared_by_their_mean_rewards(tmp_path):
    gains = {"base": 1.0, "better": 3.5}
    runs = [
        load(write_rewarded_run(tmp_path / f"{name}-seed{seed}", seed, gain), name)
        for name, gain in gains.items()
        for seed in range(3)
    ]
    compared = contrast(runs)
    base, better = compared.variants
    # The mean of −3 … 4 is .5. Over the seeds the difference is 2.45, 2.5 and 2.55.
    assert (base.first, base.last.value, better.last.value) == pytest.approx((0.5, 1.5, 4.0))
    half_width = 4.3027 * 0.05 / 3**0.5
    difference = better.against.difference
    assert (difference.low, difference.high) == pytest.approx((2.5 - half_width, 2.5 + half_width), abs=1e-4)
    assert base.pass_at == {} and base.silent == 0.25
    header, *rows = results(compared)
    assert [row[2:5] for row in (header, *rows)] == [
        ("mean reward before", "after", "minus base"),
        ("0.5", "1.5 [1.45, 1.55]", ""),
        ("0.5", "4 [3.83, 4.17]", "+2.5 [+2.38, +2.62]"),
    ]
    assert [row[1:4] for row in health(compared)[1:]] == [("25.0%", "", "")] * 2
    assert conclusion(compared)[0] == (
        "These variants end clearly higher than base: better by +2.5 [+2.38, +2.62] of reward (3 of 3 seeds, "
        "p = 0.00013)."
    )
    assert "mean reward -2.02" in samples(compared)[0]["rows"][1]["facts"]
    write_contrast(compared, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "Held-out mean reward over" in page and "pass@1" not in page
    assert_well_made(page)


def test_a_run_whose_rewards_happen_to_be_0_and_1_is_compared_with_others_by_its_mean_reward(runs, tmp_path):
    rewarded = load(write_rewarded_run(tmp_path / "rewarded", 0, 1.0), "rewarded")
    by_chance = [
        evaluation | {"per_problem": [row | {"reward": 1.0} for row in evaluation["per_problem"]], "mean_reward": 1.0}
        for evaluation in rewarded.evaluations
    ]
    other = replace(rewarded, variant="other", evaluations=by_chance, yardstick=PASS_RATE)
    assert [variant.last.value for variant in contrast([other, rewarded]).variants] == pytest.approx([1.0, 1.48])
    with pytest.raises(UserError, match="base-seed0 was written by a version that recorded no mean rewards"):
        contrast([runs[0], rewarded])


def test_load_refuses_a_run_of_which_nothing_was_graded(tmp_path):
    folder = write_run(tmp_path / "run", 0.5, 0)
    rows = [json.loads(line) | {"groups/counts": []} for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="no completion of .* could be graded"):
        load(folder, "a")
