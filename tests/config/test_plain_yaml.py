"""A few lines of YAML or JSON that stand for more than memory holds are refused in one line, wherever they are read."""

import json
import re

import pytest

from grpo.config import UserError
from grpo.config.hydra import compose_config, compose_sweep
from grpo.config.plain_json import parse_json, read_object
from grpo.config.plain_yaml import from_words, load

BEGINNING = "defaults: [train, _self_]\n"
LAUGHS = "\n".join(
    [
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 7)),
    ]
)
ODD = {
    "repeated": (LAUGHS, "its aliases (*NAME) repeat values until there are more than 100,000"),
    "itself": ("a: &a\n  inner: *a\n", "its aliases (*NAME) repeat values until there are more than 100,000"),
    "deep": ("a: " + "[" * 5000 + "]" * 5000, "it is nested too deep"),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_file_of_the_users_that_grows_or_nests_without_end_is_named(kind, tmp_path):
    text, said = ODD[kind]
    own, sweep, group = tmp_path / "own.yaml", tmp_path / "sweep.yaml", tmp_path / "task" / "group.yaml"
    group.parent.mkdir()
    own.write_text(BEGINNING + text)
    sweep.write_text(text)
    group.write_text(text)
    for file, read in (
        (own, lambda: compose_config([str(own)])),
        (group, lambda: compose_config(["--config-dir", str(tmp_path), "task=group"])),
        (sweep, lambda: compose_sweep(str(sweep), [])),
    ):
        with pytest.raises(UserError) as refusal:
            read()
        assert str(refusal.value) == f"{file.name} cannot be read: {said}"


def test_a_few_aliases_are_read_as_before(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(BEGINNING + "model: {config: &same {a: [1, 2]}}\nrollout: {engine_args: *same}\n")
    assert compose_config([str(file)]).rollout.engine_args == {"a": [1, 2]}
    assert load(file).model.config.a == [1, 2]


def test_whole_numbers_of_a_file_may_be_written_with_an_exponent(tmp_path):
    own, group, sweep = tmp_path / "own.yaml", tmp_path / "dynamics" / "mine.yaml", tmp_path / "sweep.yaml"
    own.write_text(
        BEGINNING
        + "num_steps: 1e3\ntask: {data: {size: 2e2}, sets: {a: {data: {size: 1e2}}}}\n"
        + "learner: {learning_rate: 1e-5}\nmodel: {config: {rope_theta: 1e6, num_steps: 1e1}}\n"
    )
    config = compose_config([str(own)])
    assert (config.num_steps, config.task.data.size, config.task.sets["a"].data.size) == (1000, 200, 100)
    # Entries with names of one's own stay what they are.
    kept = [config.learner.learning_rate, *config.model.config.values()]
    assert [(type(value), value) for value in kept] == [(float, 1e-5), (float, 1e6), (float, 10.0)]
    group.parent.mkdir()
    group.write_text("defaults: [fixed]\ngroup_size: 1e1\n")
    assert compose_config(["--config-dir", str(tmp_path), "dynamics=mine"]).dynamics.group_size == 10
    sweep.write_text("seeds: 1e1\n")
    assert compose_sweep(str(sweep), []).seeds == 10


def test_a_broken_number_of_a_file_is_no_whole_one(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(BEGINNING + "num_steps: 1.5\n")
    with pytest.raises(UserError, match="num_steps takes a whole number, not 1.5"):
        compose_config([str(own)])


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("num_steps: 1:30", 2),
        ("seed: 010", 2),
        ("\nlimits: {seconds: 1:30:00}", 3),
        ("num_steps: 08", 2),
        ("num_steps: 0x10", 2),
    ],
)
def test_a_number_of_a_file_in_a_base_that_no_person_means_is_refused(written, line, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(BEGINNING + written + "\n")
    number = written.split(": ")[-1].rstrip("}")
    with pytest.raises(UserError, match=f"^own.yaml: {number} in line {line} is no plain decimal number, and YAML may"):
        compose_config([str(own)])


def test_times_in_comments_and_quotes_and_zeros_of_other_numbers_are_left_alone(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(BEGINNING + "# at 10:30\nnum_steps: 1000\nseed: 0\ntracking: {tags: ['1:30', 'a 10:30', x10:30]}\n")
    config = compose_config([str(own)])
    assert (config.num_steps, config.seed, config.tracking.tags) == (1000, 0, ["1:30", "a 10:30", "x10:30"])


@pytest.mark.parametrize("group", ["experiment", "task"])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("- a\n", "a list"),
        ("hello", "text"),
        ("# @package _global_\n- a\n", "a list"),
        ("# mine\nhello\n", "text"),
        ("# @package _global_\n'num_steps: 3'\n", "text"),
        ("3", "one value"),
    ],
)
def test_a_file_of_a_group_that_holds_no_keys_is_refused_by_what_it_holds(text, kind, group, tmp_path):
    (tmp_path / group).mkdir()
    (tmp_path / group / "mine.yaml").write_text(text)
    with pytest.raises(UserError) as refusal:
        compose_config(["--config-dir", str(tmp_path), f"{group}=mine"])
    assert str(refusal.value) == f"mine.yaml holds {kind}, and a configuration file holds keys and values, KEY: VALUE"


def test_an_empty_file_of_a_group_and_one_with_a_key_alone_are_no_text(tmp_path):
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\n")
    assert compose_config(["--config-dir", str(tmp_path), "experiment=mine"]).seed == 0
    file.write_text("# @package _global_\nevaluation:\n")
    with pytest.raises(UserError, match="evaluation takes no null"):
        compose_config(["--config-dir", str(tmp_path), "experiment=mine"])


@pytest.mark.parametrize("before", ["", "# mine\n\n"])
def test_a_file_of_the_users_that_puts_itself_below_a_section_is_refused_with_the_line_to_write(before, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(f"{before}# @package learner\n{BEGINNING}learning_rate: 1e-6\n")
    with pytest.raises(
        UserError, match="^own.yaml: its line @package puts all its keys below learner, .* leave out the"
    ):
        compose_config([str(own)])
    own.write_text(f"{before}# @package _global_\n{BEGINNING}seed: 3\n")
    assert compose_config([str(own)]).seed == 3


def test_json_is_parsed_up_to_a_depth_that_no_file_of_a_run_reaches():
    for depth in (1, 40):
        text = "[" * depth + "]" * depth
        assert parse_json(text) == json.loads(text) == parse_json(text.encode())
    for depth in (41, 500, 900, 200_000):
        with pytest.raises(ValueError, match="its brackets are nested deeper than 40"):
            parse_json("[" * depth + "]" * depth)
    # Brackets in a text nest nothing.
    assert parse_json('["' + "[" * 500 + '"]') == ["[" * 500]


@pytest.mark.parametrize("text", ["[1]", "{", "", '{"a":' * 300 + "1" + "}" * 300, "\x00"])
def test_a_file_that_is_no_json_object_is_one_line(tmp_path, text):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(UserError, match=r"^[^\n]*config.json is damaged[^\n]*: restore it$"):
        read_object(file, ": restore it")


@pytest.mark.parametrize("word", ["dynamics.adaptive.smallest_group=[4", "dynamics.adaptive.smallest_group='4", "a={b"])
def test_a_word_whose_value_is_no_yaml_is_named(word):
    with pytest.raises(UserError, match=rf"^cannot read {re.escape(repr(word))}: its brackets and quotation marks"):
        from_words(["seeds=2", word])
