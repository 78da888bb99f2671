"""Data and rewards are checked before anything heavy is imported."""

import subprocess
import sys

import pytest

from grpo.config import UserError
from grpo.config.hydra import compose_config
from grpo.tasks import early_checks


def said(*words):
    """Returns grpo's message for a mistake, from a process that has not imported torch by then."""
    code = "import sys; from grpo.cli import main; code = main(sys.argv[1:]); sys.exit(code + ('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dynamics", "fitt", "x"], "grpo dynamics has no 'fitt'"),
        (["report", "no/such/run"], "there is no folder no/such/run"),
        (["sweep", "sweep=nope"], "there is no sweep 'nope'"),
        (["samples", "no/such/run"], "no/such/run"),
        (["prove", "part=atention"], "part=atention is unknown: choose among attention, learner"),
        (["prove", "size=70b"], "size=70b is unknown: choose one of tiny, 1.5b, 7b"),
        (["prove", "learner.zero_stag=3"], "unknown config key learner.zero_stag; did you mean learner.zero_stage?"),
        (["prove", "learner.zero_stage=7"], "learner.zero_stage=7 is unknown: choose one of 0 | 1 | 2 | 3"),
        (["train", "task.reward.parts=[{}]"], "task.reward.parts has a part without a name"),
    ],
)
def test_mistakes_of_commands_without_engines_are_reported_without_torch(words, message):
    assert message in said(*words)


@pytest.mark.slow
def test_mistakes_in_data_and_reward_are_reported_without_torch(write_rows, tmp_path):
    rows = write_rows([{"problem": "1 + 1", "answer": "2"}])
    file = ["task=file", f"task.data.path={rows}"]
    assert "has no column 'q' (task.data.question_column)" in said("train", *file, "task.data.question_column=q")
    assert "cannot import 'nowhere:f'" in said("train", 'task.reward.parts=[{name: "nowhere:f"}]')
    assert "unknown part 'maths'; choose from math" in said("train", "task.reward.parts=[{name: maths}]")
    (tmp_path / "own.py").write_text("def f(prompt, response): return 1.0\n")
    assert "takes (prompt, response); write it as" in said(
        "train", f'task.reward.parts=[{{name: "{tmp_path}/own.py:f"}}]'
    )
    server = "{name: http, server: {url: 'http://127.0.0.1:9', key_variable: NO_SUCH_KEY}}"
    assert "takes its key from NO_SUCH_KEY, which is not set" in said("train", f"task.reward.parts=[{server}]")


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
