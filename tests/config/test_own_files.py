"""A configuration file of one's own with a mistake gives one line, which names the file and the mend."""

import pytest

from grpo.config import UserError
from grpo.config.hydra import compose_config
from grpo.config.validate import validate

BEGINNING = "defaults: [train, _self_]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tracking:\n  tags: !!set {a, b}\n", "own.yaml cannot be read: Value 'set' is not a supported primitive type"),
        ("null: 3\n", "own.yaml cannot be read: Incompatible key type 'NoneType'"),
        ("seed: " + "9" * 6000, "own.yaml cannot be read: Exceeds the limit (4300 digits)"),
        ("rollout: {engine_args: [--max-num-seqs 4]}\n", "own.yaml: a list or text stands where keys and values,"),
        ("seed: *x\n", "own.yaml cannot be read: found undefined alias 'x' in line 2, column 7"),
        (
            "task: gsm8k\n",
            "own.yaml: task takes keys and values, {KEY: VALUE}, not gsm8k; `grpo config task` lists them, and "
            "a choice of its group stands in the list of defaults, as `override task: gsm8k`",
        ),
        ("experiment: tiny\n", "own.yaml: a recipe stands in the list of defaults, as `override experiment: NAME`"),
        (
            "gates: {metric: kl}\n",
            "own.yaml: a list or text stands where keys and values, {KEY: VALUE} belong, or these "
            "where a list does, such as task.reward.parts: [{name: math}]; `grpo config KEY` says which",
        ),
        (
            "actor_rollout_ref: {actor: {optim: {lr: 1e-6}}}\n",
            "own.yaml: unknown config key actor_rollout_ref.actor.optim.lr; here it is learner.learning_rate",
        ),
        ("pipeline: off\n", 'pipeline: YAML reads off without quotes as false: write pipeline: "off" in the file'),
        ("'': 3\n", "own.yaml: a key has no name: write KEY: VALUE"),
        ("a:\tb: 3\n", "own.yaml cannot be read: while scanning for the next token found character '\\t' that cannot"),
    ],
)
def test_a_file_that_yaml_or_omegaconf_cannot_read_is_one_line(text, message, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(BEGINNING + text)
    with pytest.raises(UserError) as refusal:
        validate(compose_config([str(file)]))
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)


def test_all_unknown_keys_of_a_file_are_named(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(BEGINNING + "actor_rollout_ref: {rollout: {n: 8}}\nnum_generations: 8\n")
    with pytest.raises(UserError, match="(?s)^own.yaml: unknown config keys:\n  actor_rollout_ref.rollout.n; .*\n"):
        compose_config([str(file)])


def test_a_list_of_defaults_that_names_no_file_says_which(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("defaults: [train, base.yaml, _self_]\n")
    with pytest.raises(UserError, match="^own.yaml: there is no base.yaml beside it$"):
        compose_config([str(file)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"# @package _global_\ndefaults:\n  - model: tiny\n", "experiment/mine.yaml: in its list of defaults, write"),
        (
            b"# @package _global_\ndefaults:\n  - /model: tiny\n",
            "in a file's list of defaults write `override /model: …`",
        ),
        (b"# @package _global_\ndefaults:\n  - override task: gsm8k\n", "a recipe's list of defaults names a group"),
        (b"# @package _global_\ndefaults:\n  - /experiment: mine\n", "a configuration file names itself in its list"),
        (b"# @package\nnum_steps: 3\n", "a file's first line says @package without a place: write `# @package _glob"),
        (b"\xff\xfe\0", "experiment/mine.yaml is not UTF-8 text: save it as UTF-8"),
        (b"# @package _global_\ntask:\n  reward: math\n", "task.reward takes keys and values, {KEY: VALUE}, not"),
    ],
)
def test_a_recipe_of_ones_own_with_a_mistake_is_one_line(content, message, tmp_path):
    recipe = tmp_path / "experiment" / "mine.yaml"
    recipe.parent.mkdir()
    recipe.write_bytes(content)
    with pytest.raises(UserError) as refusal:
        compose_config(["--config-dir", str(tmp_path), "experiment=mine"])
    assert message in str(refusal.value) and "\n" not in str(refusal.value)
