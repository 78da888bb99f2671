"""These tests hold that a checkpoint goes on under other settings, or is refused in one line before an engine starts. A
rank that cannot write one is named by all, and a crafted one writes nothing outside its folder."""

from types import SimpleNamespace

import pytest

from grpo.config import TrainConfig, UserError
from grpo.config.saved import check_resumed
from grpo.learner import resharding
from tests.fakes import SingleRank
from tests.learner.models import facts_of
from tests.learner.resume_cases import CHANGES, CRAFTED, LATER, LORA, REFUSED, STARTS


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    return facts_of(tmp_path_factory.mktemp("resume"), "resume_worker", timeout=500)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(CHANGES)), ids=lambda index: f"{CHANGES[index]}")
def test_a_checkpoint_goes_on_as_it_was_under_other_settings(facts, index):
    changed = facts["changes"][index]
    before, after = CHANGES[index]
    same = before.get("precision") == after.get("precision")
    assert changed["steps"] == [2, 2]
    # Weights of the tiny model are below 1, of which bfloat16 keeps eight bits.
    assert changed["away"] == 0 if same else 0 < changed["away"] < 2**-8
    straight, resumed = changed["norms"]
    assert resumed == pytest.approx(straight, rel=1e-5 if same else 1e-2)
    assert changed["left"]


@pytest.mark.slow
def test_every_rank_finds_a_checkpoint_whole_once_it_has_saved_it(facts):
    assert facts["late"] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(STARTS)), ids=lambda index: f"{STARTS[index]}")
def test_a_new_run_starts_with_the_weights_of_a_checkpoint(facts, index):
    started = facts["starts"][index]
    assert started["away"] == started["lost"] == 0
    assert started["steps"] == 1
    # The reference is the start; of adapters it is their base, from which one step has led away.
    adapted = LORA.items() <= STARTS[index][1].items()
    assert started["kl"] > 0.1 if adapted else abs(started["kl"]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_run_of_adapters_goes_on_bit_for_bit_without_its_base_in_the_checkpoint(facts, stage):
    adapted = facts["adapted"][stage - 1]
    # The base has 90,432 weights of four bytes.
    assert adapted["same"] and adapted["bytes"] < 4 * 90_000


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(REFUSED)), ids=lambda index: f"{REFUSED[index]}")
def test_a_checkpoint_that_does_not_fit_is_one_line_before_an_engine_starts(facts, index):
    refused = facts["refused"][index]
    assert REFUSED[index][-1] in refused["line"] and "\n" not in refused["line"]
    assert refused["early"]


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(CRAFTED)), ids=lambda index: f"{CRAFTED[index]}")
def test_a_parameter_whose_name_leads_elsewhere_is_refused_before_anything_is_written(facts, index):
    refused = facts["crafted"][index]
    assert f"names a parameter {CRAFTED[index][-1]!r}, which is a path and no name" in refused["line"]
    assert "\n" not in refused["line"]
    assert refused["escaped"] == refused["left"] == []


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(LATER)), ids=lambda index: f"{LATER[index]}")
def test_a_rank_that_cannot_write_its_shard_ends_all_at_once_and_loses_nothing(facts, index):
    full = facts["full"][index]
    failing = LATER[index][1]
    own, other = full["lines"][failing], full["lines"][1 - failing]
    assert own.startswith(f"the checkpoint of step 2 could not be written (rank {failing}: ") and "\n" not in own
    assert other == f"rank {failing} failed: {own}"
    # The deadline is sixty.
    assert full["seconds"] < 20
    assert full["left"] == ["step-00000001"]
    straight, again = full["norms"]
    assert again == straight and full["later"]


def lora(**values):
    config = TrainConfig()
    for name, value in values.items():
        setattr(config.model.lora, name, value)
    return config


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {"rank": 4}, "model.lora.rank=4 does not go on from a checkpoint of model.lora.rank=0"),
        ({"rank": 4}, {}, "model.lora.rank=0 does not go on from a checkpoint of model.lora.rank=4"),
        ({"rank": 4}, {"rank": 8, "alpha": 8.0}, "continue with model.lora.rank=4"),
        ({"rank": 4}, {"rank": 4, "alpha": 8.0}, "continue with model.lora.alpha=32.0"),
        ({"rank": 4}, {"rank": 4, "target_modules": "q_proj"}, "continue with model.lora.target_modules=all-linear"),
    ],
)
def test_other_adapters_are_refused_before_anything_is_loaded(before, after, said):
    with pytest.raises(UserError, match=said):
        check_resumed(lora(**before), lora(**after), 0)


def test_another_model_is_refused_before_anything_is_loaded():
    now = TrainConfig()
    now.model.source = "smollm2"
    with pytest.raises(UserError, match="is another model than .*: continue with model.source=hugg"):
        check_resumed(TrainConfig(), now, 0)


def test_settings_of_adapters_do_not_matter_without_any():
    check_resumed(lora(), lora(alpha=8.0, target_modules="q_proj"), 0)


def test_a_converted_checkpoint_that_does_not_load_is_removed(tmp_path, monkeypatch):
    def converted(shards, whole):
        whole.mkdir()
        (whole / "states.pt").write_bytes(b"gigabytes")

    def refuse(universal, tag):
        assert (tmp_path / universal / tag / "states.pt").exists()
        raise AssertionError("another model")

    monkeypatch.setattr(resharding, "_convert", converted)
    engine = SimpleNamespace(_config=SimpleNamespace(load_universal_checkpoint=False), load_checkpoint=refuse)
    with pytest.raises(AssertionError, match="another model"):
        resharding.load_resharded(engine, tmp_path, SingleRank())
    assert [*tmp_path.iterdir()] == [] and not engine._config.load_universal_checkpoint
