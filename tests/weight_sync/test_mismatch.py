"""How far sampler and learner may differ depends on what rounding can do."""

import pytest

from grpo.config import TrainConfig
from grpo.types import Mean, StepReport
from grpo.weight_sync.refresh import CheckedSync, WeightSyncError


def configured(learner, rollout, limit=0.0, **engine_args):
    config = TrainConfig()
    config.rollout.engine_args = engine_args
    config.learner.precision, config.rollout.precision = learner, rollout
    config.weight_sync.max_mismatch = limit
    return CheckedSync.of(config.weight_sync, config.learner, config.rollout)


def differing_by(nats):
    return StepReport(1, True, 1.0, 1e-3, 0.0, {"mismatch/mean_abs": Mean(10 * nats, 10)})


def test_in_float32_a_fiftieth_of_a_nat_is_too_much():
    sync = configured("float32", "float32")
    sync.check(differing_by(0.019))
    with pytest.raises(WeightSyncError, match=r"by 0.033 nats .*limit 0.02.* float32, so rounding is not why"):
        sync.check(differing_by(0.033))
    with pytest.raises(WeightSyncError):
        sync.check(differing_by(float("nan")))


@pytest.mark.parametrize("precisions", [("bfloat16", "bfloat16"), ("float32", "bfloat16"), ("bfloat16", "float32")])
def test_where_one_of_them_rounds_half_a_nat_is(precisions):
    sync = configured(*precisions)
    sync.check(differing_by(0.49))
    with pytest.raises(WeightSyncError, match=r"by 0.51 nats .*limit 0.5\).*compare rollout.precision with learner"):
        sync.check(differing_by(0.51))


def test_an_engine_whose_cache_is_rounded_does_not_compute_in_float32():
    configured("float32", "float32", kv_cache_dtype="fp8").check(differing_by(0.03))
    with pytest.raises(WeightSyncError, match="leave out a kv_cache_dtype"):
        configured("float32", "float32", kv_cache_dtype="fp8").check(differing_by(0.51))
    with pytest.raises(WeightSyncError, match="rounding is not why"):
        configured("float32", "float32", kv_cache_dtype="auto").check(differing_by(0.03))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_limit_that_is_set_holds_for_every_precision(precision):
    sync = configured(precision, precision, limit=0.1)
    sync.check(differing_by(0.09))
    with pytest.raises(WeightSyncError, match=r"limit 0.1\)"):
        sync.check(differing_by(0.11))


def test_a_difference_far_above_rounding_is_reported_once(capsys):
    sync = configured("bfloat16", "bfloat16")
    sync.check(differing_by(0.09))
    assert not capsys.readouterr().err
    sync.check(differing_by(0.2))
    sync.check(differing_by(0.2))
    printed = capsys.readouterr().err
    assert printed.startswith("grpo: step 1: sampler and learner disagree by 0.2 nats a token")
    assert printed.count("disagree") == 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("engine", "other"), [("vllm", "transformers"), ("vllm_server", "transformers"), ("transformers", "vllm")]
)
def test_the_advice_names_an_engine_that_is_not_in_use(precision, engine, other):
    config = TrainConfig()
    config.rollout.engine = engine
    config.learner.precision = config.rollout.precision = precision
    with pytest.raises(WeightSyncError) as caught:
        CheckedSync.of(config.weight_sync, config.learner, config.rollout).check(differing_by(0.7))
    assert f"rollout.engine={other} to see" in str(caught.value) and f"engine={engine}" not in str(caught.value)
