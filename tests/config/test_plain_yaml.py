"""A few lines of YAML or JSON that stand for more than memory holds are refused in one line, wherever they are read."""

import json

import pytest

from grpo.config import UserError
from grpo.config.hydra import compose_config, compose_sweep
from grpo.config.plain_json import parse_json, read_object
from grpo.config.plain_yaml import load

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


def test_json_is_parsed_up_to_a_depth_that_no_file_of_a_run_reaches():
    for depth in (1, 100):
        text = "[" * depth + "]" * depth
        assert parse_json(text) == json.loads(text) == parse_json(text.encode())
    for depth in (101, 500, 900, 200_000):
        with pytest.raises(ValueError, match="its brackets are nested deeper than 100"):
            parse_json("[" * depth + "]" * depth)
    # Brackets in a text nest nothing.
    assert parse_json('["' + "[" * 500 + '"]') == ["[" * 500]


@pytest.mark.parametrize("text", ["[1]", "{", "", '{"a":' * 300 + "1" + "}" * 300, "\x00"])
def test_a_file_that_is_no_json_object_is_one_line(tmp_path, text):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(UserError, match=r"^[^\n]*config.json is damaged[^\n]*: restore it$"):
        read_object(file, ": restore it")
