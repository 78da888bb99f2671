"""This script trains all weights, adapters, and merged adapters, and compares the gaps between sampler and learner.

    python benchmarks/adapters.py DIRECTORY SEEDS WORDS…

WORDS are those of `grpo train`, e.g. `experiment=tiny num_steps=40 learner.precision=bfloat16`. Each way is trained
with seeds 0 to SEEDS − 1, one run after another. A run that has finished in DIRECTORY is not repeated. Prints a row for
each way: mean |sampler − learner| in nats a token and the KL divergence over the last third of the rounds, and the pass
rate there, each with the lowest and the highest seed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parent.parent
WAYS = {
    "all weights": [],
    "adapters": ["model.lora.rank=16"],
    "adapters, merged": ["model.lora.rank=16", "rollout.merge_adapters=true"],
}
# A whole model keeps the experiment's rate; adapters get the one that the script is given.
RATE = "learner.learning_rate"
SHOWN = {"gap": "mismatch/mean_abs", "KL": "mismatch/kl", "pass rate": "pass_rate"}


def train(folder: Path, words: list[str]) -> None:
    """Trains in `folder`, unless a run has finished there."""
    if not (folder / "report.html").exists():
        command = [sys.executable, "-m", "grpo.cli", "train", *words, f"output_dir={folder}"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def late_means(folder: Path) -> dict[str, float]:
    """Returns the means of what is shown over the last third of a run's rounds."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    late = rows[-(len(rows) // 3) :]
    return {name: mean(row[key] for row in late if key in row) for name, key in SHOWN.items()}


def main(directory: str, seeds: str, *words: str) -> None:
    rates = [word for word in words if word.startswith(RATE)]
    common = [word for word in words if word not in rates]
    for way, own in WAYS.items():
        means = []
        for seed in range(int(seeds)):
            folder = Path(directory, f"{way.replace(', ', '-').replace(' ', '-')}-{seed}").absolute()
            train(folder, [*common, *own, *(rates if own else []), f"seed={seed}"])
            means.append(late_means(folder))
        columns = [
            f"{name} {mean(values):.3g} [{min(values):.3g}, {max(values):.3g}]"
            for name in SHOWN
            for values in [[of_seed[name] for of_seed in means]]
        ]
        print(f"{way:18}", *columns, sep="  ", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
