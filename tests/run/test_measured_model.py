"""These tests check which learner an evaluation builds, how long its ranks wait, and when it is ended."""

import json
import threading
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from grpo.config import TrainConfig, UserError
from grpo.config.hydra import compose_config
from grpo.config.saved import described
from grpo.interfaces import Draw
from grpo.rollout.grading_thread import GradingThread, sampled_and_graded
from grpo.run import measured_model
from grpo.run.measured_model import candidate, saved_learner
from grpo.telemetry import phases
from tests.fakes import ScriptedSampler, ScriptedTask
from tests.learner.models import files_of


def test_a_checkpoint_says_how_its_weights_are_stored_and_this_command_how_ranks_share_them():
    here, saved = TrainConfig().learner, TrainConfig().learner
    saved.precision, saved.zero_stage, saved.sequence_parallel, saved.hpz_partition_size = "bfloat16", 3, 4, 8
    saved.offload_optimizer = saved.offload_states = True
    # DeepSpeed would write where a stranger's checkpoint says.
    saved.deepspeed = {"csv_monitor": {"enabled": True, "output_path": "/elsewhere", "job_name": "x"}}
    here.sequence_parallel, here.deepspeed = 2, {"communication_data_type": "fp32"}
    learner = saved_learner(here, saved)
    layout = {"precision": "bfloat16", "zero_stage": 3, "offload_optimizer": True, "offload_states": True}
    assert learner == replace(here, **layout)


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("learner", "precision"), "float8", "learner.precision='float8' is unknown: choose one of"),
        (("learner", "zero_stage"), 7, "learner.zero_stage=7 is unknown: choose one of"),
        (
            ("model", "config"),
            {"attn_implementation": "a/b"},
            "model.config.attn_implementation is set by the run itself",
        ),
    ],
)
def test_values_of_a_checkpoint_are_checked_as_words_are(keys, value, said, tmp_path):
    folder, saved = tmp_path / "step-00000004", asdict(TrainConfig())
    folder.mkdir()
    saved[keys[0]][keys[1]] = value
    (folder / "state.json").write_text(json.dumps({"config": saved}))
    config = compose_config(["experiment=tiny", "device=cpu", f"model.path={folder}"])
    config.model = described(config.model)
    with pytest.raises(UserError, match=said):
        candidate(config, [config.task])


@pytest.mark.parametrize("words", [{"path": "given"}, {"path": "given", "start": "runs/x"}])
def test_ranks_of_an_evaluation_wait_as_long_as_those_of_a_run(words, monkeypatch):
    asked = []

    def join(device, deadline_seconds):
        asked.append(deadline_seconds)
        raise InterruptedError

    config = TrainConfig(device="cpu", output_dir="runs/x")
    config.rollout.deadline_seconds, config.weight_sync.deadline_seconds = 7200.0, 300.0
    for name, value in words.items():
        setattr(config.model, name, value)
    monkeypatch.setenv("WORLD_SIZE", "1" if config.model.start else "2")
    found = files_of("path", "tokenizer")
    monkeypatch.setattr(measured_model, "model_and_problems", lambda config, *_, **named: (config, found, []))
    monkeypatch.setattr(measured_model, "check_start", lambda *arguments: None)
    monkeypatch.setattr(measured_model, "init_distributed", join)
    with pytest.raises(InterruptedError):
        measured_model.candidate(config, [])
    assert asked == [7200.0 + 1800.0 + 300.0]


@pytest.mark.parametrize(("servers", "is_sent"), [("port=8000", False), ("urls=[http://127.0.0.1:8000]", True)])
def test_servers_that_run_already_are_sent_the_model_that_is_measured(servers, is_sent, monkeypatch):
    sent = []
    sync = SimpleNamespace(refresh=lambda learner, sampler: sent.append(learner), begin=None, check=None)
    monkeypatch.setattr(measured_model, "init_distributed", lambda *arguments: None)
    monkeypatch.setattr(measured_model, "DeepSpeedLearner", lambda *arguments: SimpleNamespace(num_steps=0))
    monkeypatch.setattr(measured_model, "sampler_in_turn", lambda config, learner, build, clocks: build())
    monkeypatch.setattr(measured_model, "build_sampler", lambda *parts: ScriptedSampler())
    monkeypatch.setattr(measured_model.CheckedSync, "of", lambda *parts: sync)
    config = compose_config(["experiment=tiny", "device=cpu", "rollout=vllm_server", f"rollout.servers.{servers}"])
    candidate(config, [config.task])
    assert bool(sent) == is_sent


def test_a_model_that_is_only_measured_is_sampled_under_a_deadline(monkeypatch):
    complaints, over = [], threading.Event()

    class Hanging(ScriptedSampler):
        def generate(self, draw, on_group=None):
            assert over.wait(30)
            return []

    monkeypatch.setattr(measured_model, "build_sampler", lambda *parts: Hanging())
    monkeypatch.setattr(phases, "_end_process", lambda complaint: (complaints.append(complaint), over.set()))
    config = compose_config(["experiment=tiny", "device=cpu", "rollout.deadline_seconds=0.05"])
    model = candidate(config, [config.task])
    with GradingThread(ScriptedTask([])) as thread:
        sampled_and_graded(model.sampler, model.clocks.evaluation_grading(thread), Draw([], 2))
    assert len(complaints) == 1 and "gave no result for 0.05 s" in complaints[0]
