"""This module holds the tasks and the runs of `schedule.py`: small models, trained on a budget of tokens in a fork.

A fork of a process that has loaded torch begins at once. A run ends after the round in which its tokens are spent, as
if it were interrupted, so it draws no report.
"""

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.runs import rows
from grpo import Trainer
from grpo.models.cache import build_once
from grpo.models.tiny import build_tiny, cache_entry
from grpo.tasks.arithmetic import arithmetic_problems

LOADED = ("grpo.learner.learner", "grpo.run.session", "grpo.rollout.transformers_sampler")
"""A script loads these before its first run, so that forks need not."""
COMMON = [
    *("normalization=dr_grpo", "objective=dr_grpo", "evaluation.num_problems=0", "checkpoint.export=false"),
    *("checkpoint.every_rounds=0", "dynamics.diagnose_every=0", "tracking.samples_per_round=0"),
]
TINY = ("experiment=tiny", "rollout=transformers", "dynamics.prompts_per_step=12")
SMOLLM2 = ("experiment=quickstart", "learner.schedule=constant")
OPTIONS = "task.data.options={{min: 0, max: {}, num_terms: {}, operators: {}}}"


# These make the task of experiment=tiny from a file.
OF_FILE = (
    *("task=file", "task.data.question_column=question", "task.data.answer_column=answer"),
    *("task.prompt.template='{question}'", "task.prompt.max_tokens=24", "task.data.held_out_fraction=0.2"),
    *("task.reward.parts=[{name: number}]", "task.reward.extract=all"),
)


@dataclass(frozen=True)
class SumsTask:
    """A task of sums has a right learning rate, the overrides that make its problems, and perhaps two halves.

    A task with halves asks the questions of the first options until half of the tokens are spent, then those of the
    second. The model is warmed up on both. A run spends `tokens`, and a completion has at most `most_tokens`.
    """

    rate: float
    words: tuple[str, ...] = ()
    halves: tuple[dict, ...] = ()
    base: tuple[str, ...] = TINY
    tokens: int = 20_000
    most_tokens: int = 6


def sums(largest: int, terms: int, operators: str, size: int = 0, *further: str) -> tuple[str, ...]:
    return (OPTIONS.format(largest, terms, [*operators]), f"task.data.size={size}", *further)


PLUS_TO_24, MINUS_TO_24 = ({"max": 24, "operators": [operator]} for operator in "+-")
TWO_TERMS, THREE_TERMS = {"max": 9}, {"max": 9, "operators": ["+", "-"], "num_terms": 3, "size": 1500}
THREE_IN_WORDS = ("task.data.options={min_terms: 3, max_terms: 3}",)
TASKS = {
    "two terms to 9": SumsTask(3e-4),
    "three terms to 6": SumsTask(3e-4, sums(6, 3, "+", 0, "rollout.sampling.temperature=1.3")),
    "differences to 24": SumsTask(3e-4, sums(24, 2, "-")),
    "three terms to 19": SumsTask(1e-4, sums(19, 3, "+-", 3000)),
    "four terms to 9": SumsTask(1e-4, sums(9, 4, "+-", 3000)),
    "products to 60": SumsTask(1e-4, sums(60, 2, "*")),
    "sums, then differences": SumsTask(3e-4, (), (PLUS_TO_24, MINUS_TO_24)),
    "two terms, then three": SumsTask(3e-4, (), (TWO_TERMS, THREE_TERMS)),
    **{
        f"{prompts} prompts, {name}": SumsTask(3e-4, (*words, f"dynamics.prompts_per_step={prompts}"))
        for prompts in (3, 48)
        for name, words in {
            "two terms to 9": (),
            "three terms to 6": sums(6, 3, "+", 0, "rollout.sampling.temperature=1.3"),
            "differences to 24": sums(24, 2, "-"),
        }.items()
    },
    "SmolLM2, two terms to 9": SumsTask(1e-5, (), (), SMOLLM2, 24_000, 12),
    "SmolLM2, three terms to 9": SumsTask(1e-5, THREE_IN_WORDS, (), SMOLLM2, 24_000, 12),
}


def curve(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens spent until the end of each round, and the pass rate of each round."""
    found = [row for row in rows(folder / "metrics.jsonl") if "pass_rate" in row]
    return np.cumsum([tokens_of(row) for row in found]), np.array([row["pass_rate"] for row in found])


def tokens_of(row: dict) -> float:
    """Returns the prompt and completion tokens of a round. A prompt counts once for its group."""
    prompts = row["groups/num_sampled"] * row["prompts/length_mean"]
    return prompts + row["completions/num_sampled"] * row["completions/length_mean"]


def has_spent(tokens: float, folder: Path) -> bool:
    return curve(folder)[0][-1:].sum() >= tokens


def train(task: SumsTask, words: Sequence[str], folder: Path) -> None:
    """Trains until the task's tokens are spent, and changes the problems half way where the task says so."""
    words, halves = [*task.base, *task.words, *words], [_problems(options) for options in task.halves]
    if halves:
        pairs = [(row["question"], row["answer"]) for half in halves for row in half]
        model = build_once(cache_entry(pairs), partial(build_tiny, examples=pairs))
        words += ["model.source=huggingface", f"model.path={model}", *OF_FILE]
    for number, half in enumerate(halves or [None], start=1):
        resumed = [f"checkpoint.resume={str(number > 1).lower()}"]
        run([*words, *resumed], folder, partial(has_spent, task.tokens * number / max(len(halves), 1)), half)
    # SmolLM2's take two GiB.
    shutil.rmtree(folder / "checkpoints")


def _problems(options: dict) -> list[dict]:
    size = options.get("size", 0)
    problems = arithmetic_problems({key: value for key, value in options.items() if key != "size"}, size, seed=0)
    return [{"question": problem.question, "answer": problem.answer} for problem in problems]


def run(words: Sequence[str], folder: Path, enough: Callable[[Path], bool], dataset: list[dict] | None = None) -> None:
    """Trains in a fork until it is `enough`, which is asked after each round. The run's output is appended to a file
    beside the folder. The script ends where the run fails."""
    log = folder.with_suffix(".txt")

    def stop(step: int, metrics: Mapping[str, float]) -> None:
        if enough(folder):
            os.kill(os.getpid(), signal.SIGTERM)

    fork = os.fork()
    if not fork:
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            code = 1
            try:
                Trainer(*COMMON, *words, f"output_dir={folder}", dataset=dataset, after_round=stop).train()
                code = 0
            except BaseException:
                traceback.print_exc(file=file)
            finally:
                file.flush()
                sys.stdout.flush()
                os._exit(code)
    if os.waitpid(fork, 0)[1]:
        sys.exit(f"{folder.name}: {log.read_text()[-2000:]}")
