"""These tests compose settings that are possible and rarely meant, and read what a run says of them."""

import pytest

from grpo.config.hydra import compose_config
from grpo.config.optimizer import with_learning_rate
from grpo.config.surprises import surprises


def said_of(*words):
    return [*surprises(with_learning_rate(compose_config([*words])))]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["objective.clip_low=3e-4", "objective.clip_high=4e-4"], "clip nearly every moved token, and are those of"),
        (["normalization=dapo", "rollout.refill.max_waves=1"], "so no silent group is replaced: make it 2 or more"),
        (["objective.clip_high=28"], "objective.clip_high=28 clips ratios at 29: 0.28 is DAPO's"),
        (["objective.kl.estimator=k1", "objective.kl.coefficient=0.04"], "in the loss does nothing on average"),
        (["learner.betas=[0.999,0.9]"], "has the momentum first and the average of squares second: [0.9, 0.999]"),
        ([r"task.prompt.template='{question}\nAnswer:'"], "task.prompt.template holds a backslash and an n"),
        (["task.prompt.system='Use {question}'"], "which is filled in task.prompt.template alone"),
        (["task.prompt.system=none"], "task.prompt.system is the text 'none': null leaves it to the chat template"),
        (["objective.clip_high=1.28"], "let ratios lie between 0.8 and 2.28: [0.8, 1.28] is written 0.2 and 0.28"),
        (["objective.clip_low=0.8"], "let ratios lie between 0.2 and 1.2"),
        (["objective=gmpo", "objective.clip_high=1"], "between 0.67 and 2.72: gmpo bounds the logarithm of ratios"),
        (
            ["task.reward.extract=boxed", "task.prompt.template='{question} Write <answer> </answer>.'"],
            "asks for <answer>…</answer>: set task.reward.extract=tag",
        ),
        (["task.prompt.system=prompts/missing.txt"], "system=prompts/missing.txt is the name of a file, and the model"),
        (["task.prompt.system=README.md"], "task.prompt.system=README.md is the name of a file, and the model reads"),
        (["task.reward.extract=tag"], "task.reward.extract=tag looks for <answer>…</answer>, for which neither"),
        (["learner.learning_rate=1e-15"], "learner.learning_rate=1e-15 moves no weight"),
        (
            ["model=tiny", "learner.weight_decay=10", "learner.learning_rate=1e-3", "num_steps=100"],
            "shrinks every weight to 37%",
        ),
        (["normalization.epsilon=1"], "normalization.epsilon=1 is as large as the standard deviations"),
        (["rollout.sampling.stop=[1,2]"], "rollout.sampling.stop=1 ends a completion at that text"),
        ([r"rollout.sampling.stop=['\n']"], "holds a backslash and an n, and no new line: write it in a YAML file"),
        (["rollout.sampling.temperature=0.001"], "temperature=0.001 makes the completions of a group alike"),
        (["rollout.sampling.temperature=100"], "temperature=100 makes completions nearly random"),
        (["objective.kl.coefficient=40"], "objective.kl.coefficient=40 holds a policy still: 0.001 to 0.1 is usual"),
        (["task.data.held_out_fraction=0.9"], "held_out_fraction=0.9 keeps most problems from training: 0.1 is usual"),
        (["learner.adam_epsilon=1e8"], "learner.adam_epsilon=1e+08 divides every step and makes it tiny"),
        (["learner.max_gradient_norm=1e-30"], "learner.max_gradient_norm=1e-30 leaves next to nothing of gradients"),
        (
            ["task.episode=python", "task.limits.program_seconds=90", "task.prompt.chat_template=chatml_tools"],
            "task.limits.program_seconds=90 is above task.limits.seconds=60, so a slow program ends its episode",
        ),
        (["objective=gspo", "objective.clip_low=0.2"], "hardly clip the ratio of a whole sequence: GSPO takes 3e-4"),
        (
            ["task.curriculum.name=anneal", "num_steps=40", "dynamics.prompts_per_step=16"],
            "anneal_prompts=100000 leads from easy to hard: the run ends at 0.6% of the way, so set 640",
        ),
        (
            ["limits.samples=50", "dynamics.prompts_per_step=16", "dynamics.group_size=8"],
            "limits.samples=50 ends the run after its first round, which samples 128 completions",
        ),
        (
            ["limits.tokens=30", "dynamics.prompts_per_step=16", "dynamics.group_size=8"],
            "limits.tokens=30 ends the run after its first round, which samples 128 completions",
        ),
        (["learner.weight_decay=10"], "learner.weight_decay=10 times the learning rate is taken off every weight in"),
        (
            ["model=huggingface", "model.path=a/b", "learner.learning_rate=3e-4"],
            "learner.learning_rate=0.0003 is a rate for adapters (model.lora.rank), and all weights are trained here",
        ),
        (
            ["dynamics=adaptive", "num_steps=400", "dynamics.adaptive.stop_gain=1"],
            "dynamics.adaptive.stop_gain=1 is a share of all problems, so the run ends unless it may still gain 100%",
        ),
        (
            ["task.reward.timeout_seconds=5000"],
            "timeout_seconds=5000 is above rollout.deadline_seconds=1800, which ends",
        ),
        (
            ["model=tiny", "learner.schedule=cosine", "learner.min_lr_fraction=1e-7", "learner.learning_rate=1e-4"],
            "learner.min_lr_fraction=1e-07 is a share, so the rate ends at 1e-11: 0.1 of learner.learning_rate",
        ),
        (
            ["objective.aggregation.level=constant", "objective.aggregation.constant_length=512000"],
            "constant_length=512000 divides the losses of completions of at most 512 tokens",
        ),
        (["objective.entropy_coefficient=10"], "entropy_coefficient=10 rewards a random policy more than right"),
        (["objective.dual_clip=300"], "objective.dual_clip=300 is a ratio that no token reaches: 3 is usual"),
        (["objective.correction.veto=0.999"], "objective.correction.veto=0.999 leaves out a completion for any token"),
        (["objective=top_entropy", "objective.selection.share=1"], "share=1 takes all tokens, so nothing is selected"),
        (
            ["num_steps=2", "learner.schedule=cosine", "learner.warmup_steps=2"],
            "learner.schedule=cosine never begins, since learner.warmup_steps takes all num_steps",
        ),
        (
            ["dynamics=adaptive", "dynamics.refresh_interval=2", "dynamics.adaptive.longest_interval=1"],
            "the run begins with dynamics.refresh_interval=2, and the schedule takes at most 1",
        ),
    ],
)
def test_a_number_far_from_all_use_is_said(words, line):
    [own] = said_of(*words)
    assert line in own


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["prompt.system=none"], "task.sets.gsm8k.prompt.system is the text 'none'"),
        (["reward.extract=tag"], "task.sets.gsm8k.reward.extract=tag looks for <answer>…</answer>, for which neither"),
        (["reward.timeout_seconds=5000"], "task.sets.gsm8k.reward.timeout_seconds=5000 is above rollout.deadline"),
        (
            ["episode=python", "limits.program_seconds=90"],
            "task.sets.gsm8k.limits.program_seconds=90 is above task.sets.gsm8k.limits.seconds=60",
        ),
    ],
)
def test_a_line_names_its_set_of_problems(words, line):
    [own] = said_of("task=gsm8k_and_math", *(f"task.sets.gsm8k.{word}" for word in words))
    assert own.startswith(line)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["objective=cispo"],
        ["objective.clip_high=inf"],
        ["objective.kl.estimator=k1", "objective.kl.place=reward", "objective.kl.coefficient=0.04"],
        ["learner.weight_decay=0.1", "num_steps=1000"],
        ["normalization.epsilon=1e-4"],
        ["normalization=dr_grpo", "normalization.epsilon=0"],
        ["rollout.sampling.stop=['Step 2']"],
        ["task.prompt.system='" + 100 * "你是一位数学老师。" + "'"],
        # An episode of many turns is far longer than one of them.
        ["experiment=calculator", "objective.aggregation.level=constant", "objective.aggregation.constant_length=5000"],
    ],
)
def test_usual_settings_are_passed_over(words):
    assert said_of(*words) == []


def test_a_schedule_that_begins_outside_its_own_bounds_is_reported():
    def said(*words):
        return [*surprises(compose_config(["dynamics=adaptive", "dynamics.group_size=4", *words]))]

    [warning] = said("dynamics.adaptive.smallest_group=6")
    assert "begins with dynamics.group_size=4, and the schedule takes groups of 6 to 8 only" in warning
    assert said("dynamics.adaptive.smallest_group=4") == []
    assert "takes groups of 8 later (dynamics.adaptive.smallest_group and largest_group): set both to 4" in said()[0]
    assert said("dynamics=fixed", "dynamics.adaptive.smallest_group=6") == []


def test_a_rate_at_which_adapters_hardly_learn_is_said_before_a_run():
    def said(rate, rank=16):
        return [*surprises(compose_config([f"learner.learning_rate={rate}", f"model.lora.rank={rank}"]))]

    assert said(1e-6) == [
        "adapters hardly learn at learner.learning_rate=1e-06, since they begin at zero: 0.0001 is their default"
    ]
    assert said(2e-5) == said("null") == said(1e-6, rank=0) == []
