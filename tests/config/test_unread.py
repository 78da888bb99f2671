"""Words without effect, and numbers far outside all use, are refused in one line that says how to mend them."""

from dataclasses import replace

import pytest

from grpo.config import UserError
from grpo.config.hydra import compose_config, compose_sweep, config_directory
from grpo.config.saved import described
from grpo.config.sweep import SweepConfig
from grpo.config.unread import ALL_PROBLEMS, NOT_TRAINED, RULES, refuse_unread, unread
from grpo.config.validate import validate
from grpo.sweep.cells import cells_of

CASES = [
    (["model.lora.alpha=16"], "model.lora.alpha=16.0 has no effect here: set model.lora.rank, or leave it out"),
    (["model.lora.alpha=32"], "model.lora.alpha=32.0 has no effect here: set model.lora.rank"),
    (["model.lora={target_modules: q_proj}"], "model.lora.target_modules=q_proj has no effect here"),
    (
        ["dynamics.adaptive.largest_group=32"],
        "dynamics.adaptive.largest_group=32 has no effect here: add dynamics=adap",
    ),
    (["model=tiny", "model.revision=v1"], "model.revision=v1 has no effect here: give a model of the hub"),
    (["model=huggingface", "model.path=.", "model.revision=v1"], "model.revision=v1 has no effect here"),
    (["num_steps=2", "tracking.profile_rounds=[1,2]"], "tracking.profile_rounds=[1, 2] has no effect here: name"),
    (["num_steps=2", "dynamics.refresh_interval=3"], "dynamics.refresh_interval=3 has no effect here: make it at most"),
    (
        ["experiment=tiny", "task.prompt.tool_parser=hermes"],
        "task.prompt.tool_parser=hermes has no effect here: set task",
    ),
    (
        ["task.prompt.chat=false", "task.prompt.chat_template=chatml_tools"],
        "task.prompt.chat_template=chatml_tools has no effect here: set task.prompt.chat=true",
    ),
    (["task=file", "task.data.split=test"], "task.data.split=test has no effect here: set task.data.source=hub"),
    (["experiment=tiny", "task.data.path=a.jsonl"], "task.data.path=a.jsonl has no effect here: set task.data.source"),
    (["task=file", "task.data.size=9"], "task.data.size=9 has no effect here: use a generator"),
    (["task.data.question_column=q"], "task.data.question_column=q has no effect here: use task=file or another task"),
    (["task.data.limit=9"], "task.data.limit=9 has no effect here: use task.data.size"),
    (["objective.kl.refresh_every=4"], "objective.kl.refresh_every=4 has no effect here: set objective.kl.coefficient"),
    (["objective=sapo", "objective.clip_low=0.1"], "objective.clip_low=0.1 has no effect here: add objective=clip, or"),
    (["rollout.gpu_memory_fraction=0.5", "rollout=vllm_server"], "use rollout=vllm, or rollout.servers.gpu_memory"),
    (["hardware.server_nodes=1"], "hardware.server_nodes=1 has no effect here: add rollout=vllm_server"),
    (["hardware.hosts=[a,b]"], "hardware.hosts=['a', 'b'] has no effect here: set hardware.shell=ssh"),
    (["learner.schedule=linear", "learner.min_lr_fraction=1"], "learner.schedule=linear has no effect here: make lear"),
    (
        ["rollout.budget.enabled=true", "dynamics.group_size=16", "rollout.budget.largest=16"],
        "rollout.budget.largest=16 has no effect here: make it more than dynamics.group_size",
    ),
    (["model.max_length=384", "task.limits.observed_tokens=4096"], "set model.max_length=0, which then makes room for"),
    (["rollout.servers.replicas=2"], "rollout.servers.replicas=2 has no effect here: add rollout=vllm_server"),
    (["evaluation.num_problems=0", "evaluation.every_rounds=5"], "evaluation.every_rounds=5 has no effect here"),
    (["task.data.selection.solve_rate_column=nowhere"], "column=nowhere has no effect here: set task.data.selection"),
    (["evaluation.every_rounds=40", "num_steps=40"], "evaluation.every_rounds=40 has no effect here: make it fewer"),
    (
        ["normalization=dr_grpo", "normalization.epsilon=0.01"],
        "normalization.epsilon=0.01 has no effect here: use norm",
    ),
    (
        ["normalization=dr_grpo", "normalization.scope=batch"],
        "scope=batch has no effect here: set normalization.exponent",
    ),
    (["normalization=maxrl", "normalization.ddof=1"], "ddof=1 has no effect here: set normalization.exponent, since"),
    (["num_steps=8", "checkpoint.export_every=9"], "export_every=9 has no effect here: make it at most the rounds of"),
    (
        ["experiment=tiny", "learner.dither=false"],
        "learner.dither=False has no effect here: set learner.precision=bfloat",
    ),
    (["task.curriculum.block=99"], "task.curriculum.block=99 has no effect here: set task.curriculum.name=weighted"),
    (["task.curriculum.prior_samples=9"], "samples=9.0 has no effect here: set task.curriculum.name=weighted, or"),
    (["task.reward.format_pattern=x"], "task.reward.format_pattern=x has no effect here: add the part format"),
    (
        ["dynamics=adaptive", "dynamics.guard=false"],
        "dynamics.guard=False has no effect here: use dynamics=fixed, since",
    ),
    (["dynamics=adaptive", "num_steps=4", "dynamics.adaptive.decide_every=5"], "make it fewer than the rounds of the"),
    (["dynamics=adaptive", "dynamics.adaptive.stop_patience=5"], "set dynamics.adaptive.stop_gain, or leave"),
    (
        ["dynamics=adaptive", "num_steps=40", "dynamics.adaptive.stop_gain=0.01"],
        "dynamics.adaptive.stop_gain=0.01 has no effect here: make dynamics.adaptive.stop_min_steps less than",
    ),
    (
        ["objective.kl.coefficient=0.1", "num_steps=4", "objective.kl.refresh_every=4"],
        "objective.kl.refresh_every=4 has no effect here: make it less than num_steps",
    ),
    (
        ["objective.correction.level=sequence", "objective.old_logprobs=sampler"],
        "objective.correction.level=sequence has no effect here: set objective.old_logprobs=learner",
    ),
    (
        ["rollout.refill.enabled=true", "rollout.refill.max_waves=1"],
        "rollout.refill.enabled=True has no effect here: make rollout.refill.max_waves 2 or more",
    ),
    (
        ["evaluation.num_problems=8", "evaluation.temperature=0", "evaluation.greedy=true"],
        "evaluation.greedy=True has no effect here: at evaluation.temperature=0 every completion is the likeliest",
    ),
    (
        ["rollout=vllm_server", "rollout.servers.urls=['http://a:80']", "rollout.servers.replicas=4"],
        "rollout.servers.replicas=4 has no effect here: leave out rollout.servers.urls, whose servers have",
    ),
    (["task=file", "task.data.options.min_digits=2"], "task.data.options={'min_digits': 2} has no effect here: use a"),
    (["tracking.tags=[a]"], "tracking.tags=['a'] has no effect here: add tracking=wandb or tracking=mlflow"),
    (["learner.min_lr_fraction=0.1"], "learner.min_lr_fraction=0.1 has no effect here: set learner.schedule"),
]


@pytest.mark.parametrize(("words", "message"), CASES)
def test_a_word_without_effect_is_refused(words, message):
    with pytest.raises(UserError) as error:
        refuse_unread(words, compose_config(words))
    assert message in str(error.value)
    assert str(error.value).endswith(", or leave it out")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tracking=wandb", "tracking.wandb=off"], "tracking=wandb has no effect here, since tracking.wandb=off"),
        (["dynamics=adaptive", "dynamics.name=fixed"], "since dynamics.name=fixed undoes it: leave out one of the two"),
        (["model.source=tiny", "model.path=MODEL"], "model.source=tiny has no effect here, since model.path="),
    ],
)
def test_a_word_that_another_one_undoes_is_refused(words, message, tmp_path):
    words = [word.replace("MODEL", str(tmp_path)) for word in words]
    config = compose_config(words)
    with pytest.raises(UserError, match=message):
        refuse_unread(words, replace(config, model=described(config.model)))


@pytest.mark.parametrize(
    "words",
    [
        ["tracking=wandb", "tracking.wandb=offline"],
        ["tracking=mlflow", "tracking.mlflow=http://127.0.0.1:5000"],
        ["normalization=dial", "normalization.exponent=1"],
        ["experiment=tiny", "model=tiny", "num_steps=3", "hardware=one", "learner=zero1", "learner.zero_stage=2"],
        ["model.lora.rank=8", "model.lora.alpha=16"],
        ["dynamics=adaptive", "dynamics.adaptive.largest_group=32", "dynamics.refresh_interval=2"],
        ["model=qwen3_4b", "model.revision=v1"],
        ["num_steps=4", "dynamics.refresh_interval=2", "tracking.profile_rounds=[1]"],
        ["task=gsm8k", "task.data.split=test", "task.data.limit=9"],
        ["objective=grpo", "objective.kl.refresh_every=4", "objective.kl.refresh_rate=0.5"],
        ["rollout=vllm_server", "rollout.servers.replicas=2", "pipeline=continuous", "rollout.max_staleness=5"],
        ["tracking=wandb_offline", "tracking.tags=[a]", "tracking.entity=me"],
        ["task.data.options.min_digits=2", "model.config.hidden_size=9"],
        # The run waits so long for them.
        ["rollout=vllm_server", "rollout.servers.urls=['http://a:80']", "rollout.servers.start_seconds=9"],
        ["task.reward.parts=[{name: math}, {name: format}]", "task.reward.format_pattern=x"],
        ["objective=kl_cov", "objective.selection.penalty=0.5", "objective.selection.share=0.001"],
        ["task.data.selection.solve_rate_column=rate", "task.data.selection.without_solve_rate=drop"],
        ["task.data.selection.solve_rate_column=rate", "task.data.selection.solve_rate=[0, 0.9]"],
        ["normalization=pass_at_k", "normalization.k=4", "objective.name=own:loss", "objective.clip_low=0.1"],
    ],
)
def test_a_word_with_effect_is_taken(words):
    assert unread(words, compose_config(words)) == {}


def test_a_command_that_measures_a_model_takes_no_words_of_training_alone():
    words = ["experiment=tiny", "checkpoint.resume=true"]
    with pytest.raises(UserError, match="^checkpoint.resume=True has no effect here: only grpo train reads it; use"):
        refuse_unread(words, compose_config(words), NOT_TRAINED)
    words = ["experiment=tiny", "rollout.sampling.temperature=0.6"]
    with pytest.raises(UserError, match="temperature=0.6 has no effect here: set evaluation.temperature, or leave it"):
        refuse_unread(words, compose_config(words), NOT_TRAINED)
    words = ["experiment=tiny", "model.lora.rank=8"]
    with pytest.raises(UserError, match="rank=8 has no effect here: give the folder of an adapter or a checkpoint as"):
        refuse_unread(words, compose_config(words), NOT_TRAINED)
    with pytest.raises(UserError, match="evaluation.every_rounds=2 has no effect here: only grpo train reads it"):
        refuse_unread(["evaluation.every_rounds=2"], compose_config(["evaluation.every_rounds=2"]), NOT_TRAINED)
    for rules in (NOT_TRAINED, ALL_PROBLEMS):
        with pytest.raises(UserError, match="limit=12 has no effect here: use task.data.size, which a generator has"):
            refuse_unread(["task.data.limit=12"], compose_config(["experiment=tiny", "task.data.limit=12"]), rules)
    kept = ["experiment=tiny", "learner.micro_batch_tokens=64", "task.data.question_column=q"]
    refuse_unread(kept, compose_config(kept), NOT_TRAINED)


def test_keys_that_a_choice_or_a_recipe_sets_are_left_alone():
    for words in (["objective=kl_cov", "objective.selection.name=none"], ["task=gsm8k", "task.data.source=file"]):
        assert unread(words, compose_config(words)) == {}


def test_every_rule_names_keys_of_a_run():
    config = compose_config([])
    for rule in RULES:
        for key in rule.keys:
            *sections, name = key.rstrip(".").split(".")
            owner = config
            for section in sections:
                owner = getattr(owner, section)
            assert hasattr(owner, name)


def test_a_sweep_leaves_out_a_word_where_it_has_no_effect_and_refuses_one_without_any():
    sweep = SweepConfig(variants={"fixed": [], "adaptive": ["dynamics=adaptive"]}, seeds=1)
    fixed, adaptive = cells_of(sweep, ["experiment=tiny", "dynamics.adaptive.largest_group=32"])
    assert fixed.overrides == ("experiment=tiny", "seed=0")
    assert adaptive.overrides == (
        "experiment=tiny",
        "dynamics.adaptive.largest_group=32",
        "dynamics=adaptive",
        "seed=0",
    )
    with pytest.raises(UserError, match=r"^the variant fixed: model.lora.alpha=16.0 has no effect here: set model.lo"):
        cells_of(sweep, ["experiment=tiny", "model.lora.alpha=16"])
    short = SweepConfig(variants={"tau8": ["dynamics.refresh_interval=8"]}, seeds=1, budget="steps", amount=4)
    with pytest.raises(UserError, match=r"^the variant tau8: dynamics.refresh_interval=8 has no effect here: make it"):
        cells_of(short, ["experiment=tiny"])


@pytest.mark.parametrize("file", sorted((config_directory() / "sweep").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_sweep_has_words_with_effect_only(file):
    cells = cells_of(compose_sweep(file.stem, ["seeds=1"]), ["experiment=tiny"])
    assert all(cell.overrides[0] == "experiment=tiny" for cell in cells)


def test_a_clip_of_nothing_is_refused_where_it_stops_all_learning():
    words = ["objective.clip_low=0", "objective.clip_high=0"]
    with pytest.raises(UserError, match=r"clip_low=0 and clip_high=0 clip every token that has moved: raise one"):
        validate(compose_config(words))
    validate(compose_config(["objective=cispo", *words]))
    validate(compose_config(["objective.clip_low=0"]))
