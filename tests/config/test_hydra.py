"""Every shipped experiment composes and validates; every wrong key or value is one clear line."""

import json
import re
from copy import deepcopy
from dataclasses import asdict
from functools import cache

import pytest

from grpo.config import TrainConfig, UserError
from grpo.config.folder import checkpoints_in, step_of
from grpo.config.hydra import compose_config, compose_sweep, config_directory
from grpo.config.leaves import differences
from grpo.config.saved import from_dict
from grpo.config.start import start
from grpo.config.sweep import grid, plain
from grpo.config.validate import validate, validate_evaluation

EXPERIMENTS = sorted(path.stem for path in (config_directory() / "experiment").glob("*.yaml"))
OF_A_FILE = ("smollm2_mawps", "mawps_calculator", "bigmath_small")
NEEDS_DATA = {name: ["task.data.path=problems.jsonl"] for name in OF_A_FILE}


@cache
def composed(experiment):
    return compose_config([f"experiment={experiment}", *NEEDS_DATA.get(experiment, [])])


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("world_size", [1, 8])
def test_every_experiment_composes_and_validates_for_one_and_eight_ranks(experiment, world_size):
    config = deepcopy(composed(experiment))
    validate(config, max(world_size, config.hardware.ranks))
    assert config.output_dir == f"runs/{experiment}/{start()}"


@pytest.mark.parametrize(
    "group", ["normalization", "objective", "learner", "rollout", "tracking", "dynamics", "hardware"]
)
def test_every_choice_of_every_group_composes(group):
    for choice in sorted(path.stem for path in (config_directory() / group).glob("*.yaml")):
        config = compose_config([f"{group}={choice}"])
        validate(config, config.hardware.ranks)
        assert isinstance(config, TrainConfig)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_model_and_a_tracker_that_are_typed_beside_a_recipe_are_taken(experiment):
    config = compose_config([f"experiment={experiment}", "model=qwen3_8b", "tracking=wandb"])
    assert (config.model.source, config.model.path) == ("huggingface", "Qwen/Qwen3-8B")
    assert config.tracking.wandb == "online"


def test_one_process_is_no_run_of_eight_ranks():
    config = compose_config(["experiment=gsm8k_qwen2_5_7b", "hardware=node"])
    with pytest.raises(
        UserError, match="hardware asks for 8 learner ranks, and this is a run of one: start it by `grpo"
    ):
        validate(config)
    validate(config, 8)
    # By torchrun, which says how many there are.
    validate(config, 4)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("lr=1", "learner.learning_rate"),
        ("actor.optim.lr=1", "learner.learning_rate"),
        ("num_generations=4", "dynamics.group_size"),
        ("beta=0", "objective.kl.coefficient"),
        ("num_iterations=2", "dynamics.passes"),
        ("actor.ppo_epochs=2", "dynamics.passes"),
        ("max_completion_length=9", "rollout.sampling.max_tokens"),
    ],
)
def test_words_of_other_trainers_are_known(override, key):
    with pytest.raises(UserError, match=f"unknown config key {override.partition('=')[0]}; here it is {key}"):
        compose_config([override])


def test_a_key_is_suggested_by_its_last_name_and_never_by_a_few_letters():
    for override, key in (("deepspeed={}", "learner.deepspeed"), ("model.zero_stage=3", "learner.zero_stage")):
        with pytest.raises(UserError, match=f"did you mean {key}?"):
            compose_config([override])
    for unlike in ("use_tiger_stripes=true", "logical_steps=1", "deltas=2"):
        with pytest.raises(UserError, match="`grpo config WORD` searches all keys"):
            compose_config([unlike])


@pytest.mark.parametrize("added", ["+foo=1", "++foo=1", "+learner.foo=1", "++task.data.selection.foo=1"])
def test_an_added_key_that_nobody_reads_is_refused(added):
    with pytest.raises(UserError, match=f"unknown config key {added.lstrip('+').partition('=')[0]}"):
        compose_config([added])
    assert compose_config(["+task.data.options.foo=1"]).task.data.options["foo"] == 1


def test_folders_and_files_of_ones_own_are_read(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /model: tiny\nnum_steps: 7\n"
    )
    (tmp_path / "own.yaml").write_text("defaults: [train, _self_]\nseed: 3\n")
    (tmp_path / "bare.yaml").write_text("seed: 3\n")

    def composed(*words):
        config = compose_config([*words])
        return config.model.source, config.num_steps, config.seed

    assert composed(f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine") == ("tiny", 7, 0)
    assert composed("--config-dir", str(tmp_path), "experiment=mine") == ("tiny", 7, 0)
    assert composed(f"{tmp_path}/own.yaml", "experiment=mine") == ("tiny", 7, 3)
    assert composed(f"--config-dir={tmp_path}", "--config-name=own", "num_steps=2") == ("smollm2", 2, 3)
    (tmp_path / "experiment" / "tiny.yaml").write_text("# @package _global_\nnum_steps: 7\n")
    with pytest.raises(
        UserError, match="tiny.yaml is never read, since experiment=tiny is one of grpo's: give it another"
    ):
        composed("--config-dir", str(tmp_path), "experiment=tiny")
    (tmp_path / "experiment" / "tiny.yaml").unlink()
    (tmp_path / "own.yml").write_text("defaults: [train, _self_]\n")
    with pytest.raises(UserError, match=r"reads .*own.yml as own.yaml: give it that name"):
        composed(f"{tmp_path}/own.yml")
    with pytest.raises(UserError, match=r"bare.yaml would replace \S+/own.yaml: name one file in the defaults"):
        composed(f"{tmp_path}/own.yaml", f"{tmp_path}/bare.yaml")
    (tmp_path / "groups").mkdir()
    for *flag, message in (
        ("--config-name", "bare", "own.yaml would replace bare: name one file in the defaults of the other"),
        ("--config-dir", f"{tmp_path}/groups", "own.yaml is read with the groups in its own folder: put those of"),
    ):
        for words in ([*flag, f"{tmp_path}/own.yaml"], [f"{tmp_path}/own.yaml", *flag]):
            with pytest.raises(UserError, match=message):
                composed(*words)
    assert composed("--config-dir", str(tmp_path), f"{tmp_path}/own.yaml", "experiment=mine") == ("tiny", 7, 3)
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "list.yaml").write_text("- seed\n")
    (tmp_path / "alone.yaml").write_text("defaults: [_self_]\nseed: 3\n")
    for name in ("bare", "empty", "list", "alone"):
        with pytest.raises(UserError, match=f"{name}.yaml does not build on train.yaml: begin it with"):
            composed(f"{tmp_path}/{name}.yaml", "num_steps=2")
    (tmp_path / "unsaid.yaml").write_text("defaults: [train]\nseed: 3\n")
    (tmp_path / "first.yaml").write_text("defaults: [_self_, train]\nseed: 3\n")
    for name in ("unsaid", "first"):
        with pytest.raises(UserError, match=f"{name}.yaml does not say that its own values come after"):
            composed(f"{tmp_path}/{name}.yaml")
    (tmp_path / "group.yaml").write_text("defaults: [train, {task: gsm8k}]\n")
    with pytest.raises(UserError, match=r"with `defaults: \[train, {override task: gsm8k}, _self_\]`"):
        composed(f"{tmp_path}/group.yaml")
    with pytest.raises(UserError, match="hydra.run.dir is not read here: output_dir is a run's folder"):
        composed("hydra.run.dir=x")


def test_negative_weights_and_exponents_are_numbers_like_others():
    config = compose_config(["normalization.exponent=-0.5", "task.reward.parts=[{name: math, weight: -1}]"])
    validate(config)
    assert (config.normalization.exponent, config.task.reward.weights) == (-0.5, {"math": -1.0})
    by_source = "+task.reward.by_source={gsm8k: {parts: [{name: number}, {name: format, weight: -1}]}}"
    validate(compose_config([by_source, "task.data.source_column=source"]))


def test_the_dial_is_set_by_name_and_by_number():
    assert compose_config(["normalization=grpo"]).normalization.exponent == 1.0
    assert compose_config(["normalization=dr_grpo"]).normalization.exponent == 0.0
    dapo = compose_config(["normalization=dapo"])
    assert (dapo.normalization.exponent, dapo.rollout.refill.enabled) == (1.0, True)
    assert compose_config(["normalization=dial", "normalization.exponent=0.5"]).normalization.exponent == 0.5
    assert (
        compose_config(["objective=dr_grpo", "rollout.sampling.max_tokens=77"]).objective.aggregation.constant_length
        == 77
    )


def test_a_completion_as_long_as_the_model_leaves_no_room_for_a_prompt_that_fits_itself():
    config = compose_config(["task.prompt.max_tokens=0", "rollout.sampling.max_tokens=60", "model.max_length=60"])
    with pytest.raises(UserError, match="=60 leaves no room for a prompt in model.max_length=60: lower the first"):
        validate(config)
    config.model.max_length = 61
    validate(config)


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    (tmp_path / "checkpoints" / "step-00000005").mkdir(parents=True)
    for words in ([], ["dry_run=true"]):
        with pytest.raises(UserError, match="already holds a run"):
            validate(compose_config([f"output_dir={tmp_path}", *words]))


@pytest.mark.parametrize("sampling", ["top_p=0.9", "top_k=5"])
@pytest.mark.parametrize(
    "loss",
    [
        *(f"objective.correction.level={level}" for level in ("none", "token", "sequence", "sequence_mean")),
        "objective.old_logprobs=sampler",
    ],
)
def test_training_on_a_part_of_the_distribution_is_refused_and_evaluation_is_not(sampling, loss):
    config = compose_config(["task=arithmetic", f"rollout.sampling.{sampling}", loss])
    with pytest.raises(UserError, match="leave out tokens, and the learner scores all of them: train with top_p=1"):
        validate(config)
    validate_evaluation(config)


@pytest.mark.parametrize(
    "words",
    [
        ["evaluation.temperature=0"],
        ['hardware.hosts=[a.b, 10.0.0.7, "fe80::1"]'],
        ["pipeline=continuous", "rollout=vllm_server"],
        ["task.curriculum.name=anneal"],
        ["normalization.exponent=10"],
        ["learner.betas=[0,0.9]"],
    ],
)
def test_neighbours_of_refused_settings_are_taken(words, tmp_path):
    assert validate(compose_config(["task=arithmetic", *words, f"output_dir={tmp_path}/run"])) is None


def test_an_evaluation_may_leave_out_tokens_that_training_must_score():
    config = compose_config(["task=arithmetic", "evaluation.top_p=0.95", "evaluation.top_k=20"])
    validate(config)
    assert (config.evaluation.top_p, config.rollout.sampling.top_p) == (0.95, 1.0)
    assert (config.evaluation.top_k, config.rollout.sampling.top_k) == (20, 0)


@pytest.mark.parametrize("pipeline", ["off", "one_round", "continuous"])
def test_gspo_corrects_whole_completions(pipeline):
    chosen = [f"pipeline={pipeline}", "rollout=vllm_server"]
    assert compose_config([*chosen, "objective=gspo"]).objective.correction.level == "sequence"
    assert compose_config(chosen).objective.correction.level == "token"


def test_a_folder_that_only_looks_like_a_checkpoint_is_none(tmp_path):
    folder = tmp_path / "checkpoints"
    for name in ("step-00000004-backup", "step-", "step-12.tmp", ".writing-00000008"):
        (folder / name).mkdir(parents=True)
    (folder / "step-notes.txt").write_text("")
    (folder / "step-00000016").write_text("")
    assert checkpoints_in(folder) == []
    validate(compose_config([f"output_dir={tmp_path}"]))
    for name in ("step-00000012", "step-100000000", "step-00000008"):
        (folder / name).mkdir()
    assert [step_of(path) for path in checkpoints_in(folder)] == [8, 12, 100_000_000]
    assert checkpoints_in(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("words", "largest"),
    [
        (["task.reward.parts=[{name: math}]", "normalization.ddof=1"], "0.707"),
        (["task.reward.parts=[{name: math}]", "normalization.ddof=0"], "0.5"),
        (["task.reward.parts=[{name: math, weight: 2}, {name: format, weight: -1}]", "normalization.ddof=0"], "1.5"),
        (["task.reward.parts=[{name: math}]", "normalization.ddof=0", "task.reward.signed=true"], "1"),
    ],
)
def test_a_least_spread_that_no_group_can_have_is_refused(words, largest, tmp_path):
    words = ["task=arithmetic", f"output_dir={tmp_path}/run", "task.reward.format_pattern=x", *words]
    with pytest.raises(UserError, match=f"silences every group, .* a σ of at most {re.escape(largest)}: lower it"):
        validate(compose_config([*words, f"normalization.min_std={1.01 * float(largest)}"]))
    validate(compose_config([*words, f"normalization.min_std={0.99 * float(largest)}"]))
    # A function's rewards have no known bound.
    validate(compose_config([*words, "normalization.min_std=10", "task.reward.parts=[{name: 'mine:f'}]"]))


def test_a_run_is_not_written_among_other_files(tmp_path, monkeypatch):
    folder = tmp_path / "work" / "empty"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    validate(compose_config(["task=arithmetic", "output_dir=."]))
    for output in ("..", "../..", "/etc", "~", str(tmp_path), str(tmp_path / "work" / "empty" / "..")):
        with pytest.raises(UserError, match="would mix the run's files with others: name a folder of its own, such as"):
            validate(compose_config(["task=arithmetic", f"output_dir={output}"]))
    (folder / "mine.py").touch()
    with pytest.raises(UserError, match="output_dir=. would mix the run's files with others"):
        validate(compose_config(["task=arithmetic", "output_dir=."]))
    for name, text in (("model", '{"model_type": "llama"}'), ("run", '{"seed": 1}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    validate(compose_config(["task=arithmetic", f"output_dir={tmp_path / 'run'}"]))
    with pytest.raises(UserError, match="model would mix the run's files with others"):
        validate(compose_config(["task=arithmetic", f"output_dir={tmp_path / 'model'}"]))
    (tmp_path / "runs" / "a" / "checkpoints" / "step-00000002").mkdir(parents=True)
    with pytest.raises(UserError, match="runs would mix the run's files with others"):
        validate(compose_config(["task=arithmetic", f"output_dir={tmp_path / 'runs'}"]))
    # A run may be continued from within its folder, and no other one begins among its files.
    (folder / "checkpoints" / "step-00000002").mkdir(parents=True)
    with pytest.raises(
        UserError, match=r"output_dir=checkpoints is a folder of a run.s: give output_dir=.*empty, or a new folder"
    ):
        validate(compose_config(["task=arithmetic", "output_dir=checkpoints"]))
    validate(compose_config(["task=arithmetic", "output_dir=.", "checkpoint.resume=true"]))


def test_differences_name_the_leaves_that_changed():
    old, new = compose_config([]), compose_config(["learner.learning_rate=2e-6", "seed=4"])
    assert sorted(differences(old, new)) == [("learner.learning_rate", None, 2e-6), ("seed", 0, 4)]


def test_a_saved_configuration_comes_back_as_it_was():
    config = compose_config(["experiment=bigmath_qwen2_5_7b", "task.reward.parts=[{name: math},{name: format}]"])
    assert from_dict(json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize("text", ["${oc.env:SECRET}", r"\${oc.env:SECRET}", r"\\${oc.env:SECRET}", "a ${seed} b", "${"])
def test_a_saved_configuration_looks_nothing_up(text, monkeypatch):
    monkeypatch.setenv("SECRET", "7")
    values = {"model": {"path": text}, "task": {"reward": {"parts": [{"name": text}]}}}
    config = from_dict(values)
    assert (config.model.path, config.task.reward.parts[0].name) == (text, text)
    with pytest.raises(UserError, match=r"num_steps takes a whole number, not \${oc.env:SECRET}"):
        from_dict({"num_steps": "${oc.env:SECRET}"})


def test_a_saved_configuration_of_another_shape_is_one_line():
    with pytest.raises(UserError):
        from_dict({"model": 3})


def test_a_sweep_is_found_by_name_and_changed_by_words(tmp_path):
    sweep = compose_sweep("normalization", ["seeds=5"])
    assert (sweep.seeds, sweep.budget, [*sweep.variants][:2]) == (5, "samples", ["grpo", "dr_grpo"])
    own = tmp_path / "own.yaml"
    own.write_text("variants: [seed=1, seed=2]")
    with pytest.raises(UserError, match="variants takes names with lists of words"):
        compose_sweep(str(own), [])
    own.write_text("variants: {a: [seed=1]}")
    assert compose_sweep(str(own), []).variants == {"a": ["seed=1"]}
    with pytest.raises(UserError, match="there is no sweep 'dail': choose one of dial, group_size"):
        compose_sweep("dail", [])
    with pytest.raises(UserError, match="^there is no key sedes"):
        compose_sweep(str(own), ["sedes=3"])
    with pytest.raises(UserError, match="^seeds takes a whole number, not many"):
        compose_sweep(str(own), ["seeds=many"])
    own.write_text("seeds: many")
    with pytest.raises(UserError, match="^own.yaml: seeds takes a whole number, not many"):
        compose_sweep(str(own), ["seeds=3"])


def test_the_grid_is_hydras_own():
    words = ["a=1,2", "b=x", "c.d=range(0,3)", "e=[1,2]"]
    assert grid(words) == [{"a": a, "c.d": d} for a in "12" for d in "012"]
    assert plain(words) == ["b=x", "e=[1,2]"]
    assert grid(["b=x"]) == [{}]
    with pytest.raises(UserError, match="has no end of values: name some as in"):
        grid(["a=interval(0,1)"])


def test_a_file_that_is_not_yaml_and_a_word_without_a_key_are_one_line(tmp_path):
    (tmp_path / "broken.yaml").write_text("defaults: [train\n")
    with pytest.raises(UserError, match=r"^broken.yaml cannot be read: while parsing a flow sequence"):
        compose_config([f"{tmp_path}/broken.yaml"])
    for word in ("=3", "+=3"):
        with pytest.raises(UserError, match="a key is written KEY=VALUE"):
            compose_config([word])


def test_a_tilde_leads_home_since_a_shell_leaves_it_after_a_dotted_key(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert compose_config(["task.data.path=~/my data.csv"]).task.data.path == f"{tmp_path}/my data.csv"
    own = tmp_path / "own.yaml"
    own.write_text("defaults: [train, _self_]\noutput_dir: ~/run\ntask:\n  data:\n    path: ~/sums.csv\n")
    config = compose_config([str(own)])
    assert (config.output_dir, config.task.data.path) == (f"{tmp_path}/run", f"{tmp_path}/sums.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# @package _global_\nnum_step: 3\n", "experiment/mine.yaml: unknown config key num_step; did you mean"),
        ("# @package _global_\nhydra: {run: {dir: x}}\n", "a file sets hydra.run, which is not read here: output_dir"),
        ("num_steps: 3\n", "experiment/mine.yaml changes keys of the whole configuration: begin it with"),
    ],
)
def test_a_mistake_in_a_file_of_ones_own_names_the_file_and_the_key(tmp_path, text, message):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        compose_config([f"--config-dir={tmp_path}", "experiment=mine"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_steps: abc", "my.yaml: num_steps takes a whole number, not abc"),
        ("learner: {betas: 3}", "my.yaml: learner.betas takes a list, [a,b]"),
        ("learner: 3", "my.yaml: learner takes keys and values, {KEY: VALUE}, not 3; `grpo config learner` lists them"),
        ("output_dir: null", "my.yaml: output_dir takes no null; leave it out for its default"),
        ("hydra: {run: {dir: x}}", "my.yaml: the block hydra: is not read here: output_dir is a run's folder"),
    ],
)
def test_a_wrong_value_in_a_file_of_ones_own_names_the_file_and_what_is_wanted(tmp_path, text, message):
    (tmp_path / "my.yaml").write_text(f"defaults: [train, _self_]\n{text}\n")
    with pytest.raises(UserError, match=re.escape(message)):
        compose_config([f"{tmp_path}/my.yaml"])


def test_a_file_that_is_not_utf_8_is_one_line(tmp_path):
    (tmp_path / "my.yaml").write_text("defaults: [train, _self_]\n", encoding="utf-16")
    with pytest.raises(UserError, match="^my.yaml is not UTF-8 text: save it as UTF-8$"):
        compose_config([str(tmp_path / "my.yaml")])


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (b"- a\n", "mine.yaml: a sweep has keys and values"),
        (bytes(range(256)), "mine.yaml is not UTF-8 text: save it as UTF-8"),
    ],
)
def test_a_sweep_of_ones_own_that_is_none_is_one_line(written, message, tmp_path):
    (tmp_path / "mine.yaml").write_bytes(written)
    with pytest.raises(UserError, match=f"^{message}"):
        compose_sweep(f"{tmp_path}/mine.yaml", [])
