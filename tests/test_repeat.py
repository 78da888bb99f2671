"""The same command gives the same bits on a CPU, with the engines in the learner's process and on several ranks.

Engines in processes of their own cannot promise that (`grpo.run.preflight.check_repeatable`)."""

import shutil

import pytest
from safetensors.torch import load_file

from grpo.config.folder import METRICS_FILE, MODEL_FOLDER, PROMPTS_FILE, SAMPLES_FILE
from grpo.telemetry.json_lines import read_metrics
from grpo.types import metrics as m
from tests import warm

WORDS = [
    *("experiment=tiny", "num_steps=4", "dynamics.refresh_interval=2", "dynamics.prompts_per_step=4", "device=cpu"),
    *("evaluation.num_problems=0", "objective.kl.coefficient=0.02"),
]
MEASURED_BY_CLOCKS = (m.TIME, m.ENERGY, "throughput/", "memory/", "rollout/", "forecast/")


def repeatable(output):
    """Returns all that a run has recorded but for times and memory, and the weights that it exported."""
    rows = [
        {name: value for name, value in row.items() if not name.startswith(MEASURED_BY_CLOCKS)}
        for row in read_metrics(output / METRICS_FILE)
    ]
    weights = load_file(output / MODEL_FOLDER / "model.safetensors")
    return rows, [read_metrics(output / name) for name in (SAMPLES_FILE, PROMPTS_FILE)], weights


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "ranks"),
    [
        (["rollout=transformers"], 1),
        (["rollout=transformers", "learner.zero_stage=3"], 2),
        (["rollout=vllm"], 1),
    ],
)
def test_the_same_command_gives_the_same_bits(engine, ranks, tmp_path):
    output, runs = tmp_path / "run", []
    for _ in range(2):
        words = ["-m", "grpo.cli", "train", *WORDS, *engine, f"output_dir={output}"]
        done = warm.run(words) if ranks == 1 else warm.ranks(ranks, words)
        assert done.returncode == 0, done.stdout + done.stderr
        runs.append(repeatable(output))
        shutil.rmtree(output)
    (rows, records, weights), (rows_again, records_again, weights_again) = runs
    assert len(rows) == 2 and rows[1][m.REFERENCE_KL] > 0
    differing = {
        name
        for one, again in zip(rows, rows_again, strict=True)
        for name in one | again
        if one.get(name) != again.get(name)
    }
    assert differing == set() and records == records_again
    assert weights.keys() == weights_again.keys()
    assert all(weight.equal(weights_again[name]) for name, weight in weights.items())
