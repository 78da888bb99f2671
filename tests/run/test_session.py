"""These tests check how long a run's ranks wait for one another, and what a run that was stopped says."""

import shlex
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grpo.config import TrainConfig, UserError
from grpo.config.errors import Diverged, GradingFailed, GradingFailedElsewhere, SamplerLost
from grpo.run import session
from grpo.run.session import leaves_checkpoint, way_on
from tests.learner.models import files_of


def test_a_stopped_run_points_at_its_report_only_after_it_has_finished_a_round():
    stopped = "stopped at step {} of 9; continue with checkpoint.resume=true output_dir=runs/x"
    assert way_on(Path("runs/x"), 0, 9) == stopped.format(0)
    assert way_on(Path("runs/x"), 3, 9) == stopped.format(3) + "\ngrpo report runs/x shows how far it came"
    # Both can be typed as they stand, in a folder with a blank in its name.
    resume, report = way_on(Path("my run"), 3, 9).split("; continue with ")[1].splitlines()
    assert shlex.split(resume) == ["checkpoint.resume=true", 'output_dir="my run"']
    assert shlex.split(report)[:3] == ["grpo", "report", "my run"]


@pytest.mark.parametrize(
    ("error", "alone", "of_several"),
    [
        (SamplerLost, True, True),
        (GradingFailed, True, True),
        (GradingFailedElsewhere, True, True),
        (UserError, True, False),
        (Diverged, False, False),
    ],
)
def test_a_policy_that_has_diverged_is_not_saved_and_one_rank_does_not_save_without_the_others(
    error, alone, of_several
):
    assert leaves_checkpoint(error("why"), 1) is alone
    assert leaves_checkpoint(error("why"), 2) is of_several


class Joined(Exception):
    """This error ends a run once its ranks have met."""


def test_ranks_wait_for_one_another_as_long_as_any_phase_may_take(monkeypatch):
    """Otherwise NCCL's watchdog would end a rank that has finished sampling, long before the others must have."""
    asked = []

    def join(device, deadline_seconds):
        asked.append(deadline_seconds)
        raise Joined

    config = TrainConfig(device="cpu")
    config.rollout.deadline_seconds, config.weight_sync.deadline_seconds = 7200.0, 300.0
    monkeypatch.setattr(
        session, "prepared", lambda config: SimpleNamespace(config=config, files=files_of("", "a tokenizer"), task=None)
    )
    monkeypatch.setattr(session, "load_task", lambda *arguments: nullcontext())
    monkeypatch.setattr(session, "init_distributed", join)
    with pytest.raises(Joined):
        session.train(config)
    assert asked == [7200.0 + 1800.0 + 300.0]


def test_torch_distributed_ends_with_a_run(monkeypatch):
    def join(device):
        raise Joined

    config, ended = TrainConfig(), []
    monkeypatch.setattr(
        session, "prepared", lambda config: SimpleNamespace(config=config, files=files_of("", "a tokenizer"), task=None)
    )
    monkeypatch.setattr(session, "load_task", lambda *arguments: nullcontext())
    monkeypatch.setattr(session.ranks, "device", lambda config: torch.device("cpu"))
    monkeypatch.setattr(session, "init_distributed", lambda *arguments: True)
    monkeypatch.setattr(session, "end_distributed", lambda: ended.append("ended"))
    monkeypatch.setattr(session, "TorchCollective", join)
    with pytest.raises(Joined):
        session.train(config)
    assert ended == ["ended"]
