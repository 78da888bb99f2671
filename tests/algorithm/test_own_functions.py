"""These tests hold that a user's function is used if it fits, and refused in one line before anything starts if not."""

import re
import sys
from pathlib import Path

import pytest
import torch

from grpo.algorithm.aggregation import AGGREGATIONS
from grpo.algorithm.kl import ESTIMATORS
from grpo.algorithm.normalization import NORMALIZATIONS
from grpo.algorithm.probe import check_functions, check_objective
from grpo.algorithm.token_losses import OBJECTIVES
from grpo.algorithm.token_selection import SELECTIONS
from grpo.config import AggregationConfig, KlConfig, NormalizationConfig, ObjectiveConfig, TrainConfig, UserError
from grpo.config.ranges import CHOICES, IMPORTED
from grpo.config.validate import validate
from grpo.run.preflight import check_own_functions

from .own import divided, soft_clip
from .peer_inputs import NEW, OLD, flat
from .test_loss import loss_of, micro_batch, objective

README = Path(__file__).resolve().parents[2] / "grpo/algorithm/README.md"
OWN = "tests.algorithm.own"


def check(name=None, level="token_mean", estimator="k3", normalization="dial", ratio="token"):
    settings = ObjectiveConfig(
        name=name or "clip", ratio=ratio, aggregation=AggregationConfig(level=level), kl=KlConfig(estimator=estimator)
    )
    check_functions(NormalizationConfig(name=normalization), settings)


@pytest.mark.parametrize(
    "fitting",
    [
        {},
        {"name": f"{OWN}:soft_clip"},
        {"name": f"{OWN}:soft_clip", "ratio": "sequence"},
        {"level": f"{OWN}:square_root"},
        {"estimator": f"{OWN}:absolute"},
        {"normalization": f"{OWN}:only_positive"},
    ],
)
def test_a_function_that_fits_is_accepted(fitting):
    check(**fitting)


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (
            {"name": "no_such_package:loss"},
            "objective.name=no_such_package:loss cannot be imported: ModuleNotFoundError",
        ),
        ({"name": f"{OWN}:no_such_function"}, "cannot be imported: AttributeError"),
        ({"name": f"{OWN}:NUMBER"}, "is of type float, and no function or class"),
        ({"name": f"{OWN}:scalar"}, "shape () where a float tensor with one value per token, (10,), is needed"),
        ({"name": f"{OWN}:mean_of_all"}, "depend on the other completions of its micro-batch"),
        ({"name": f"{OWN}:without_gradient"}, "have no gradient"),
        ({"name": f"{OWN}:infinite"}, "are not finite"),
        ({"name": f"{OWN}:broken"}, "it raised AttributeError"),
        ({"level": f"{OWN}:negative"}, "objective.aggregation.level=tests.algorithm.own:negative was tried"),
        ({"estimator": f"{OWN}:batch_centered"}, "depend on the other completions"),
        ({"normalization": f"{OWN}:first_is_best"}, "depends on where it stands in its group"),
        ({"normalization": f"{OWN}:divided"}, "are not finite"),
    ],
)
def test_a_function_that_does_not_fit_is_refused_with_the_reason(faulty, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check(**faulty)


@pytest.mark.parametrize("name", ["clip", "cispo", "unclipped", "sapo", "dppo", "gmpo"])
@pytest.mark.parametrize("ratio", ["token", "sequence", "sequence_token"])
def test_the_built_in_objectives_pass_the_same_checks(name, ratio):
    check_objective(OBJECTIVES[name], ObjectiveConfig(name=name, ratio=ratio))


def test_the_config_knows_every_function_by_its_name():
    tables = {
        "objective.name": OBJECTIVES,
        "objective.selection.name": {"none": None, **SELECTIONS},
        "objective.aggregation.level": AGGREGATIONS,
        "objective.kl.estimator": ESTIMATORS,
        "normalization.name": NORMALIZATIONS,
    }
    assert {key: CHOICES[key] for key in tables} == {key: tuple(table) for key, table in tables.items()}
    assert set(IMPORTED) == tables.keys() - {"objective.selection.name"}


def test_a_name_that_is_neither_a_choice_nor_a_path_is_refused_by_the_config():
    config = TrainConfig()
    config.task.data.source, config.objective.name = "arithmetic", "clop"
    with pytest.raises(UserError, match="or give an import path package.module:function"):
        validate(config)


def test_a_run_refuses_in_one_line_before_its_engines_start():
    config = TrainConfig()
    config.objective.name = f"{OWN}:infinite"
    with pytest.raises(UserError) as refused:
        check_own_functions(config)
    assert "\n" not in str(refused.value)


def test_a_loss_of_ones_own_is_the_loss():
    loss = loss_of(objective(name=f"{OWN}:soft_clip", clip_high=0.5))
    assert loss != loss_of(objective())
    micro = micro_batch()
    distance = flat(NEW) - flat(OLD)
    expected = (-distance.square() / 0.5).exp() * distance.exp() * -micro.advantages
    assert loss == pytest.approx((micro.token_weights * expected).sum().item(), rel=1e-12)


def test_the_example_of_the_readme_is_what_it_says(tmp_path, monkeypatch):
    [example] = re.findall(r"```python\n(# my_losses.py\n.*?)```", README.read_text(), re.DOTALL)
    assert len([line for line in example.splitlines() if line]) <= 10
    (tmp_path / "my_losses.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        check(name="my_losses:soft_clip")
        from my_losses import soft_clip as shown
    finally:
        sys.modules.pop("my_losses", None)
    assert shown.__code__.co_code == soft_clip.__code__.co_code


def test_a_loss_may_stand_in_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def reinforce(tokens, settings):\n    return -tokens.logprobs * tokens.advantages\n"
    )
    check(name=f"{tmp_path}/mine.py:reinforce")


def test_the_faults_of_the_refused_ones_are_real():
    """The refused normalization divides by zero. The others are named after what is wrong with them."""
    assert not divided(torch.zeros(4), None, None).isfinite().any()
