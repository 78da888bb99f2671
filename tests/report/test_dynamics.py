import io
import json

import numpy as np
import pytest
from rich.console import Console

from grpo.config import UserError
from grpo.report.dynamics import read_history, write_dynamics


def write_run(folder, rounds, num_steps=200):
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"learner": {"betas": [0.9, 0.999]}, "normalization": {"exponent": 1.0}, "num_steps": num_steps}
    (folder / "config.json").write_text(json.dumps(config))
    rates = 0.8 - 0.6 * np.exp(-np.arange(rounds) / 20)
    with (folder / "metrics.jsonl").open("w") as file:
        for index, rate in enumerate(rates):
            correct, groups = np.unique(generator.binomial(8, rate, 32), return_counts=True)
            counts = [[int(k), 8, int(n)] for k, n in zip(correct, groups, strict=True)]
            file.write(json.dumps({"step": index + 1, "plan/refresh_interval": 1.0, "groups/counts": counts}) + "\n")


def test_a_run_is_fitted_told_and_drawn(tmp_path):
    write_run(tmp_path, 100)
    output = io.StringIO()
    write_dynamics(tmp_path, console=Console(file=output, width=160))
    printed = output.getvalue()
    assert "exponential" in printed and "damping ratio" in printed
    assert "forecast for step 200: pass rate 0.8" in printed
    assert "phases not identified" in printed
    assert (tmp_path / "dynamics.png").stat().st_size > 10_000


def test_too_short_a_run_and_no_run_are_one_line(tmp_path):
    write_run(tmp_path, 3)
    with pytest.raises(UserError, match="3 rounds; the dynamics need at least 6"):
        write_dynamics(tmp_path)
    with pytest.raises(UserError, match="give the output_dir of a run"):
        write_dynamics(tmp_path / "nowhere")


def test_rounds_are_read_as_they_were_measured(tmp_path):
    write_run(tmp_path, 10)
    history = read_history(tmp_path / "metrics.jsonl")
    assert history.steps.tolist() == list(range(10))
    assert 0.1 < history.values[0] < 0.3
