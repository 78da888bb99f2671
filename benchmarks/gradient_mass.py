"""This script measures where the gradient comes from: the norm of each group's gradient, by difficulty.

    python benchmarks/gradient_mass.py RATES.jsonl OUTPUT.json [PROBLEMS=96] [GROUP_SIZE=16]

RATES.jsonl is written by `grpo solve-rates`, so difficulty comes from other samples than the groups. Problems that were
solved at times are taken first, then problems that never were. Every group is a step of its own through the real
learner, at a learning rate of zero, under α = 0 and under α = 1. arXiv:2607.00152 says that a group's gradient is
σ^(2−α) times the difference of the mean scores of right and wrong completions, and derives the shares of easy and hard
problems from σ alone, as if that difference did not depend on difficulty. This script measures how it does.
"""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

from grpo.host import environment
from grpo.interfaces import Draw
from grpo.run.preparing import with_precision

environment.prepare()

from grpo.algorithm.batches import BatchMaker
from grpo.config.hydra import compose_config
from grpo.config.parts import LearnerSettings
from grpo.host import ranks
from grpo.learner.collective import TorchCollective
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.models.files import ModelFiles
from grpo.models.resolve import resolve
from grpo.run.parts import build_sampler, load_task
from grpo.types import RoundPlan

# Of pass rates, by their posterior means.
BINS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.7, 1.0)


def measure(rates: Path, count: int, size: int) -> list[dict]:
    words = ["experiment=bigmath_small", f"task.data.path={rates}", "task.data.held_out_fraction=0"]
    config = with_precision(
        compose_config([*words, "task.curriculum.name=uniform", "objective.aggregation.level=sequence_mean"])
    )
    device = ranks.device(config.device)
    files = ModelFiles(resolve(config.model, list))
    init_distributed(device, config.learner.deadline_seconds)
    sampler = build_sampler(config, files, device, TorchCollective(device))
    with load_task(config, files.tokenizer) as task:
        prompts = task.next_prompts(task.num_problems)
        prompts.sort(key=lambda prompt: prompt.problem.metadata["solve_rate_correct"] == 0)
        scored = task.grade(sampler.generate(Draw(prompts[:count], size)))
    learner = DeepSpeedLearner(LearnerSettings.of(config), files, device)
    plan = RoundPlan(size, 1, 1, learning_rate_factor=0.0)
    makers = {
        alpha: BatchMaker(
            replace(config.normalization, exponent=alpha), config.objective, config.learner, learner.collective
        )
        for alpha in (0.0, 1.0)
    }
    rows = []
    for group in track(scored, "groups"):
        (correct, tried), metadata = group.count, group.group.prompt.problem.metadata
        prior = [metadata["solve_rate_correct"], metadata["solve_rate_samples"]]
        row = {"correct": correct, "tried": tried, "prior": prior}
        for alpha, make in makers.items():
            silent = correct in (0, tried)
            reports = [] if silent else [learner.step(batch) for batch in make(learner.add_logprobs([[group]]), plan)]
            row[f"norm_{alpha:g}"] = reports[0].gradient_norm if reports else 0.0
        rows.append(row)
    return rows


def by_difficulty(rows: list[dict], everything: np.ndarray) -> Table:
    """Returns a table of the gradient by difficulty. The problems of `rows` were not chosen at random, so `everything`
    has (solved, tried) of all problems of the file."""
    # Their rates as one Beta by moments: what a problem's own counts are shrunk towards.
    solved, tried = everything.T
    rates, tries = solved / tried, tried.mean()
    mean = rates.mean()
    spread = max((rates.var() - mean * (1 - mean) / tries) / (1 - 1 / tries), 1e-4)
    strength = mean * (1 - mean) / spread - 1
    prior = np.array([row["prior"] for row in rows], float)
    hits, misses = prior[:, 0] + strength * mean, prior[:, 1] - prior[:, 0] + strength * (1 - mean)
    posterior = hits / (hits + misses)
    size = rows[0]["tried"]
    law = [stats.betabinom(size, a, b).pmf([0, size]).sum() for a, b in zip(hits, misses, strict=True)]
    correct = np.array([row["correct"] for row in rows])
    sigma = np.sqrt(correct / size * (1 - correct / size))
    table = Table(
        *("pass rate before", "groups", "silent", "by the law", "‖difference of mean scores‖"),
        *(f"share of ‖gradient‖, α = {alpha}" for alpha in (0, 1)),
        *(f"of σ^(2−α), α = {alpha}" for alpha in (0, 1)),
    )
    for low, high in pairwise(BINS):
        inside = (posterior >= low) & (posterior < high)
        if not inside.any():
            continue
        speaking = inside & (sigma > 0)
        norms = {alpha: np.array([row[f"norm_{alpha}"] for row in rows]) for alpha in (0, 1)}
        scores = norms[0][speaking] / sigma[speaking] ** 2
        table.add_row(
            *(f"{low:g} to {high:g}", str(inside.sum()), f"{(sigma[inside] == 0).mean():.2f}"),
            *(
                f"{np.mean(np.array(law)[inside]):.2f}",
                f"{scores.mean():.2f} ± {stats.sem(scores):.2f}" if len(scores) > 1 else "",
            ),
            *(f"{norms[alpha][inside].sum() / norms[alpha].sum():.2f}" for alpha in (0, 1)),
            *(
                f"{(sigma[speaking] ** (2 - alpha)).sum() / (sigma[sigma > 0] ** (2 - alpha)).sum():.2f}"
                for alpha in (0, 1)
            ),
        )
    return table


def main(rates: str, output: str, count: str = "96", size: str = "16") -> None:
    if not Path(output).exists():
        Path(output).write_text(json.dumps(measure(Path(rates), int(count), int(size))))
    rows = json.loads(Path(output).read_text())
    known = map(json.loads, Path(rates).read_text().splitlines())
    everything = np.array([(rate["solve_rate_correct"], rate["solve_rate_samples"]) for rate in known], float)
    Console(width=150).print(by_difficulty(rows, everything))
    hard = np.array(
        [
            0 < row["correct"] <= 0.1 * row["tried"] or 0.9 * row["tried"] <= row["correct"] < row["tried"]
            for row in rows
        ]
    )
    sigma = np.array([np.sqrt(row["correct"] * (row["tried"] - row["correct"])) / row["tried"] for row in rows])
    for alpha in (0, 1):
        norms = np.array([row[f"norm_{alpha}"] for row in rows])
        law = np.where(sigma > 0, sigma, 0.0) ** (2 - alpha)
        print(
            f"α = {alpha}: {norms[hard].sum() / norms.sum():.1%} of the gradient from groups with p < .1 or > .9, "
            f"{law[hard].sum() / law.sum():.1%} by σ^(2−α)"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
