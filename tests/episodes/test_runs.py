"""These tests train on episodes from the command line: in one process, resumed, and on a server that works ahead."""

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
    done = forked_servers.grpo(tmp_path, "train", *EPISODES, *words, f"output_dir={tmp_path}/run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert min(of_episodes(tmp_path / "run", "turns_mean")) > 1
    assert max(of_episodes(tmp_path / "run", "failed_fraction")) == 0


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
    assert "An episode of b opens with the tools:\n" in done.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["task.episode=tests.episodes.acts:nobody"], "task.episode=tests.episodes.acts:nobody cannot be imported"),
        (["task.episode=tests.episodes.acts:add"], "shows no tools to the model"),
        (["evaluation.num_problems=8", "evaluation.suite=[math500]"], "evaluation.suite asks single turns so far"),
        (["task.prompt.chat=false"], "task.episode is a conversation"),
        (["task.episode=", "task.limits.turns=2"], "task.limits are those of episodes"),
        (["task.episode=", "task.limits.turns=8", "task.reward.parts=[{name: episode}]"], "which an episode returns"),
    ],
)
def test_a_run_whose_episodes_cannot_be_played_is_refused(tmp_path, words, complaint):
    done = grpo("train", *EPISODES, "rollout=transformers", *words, f"output_dir={tmp_path}/run")
    assert (done.returncode, complaint in done.stderr) == (2, True), done.stderr[-2000:]
    assert "Traceback" not in done.stderr
