"""A request is what a person asks of `grpo dynamics plan` or `whatif`. It loads nothing that takes time."""

from dataclasses import dataclass

from grpo.config.run import AdaptiveConfig

UNITS = ("steps", "tokens", "seconds")


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A plan request holds what is known before a run, and the limits of the plan.

    prompt_tokens, completion_tokens   mean lengths
    budget_tokens                      total number of prompt and completion tokens to sample; 0 where none is given
    prompts_per_step                   prompts in one optimizer step
    exponent, mean_exponent, ddof      the dials' α and β, and σ's degrees of freedom
    smallest, largest                  smallest and largest group size that may be proposed; those of the schedule
    """

    prompt_tokens: float = 100.0
    completion_tokens: float = 500.0
    budget_tokens: float = 0.0
    prompts_per_step: int = 128
    exponent: float = 1.0
    mean_exponent: float = 0.0
    ddof: int = 0
    smallest: int = AdaptiveConfig.smallest_group
    largest: int = AdaptiveConfig.largest_group


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget is what every alternative may spend: an amount of one of `UNITS`."""

    unit: str
    amount: float

    @property
    def words(self) -> str:
        return f"{self.amount:,.0f} {self.unit}"
