"""This module samples the next round while the learner works on the present one."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace

from grpo.interfaces import Collector, Task
from grpo.types import Collected, RoundPlan


class AheadCollector:
    """Samples one round ahead (`pipeline=one_round`): a round is sampled by the policy before the last refresh, so its
    staleness is τ steps more than without.

    `collect` returns the round that was sampled during the last one, with the present plan's learning rate and entropy
    settings, and starts to sample the next round. `settle` is called before weights change. The wrapped collector,
    which takes its prompts from `task`, runs in a separate thread, so its collectives need a process group of their
    own.
    """

    def __init__(self, collector: Collector, task: Task):
        self._collector = collector
        self._task = task
        self._ahead: Future[Collected] | None = None
        self._taken_cursor = 0

    def collect(self, plan: RoundPlan, steps_left: int) -> Collected:
        collected_groups = (self._ahead or self._start(plan, steps_left)).result()
        self._taken_cursor = collected_groups.cursor
        # A lowered learning rate holds from this round on, although its samples were asked before. An entropy bonus
        # does too.
        learning_plan = replace(
            collected_groups.plan,
            learning_rate_factor=plan.learning_rate_factor,
            entropy_coefficient=plan.entropy_coefficient,
            entropy_bonus=plan.entropy_bonus,
        )
        steps_after = steps_left - collected_groups.plan.refresh_interval
        # The next plan is not known yet, so this one is used, cut at the end of the run.
        next_plan = replace(plan, refresh_interval=min(plan.refresh_interval, steps_after))
        self._ahead = self._start(next_plan, steps_after) if steps_after > 0 else None
        return replace(collected_groups, plan=learning_plan)

    def forget(self) -> None:
        if self._ahead is not None:
            self.settle()
            self._ahead, self._task.cursor = None, self._taken_cursor

    def settle(self) -> None:
        """Waits until nothing is being sampled. An error of sampling is raised when the failed round is collected."""
        if self._ahead is not None:
            self._ahead.exception()

    def _start(self, plan: RoundPlan, steps_left: int) -> Future[Collected]:
        future: Future[Collected] = Future()

        def sample() -> None:
            try:
                future.set_result(self._collector.collect(plan, steps_left))
            except BaseException as error:
                future.set_exception(error)

        # The thread is a daemon, so that a run that ends does not wait for samples that nobody will learn from.
        threading.Thread(target=sample, name="sampling ahead", daemon=True).start()
        return future
