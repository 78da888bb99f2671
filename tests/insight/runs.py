"""This module writes folders and files as runs leave them: ours, TRL's and verl's."""

import json
from dataclasses import asdict

import numpy as np

from grpo.config.run import TrainConfig


def write_run(folder, rounds, num_steps=200):
    """Writes a run of ours whose pass rate relaxes from 0.2 to 0.8 in 20 steps."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**asdict(TrainConfig()), "num_steps": num_steps}))
    rates = 0.8 - 0.6 * np.exp(-np.arange(rounds) / 20)
    with (folder / "metrics.jsonl").open("w") as file:
        for index, rate in enumerate(rates):
            draws = generator.binomial(8, rate, 32)
            correct, groups = np.unique(draws, return_counts=True)
            row = {
                "step": index + 1,
                "pass_rate": float(draws.mean() / 8),
                "plan/group_size": 8.0,
                "plan/refresh_interval": 1.0,
                "plan/prompts_per_step": 32.0,
                "groups/silent_fraction": float(np.mean((draws == 0) | (draws == 8))),
                "completions/length_mean": 100.0,
                "prompts/length_mean": 20.0,
                "time/sample_seconds": 1.0,
                "time/sync_seconds": 0.1,
                "groups/counts": [[int(k), 8, int(n)] for k, n in zip(correct, groups, strict=True)],
            }
            file.write(json.dumps(row) + "\n")


def trl_log(folder):
    """Writes a trainer_state.json with the names of TRL 1.16's GRPOTrainer."""
    generator = np.random.default_rng(0)
    history = []
    for step in range(1, 61):
        reward = 0.6 - 0.4 * np.exp(-step / 10) + 0.02 * generator.standard_normal()
        row = {"step": step, "loss": 0.0, "reward": reward, "rewards/accuracy_reward/mean": reward}
        row |= {"frac_reward_zero_std": 0.25, "entropy": 0.5, "clip_ratio/high_mean": 0.01, "grad_norm": 0.3}
        history.append(row | {"completions/mean_length": 200.0, "completions/clipped_ratio": 0.1})
        if step in (30, 60):
            history.append({"step": step, "eval_reward": 0.25 if step == 30 else 0.5})
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history, "global_step": 60}))


def verl_log(path):
    """Writes the lines of verl 0.9's file logger."""
    generator = np.random.default_rng(0)
    with path.open("w") as file:
        for step in range(1, 41):
            data = {"critic/score/mean": 0.3 + 0.02 * generator.standard_normal(), "actor/entropy": 0.4}
            data |= {"response_length/mean": 400.0, "response_length/clip_ratio": 0.9, "actor/grad_norm": 0.2}
            if step in (20, 40):
                data["val-core/openai/gsm8k/reward/mean@1"] = 0.25 if step == 20 else 0.5
            file.write(json.dumps({"step": step, "data": data}) + "\n")
