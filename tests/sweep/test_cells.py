"""These tests check what the words of `grpo sweep` mean."""

import pytest

from grpo.config import UserError
from grpo.config.sweep import SweepConfig
from grpo.sweep.cells import cells_of

TWO = {"grpo": ["normalization=grpo"], "dr_grpo": ["normalization=dr_grpo"]}


def test_each_seed_of_each_variant_is_a_cell_and_seeds_come_one_after_another():
    cells = cells_of(SweepConfig(variants=TWO, seeds=2), ["experiment=tiny"])
    assert [cell.name for cell in cells] == ["grpo-seed0", "dr_grpo-seed0", "grpo-seed1", "dr_grpo-seed1"]
    assert cells[3].overrides == ("experiment=tiny", "normalization=dr_grpo", "seed=1")


def test_the_folder_of_an_experiments_own_run_does_not_stop_a_sweep_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint = tmp_path / "runs" / "tiny" / "checkpoints" / "step-00000020"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
    assert len(cells_of(SweepConfig(variants=TWO, seeds=1), ["experiment=tiny"])) == 2


def test_words_in_hydras_syntax_multiply_the_variants():
    cells = cells_of(SweepConfig(variants=TWO, seeds=1), ["experiment=tiny", "learner.learning_rate=0.0001,0.0003"])
    assert [cell.variant for cell in cells] == [
        "grpo learning_rate=0.0001",
        "grpo learning_rate=0.0003",
        "dr_grpo learning_rate=0.0001",
        "dr_grpo learning_rate=0.0003",
    ]
    assert cells[1].name == "grpo-learning_rate-0.0003-seed0"
    assert cells[1].overrides == ("experiment=tiny", "normalization=grpo", "learner.learning_rate=0.0003", "seed=0")


def test_variants_with_other_problems_are_named_before_any_run(capsys):
    cells_of(SweepConfig(variants={"base": ["experiment=tiny"]}), ["learner.learning_rate=1e-3,2e-3"])
    assert capsys.readouterr().err == ""
    cells_of(SweepConfig(variants={"base": ["experiment=tiny"]}), ["task.data.options.max=9,29"])
    said = capsys.readouterr().err
    assert said.startswith("grpo: the variants base max=9 and base max=29 differ in task.data and so in held-out")


def test_a_word_that_every_variant_replaces_is_refused():
    with pytest.raises(UserError, match="^normalization=grpo has no effect, since every variant of this sweep sets"):
        cells_of(SweepConfig(variants=TWO, seeds=1), ["experiment=tiny", "normalization=grpo"])


def test_a_dry_run_is_no_run_of_a_sweep():
    with pytest.raises(UserError, match="the variant grpo: dry_run=true trains nothing: try one run by `grpo train`"):
        cells_of(SweepConfig(variants=TWO, seeds=1), ["experiment=tiny", "dry_run=true"])


def test_all_spend_alike():
    # The tiny experiment takes 40 steps of 16 prompts × 8 completions.
    words = ["experiment=tiny", "dynamics.prompts_per_step=16", "dynamics.group_size=8"]

    def budget(**settings):
        return cells_of(SweepConfig(variants=TWO, seeds=1, **settings), words)[0].overrides[-2]

    assert budget(budget="samples") == "limits.samples=5120"
    assert budget(budget="samples", amount=900) == "limits.samples=900"
    assert budget(budget="tokens", amount=900) == "limits.tokens=900"
    assert budget(budget="steps", amount=7) == "num_steps=7"
    assert budget(budget="steps") == "normalization=grpo"


def test_a_run_on_the_cpu_uses_no_gpu():
    cells = cells_of(SweepConfig(variants=TWO, seeds=1), ["experiment=tiny", "device=cpu"])
    assert [cell.gpus for cell in cells] == [0, 0]


def test_a_run_of_smaller_groups_has_the_steps_for_its_samples():
    variants = {
        "G8": ["dynamics.group_size=8"],
        "G2": ["dynamics.group_size=2"],
        "twice": ["dynamics.group_size=8", "dynamics.passes=2", "dynamics.refresh_interval=2"],
        "adaptive": ["dynamics=adaptive", "dynamics.adaptive.smallest_group=4"],
    }
    words = ["experiment=tiny", "dynamics.prompts_per_step=16"]
    cells = cells_of(SweepConfig(variants=variants, seeds=1, budget="samples"), words)
    assert [cell.overrides[-3:-1] for cell in cells] == [
        ("dynamics.group_size=8", "limits.samples=5120"),
        ("limits.samples=5120", "num_steps=160"),
        ("limits.samples=5120", "num_steps=80"),
        ("limits.samples=5120", "num_steps=80"),
    ]


@pytest.mark.parametrize(
    ("settings", "words", "message"),
    [
        (
            {"variants": TWO, "budget": "steps", "amount": 7},
            ["num_steps=40"],
            "num_steps=40 of the variant grpo has no effect, since the sweep's budget sets num_steps=7: leave it out",
        ),
        (
            {"variants": TWO, "budget": "samples", "amount": 128},
            ["limits.samples=64,128"],
            "limits.samples=64 of the variant grpo samples=64 has no effect, since the sweep's budget sets",
        ),
        (
            {"variants": TWO, "budget": "samples", "amount": 5},
            ["experiment=tiny"],
            "amount=5 samples are less than a round of the variant grpo, which has 128: raise it",
        ),
        ({"variants": {}}, [], "needs `variants`, which map a name to a list of overrides"),
        ({"variants": TWO, "seeds": 0}, [], "seeds=0 must be above 0"),
        ({"variants": TWO, "seeds": 1, "amount": -1}, [], "amount=-1 must not be negative"),
        ({"variants": TWO, "budget": "money"}, [], "budget='money' is unknown: choose one of steps"),
        ({"variants": TWO, "budget": "tokens"}, [], "budget=tokens needs an amount"),
        (
            {"variants": TWO},
            ["learner.learning_rat=1"],
            "the variant grpo: unknown config key learner.learning_rat; did",
        ),
        ({"variants": TWO, "seeds": 10**6}, [], "this sweep has 2,000,000 runs, and 10,000 are the most: lower seeds"),
        ({"variants": TWO}, ["learner.learning_rate=glob(*)"], r"learning_rate=glob\(\*\): name the values or choices"),
        ({"variants": {"a": ["seed=1"]}}, [], "the variant a: seed=1 has no effect, since a sweep gives each run its"),
        (
            {"variants": TWO},
            ["checkpoint.resume=true"],
            "has no effect, since the same command continues a sweep: leave",
        ),
        ({"variants": TWO}, ["seed=1,2"], "seed=1 has no effect, since a sweep gives each run its seed: seeds=N says"),
        ({"variants": {"a": ["num_steps=0"]}}, [], "the variant a: num_steps=0 must be above 0"),
        (
            {"variants": {"a": ["num_steps=7"], "b": ["num_steps=7.0"]}},
            [],
            "the variants a and b have the same configuration: leave one of them out",
        ),
        (
            {"variants": TWO},
            ["learner.learning_rate=1e-4,0.0001"],
            "the variant grpo learning_rate=0.0001 comes twice: give each value once",
        ),
        (
            {"variants": {"a b": ["num_steps=7"], "a-b": ["num_steps=8"]}},
            [],
            "the variants a b and a-b would share a folder: give one of them another name",
        ),
    ],
)
def test_a_sweep_that_cannot_run_is_refused_before_any_run(settings, words, message):
    with pytest.raises(UserError, match=message):
        cells_of(SweepConfig(**settings), ["experiment=tiny", *words])


@pytest.mark.parametrize(
    ("word", "verb"),
    [
        ("hardware=one", "train"),
        ("hardware=node", "launch"),
        ("hardware.hosts=[a] hardware.shell=ssh", "launch"),
        ("hardware.ranks_per_node=2", "launch"),
    ],
)
def test_a_run_of_several_ranks_or_on_named_machines_is_launched(word, verb):
    [cell] = cells_of(SweepConfig(variants={"run": []}, seeds=1), ["experiment=tiny", *word.split()])
    assert cell.verb == verb


def test_a_models_folder_needs_no_word_on_its_source_as_in_a_run(tmp_path):
    words = ["experiment=tiny", "model.source=local", f"model.path={tmp_path}", "learner.learning_rate=1e-3,2e-3"]
    assert len(cells_of(SweepConfig(variants={"base": []}, seeds=1), words)) == 2
