"""These tests check which learner an evaluation builds, how long its ranks wait, and when it is ended."""

import threading

import pytest

from grpo.config import TrainConfig
from grpo.config.hydra import compose_config
from grpo.rollout.grading_thread import GradingThread, sampled_and_graded
from grpo.run import measured_model
from grpo.run.measured_model import candidate, saved_learner
from grpo.telemetry import phases
from tests.fakes import ScriptedSampler, ScriptedTask


def test_a_checkpoint_says_how_its_weights_are_held_and_this_command_how_ranks_share_them():
    here, saved = TrainConfig().learner, TrainConfig().learner
    saved.precision, saved.zero_stage, saved.sequence_parallel, saved.hpz_partition_size = "bfloat16", 3, 4, 8
    learner = saved_learner(here, saved)
    assert (learner.precision, learner.zero_stage) == ("bfloat16", 3)
    assert (learner.sequence_parallel, learner.hpz_partition_size) == (1, 0)
    here.sequence_parallel = 2
    assert saved_learner(here, saved).sequence_parallel == 2


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
    monkeypatch.setattr(measured_model, "model_folder", lambda *arguments, **named: "path")
    monkeypatch.setattr(measured_model.models, "load_tokenizer", lambda *arguments: "tokenizer")
    for name in ("check_spread", "check_cpu_heads", "check_vocabulary"):
        monkeypatch.setattr(measured_model.preflight, name, lambda *arguments: None)
    monkeypatch.setattr(measured_model, "described", lambda model: model)
    monkeypatch.setattr(measured_model, "fit_lengths", lambda config, *arguments: (config, []))
    monkeypatch.setattr(measured_model, "check_start", lambda *arguments: None)
    monkeypatch.setattr(measured_model, "init_distributed", join)
    with pytest.raises(InterruptedError):
        measured_model.candidate(config, [])
    assert asked == [7200.0 + 1800.0 + 300.0]


def test_a_model_that_is_only_measured_is_sampled_under_a_deadline(monkeypatch):
    complaints, over = [], threading.Event()

    class Hanging(ScriptedSampler):
        def generate(self, prompts, *rest, **named):
            assert over.wait(30)
            return []

    monkeypatch.setattr(measured_model, "build_sampler", lambda *parts: Hanging())
    monkeypatch.setattr(phases, "_end_process", lambda complaint: (complaints.append(complaint), over.set()))
    config = compose_config(["experiment=tiny", "device=cpu", "rollout.deadline_seconds=0.05"])
    model = candidate(config, [config.task])
    with GradingThread(ScriptedTask([])) as thread:
        sampled_and_graded(model.sampler, model.clocks.evaluation_grading(thread), [], 2)
    assert len(complaints) == 1 and "gave no result for 0.05 s" in complaints[0]
