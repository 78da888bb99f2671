"""Data and rewards are checked before anything heavy is imported."""

import subprocess
import sys


def said(*words):
    """What `grpo train` says of a mistake, in a Python that cannot import torch."""
    code = "import sys; sys.modules['torch'] = None; from grpo.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, "train", *words], capture_output=True, text=True)
    assert done.returncode == 2
    return done.stderr


def test_mistakes_in_data_and_reward_are_told_without_torch(write_rows, tmp_path):
    rows = write_rows([{"problem": "1 + 1", "answer": "2"}])
    file = ["task=file", f"task.data.path={rows}"]
    assert "has no column 'q' (task.data.question_column)" in said(*file, "task.data.question_column=q")
    assert "cannot import 'nowhere:f'" in said('task.reward.parts=[{name: "nowhere:f"}]')
    (tmp_path / "own.py").write_text("def f(prompt, response): return 1.0\n")
    assert "takes (prompt, response); write it as" in said(f'task.reward.parts=[{{name: "{tmp_path}/own.py:f"}}]')
    server = "{name: http, server: {url: 'http://127.0.0.1:9', key_variable: NO_SUCH_KEY}}"
    assert "takes its key from NO_SUCH_KEY, which is not set" in said(f"task.reward.parts=[{server}]")
