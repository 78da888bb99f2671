"""How a round is filled with scored groups: once, or again and again until none is silent."""

from __future__ import annotations

from grpo.config import RefillConfig
from grpo.interfaces import Collective, Sampler, Task
from grpo.types import Collected, RoundPlan, ScoredGroup


class PlainCollector:
    """Every prompt is asked once; silent groups stay in."""

    def __init__(self, task: Task, sampler: Sampler):
        self._task = task
        self._sampler = sampler

    def collect(self, plan: RoundPlan) -> Collected:
        scored = self.sample(plan.prompts_per_round, plan.group_size)
        self._sampler.sleep()
        return Collected(tuple(scored), tuple(scored))

    def sample(self, num_prompts: int, group_size: int) -> list[ScoredGroup]:
        """This rank's share of the next `num_prompts` prompts, sampled and graded."""
        prompts = self._task.next_prompts(num_prompts)
        return self._task.grade(self._sampler.generate(prompts, group_size))


class RefillingCollector:
    """DAPO's dynamic sampling (arXiv:2503.14476): silent groups make room for groups of other prompts.

    Waves are synchronous over ranks: each draws as many prompts per rank as the neediest rank lacks, so
    the stream of prompts stays one stream. After `max_waves` a rank that is still short falls back to its
    own silent groups ("silent") or learns from fewer ("short").
    """

    def __init__(self, task: Task, sampler: Sampler, refill: RefillConfig, collective: Collective):
        self._plain = PlainCollector(task, sampler)
        self._sampler = sampler
        self._refill = refill
        self._collective = collective

    def collect(self, plan: RoundPlan) -> Collected:
        wanted = plan.prompts_per_round // self._collective.world_size
        sampled: list[ScoredGroup] = []
        for _ in range(self._refill.max_waves):
            informative = [scored for scored in sampled if not scored.silent]
            missing = self._collective.maximum(max(0, wanted - len(informative)))
            if not missing:
                break
            sampled += self._plain.sample(missing * self._collective.world_size, plan.group_size)
        self._sampler.sleep()
        kept = [scored for scored in sampled if not scored.silent][:wanted]
        if self._refill.fallback == "silent":
            silent = [scored for scored in sampled if scored.silent]
            kept += silent[: wanted - len(kept)]
        return Collected(tuple(kept), tuple(sampled))
