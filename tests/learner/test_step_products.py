"""These tests hold that the products of a step with the next gradient are those of the weights' real change."""

import json

import pytest
import torch

from grpo.learner.step_products import Products, StepProducts
from tests import warm
from tests.learner.models import tiny_llama

SETTINGS = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-3}
# Where decay is not decoupled from the gradient, it is part of the first moment.
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "Adam": (torch.optim.Adam, {"weight_decay": 0.0}),
    "NAdam": (torch.optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "RAdam": (torch.optim.RAdam, {"weight_decay": 0.0}),
    "Adamax": (torch.optim.Adamax, {"weight_decay": 0.0}),
}


def steps(kind, own_settings, num_steps=6):
    """Returns the products of each step, as measured and as the weights and gradients themselves give them."""
    torch.manual_seed(0)
    parts = [torch.nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in ((3, 4), (5,))]
    optimizer = kind(parts, **SETTINGS, **own_settings)
    meter, change, gradients = StepProducts(optimizer), None, []
    for step in range(num_steps):
        for part in parts:
            part.grad = torch.randn_like(part) + 0.5
        gradient = torch.cat([part.grad.flatten() for part in parts])
        before = torch.cat([part.detach().flatten() for part in parts])
        optimizer.step()
        expected = [0.0, 0.0, 0.0, float(gradient @ gradient)]
        if step:
            powers = torch.tensor([0.9 ** (step - 1 - k) for k in range(step)], dtype=torch.float64)
            mean = (powers[:, None] * torch.stack(gradients)).sum(0) / powers.sum()
            expected[:3] = [-float(change @ gradient), float(change @ change), float(mean @ gradient)]
        change = torch.cat([part.detach().flatten() for part in parts]) - before
        gradients.append(gradient)
        yield meter.take(SETTINGS | own_settings).tolist()[:4], expected


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_products_equal_those_of_the_change_of_all_weights(name):
    for measured, expected in steps(*OPTIMIZERS[name]):
        assert measured == pytest.approx(expected, rel=1e-6)


def test_products_are_the_same_in_small_pieces(monkeypatch):
    whole = [measured for measured, _ in steps(*OPTIMIZERS["AdamW"])]
    monkeypatch.setattr("grpo.learner.step_products.PIECE", 5)
    for pieces, expected in zip(steps(*OPTIMIZERS["AdamW"]), whole, strict=True):
        assert pieces[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("name", "products"), [("AdamW", 3), ("NAdam", 0)])
def test_a_first_step_after_a_checkpoint_is_measured_where_the_moments_suffice(name, products):
    kind, own_settings = OPTIMIZERS[name]
    weights = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([weights], **SETTINGS, **own_settings)
    meter = StepProducts(optimizer)
    for _ in range(3):
        weights.grad = torch.ones(3)
        optimizer.step()
        measured = meter.take(SETTINGS | own_settings).tolist()
        meter.go_on(meter.settings, meter.state())
    assert sum(value != 0 for value in measured[:3]) == products


def test_products_of_a_large_shard_are_estimated_from_pieces_that_take_turns(monkeypatch):
    weights = torch.nn.Parameter(torch.zeros(12))
    optimizer, meter = torch.optim.AdamW([weights], lr=0.0), None
    monkeypatch.setattr("grpo.learner.step_products.PIECE", 2)
    monkeypatch.setattr("grpo.learner.step_products.MOST", 4)
    meter, found = StepProducts(optimizer), []
    for _ in range(4):
        # Six pieces of two weights, of which every third is read, and counts three times.
        weights.grad = torch.arange(12.0)
        optimizer.step()
        found.append(meter.take(SETTINGS | {"weight_decay": 0.0}).tolist()[3])
    squares = [0 + 1, 4 + 9, 16 + 25, 36 + 49, 64 + 81, 100 + 121]
    thirds = [3.0 * (squares[start] + squares[start + 3]) for start in range(3)]
    assert found == [*thirds, thirds[0]]
    assert sum(thirds) / 3 == sum(squares)


def test_means_of_a_first_step_hold_nothing_and_later_ones_undo_clipping():
    assert all(mean.count == 0 for mean in Products(gradient=4.0).means(2.0, 0).values())
    # The gradient's norm was 6 and has been clipped to 2.
    first = {"slope": 0.5, "length": 1.0, "memory": 1.0, "gradient": 4.0}
    means = Products(**first, path_slope=2.0, path_length=25.0, path_gradient=4.0).means(6.0, 8)
    assert {name: mean.value for name, mean in means.items()} == {
        "step/gain": 1.5,
        "step/cosine": 0.25,
        "step/length": 1.0,
        "step/signal": 0.25,
        # Of eight steps together 6.
        "path/gain": 0.75,
        "path/cosine": 0.2,
        "path/steps": 8,
    }


@pytest.mark.parametrize("interrupted", [0, 5, 13])
def test_a_path_is_that_of_the_last_ten_to_twenty_steps_also_after_a_checkpoint(interrupted):
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weights], **SETTINGS)
    meter, before, lengths = StepProducts(optimizer), [], []
    for step in range(45):
        weights.grad = torch.randn_like(weights) + 0.5
        before.append(weights.detach().clone())
        gradient = weights.grad.clone()
        optimizer.step()
        *_, slope, length, squared = meter.take(SETTINGS | {"weight_decay": 0.0}).tolist()
        lengths.append(meter.path_steps)
        change = before[step] - before[step - lengths[-1]]
        assert slope == pytest.approx(-float(change @ gradient))
        assert length == pytest.approx(float(change @ change)) and squared == pytest.approx(float(gradient @ gradient))
        if step == interrupted:
            settings, state = dict(meter.settings), {name: copy.clone() for name, copy in meter.state().items()}
            meter.go_on({}, {})
            meter.go_on(settings, state)
    assert lengths == [*range(21), *(list(range(11, 21)) * 3)[:24]]


def test_a_path_begins_anew_where_the_checkpoint_has_other_shards():
    weights = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weights], **SETTINGS)
    meter = StepProducts(optimizer)
    lengths = []
    for step in range(6):
        weights.grad = torch.ones(3)
        optimizer.step()
        meter.take(SETTINGS | {"weight_decay": 0.0})
        lengths.append(meter.path_steps)
        if step == 3:
            meter.go_on(meter.settings, {})
    assert lengths == [0, 1, 2, 3, 0, 1]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("products")
    model = tiny_llama(folder / "model")
    facts = {}
    for ranks in (1, 2):
        file = folder / f"{ranks}.json"
        done = warm.ranks(ranks, ["-m", "tests.learner.products_worker", model, file], warm.LEARNER)
        assert done.returncode == 0, done.stderr
        facts |= {f"{ranks} ranks, {case}": facts_ for case, facts_ in json.loads(file.read_text()).items()}
    return facts


@pytest.mark.slow
def test_every_stage_and_number_of_ranks_measures_the_products_of_its_own_shards(cases):
    assert len(cases) == 15
    for case, facts in cases.items():
        for measured, expected in zip(facts["measured"][2:], facts["expected"], strict=True):
            assert measured == pytest.approx(expected, rel=2e-3, abs=1e-5), case


@pytest.mark.slow
def test_gains_are_the_same_on_any_number_of_ranks_and_at_every_stage(cases):
    first, *others = [
        facts["measured"] for case, facts in cases.items() if "float32" in case and "adapters" not in case
    ]
    for other in others:
        for step, expected in zip(other[1:], first[1:], strict=True):
            assert step == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.slow
def test_a_resumed_learner_measures_its_first_step_as_one_that_went_on(cases):
    for case, facts in cases.items():
        assert facts["resumed"] == pytest.approx(facts["measured"][-1], rel=1e-9), case
