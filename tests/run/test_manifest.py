"""These tests open a run's manifest, at its first start and when it is resumed."""

import pytest

from grpo.config import TrainConfig
from grpo.config.hydra import compose_config
from grpo.models.cache import sha256
from grpo.run.manifest import open_manifest, own_files, read_manifest


def test_a_reward_that_was_changed_before_a_resumption_is_named(tmp_path, capsys):
    open_manifest(tmp_path, {"step": 0, "own_files": {"a.py": "1", "b.py": "2"}}, resumed=False)
    open_manifest(tmp_path, {"step": 3, "own_files": {"a.py": "9", "b.py": "2", "c.py": "3"}}, resumed=True)
    assert capsys.readouterr().out == "  changed since: what a.py holds\n"
    assert [start["step"] for start in read_manifest(tmp_path)["starts"]] == [0, 3]


def test_the_digest_of_a_chat_template_is_among_those_of_the_users_files(tmp_path):
    (file := tmp_path / "own.jinja").write_text("{{ messages }}")
    config = compose_config([f"task.prompt.chat_template={file}"])
    assert own_files(config) == {str(file): sha256(file)}
    assert own_files(compose_config(["task.prompt.chat_template=chatml_tools"])) == {}


@pytest.mark.parametrize("named", ["{}:f", "calculator,{}:f,g", "program: python {} --fast"])
def test_the_file_of_an_episode_is_known_whatever_stands_beside_it(named, tmp_path):
    (file := tmp_path / "tools.py").write_text("def f(): ...\ndef g(): ...\n")
    config = TrainConfig()
    config.task.episode = named.format(file)
    assert own_files(config) == {str(file): sha256(file)}
