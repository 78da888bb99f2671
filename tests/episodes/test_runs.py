"""These tests train on episodes from the command line: in one process, resumed, and on a server that works ahead."""

import json

import pytest

from benchmarks.runs import QUIET, SMALL, facts, free_ports, rows
from tests import forked_servers
from tests.runs import grpo

pytestmark = pytest.mark.slow

EPISODES = [
    *(*SMALL, *QUIET, "model.max_length=128", "rollout.sampling.max_tokens=24", "task.limits.turns=2"),
    *(
        "task.episode=tests.episodes.acts:three_turns",
        "task.reward.parts=[{name: number}]",
        "learner.learning_rate=1e-3",
    ),
]
OF_TRAINING, NAMES = ("learner.", "dynamics.", "checkpoint."), ("played", "plain")


def of_episodes(output, name):
    return [row[f"episodes/{name}"] for row in rows(output / "metrics.jsonl")]


def test_a_resumed_run_of_episodes_equals_one_that_never_stopped(tmp_path):
    whole, halves = (["rollout=transformers", f"output_dir={tmp_path}/{name}"] for name in ("whole", "halves"))
    done = grpo("train", *EPISODES, *whole, "num_steps=4")
    assert done.returncode == 0, done.stderr[-3000:]
    assert min(of_episodes(tmp_path / "whole", "turns_mean")) > 1
    assert min(of_episodes(tmp_path / "whole", "observed_mean")) > 5
    for words in (["num_steps=2", "checkpoint.every_rounds=1"], ["num_steps=4", "checkpoint.resume=true"]):
        done = grpo("train", *EPISODES, *halves, *words)
        assert done.returncode == 0, done.stderr[-3000:]
    # Which turns share a batch depends on when they arrive, so numbers may differ where they are rounded.
    halved, undisturbed = (
        [value or 0.0 for row in facts(tmp_path / name) for value in row.values()] for name in ("halves", "whole")
    )
    assert halved == pytest.approx(undisturbed, rel=1e-5)


def test_episodes_on_a_server_that_works_ahead_have_the_learners_log_probabilities(tmp_path):
    words = ["rollout=vllm_server", "pipeline=continuous", f"rollout.servers.port={free_ports(1)}", "num_steps=4"]
    words += ["evaluation.num_problems=4", f"evaluation.suite=[{','.join(suite(tmp_path))}]"]
    done = forked_servers.grpo(tmp_path, "train", *EPISODES, *words, f"output_dir={tmp_path}/run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert min(of_episodes(tmp_path / "run", "turns_mean")) > 1
    assert max(of_episodes(tmp_path / "run", "failed_fraction")) == 0
    # A file of problems is played as the run's own task is, whose episodes end at the limit of turns.
    for row in rows(tmp_path / "run" / "evaluations.jsonl"):
        assert (row["truncated_fraction"], row["suite"]["played"]["truncated_fraction"]) == (1.0, 1.0)
        assert row["suite"]["plain"]["truncated_fraction"] < 1.0


def suite(folder):
    """Returns two sets for `evaluation.suite`: a file of problems, and a task of single turns."""
    (folder / "played.jsonl").write_text('{"problem": "40 + 60 =", "answer": "100"}\n' * 3)
    (folder / "task").mkdir()
    data = f"data: {{source: file, path: {folder}/played.jsonl}}"
    (folder / "task" / "plain.yaml").write_text(f"name: plain\n{data}\nreward: {{parts: [{{name: number}}]}}\n")
    return [str(folder / "played.jsonl"), str(folder / "task" / "plain.yaml")]


def test_episodes_and_single_turns_of_a_suite_are_evaluated_without_a_run(tmp_path):
    words = ["rollout=transformers", f"evaluation.suite=[{','.join(suite(tmp_path))}]", f"output_dir={tmp_path}/out"]
    done = grpo("eval", *(word for word in EPISODES if not word.startswith(OF_TRAINING)), *words)
    assert done.returncode == 0, done.stderr[-3000:]
    played, plain = (json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in NAMES)
    assert (played["problems"], played["truncated_fraction"]) == (3, 1.0)
    assert plain["problems"] == 3 and plain["truncated_fraction"] < 1.0


def test_a_dry_run_shows_how_an_episode_of_each_set_opens(tmp_path):
    sets = [f"+task@task.sets.{name}=tiny_arithmetic" for name in "ab"]
    words = [
        *SMALL,
        *QUIET,
        "model.max_length=128",
        "task=mixed",
        *sets,
        "task.sets.b.episode=tests.episodes.acts:three_turns",
    ]
    done = grpo("train", *words, "rollout=transformers", "dry_run=true", f"output_dir={tmp_path}/run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "An episode of b opens so:\n" in done.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["task.episode=tests.episodes.acts:nobody"], "task.episode=tests.episodes.acts:nobody cannot be imported"),
        (["task.episode=tests.episodes.acts:add"], "shows no tools to the model"),
        (["task.prompt.chat=false"], "task.episode is a conversation"),
        (["task.episode=", "task.limits.turns=2"], "task.limits are those of episodes"),
        (["task.episode=", "task.limits.turns=8", "task.reward.parts=[{name: episode}]"], "which an episode returns"),
        (["task=verifiers", "task.episode="], "set task.episode=verifiers:ID"),
    ],
)
def test_a_run_whose_episodes_cannot_be_played_is_refused(tmp_path, words, complaint):
    done = grpo("train", *EPISODES, "rollout=transformers", *words, f"output_dir={tmp_path}/run")
    assert (done.returncode, complaint in done.stderr) == (2, True), done.stderr[-2000:]
    assert "Traceback" not in done.stderr
