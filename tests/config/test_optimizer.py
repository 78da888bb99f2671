"""These tests hold which optimizers DeepSpeed's block may name, and how a learning rate changes."""

import pytest
import torch

from grpo.config import LearnerConfig, UserError
from grpo.config.hydra import compose_config
from grpo.config.optimizer import CLASSES, Optimizer, chosen_optimizer, learning_rate_factor, with_learning_rate
from grpo.config.pass_through import check_pass_through
from grpo.learner.engine import deepspeed_config, optimizer_settings


def learner(*words):
    return compose_config(["experiment=tiny", *words]).learner


def test_a_run_learns_with_adamw_and_its_own_keys_unless_it_names_another():
    assert chosen_optimizer(learner()) == Optimizer("AdamW", {})
    named = learner(
        "+learner.deepspeed.optimizer.type=nadam", "+learner.deepspeed.optimizer.params.momentum_decay=0.01"
    )
    assert chosen_optimizer(named) == Optimizer("NAdam", {"momentum_decay": 0.01})
    named.betas, named.weight_decay = [0.8, 0.9], 0.1
    assert optimizer_settings(named) == {"betas": (0.8, 0.9), "eps": 1e-8, "weight_decay": 0.1, "momentum_decay": 0.01}
    # DeepSpeed is given the optimizer, and would make a second one of the block.
    assert "optimizer" not in deepspeed_config(named)


def test_adam_is_deepspeeds_which_decays_weights_as_adamw_unless_switched_off():
    assert chosen_optimizer(learner("+learner.deepspeed.optimizer={type: Adam}")).name == "AdamW"
    plain = learner("+learner.deepspeed.optimizer={type: Adam, params: {adam_w_mode: false}}")
    assert chosen_optimizer(plain) == Optimizer("Adam", {})


def test_optimizers_that_can_be_named_are_torchs_own_and_keep_two_numbers_for_each_weight():
    for name in CLASSES:
        kind = getattr(torch.optim, CLASSES[name][0])
        weight = torch.ones(3, requires_grad=True)
        optimizer = kind([weight], **optimizer_settings(LearnerConfig(deepspeed={"optimizer": {"type": name}})))
        weight.sum().backward()
        optimizer.step()
        assert sum(state.numel() for state in optimizer.state[weight].values() if state.dim()) == 2 * 3


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("{type: Muon}", "type=Muon is none of AdamW, Adam, RAdam, NAdam, Adamax: DeepSpeed would clip and report the"),
        ("{type: OneBitAdam}", "DeepSpeed has dropped it"),
        ("{type: Lion}", "need a compiler"),
        ("{type: SGD}", "it has no two moments for each weight"),
        ("{type: AdamW, params: {lr: 0.1}}", "optimizer.params.lr is set by the run itself: use learner.learning_rate"),
        ("{type: AdamW, params: {betas: [0.9, 0.95]}}", "use learner.betas"),
        ("{type: NAdam, params: {weight_decay: 0.1}}", "use learner.weight_decay"),
        ("{type: NAdam, params: {momentum_decay: -1}}", "momentum_decay=-1 must be a number of at least 0"),
        ("{type: RAdam, params: {decoupled_weight_decay: 1}}", "decoupled_weight_decay=1 must be true or false"),
        ("{type: AdamW, params: {amsgrad: true}}", "amsgrad is no setting of AdamW here"),
        ("NAdam", "has a type and may have params"),
        ("{params: {}}", "has a type and may have params"),
    ],
)
def test_a_setting_that_is_not_exact_or_is_a_key_of_the_run_is_one_line(block, expected):
    with pytest.raises(UserError) as refused:
        check_pass_through(compose_config(["experiment=tiny", f"+learner.deepspeed.optimizer={block}"]))
    assert expected in str(refused.value) and "\n" not in str(refused.value)


def test_the_default_rate_follows_what_is_trained_and_a_rate_that_is_set_stays():
    def rate(*words):
        return with_learning_rate(compose_config([*words])).learner.learning_rate

    assert (rate(), rate("model.lora.rank=16")) == (1e-6, 1e-4)
    assert (rate("learner.learning_rate=1e-6", "model.lora.rank=16"), rate("experiment=quickstart")) == (1e-6, 2e-5)


def test_learning_rate_warms_up_and_decays():
    cosine = LearnerConfig(schedule="cosine", warmup_steps=4, min_lr_fraction=0.1)
    factors = [learning_rate_factor(step, cosine, 12) for step in (0, 3, 4, 8, 12, 99)]
    assert factors == pytest.approx([0.25, 1.0, 1.0, 0.55, 0.1, 0.1])
    linear = LearnerConfig(schedule="linear")
    assert [learning_rate_factor(step, linear, 4) for step in (0, 1, 4)] == [1.0, 0.75, 0.0]
