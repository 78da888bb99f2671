"""This module evaluates a run's policy on held-out problems, and on the sets of `evaluation.suite`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo.config import TaskConfig, TrainConfig
from grpo.evaluation import held_out
from grpo.host.alive import working
from grpo.host.together import on_first
from grpo.interfaces import Collective, Sampler, Task
from grpo.rollout.grading_thread import GradingThread, sampled_and_graded
from grpo.run.clocks import Clocks, EvaluatedSampler
from grpo.run.parts import load_task
from grpo.run.records import RecordFiles
from grpo.tasks.task import VerifiableTask


class PolicyEvaluation:
    """Evaluates the policy that the sampler holds. Its seconds count in no round. Calls are collective."""

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        suite: Sequence[TaskConfig],
        tokenizer: PreTrainedTokenizerBase,
        sampler: Sampler,
        clocks: Clocks,
        collective: Collective,
    ):
        self._config, self._task, self._suite, self._tokenizer = config, task, suite, tokenizer
        self._sampler, self._clocks, self._collective = sampler, clocks, collective
        # One thread serves all evaluations, because grading processes end with the thread that has started or restarted
        # them.
        self._grading = GradingThread(task, collective=collective)

    def __call__(self) -> dict[str, Any]:
        """Returns the result on held-out problems (see `held_out.evaluate`), with the suite's results under "suite".

        Has to be called after a refresh, before the sampler sleeps again.
        """
        evaluation = self._config.evaluation
        # A small set has fewer problems than are asked for.
        num_problems = len(self._task.held_out_prompts(evaluation.num_problems))
        with working(f"evaluating {num_problems} held-out problems × {evaluation.samples_per_problem}"):
            result = self._ask(self._grading, self._task, evaluation.num_problems)
        with working("evaluating the suite"):
            suite = held_out.evaluate_suite(self._suite, self._load, self._ask_set)
        return held_out.with_suite(result, suite)

    def _ask_set(self, task: Task, num_problems: int) -> dict[str, Any]:
        with GradingThread(task, collective=self._collective) as grading:
            return self._ask(grading, task, num_problems)

    def _ask(self, grading: GradingThread, task: Task, num_problems: int) -> dict[str, Any]:
        evaluation = replace(self._config.evaluation, num_problems=num_problems)
        sampler = EvaluatedSampler(self._sampler, self._clocks)
        ask = partial(sampled_and_graded, sampler, self._clocks.evaluation_grading(grading))
        result = held_out.evaluate(task, ask, evaluation, self._config.rollout.sampling, self._collective)
        return {"step": sampler.policy_version} | result

    def _load(self, task: TaskConfig) -> VerifiableTask:
        config = replace(self._config, task=task)
        return load_task(config, self._tokenizer, self._collective.rank, self._collective.world_size)


def record_evaluation(result: dict[str, Any], files: RecordFiles | None, collective: Collective) -> None:
    """Writes a result into the run's files and prints it, on the first rank. One without a graded problem has no
    numbers, so it is only printed. Collective."""
    if held_out.is_graded(result):
        on_first(collective, lambda: files.tracker.evaluation(result, result["step"]))
    for line in held_out.result_lines(result) if files else ():
        files.display.note(f"step {result['step']}: {line}")
