"""These tests compare losses with verl 0.9.1, TRL 1.16.0 and OpenRLHF 0.11.2 on the same numbers, and with exact
relations."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from grpo.algorithm.aggregation import AGGREGATIONS, Totals
from grpo.algorithm.loss import METRICS, policy_loss
from grpo.algorithm.packing import pack
from grpo.config import AggregationConfig, CorrectionConfig, KlConfig, ObjectiveConfig
from grpo.types import MicroBatch, Tree

from .peer_inputs import ADVANTAGES, GROUP_TOKENS, LENGTHS, NEW, OLD, OLD_MINUS_SAMPLER, REFERENCE, SEQUENCE_INDEX, flat

TOTALS = Totals(tokens=14, sequences=4, groups=2)


def micro_batch(level="token_mean", constant_length=0, on_policy=False):
    weigh = AGGREGATIONS[level]
    weights = [weigh(n, g, TOTALS, constant_length) for n, g in zip(LENGTHS, GROUP_TOKENS, strict=True)]
    empty = torch.zeros(14, dtype=torch.long)
    old = flat(OLD)
    return MicroBatch(
        token_ids=empty,
        position_ids=empty,
        trees=(Tree(0, 1, ()),),
        predictors=empty,
        targets=empty,
        sequence_index=SEQUENCE_INDEX,
        advantages=torch.tensor(ADVANTAGES, dtype=torch.float64)[SEQUENCE_INDEX],
        token_weights=torch.tensor(weights, dtype=torch.float64)[SEQUENCE_INDEX],
        sampler_logprobs=old - flat(OLD_MINUS_SAMPLER),
        old_logprobs=None if on_policy else old,
        reference_logprobs=flat(REFERENCE),
    )


def objective(**settings):
    none = CorrectionConfig(level="none")
    return ObjectiveConfig(**({"clip_low": 0.2, "clip_high": 0.28, "correction": none} | settings))


def loss_of(settings, level="token_mean", constant_length=0, new=NEW):
    logprobs = flat(new)
    loss, _ = policy_loss(logprobs, torch.zeros_like(logprobs), micro_batch(level, constant_length), settings)
    return loss.item()


@pytest.mark.parametrize(
    ("level", "constant_length", "expected", "source"),
    [
        ("token_mean", 0, -0.44773085479285984, "verl token-mean, TRL dapo, OpenRLHF token-level"),
        ("sequence_mean", 0, -0.08050891781857283, "TRL grpo; verl seq-mean-token-mean to 1e-8"),
        ("constant", 5, -0.3134115983550019, "TRL dr_grpo, verl seq-mean-token-sum-norm"),
        ("constant", 8, -0.19588224897187625, "verl seq-mean-token-sum-norm, loss_scale_factor=8"),
    ],
)
def test_clipped_loss_equals_that_of_peers(level, constant_length, expected, source):
    assert loss_of(objective(), level, constant_length) == pytest.approx(expected, rel=1e-9)


def test_prompt_mean_is_the_mean_over_groups_of_token_means():
    # By hand from the same token losses: groups (0, 1) and (2, 3) hold 8 and 6 tokens.
    token_sum = loss_of(objective(), "token_mean") * 14
    first_two = sum_of_first_group()
    assert loss_of(objective(), "prompt_mean") == pytest.approx((first_two / 8 + (token_sum - first_two) / 6) / 2)


def sum_of_first_group():
    ratio = (flat(NEW) - flat(OLD)).exp()[:8]
    advantage = torch.tensor([1.5] * 5 + [-0.5] * 3, dtype=torch.float64)
    return torch.maximum(-ratio * advantage, -ratio.clamp(0.8, 1.28) * advantage).sum().item()


def test_dual_clip_equals_that_of_peers():
    steep = [list(row) for row in NEW]
    steep[1][1] = -0.1
    # verl clip_ratio_c=3, TRL delta=3, OpenRLHF dual_clip=3
    assert loss_of(objective(dual_clip=3.0), new=steep) == pytest.approx(-0.38879724077771716, rel=1e-9)
    assert loss_of(objective(), new=steep) == pytest.approx(-0.3511115276761216, rel=1e-9)


def test_sequence_ratio_equals_gspo_of_peers():
    wide, narrow = objective(ratio="sequence"), objective(ratio="sequence", clip_low=3e-4, clip_high=4e-4)
    # TRL importance_sampling_level="sequence"; verl gspo and OpenRLHF to 1e-8
    assert loss_of(wide, "sequence_mean") == pytest.approx(-0.16036602272781214, rel=1e-9)
    assert loss_of(narrow, "sequence_mean") == pytest.approx(-0.14521198240566652, rel=1e-9)
    assert loss_of(wide, "token_mean") == pytest.approx(-0.5019337517809698, rel=1e-9)


def test_cispo_equals_that_of_verl():
    assert loss_of(objective(name="cispo")) == pytest.approx(0.5143017966041712, rel=1e-9)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k3", -0.4450213610952636)],  # TRL dapo with beta=0.04 and plain k3; verl low_var_kl
)
def test_kl_in_the_loss_equals_that_of_peers(estimator, expected):
    kl = KlConfig(coefficient=0.04, estimator=estimator)
    assert loss_of(objective(kl=kl)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("level", "mode", "expected", "source"),
    [
        ("token", "truncate", -0.5637329109174634, "verl, TRL, OpenRLHF"),
        ("token", "mask", -0.4174471966317491, "TRL, OpenRLHF"),
        ("sequence", "truncate", -0.9463996704362792, "verl, TRL"),
        ("sequence", "mask", -0.48948674907038425, "TRL"),
    ],
)
def test_importance_correction_equals_that_of_peers(level, mode, expected, source):
    correction = CorrectionConfig(level=level, mode=mode, cap=2.0)
    assert loss_of(objective(correction=correction)) == pytest.approx(expected, rel=1e-9)


def cut(**correction):
    """Returns the shares of tokens above the correction's cap, below its floor and vetoed, and the loss's gradient."""
    logprobs, entropies = flat(NEW).requires_grad_(), flat(NEW)
    settings = objective(
        correction=CorrectionConfig(**correction), kl=KlConfig(coefficient=0.04), entropy_coefficient=0.1
    )
    loss, sums = policy_loss(logprobs, entropies, micro_batch(), settings)
    loss.backward()
    metrics = dict(zip(METRICS, (sums / 14).tolist(), strict=True))
    names = ("above_cap", "below_floor", "vetoed")
    return [metrics[f"correction/{name}_fraction"] for name in names], logprobs.grad


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        # verl 0.9.1 rollout_is=token, 0.5_2.0: rollout_is_ratio_fraction_high and _low are 1/14 each
        ({"mode": "mask", "floor": 0.5}, [1 / 14, 1 / 14, 0]),
        # The third completion has four tokens and the product e, the fourth two and .4966.
        ({"level": "sequence", "floor": 0.6}, [4 / 14, 2 / 14, 0]),
        ({"level": "sequence_mean", "floor": 0.75, "cap": 1.25}, [4 / 14, 2 / 14, 0]),
        # verl 0.9.1 rollout_rs=seq_max_k2: rollout_rs_masked_fraction 0.142857
        ({"veto": 0.39}, [1 / 14, 0, 2 / 14]),
        ({"level": "none"}, [0, 0, 0]),
    ],
)
def test_a_correction_counts_its_cuts_by_token(correction, expected):
    assert cut(**correction)[0] == pytest.approx(expected)


def test_a_vetoed_completion_adds_nothing_not_even_a_kl_or_an_entropy():
    _, gradient = cut(veto=0.39)
    assert gradient[12:].tolist() == [0.0, 0.0]
    torch.testing.assert_close(gradient[:12], cut()[1][:12])
    assert gradient[:12].abs().min() > 0


def test_clip_fractions_equal_those_of_trl():
    logprobs = flat(NEW)
    _, sums = policy_loss(logprobs, torch.zeros_like(logprobs), micro_batch(), objective())
    metrics = dict(zip(METRICS, (sums / 14).tolist(), strict=True))
    # TRL clip_ratio/low_mean and high_mean; verl and OpenRLHF report their sum, 0.2857
    assert metrics["policy/clip_low_fraction"] == pytest.approx(2 / 14)
    assert metrics["policy/clip_high_fraction"] == pytest.approx(2 / 14)


@pytest.mark.parametrize("name", ["sapo", "unclipped", "tests.algorithm.own:soft_clip"])
def test_an_objective_without_bounds_clips_no_token(name):
    logprobs = flat(NEW)
    _, sums = policy_loss(logprobs, torch.zeros_like(logprobs), micro_batch(), objective(name=name))
    metrics = dict(zip(METRICS, sums.tolist(), strict=True))
    assert (metrics["policy/clip_low_fraction"], metrics["policy/clip_high_fraction"]) == (0, 0)


def test_gradient_equals_that_of_verl_and_openrlhf():
    logprobs = flat(NEW).requires_grad_()
    policy_loss(logprobs, torch.zeros_like(logprobs), micro_batch(), objective())[0].backward()
    expected = [
        -0.11841116979381937, -0.07182000493238992, 0, -0.10714285714285714, -0.10714285714285714,
        0, 0.04820924312771439, 0.03571428571428571,
        0, -0.05714285714285714, -0.02837630307379483, -0.06979444332343829,
        0, 0.14131896606001096,
    ]  # fmt: skip
    torch.testing.assert_close(logprobs.grad, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("name", ["clip", "cispo", "unclipped"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_on_policy_gradient_is_that_of_reinforce(name, ratio):
    """Where the ratio is 1, ∂loss/∂log π is −weight·Â at every token, whatever the objective."""
    logprobs = flat(NEW).requires_grad_()
    micro = micro_batch("sequence_mean", on_policy=True)
    policy_loss(logprobs, torch.zeros_like(logprobs), micro, objective(name=name, ratio=ratio))[0].backward()
    torch.testing.assert_close(logprobs.grad, -micro.token_weights * micro.advantages)


def test_old_logprobs_of_the_sampler_make_the_correction_part_of_the_ratio():
    settings = objective(name="unclipped", old_logprobs="sampler")
    micro = micro_batch()
    ratio = (flat(NEW) - micro.sampler_logprobs).exp()
    expected = -(micro.token_weights * ratio * micro.advantages).sum().item()
    assert loss_of(settings) == pytest.approx(expected)


def test_entropy_bonus_lowers_the_loss_by_its_weighted_mean():
    logprobs, entropies = flat(NEW), torch.arange(14).double()
    plain, _ = policy_loss(logprobs, entropies, micro_batch(), objective())
    bonus, _ = policy_loss(logprobs, entropies, micro_batch(), objective(entropy_coefficient=0.1))
    assert (plain - bonus).item() == pytest.approx(0.1 * 6.5)


def test_aggregation_weights_are_shares_of_the_whole_step():
    assert AGGREGATIONS["token_mean"](5, 8, TOTALS, 0) == 1 / 14
    assert AGGREGATIONS["sequence_mean"](5, 8, TOTALS, 0) == 1 / 20
    assert AGGREGATIONS["constant"](5, 8, TOTALS, 100) == 1 / 400
    assert AGGREGATIONS["prompt_mean"](5, 8, TOTALS, 0) == 1 / 16
    assert AggregationConfig().level in AGGREGATIONS


def test_a_rank_without_work_adds_nothing_to_a_loss_with_a_kl_term():
    objective = ObjectiveConfig(kl=KlConfig(coefficient=0.1))
    nothing = torch.zeros(0, requires_grad=True)
    loss, _ = policy_loss(nothing, torch.zeros(0), pack([]), objective)
    assert loss.item() == 0 and loss.requires_grad


def test_all_metrics_of_a_micro_batch_are_summed_by_one_operation():
    """A GPU would start one kernel for each further operation."""
    logprobs = flat(NEW)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        policy_loss(logprobs, torch.zeros_like(logprobs), micro_batch(), objective())
    sums = [event.count for event in recorded.key_averages() if event.key == "aten::sum"]
    # The other sum is the loss.
    assert sums == [2]
