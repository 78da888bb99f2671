"""Words of the command line are read as people mean them, or refused in one line that says how to write them."""

import pytest

from grpo.config import UserError
from grpo.config.hydra import compose_config, compose_sweep
from grpo.config.ranges import value_at
from grpo.config.saved import from_dict
from grpo.config.sweep import SweepConfig


@pytest.mark.parametrize("plus", ["", "+", "++"])
@pytest.mark.parametrize(
    ("words", "key", "entries"),
    [
        (
            ["task.prompt.chat_template_kwargs={enable_thinking: false}"],
            "task.prompt.chat_template_kwargs",
            {"enable_thinking": False},
        ),
        (
            ["task.prompt.chat_template_kwargs.enable_thinking=false"],
            "task.prompt.chat_template_kwargs",
            {"enable_thinking": False},
        ),
        (["rollout.engine_args={kv_cache_dtype: fp8}"], "rollout.engine_args", {"kv_cache_dtype": "fp8"}),
        (["rollout.engine_args.a=1", "rollout.engine_args.b.c=2"], "rollout.engine_args", {"a": 1, "b": {"c": 2}}),
        (["rollout.engine_args.swap-space=4"], "rollout.engine_args", {"swap-space": 4}),
        (["rollout.sampling.extra.min_p=0.05"], "rollout.sampling.extra", {"min_p": 0.05}),
        (["model.config.rope_scaling.factor=4"], "model.config", {"rope_scaling": {"factor": 4}}),
        (["learner.deepspeed.optimizer.type=NAdam"], "learner.deepspeed", {"optimizer": {"type": "NAdam"}}),
        (["task=file", "task.data.options={digits: 2}"], "task.data.options", {"digits": 2}),
    ],
)
def test_entries_with_names_of_ones_own_need_no_plus_and_may_have_one(plus, words, key, entries):
    config = compose_config([plus * ("." in word) + word for word in words])
    assert value_at(config, key) == entries


@pytest.mark.parametrize("word", ["task.reward.by_source={a: {extract: tag}}", "+task.reward.by_source.a.extract=tag"])
def test_the_reward_of_a_source_needs_no_plus(word):
    assert compose_config([word]).task.reward.by_source["a"].extract == "tag"


def test_entries_of_a_file_and_of_words_are_merged(tmp_path):
    (tmp_path / "own.yaml").write_text(
        "defaults: [train, _self_]\nrollout: {engine_args: {a: 1, b: 2}}\nlearner: {deepspeed: {x: {y: 1}}}\n"
    )
    config = compose_config([f"{tmp_path}/own.yaml", "rollout.engine_args.b=3", "learner.deepspeed={x: {z: 2}}"])
    assert config.rollout.engine_args == {"a": 1, "b": 3}
    assert config.learner.deepspeed == {"x": {"y": 1, "z": 2}}
    with pytest.raises(UserError, match=r"^rollout.engine_args has no entry c to remove$"):
        compose_config([f"{tmp_path}/own.yaml", "~rollout.engine_args.c"])


def test_entries_of_a_set_need_no_plus_and_a_set_that_is_not_there_is_named():
    words = ["task=mixed", "+task@task.sets.a=arithmetic", "+task@task.sets.b=arithmetic"]
    config = compose_config([*words, "task.sets.a.prompt.chat_template_kwargs.enable_thinking=false"])
    assert config.task.sets["a"].prompt.chat_template_kwargs == {"enable_thinking": False}
    with pytest.raises(UserError, match=r"^there is no task.sets.c.prompt.chat_template_kwargs.x: a set is added by"):
        compose_config([*words, "task.sets.c.prompt.chat_template_kwargs.x=1"])
    with pytest.raises(UserError, match=r"^there is no task.sets: a set is added by"):
        compose_config([*words, "task.sets={c: 1}"])


@pytest.mark.parametrize("word", ["rollout.engine_args=3", "+rollout.engine_args=3", "++rollout.engine_args=3"])
def test_a_value_that_has_no_entries_gets_the_same_message_with_and_without_plus(word):
    with pytest.raises(UserError) as error:
        compose_config([word])
    assert str(error.value) == "rollout.engine_args=3: it takes keys and values, {KEY: VALUE}"


def test_a_saved_configuration_takes_the_same_words():
    config = from_dict({}, ["+rollout.engine_args.a=1", "task.data.options={b: 2}", "num_steps=1e3"])
    assert (config.rollout.engine_args, config.task.data.options, config.num_steps) == ({"a": 1}, {"b": 2}, 1000)


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("num_steps=1e3", "num_steps", 1000),
        ("limits.tokens=1.5e9", "limits.tokens", 1_500_000_000),
        ("evaluation.max_tokens=2e2", "evaluation.max_tokens", 200),
        ("++seed=1e1", "seed", 10),
        ("dry_run=1", "dry_run", True),
        ("learner.learning_rate=1e-5", "learner.learning_rate", 1e-5),
    ],
)
def test_a_whole_number_may_be_written_with_an_exponent(word, key, value):
    found = value_at(compose_config([word]), key)
    assert (found, type(found)) == (value, type(value))


def test_a_colon_in_a_text_in_quotes_is_no_second_key_and_one_value_of_a_section_may_name_a_folder():
    words = ['task.reward.parts=[{name: "a: b c: d"}]', "output_dir=runs/${model.source}/${seed}"]
    config = compose_config(words)
    assert (config.task.reward.parts[0].name, config.output_dir) == ("a: b c: d", f"runs/{config.model.source}/0")


def test_two_recipes_are_refused_and_one_given_twice_is_one():
    with pytest.raises(UserError, match=r"^experiment=tiny and experiment=quickstart: a run has one recipe, so leave"):
        compose_config(["experiment=tiny", "experiment=quickstart"])
    assert compose_config(["experiment=tiny", "experiment=tiny"]).model.source == "tiny"


def test_a_sweep_takes_whole_numbers_with_an_exponent_too():
    assert compose_sweep("seeds", ["amount=2e4", "budget=tokens"]) == SweepConfig(
        variants={"run": []}, amount=20_000, budget="tokens"
    )


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--num-generations=8", "--config-dir DIR, --config-name NAME; a key is written dynamics.group_size=VALUE"),
        ("num_steps=1.5e0", "num_steps=1.5e0: it takes a whole number"),
        ("dry_run=2", "dry_run=2: it takes true or false"),
        ("learner.offload_states=0.5", "learner.offload_states=0.5: it takes true or false"),
        ("experiment=[tiny,quickstart]", "a group takes the name of one of its choices, such as task=file"),
        ("task.reward.parts=[{name: math, weigth: 1}]", "task.reward.parts has no key weigth; did you mean weight?"),
        ("task.reward.parts=[{fn: number}]", "task.reward.parts has no key fn; it has name, weight, server"),
        ("model.lora={r: 8}", "model.lora has no key r; it has rank, alpha, target_modules"),
        ("task.prompt.template={question}", "with special characters in quotes, 'task.prompt.template=\"{question}\"'"),
        ('task.prompt.template=Say "it": {question}', 'in quotes, \'task.prompt.template="Say \\"it\\": {question}"\''),
        ("task.reward.parts=[{name: f=1}]", "put a value with special characters in quotes, 'key=[\"a=b\"]'"),
        ("task.reward.parts=[{name math}]", "a colon and a blank follow a name within braces, {name: VALUE}"),
        ("num_steps\N{FULLWIDTH COLON}3", "it has wide characters in the place of plain ones: write num_steps=3"),
        ("seed=42,", "cannot read 'seed=42,': seed takes a whole number"),
        ("learner.learning_rate=1\N{MINUS SIGN}6", "learner.learning_rate takes a number"),
        ("learner.learning_rate=uniform(0,1)", "takes a number; grpo sweep takes a range too, interval(a,b)"),
        ("checkpoint.export=yes!", "cannot read 'checkpoint.export=yes!': checkpoint.export takes true or false"),
        ("checkpoint.resume=1", "checkpoint.resume=1: it takes true, false or auto"),
        ("num_steps=3,seed=4", "it holds two words: write each as one, 'num_steps=3' and 'seed=4'"),
        ("task/data.path=x", "cannot read 'task/data.path=x': the names of a key are joined by dots, task.data.path"),
        ("learner..learning_rate=1", "is no key: a key is written KEY=VALUE, such as dynamics.group_size=8"),
        ("learner/learning_rate=1", "unknown config key learner/learning_rate; did you mean learner.learning_rate?"),
        ('task.reward.parts=[{"name": "math"}]', "a name before a colon stands without quotes, {name: VALUE}"),
        ("learner={learning_rate=1e-6}", "a colon and a blank follow a name within braces, {learning_rate: VALUE}"),
        ("learner.betas=[0.9;0.95]", "commas separate the entries of a list, [a,b]"),
        ('rollout.sampling.stop=["a"],', "leave out ',', which follows the end of its value, [\"a\"]"),
        ("output_dir='runs/a", "its quotation mark has no second one: close it, or leave it out"),
        ("task.prompt.template=it's {question}", 'characters in quotes, "task.prompt.template=\\"it\'s {question}\\""'),
        ("output_dir=runs/${seed", "${ begins the name of a key, which } ends, such as ${seed}"),
        ("output_dir=runs/${..seed}", "output_dir: there is no key ..seed"),
        ("task.reward.parts.name=math", "where a list has the places 0, 1, …: give the list as a whole, KEY=[a,b]"),
        ("experiment={name: tiny}", "tiny}: a group takes the name of one of its choices, such as task=file"),
        ("tiny", "cannot read 'tiny': write experiment=tiny or model=tiny"),
        ("run.json", "cannot read 'run.json': a configuration file of your own is YAML, and its name ends in .yaml"),
        ("--config=run.yaml", "--config-name NAME; `grpo train my.yaml` begins with a configuration file of your own"),
        ("--info", "are --help, --cfg job, --config-dir DIR, --config-name NAME; `grpo config WORD` searches all keys"),
        ("name: f}]", "a blank has cut a word in two: put the whole word in quotes, 'KEY=[{name: VALUE}]'"),
        ("rewards.py:f", "a reward is written 'task.reward.parts=[{name: \"rewards.py:f\"}]'"),
        ("sums.csv", "problems of a file are given as task=file task.data.path=sums.csv"),
        ("Qwen/Qwen3-0.6B", "cannot read 'Qwen/Qwen3-0.6B': a model is written model.path=Qwen/Qwen3-0.6B"),
        ("task.reward.parts=[{name: a, weight: }]", "has no value: write one after its colon, or '' for an empty text"),
        ("rollout.engine_args.a=1,2", "values: put one text in quotes, a list in brackets; grpo sweep runs several"),
        ("rollout.engine_args.a=b=c", "put a value with special characters in quotes, 'rollout.engine_args.a=\"b=c\"'"),
        ("rollout.sampling.stop=</s>", "a text with special characters in quotes, 'rollout.sampling.stop=[\"</s>\"]'"),
        ("rollout.sampling.stop=[</s>]", "text with special characters in quotes, 'rollout.sampling.stop=[\"</s>\"]'"),
        ("task.reward.parts=[{name: math weight: 1}]", "missing before weight:, or quotes around a text with a colon"),
        ("rollout.engine_args={a: 1, b: x c: y}", "a comma is missing before c:, or quotes around a text with a colon"),
        ("num_steps\N{FULLWIDTH EQUALS SIGN}3", "it has wide characters in the place of plain ones: write num_steps=3"),
        ("output_dir=runs/${model}", "output_dir: ${model} is not one value: name one, such as ${model.source}"),
        ("output_dir=${model}", "output_dir: ${model} is not one value: name one, such as ${model.source}"),
        ("output_dir=runs/${learner.betas}", "output_dir: ${learner.betas} is not one value: name one"),
        (
            "+actor_rollout_ref.actor.optim.lr=1e-6",
            "unknown config key actor_rollout_ref.actor.optim.lr; here it is lear",
        ),
        ("experiment=tiny,", "leave out the comma at its end, 'experiment=tiny'"),
        ("normalization.exponent=0,5", "several values: a decimal number has a point, normalization.exponent=0.5"),
        ("learner.learning_rate=0,001", "a decimal number has a point, learner.learning_rate=0.001"),
        ("num_steps=1,000", "'num_steps=1,000' gives several values: a number has no commas, num_steps=1000"),
        ("tracking=wandb,tensorboard", "and a run has one: tracking=wandb tracking.tensorboard=true has both"),
        ("task.reward.parts=rewards.py:f", "it takes a list of parts, [{name: math}]"),
        (
            'task.reward.parts=[{name: judge, server: "http://h"}]',
            'task.reward.parts=[{name: judge, server: "http://h"}]: server takes keys and values, such as '
            '{url: "http://h"}',
        ),
        ("task.reward.parts=[math]", "it takes a list of parts, [{name: math}]"),
        ("experiment=tiny num_steps=3", "it holds two words: write each as one, 'experiment=tiny' and 'num_steps=3'"),
    ],
)
def test_a_word_that_is_not_meant_so_is_one_line_with_the_way_to_write_it(word, message):
    with pytest.raises(UserError) as error:
        compose_config([word])
    assert message in str(error.value) and "\n" not in str(error.value)


def test_all_unknown_keys_of_a_command_are_answered_together():
    words = ["data.train_files=a", "experiment=tiny", "epsilon_high=0.3", "rollout.engine_args.seed=3", "seed=1"]
    with pytest.raises(UserError) as error:
        compose_config(words)
    assert str(error.value).splitlines() == [
        "unknown config keys:",
        "  data.train_files; here it is task.data.path",
        "  epsilon_high; here it is objective.clip_high",
    ]


@pytest.mark.parametrize("name", ["2026_11_28", "1.50", "1e3", "true", "007"])
def test_a_text_that_looks_like_a_number_stays_as_it_is_written(name):
    config = compose_config(["experiment=tiny", f"output_dir={name}", f"tracking.project={name}"])
    assert (config.output_dir, config.tracking.project) == (name, name)
