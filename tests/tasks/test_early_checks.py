"""Data and rewards are checked early; `tests/commands/test_quick_words.py` holds that torch is not imported by then."""

import pytest

from grpo.config import DataConfig, PromptConfig, TaskConfig, UserError
from grpo.config.hydra import compose_config
from grpo.tasks import early_checks
from grpo.tasks.early_checks import check_early


def test_the_reward_of_one_source_is_tried_too(write_rows):
    rows = write_rows([{"problem": "1 + 1", "answer": "2", "from": "sums"}])
    of_source = '+task.reward.by_source={sums: {parts: [{name: "nowhere:f"}]}}'
    words = ["task=file", f"task.data.path={rows}", "task.data.source_column=from", of_source]
    with pytest.raises(UserError, match="cannot import 'nowhere:f'"):
        early_checks.check_early(compose_config(words).task)


def test_a_reward_of_a_whole_round_is_refused_where_each_group_is_graded_by_itself(tmp_path):
    (tmp_path / "own.py").write_text("def f(groups): return [[1.0] * len(group['completions']) for group in groups]\n")
    task = compose_config(["experiment=tiny", f'task.reward.parts=[{{name: "{tmp_path}/own.py:f"}}]']).task
    early_checks.check_early(task, "one_round")
    with pytest.raises(UserError, match="pipeline=continuous grades each by itself: use pipeline=off"):
        early_checks.check_early(task, "continuous")
    with pytest.raises(UserError, match="rollout.budget.enabled=true asks for their completions in two turns"):
        early_checks.check_early(task, budgeted=True)


def test_a_large_file_is_read_once_only_when_the_run_begins(write_rows, monkeypatch):
    rows = write_rows([{"problem": "1 + 1", "answer": "2"}])
    task = compose_config(["task=file", f"task.data.path={rows}", "task.data.question_column=q"]).task
    with pytest.raises(UserError, match="has no column 'q'"):
        early_checks.check_early(task)
    monkeypatch.setattr(early_checks, "MOST_BYTES", 10)
    early_checks.check_early(task)


def test_a_missing_file_of_a_chat_template_is_named_before_anything_is_loaded(write_rows):
    rows = write_rows([{"problem": "1 + 1", "answer": "2"}])
    task = TaskConfig(data=DataConfig(path=rows), prompt=PromptConfig(chat_template="nofile.jinja"))
    with pytest.raises(UserError, match=r"^task.prompt.chat_template=nofile.jinja cannot be read .*: name a file, or"):
        check_early(task)
