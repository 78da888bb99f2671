"""The gradient of one optimizer step is the same for every split, and the one of a float64 reference."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo.audit.reference import Settings, step_loss
from grpo.config import AggregationConfig, LearnerConfig, NormalizationConfig, ObjectiveConfig
from grpo.learner.engine import deepspeed_config
from tests import warm
from tests.learner.groups import LEVELS, OBSERVED, uneven_groups
from tests.learner.models import tiny_llama

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def changes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("partition")
    model = tiny_llama(folder / "model")
    changes, counts = {}, {}
    for ranks in (1, 2):
        worker = ["-m", "tests.learner.partition_worker", model, folder]
        done = warm.ranks(ranks, worker, warm.LEARNER, timeout=300)
        assert done.returncode == 0, done.stderr
        changes |= torch.load(folder / f"changes-{ranks}.pt")
        facts = json.loads((folder / f"micro-batches-{ranks}.json").read_text())
        counts |= facts["micro-batches"] | facts["logprobs"]
    return model, changes, counts


def reference_step(model: str, level: str) -> tuple[dict[str, torch.Tensor], float]:
    """Returns the gradient and loss by the specification, with transformers' eager attention in float64."""
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    language_model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64, **eager)
    objective = ObjectiveConfig(aggregation=AggregationConfig(level=level, constant_length=20))
    loss = step_loss(language_model, uneven_groups(OBSERVED), Settings(NormalizationConfig(), objective))
    loss.backward()
    gradient = {name: parameter.grad for name, parameter in language_model.named_parameters()}
    return gradient, loss.item()


def relative_difference(ours, reference):
    difference = sum((ours[name].double() - reference[name]).square().sum() for name in reference)
    return (difference / sum(gradient.square().sum() for gradient in reference.values())).sqrt().item()


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_gradient_and_loss_are_the_same_for_every_split_and_equal_the_reference(changes, level):
    model, splits, _ = changes
    reference, loss = reference_step(str(model), level)
    cases = {case: change for case, change in splits.items() if case.endswith(f"/{level}")}
    # (1 and 2 ranks × 3 stages, and 2 ranks that compute each row together × 2 stages) × layouts × row lengths
    assert len(cases) == (2 * 3 + 2) * 3 * 3
    differences = {case: relative_difference(change, reference) for case, change in cases.items()}
    assert max(differences.values()) <= TOLERANCE, sorted(differences.items(), key=lambda item: -item[1])[:5]
    assert {case: change["loss"].item() for case, change in cases.items()} == pytest.approx(
        dict.fromkeys(cases, loss), rel=1e-4, abs=1e-6
    )


def test_nothing_sharded_is_run_by_the_code_of_a_sharded_optimizer():
    assert [deepspeed_config(LearnerConfig(zero_stage=stage))["zero_optimization"]["stage"] for stage in range(4)] == [
        1, 1, 2, 3,
    ]  # fmt: skip


@pytest.mark.slow
def test_the_cases_really_differ_in_micro_batches(changes):
    counts = changes[2]
    assert counts["1/1/1/shared/10000/token_mean"] == 1
    assert counts["1/1/1/shared/50/token_mean"] == 2
    assert counts["1/1/1/packed/25/token_mean"] >= 4
    # Two ranks that pool what they have make the rows of one.
    assert counts["2/2/1/shared/50/token_mean"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["1", "3"])
def test_ranks_that_compute_together_have_the_log_probabilities_of_one(changes, stage):
    assert 0 < changes[2][stage] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["1", "2", "3", "1-lora", "3-lora"])
def test_a_checkpoint_of_one_rank_goes_on_with_two(changes, stage):
    alone, together = (changes[1][f"{ranks}/{stage}"] for ranks in (1, 2))
    assert alone["steps"] == together["steps"]
    for name, tensor in alone.items():
        torch.testing.assert_close(together[name], tensor, rtol=0, atol=1e-5)
